"""The host's own view of its lease of one run, on a clock that goes on while the machine sleeps.

The store decides who owns a run, in its own time. Between two answers of the store the host has to know by itself
whether it may still act. It reckons from the moment before it sent its last renewal that was granted, so its view
always ends before the lease does in the store.
"""

import asyncio
import sys
import time
from collections.abc import Callable
from typing import Final

KILL_GRACE_SECONDS: Final = 5.0
"""How long after the end of a lease a run is left alone until another host may claim it."""
WIND_DOWN_SHARE: Final = 0.5
"""Of the kill grace: for agents that wind down. The rest is for killing what they leave, and for a busy machine."""


def boot_seconds() -> float:
    """Seconds since the machine started, those included in which it slept (CLOCK_BOOTTIME, clock_gettime(2))."""
    if sys.platform == "linux":
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class LeaseView:
    """Until when the host may act for one run. For the event loop only.

    Args:
        ends_at: Seconds on the scale of `clock`. Read the clock before the claim or the renewal is sent to the store,
            add the length of the lease, and hand it over when the store has granted it.
        kill_grace_seconds: How long after its end the store keeps the run from other hosts. By then no process of an
            agent may be left.
        kills: False: agents go on when the lease is lost (`lease_lost = "hold"`), so nobody gives them a deadline.
        clock: Supervisors of agents always go by CLOCK_BOOTTIME, whatever is given here.
    """

    def __init__(
        self,
        ends_at: float,
        *,
        kill_grace_seconds: float = KILL_GRACE_SECONDS,
        kills: bool = True,
        clock: Callable[[], float] = boot_seconds,
    ) -> None:
        self.kill_grace_seconds: Final = kill_grace_seconds
        self.kills: Final = kills
        self.lapses = 0
        """How often a renewal came after the end. Agents that were at work then have been ended by their supervisors,
        although the lease is alive again."""
        self._ends_at = ends_at
        self._clock = clock
        self._subscribers: dict[object, Callable[[], None]] = {}

    @property
    def ends_at(self) -> float:
        """When the lease ends unless it is renewed: seconds on the scale of the clock."""
        return self._ends_at

    @property
    def left_seconds(self) -> float:
        """How long the lease still lasts; negative when it is over."""
        return self._ends_at - self._clock()

    @property
    def wind_down_seconds(self) -> float:
        """How long after the end agents may wind down until they are killed."""
        return self.kill_grace_seconds * WIND_DOWN_SHARE

    def is_alive(self, margin_seconds: float = 0.0) -> bool:
        """True while the lease lasts for more than `margin_seconds`."""
        return self.left_seconds > margin_seconds

    def renew(self, ends_at: float) -> None:
        """The store granted a renewal. Only moves forward: answers may arrive out of order."""
        if ends_at <= self._ends_at:
            return
        if not self.is_alive():
            self.lapses += 1
        self._ends_at = ends_at
        for told in list(self._subscribers.values()):
            told()

    async def renewed(self) -> None:
        """Wait until the lease is alive."""
        changed = asyncio.Event()
        end = self.subscribe(changed.set)
        try:
            while not self.is_alive():
                changed.clear()
                await changed.wait()
        finally:
            end()

    def subscribe(self, told: Callable[[], None]) -> Callable[[], None]:
        """Have `told` called whenever `ends_at` moves; it must not raise. Call what is returned to end that."""
        token = object()
        self._subscribers[token] = told

        def end() -> None:
            self._subscribers.pop(token, None)

        return end
