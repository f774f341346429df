"""A launcher on a kernel without Landlock, as far as its workers can tell.

Only a test's launch command names this module.
"""

import errno
import os

from loopwarden_engine import confinement
from support.plain_python import PlainPython

__all__ = ["PlainPython"]


def _fail() -> None:
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


confinement.deny_everything = _fail  # type: ignore[attr-defined]
