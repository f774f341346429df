"""How long agents may take and be silent: one timer for all attempts of a run, armed for whichever is due first."""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from loopwarden.attempt import Attempt
from loopwarden.clock import Clock, Timer
from loopwarden.failure_class import FailureClass
from loopwarden.limits import Limits


@dataclass(slots=True, kw_only=True, eq=False)
class Patience:
    """Watches live attempts. `on_over` is told which attempt is to be stopped; the reason stands in the attempt."""

    limits: Limits
    clock: Clock
    on_over: Callable[[Attempt], None]
    _watched: dict[Attempt, asyncio.Event | None] = field(default_factory=dict)
    """With the event that still has to be set."""
    _timer: Timer | None = None
    _due: float = math.inf

    def watch(self, attempt: Attempt) -> asyncio.Event | None:
        """Begin to watch an attempt that just started. Returns the event that asks it to hand over, if it can be."""
        wrap_up = asyncio.Event() if attempt.provider.capabilities.converses else None
        self._watched[attempt] = wrap_up
        due = self._next_look(attempt)
        if due < self._due:
            self._arm(due)
        return wrap_up

    def forget(self, attempt: Attempt) -> None:
        """Stop watching. Harmless when called again."""
        self._watched.pop(attempt, None)

    def stop(self) -> None:
        """Watch nothing any more."""
        self._watched.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        self._timer = self.clock.call_later(max(0.0, due - self.clock.now()), self._look)

    def _look(self) -> None:
        self._timer, self._due = None, math.inf
        now = self.clock.now()
        soonest = math.inf
        for attempt, wrap_up in list(self._watched.items()):
            if attempt not in self._watched:  # forgotten by what an attempt before it set off
                continue
            reason = self._over(attempt, now)
            if reason is not None:
                self.forget(attempt)
                attempt.stopped_because, attempt.stopped_class = reason
                self.on_over(attempt)
                continue
            if wrap_up is not None and now >= self._wrap_up_at(attempt):
                wrap_up.set()
                self._watched[attempt] = None
            soonest = min(soonest, self._next_look(attempt))
        if soonest < self._due:
            self._arm(soonest)

    def _ends_at(self, attempt: Attempt) -> float:
        return attempt.started_at + self.limits.agent_timeout_seconds

    def _silent_until(self, attempt: Attempt) -> float:
        if not attempt.provider.capabilities.streams:
            return math.inf
        return attempt.last_sign + self.limits.agent_idle_seconds

    def _wrap_up_at(self, attempt: Attempt) -> float:
        timeout = self.limits.agent_timeout_seconds
        return attempt.started_at + timeout - min(self.limits.wrap_up_seconds, timeout / 2)

    def _next_look(self, attempt: Attempt) -> float:
        due = min(self._ends_at(attempt), self._silent_until(attempt))
        return due if self._watched[attempt] is None else min(due, self._wrap_up_at(attempt))

    def _over(self, attempt: Attempt, now: float) -> tuple[str, FailureClass] | None:
        ends_at, silent_until = self._ends_at(attempt), self._silent_until(attempt)
        if now >= silent_until and silent_until < ends_at:
            allowed = f"{self.limits.agent_idle_seconds:g} s"
            return f"it was silent for longer than agentIdleSeconds allows, {allowed}", FailureClass.IDLE
        if now >= ends_at:
            allowed = f"{self.limits.agent_timeout_seconds:g} s"
            return f"it took longer than agentTimeoutSeconds allows, {allowed}", FailureClass.TIMEOUT
        return None
