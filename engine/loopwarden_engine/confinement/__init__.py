"""The operating-system wall around a worker: everything is closed, denied or refused but the channel to the host.

Assumes nothing about the code that runs behind it: arbitrary Python gets no file, no socket, no process and no secret.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from loopwarden_engine.confinement.descriptors import close_all_but, prepare_look
from loopwarden_engine.confinement.identity import become_nobody, renounce_privileges
from loopwarden_engine.confinement.kernel import prepare_kernel_calls
from loopwarden_engine.confinement.landlock import deny_everything, find_ruleset
from loopwarden_engine.confinement.rlimits import WorkerLimits, set_limits, step_back
from loopwarden_engine.confinement.seccomp import install_filter, prepare_filter
from loopwarden_engine.confinement.syscalls import ARCHITECTURES
from loopwarden_engine.confinement.wall import STANDS, WALLS, ConfinementError, WallMissing

if TYPE_CHECKING:
    from loopwarden_engine.confinement.trials import Trials

__all__ = ["ARCHITECTURES", "STANDS", "WALLS", "ConfinementError", "WorkerLimits", "confine", "prepare"]


def prepare(channel_fd: int) -> None:
    """Work out, before any fork, what every worker whose channel is `channel_fd` needs: filter and Landlock ruleset."""
    prepare_kernel_calls()
    prepare_look(channel_fd)
    prepare_filter(channel_fd)
    find_ruleset()


def confine(
    channel_fd: int,
    limits: WorkerLimits,
    *,
    required: frozenset[str],
    parent_pid: int,
    walls: frozenset[str] = frozenset(WALLS),
    trials: "Trials | None" = None,
) -> dict[str, str]:
    """Put up `walls` around this process, for good, and say of each one in `WALLS` that it stands or why it does not.

    A wall stands when the process has looked at it, never because a call said so. `channel_fd` is the one descriptor
    that stays open, `parent_pid` the launcher, known from before the fork; with `trials` it is also tried what the
    walls must stop. Raises `ConfinementError` at the first wall in `required` that does not stand; the process must
    leave then, half confined as it is.
    """
    # The order matters: privileges are used up before they are given away, and each wall needs calls that a later one
    # forbids.
    builders: dict[str, list[Callable[[], None]]] = {
        "descriptors": [lambda: close_all_but(channel_fd)],
        "identity": [become_nobody],
        "no_new_privileges": [lambda: renounce_privileges(parent_pid)],
        "landlock": [deny_everything],
        "rlimits": [lambda: set_limits(limits)],
        "seccomp": [lambda: install_filter(channel_fd)],
    }
    if trials is not None:
        builders["descriptors"].append(trials.find_descriptors)
        builders["no_new_privileges"].append(trials.regain_rights)
        builders["landlock"] = [trials.reach_out]
        builders["rlimits"].append(trials.exceed_limits)
    step_back()
    report: dict[str, str] = {}
    for wall in WALLS:
        report[wall] = _build(builders[wall]) if wall in walls else "not asked for"
        if wall in required and report[wall] != STANDS:
            raise ConfinementError(wall, report[wall])
    return report


def _build(steps: list[Callable[[], None]]) -> str:
    try:
        for step in steps:
            step()
    except WallMissing as missing:
        return str(missing)
    except OSError as error:
        return error.strerror or "the kernel refused"
    return STANDS
