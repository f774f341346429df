"""The operating-system wall around a worker: everything is closed, denied or refused but the channel to the host.

Assumes nothing about the code that runs behind it: arbitrary Python gets no file, no socket, no process and no secret.
"""

from collections.abc import Callable

from loopwarden_engine.confinement.descriptors import close_all_but
from loopwarden_engine.confinement.identity import become_nobody, renounce_privileges
from loopwarden_engine.confinement.landlock import deny_everything, describe_landlock, find_ruleset
from loopwarden_engine.confinement.rlimits import WorkerLimits, set_limits, step_back
from loopwarden_engine.confinement.seccomp import install_filter, prepare_filter
from loopwarden_engine.confinement.wall import STANDS, WALLS, ConfinementError, WallMissing

__all__ = ["STANDS", "WALLS", "ConfinementError", "WorkerLimits", "confine", "describe_landlock", "prepare"]


def prepare(channel_fd: int) -> None:
    """Work out, before any fork, what every worker whose channel is `channel_fd` needs: filter and Landlock ruleset."""
    prepare_filter(channel_fd)
    find_ruleset()


def confine(
    channel_fd: int,
    limits: WorkerLimits,
    *,
    required: frozenset[str],
    parent_pid: int,
    walls: frozenset[str] = frozenset(WALLS),
) -> dict[str, str]:
    """Put up `walls` around this process, for good, and say of each one in `WALLS` that it stands or why it does not.

    `channel_fd` is the one descriptor that stays open, `parent_pid` the launcher, known from before the fork. Raises
    `ConfinementError` at the first wall in `required` that does not stand; the process must leave then, half confined
    as it is.
    """
    # The order matters: privileges are used up before they are given away, and each wall needs calls that a later one
    # forbids.
    builders: dict[str, Callable[[], None]] = {
        "descriptors": lambda: close_all_but(channel_fd),
        "identity": become_nobody,
        "no_new_privileges": lambda: renounce_privileges(parent_pid),
        "landlock": deny_everything,
        "rlimits": lambda: set_limits(limits),
        "seccomp": lambda: install_filter(channel_fd),
    }
    step_back()
    report: dict[str, str] = {}
    for wall in WALLS:
        report[wall] = _build(builders[wall]) if wall in walls else "not asked for"
        if wall in required and report[wall] != STANDS:
            raise ConfinementError(wall, report[wall])
    return report


def _build(build: Callable[[], None]) -> str:
    try:
        build()
    except OSError as error:
        return error.strerror or "the kernel refused"
    except (ValueError, OverflowError, WallMissing) as error:
        return str(error)
    return STANDS
