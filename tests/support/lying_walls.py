"""Attackers around which walls do not stand that stood in the probe: what the matrix must notice.

Only a test's launch command names this module.
"""

from loopwarden_engine import confinement
from loopwarden_engine.attacks.worker import Attacker


def do_nothing(*arguments: object) -> None:
    """A wall that says that it stands."""


class WithoutLandlock(Attacker):
    """Made in the worker just before its walls, which the probe never does."""

    def __init__(self, channel_fd: int) -> None:
        confinement.deny_everything = do_nothing  # type: ignore[attr-defined]
        super().__init__(channel_fd)


class WithoutWalls(Attacker):
    """The same, without any."""

    def __init__(self, channel_fd: int) -> None:
        for name in (
            "close_all_but",
            "become_nobody",
            "renounce_privileges",
            "deny_everything",
            "set_limits",
            "install_filter",
        ):
            setattr(confinement, name, do_nothing)
        super().__init__(channel_fd)
