"""Slots for live agents across all runs of a host, handed out first come, first served."""

from collections import deque
from collections.abc import Callable
from contextlib import suppress


class AgentSlots:
    """`maxLiveAgents` of a host. A run that finds none free is called back when one is."""

    __slots__ = ("_free", "_waiting")

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._waiting: deque[Callable[[], None]] = deque()

    def take(self, when_free: Callable[[], None]) -> bool:
        """Take a slot. When there is none, `when_free` is called once later, and False is returned."""
        if self._free > 0:
            self._free -= 1
            return True
        self._waiting.append(when_free)
        return False

    def withdraw(self, when_free: Callable[[], None]) -> None:
        """Do not call `when_free` any more: its run is over."""
        with suppress(ValueError):
            self._waiting.remove(when_free)

    def give_back(self) -> None:
        """Give a slot back."""
        self._free += 1
        while self._free > 0 and self._waiting:
            self._waiting.popleft()()
