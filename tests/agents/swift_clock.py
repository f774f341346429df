"""A clock for hosts that runs ahead: what is said to last minutes is over in a moment, and nothing is pretended."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class SwiftClock:
    """Time that passes `speed` times as fast as elsewhere, from the moment at which this was made."""

    speed: float
    _began: float = field(default_factory=time.monotonic)
    _began_wall: float = field(default_factory=time.time)

    def now(self) -> float:
        """Seconds on a monotonic scale."""
        return (time.monotonic() - self._began) * self.speed

    def wall(self) -> float:
        """Unix time in seconds; it runs ahead too."""
        return self._began_wall + self.now()

    def call_later(self, seconds: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Call `callback` once, `seconds` of this clock from now."""
        return asyncio.get_running_loop().call_later(seconds / self.speed, callback)
