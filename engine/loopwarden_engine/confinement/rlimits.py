"""Resource limits of a worker, and its place in the queue for processor and memory."""

import os
import resource
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from loopwarden_engine.confinement.wall import WallMissing, take_all

__all__ = ["WorkerLimits", "set_limits", "step_back"]

_NICENESS: Final = 5
_FIRST_TO_GO: Final = b"1000"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLimits:
    """What the kernel holds a worker to: `memory_bytes` of address space, `cpu_seconds` of processor time."""

    memory_bytes: int
    cpu_seconds: int


def step_back() -> None:
    """Let the host and its agents go first, and let the kernel take a worker before anything else when memory is short.

    Manners, not a wall: a system that forbids it loses nothing. Comes first, since the file is out of reach once
    walls stand.
    """
    with suppress(OSError):
        descriptor = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, _FIRST_TO_GO)
        finally:
            os.close(descriptor)
    with suppress(OSError):
        os.nice(_NICENESS)


def set_limits(limits: WorkerLimits) -> None:
    """Set every limit, and look; descriptors last, because nothing can be opened after that. Raises `WallMissing`.

    Hard limits that stand already are never raised: an ordinary user may not, and a stricter one serves as well.
    """
    take_all(
        lambda: _lower("RLIMIT_AS", limits.memory_bytes, limits.memory_bytes),
        # The soft limit answers with SIGXCPU, which tells a reader of the exit status what happened; the hard one
        # kills in any case.
        lambda: _lower("RLIMIT_CPU", limits.cpu_seconds, limits.cpu_seconds + 1),
        *(partial(_lower, name, 0, 0) for name in ("RLIMIT_FSIZE", "RLIMIT_CORE", "RLIMIT_NPROC", "RLIMIT_NOFILE")),
    )


def _lower(name: str, soft: int, hard: int) -> None:
    kind = getattr(resource, name)
    try:
        standing = resource.getrlimit(kind)[1]
        if standing != resource.RLIM_INFINITY:
            hard = min(hard, standing)
        wanted = (min(soft, hard), hard)
        resource.setrlimit(kind, wanted)
        found = resource.getrlimit(kind)
    except (OSError, ValueError, OverflowError) as error:
        # Python turns the refusal of the kernel into a ValueError that speaks of raising.
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not permitted"
        raise WallMissing(f"setrlimit {name}: {reason}") from None
    if found != wanted:
        raise WallMissing(f"setrlimit {name} changed nothing")
