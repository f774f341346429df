"""Counting what a run may leave behind: processes of this process, and its descriptors.

The nursery belongs to the process and not to a run; it leaves before anything is counted, unless an agent still lives.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path

from loopwarden.providers.supervisors import SUPERVISORS

PATIENCE_SECONDS = 10.0


def descendants(pid: int) -> set[int]:
    """All living or unreaped processes below `pid`."""
    SUPERVISORS.close_when_idle()
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    below: set[int] = set()
    grew = True
    while grew:
        grew = False
        for child, parent in parents.items():
            if child not in below and (parent == pid or parent in below):
                below.add(child)
                grew = True
    return below


def descriptors() -> int:
    """How many descriptors this process holds."""
    SUPERVISORS.close_when_idle()
    return len(os.listdir("/proc/self/fd"))


def is_running(pid: int) -> bool:
    """True while the process exists and is no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in {"Z", "X"}


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Look until `condition` holds. Fails after `PATIENCE_SECONDS`."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {PATIENCE_SECONDS:g} s"
        time.sleep(0.005)
