"""Slots for live agents across all runs of a host, in all and per provider, handed out first come, first served."""

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress

from loopwarden.pace import Pace


class AgentSlots:
    """`maxLiveAgents` of a host. A run that finds none free is called back when one is."""

    __slots__ = ("_free", "_waiting", "pace")

    def __init__(self, limit: int) -> None:
        self._free = limit
        self.pace = Pace()
        """For what the agents bring: their replies are decoded one after the other."""
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


class ProviderPlaces:
    """`max_concurrent` of each provider that has one, over all runs of a host."""

    __slots__ = ("_slots",)

    def __init__(self, limits: Mapping[str, int]) -> None:
        self._slots = {name: AgentSlots(limit) for name, limit in limits.items()}

    def take(self, provider: str, when_free: Callable[[], None]) -> bool:
        """Take a place at a provider. When there is none, `when_free` is called once later, and False is returned."""
        slots = self._slots.get(provider)
        return slots is None or slots.take(when_free)

    def withdraw(self, provider: str, when_free: Callable[[], None]) -> None:
        """Do not call `when_free` any more."""
        if (slots := self._slots.get(provider)) is not None:
            slots.withdraw(when_free)

    def give_back(self, provider: str) -> None:
        """Give a place back."""
        if (slots := self._slots.get(provider)) is not None:
            slots.give_back()
