"""Processor time of a worker, read from outside: a spin in C is found like any other.

A turn begins when the worker got something to do and ends when it says that it consumed every reply. The clock of the
process is the kernel's (clock_getcpuclockid(3)): the worker cannot change it.
"""

import time
from collections.abc import Callable
from typing import Final, Literal

from loopwarden.clock import LoopClock, Timer

CpuLimit = Literal["cpuSecondsPerTurn", "cpuSecondsPerRun"]
_SMALLEST_WAIT_SECONDS: Final = 0.005
_LONGEST_WAIT_SECONDS: Final = 1.0


class Watchdog:
    """Calls `on_exceeded` once when a worker used more than its processor time."""

    __slots__ = ("_clock", "_clock_id", "_on_exceeded", "_per_run", "_per_turn", "_timer", "_turn_began")

    def __init__(
        self, pid: int, *, seconds_per_turn: float, seconds_per_run: float, on_exceeded: Callable[[CpuLimit], None]
    ) -> None:
        # What clock_getcpuclockid(3) computes: the process-wide clock that the scheduler itself keeps.
        self._clock_id = (~pid << 3) | 2
        self._per_turn = seconds_per_turn
        self._per_run = seconds_per_run
        self._on_exceeded = on_exceeded
        self._clock = LoopClock()
        self._timer: Timer | None = None
        self._turn_began: float | None = None

    @property
    def is_between_turns(self) -> bool:
        """True while the worker waits for the host."""
        return self._turn_began is None

    def begin_turn(self) -> None:
        """The worker got something to do. Harmless while a turn is under way."""
        if self._turn_began is None:
            self._turn_began = self.used_seconds()
            if self._timer is None:
                self._arm(self._turn_began)

    def end_turn(self) -> None:
        """The worker waits for the host. The timer stays: one more look is cheaper than a cancel per turn."""
        self._turn_began = None

    def used_seconds(self) -> float:
        """Processor time used so far; infinite time is never claimed for a process that is gone."""
        try:
            return time.clock_gettime(self._clock_id)
        except OSError:
            return 0.0

    def stop(self) -> None:
        """No more looks."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, used: float) -> None:
        began = self._turn_began if self._turn_began is not None else used
        left = min(self._per_turn - (used - began), self._per_run - used)
        wait = min(max(left, _SMALLEST_WAIT_SECONDS), _LONGEST_WAIT_SECONDS)
        self._timer = self._clock.call_later(wait, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._turn_began is None:
            return
        used = self.used_seconds()
        if used >= self._per_run:
            self._on_exceeded("cpuSecondsPerRun")
        elif used - self._turn_began >= self._per_turn:
            self._on_exceeded("cpuSecondsPerTurn")
        else:
            self._arm(used)
