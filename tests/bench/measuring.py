"""How figures are taken: repeats, and the memory of processes."""

import re
import statistics
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path


class NotMeasured(Exception):
    """A figure cannot be taken on this machine. The message says why."""


async def median(repeats: int, measure: Callable[[], Awaitable[float]]) -> float:
    """The median of `repeats` measurements after one that does not count."""
    await measure()
    return statistics.median([await measure() for _ in range(repeats)])


def private_kib(pid: int) -> int:
    """Memory of one process that no other process shares."""
    return _kib(pid, r"Private_\w+")


def shared_out_kib(pids: Iterable[int]) -> int:
    """Memory of processes in all. What processes share is counted once, in equal parts for each."""
    return sum(_kib(pid, "Pss") for pid in pids)


def _kib(pid: int, line: str) -> int:
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    return sum(int(size) for size in re.findall(rf"^{line}:\s+(\d+) kB", rollup, re.MULTILINE))
