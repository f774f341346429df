"""The host's clock as an object, so that tests drive time instead of waiting for it."""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """A call that was put off."""

    def cancel(self) -> None:
        """Do not call any more. Harmless when it was called already."""


class Clock(Protocol):
    """Time as runs see it: deadlines, timeouts and graces. The processor time of workers is not part of it."""

    def now(self) -> float:
        """Seconds on a monotonic scale."""
        ...

    def wall(self) -> float:
        """Unix time in seconds: what servers and people mean when they name a time."""
        ...

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call `callback` once, `seconds` from now."""
        ...


class LoopClock:
    """Real time, kept by the running event loop."""

    def now(self) -> float:
        """Seconds on the loop's monotonic scale."""
        return time.monotonic()

    def wall(self) -> float:
        """Unix time in seconds."""
        return time.time()

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call `callback` once, `seconds` from now."""
        return asyncio.get_running_loop().call_later(seconds, callback)
