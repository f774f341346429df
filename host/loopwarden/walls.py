"""The walls of this machine, for people: what `loopwarden doctor` shows and what a receipt lists."""

from dataclasses import dataclass
from typing import Final

from loopwarden.launching import Launcher
from loopwarden.wall_probe import MANDATORY_WALLS
from loopwarden_engine.confinement import STANDS, WALLS

__all__ = ["Wall", "probe_walls"]

_DESCRIPTIONS: Final = {
    "descriptors": "nothing is open but the channel to the host",
    "identity": "user and group nobody, no groups",
    "landlock": "no file",
    "no_new_privileges": "no capabilities, no way to new ones, cannot be traced, ends with its launcher",
    "rlimits": "no file, no process, no descriptor; memory and processor time are capped",
    "seccomp": "only memory, clock and channel calls; anything else ends the worker",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wall:
    """One wall.

    `detail` says what it keeps out, or why it does not stand; `mandatory`: runs are refused without it by default.
    """

    name: str
    stands: bool
    mandatory: bool
    detail: str


async def probe_walls() -> list[Wall]:
    """Start a launcher, send probes through the full cycle, and say what stood.

    Raises `LaunchFailed` or `ConfinementUnavailable`.
    """
    launcher = await Launcher.start(lambda: None, allow_weak_confinement=True)
    try:
        found, details = launcher.walls, _DESCRIPTIONS | dict(launcher.wall_details)
    finally:
        await launcher.close()
    return [
        Wall(
            name=name,
            stands=found[name] == STANDS,
            mandatory=name in MANDATORY_WALLS,
            detail=details[name] if found[name] == STANDS else found[name],
        )
        for name in WALLS
    ]
