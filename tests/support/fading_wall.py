"""Workers around which Landlock does not stand any more, although it stood in the probe.

Only a test's launch command names this module.
"""

import errno
import os

from loopwarden_engine import confinement
from support.plain_python import PlainPython


def _fail() -> None:
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


class Fading(PlainPython):
    """Made in the worker just before its walls, which the probe never does."""

    def __init__(self, channel_fd: int) -> None:
        confinement.deny_everything = _fail  # type: ignore[attr-defined]
        super().__init__(channel_fd)
