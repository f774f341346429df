"""The names of the walls, and why one may be missing."""

from collections.abc import Callable
from typing import Final

__all__ = ["STANDS", "WALLS", "ConfinementError", "WallMissing", "take_all"]

WALLS: Final = ("descriptors", "identity", "no_new_privileges", "landlock", "rlimits", "seccomp")
"""In the order in which a worker puts them up."""

STANDS: Final = "stands"
"""What a report says of a wall that is up; anything else is the reason why it is not."""


class WallMissing(Exception):
    """A wall cannot be put up here; the text is the reason, for a person."""


class ConfinementError(Exception):
    """A wall that this worker must have could not be put up; the worker must leave without running anything.

    `wall` is one of `WALLS`, `reason` a short text.
    """

    def __init__(self, wall: str, reason: str) -> None:
        super().__init__(f"{wall}: {reason}")
        self.wall = wall
        self.reason = reason


def take_all(*steps: Callable[[], None]) -> None:
    """Take every step: what one part of a wall lacks takes nothing from the others. Raises the first `WallMissing`."""
    reasons: list[WallMissing] = []
    for step in steps:
        try:
            step()
        except WallMissing as missing:
            reasons.append(missing)
    if reasons:
        raise reasons[0]
