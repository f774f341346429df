"""Resource limits of a worker, and its place in the queue for processor and memory."""

import os
import resource
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

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
    """Set every limit; descriptors last, because nothing can be opened after that. Raises `OSError` or `ValueError`.

    Hard limits that stand already are never raised: an ordinary user may not, and a stricter one serves as well.
    """
    _lower(resource.RLIMIT_AS, limits.memory_bytes, limits.memory_bytes)
    # The soft limit answers with SIGXCPU, which tells a reader of the exit status what happened; the hard one kills
    # in any case.
    _lower(resource.RLIMIT_CPU, limits.cpu_seconds, limits.cpu_seconds + 1)
    _lower(resource.RLIMIT_FSIZE, 0, 0)
    _lower(resource.RLIMIT_CORE, 0, 0)
    _lower(resource.RLIMIT_NPROC, 0, 0)
    _lower(resource.RLIMIT_NOFILE, 0, 0)


def _lower(kind: int, soft: int, hard: int) -> None:
    standing = resource.getrlimit(kind)[1]
    if standing != resource.RLIM_INFINITY:
        hard = min(hard, standing)
    resource.setrlimit(kind, (min(soft, hard), hard))
