"""Facts that attacks are told of this machine: values that change something here, whatever stands already."""

import os
import resource
from typing import Any, Final

from loopwarden.machine_programs import find_loader, find_set_user_id_program
from loopwarden.machine_state import read_number, read_status

__all__ = ["find_facts"]

_NEW_USER_NAMESPACE: Final = 0x10000000
_LIKELY_TO_GO: Final = 1000
_LOWEST_PRIORITY: Final = 19
_MEMORY_BYTES: Final = 1 << 40
_PROCESSOR_SECONDS: Final = 100_000
_PAGE_BYTES: Final = 4096


def find_facts() -> dict[str, Any]:
    """By the names under which the code of attacks finds them."""
    return {
        "bounding_capability": _find_bounding_capability(),
        "loader": find_loader(),
        "memory_limit": _below(resource.RLIMIT_AS, _MEMORY_BYTES, _PAGE_BYTES),
        "oom_score": _LIKELY_TO_GO - (read_number("/proc/self/oom_score_adj", 0) == _LIKELY_TO_GO),
        "priority": _LOWEST_PRIORITY - (os.getpriority(os.PRIO_PROCESS, 0) == _LOWEST_PRIORITY),
        "processor": min(os.sched_getaffinity(0)),
        "processor_limit": _below(resource.RLIMIT_CPU, _PROCESSOR_SECONDS, 1),
        "scheduler": _find_scheduler(),
        "set_user_id_program": find_set_user_id_program(),
        "user_namespace": 0 if os.geteuid() == 0 else _NEW_USER_NAMESPACE,
    }


def _find_scheduler() -> int:
    """A policy that everybody may choose. Its flag is new in any case, because no child inherits it."""
    is_idle = os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK == os.SCHED_IDLE
    return (os.SCHED_IDLE if is_idle else os.SCHED_BATCH) | os.SCHED_RESET_ON_FORK


def _below(kind: int, usual: int, step: int) -> int:
    """Another limit than the one that stands, which may be set without a right to raise it."""
    hard = resource.getrlimit(kind)[1]
    return usual if hard == resource.RLIM_INFINITY or hard > usual else hard - step


def _find_bounding_capability() -> int:
    """The lowest right that a program of root could still get."""
    held = int(read_status("CapBnd") or "0", 16)
    return (held & -held).bit_length() - 1 if held else 0
