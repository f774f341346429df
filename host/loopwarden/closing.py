"""How the agents of a run come to their end with it: stopped, drained, given back to the store, or abandoned."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from loopwarden.admission import Admission
from loopwarden.agent import Agent
from loopwarden.attendance import Attendance
from loopwarden.clock import Clock, Timer
from loopwarden.patience import Patience
from loopwarden.repeats import Repeats


@dataclass(slots=True, kw_only=True, eq=False)
class Closing:
    """The way of one run's agents to their end. `end_cancelled` ends an agent that has no task to cancel."""

    admission: Admission
    patience: Patience
    attendance: Attendance
    repeats: Repeats
    clock: Clock
    end_cancelled: Callable[[Agent], None]
    is_lost: Callable[[], bool]
    """True once nothing comes back from the journal any more."""
    live: set[Agent] = field(default_factory=set)
    """Being asked, or started and not ended: with a slot, or waiting by its policy."""
    is_stopped: bool = False
    """The run ended: nothing more is asked, nothing reaches the script."""
    is_draining: bool = False
    """It ended, and agents may finish."""
    is_leaving: bool = False
    """The run goes back to its store: what is cancelled now was interrupted, and is not the agent's end."""
    _timer: Timer | None = None
    _all_ended: "asyncio.Future[None] | None" = None

    @property
    def is_closed(self) -> bool:
        """True when nothing may be asked any more."""
        return self.is_stopped or self.is_leaving

    def in_order(self) -> list[Agent]:
        """The live agents, in the order of their calls."""
        return sorted(self.live, key=lambda agent: agent.seq)

    def stop(self, drain_seconds: float) -> None:
        """The run ended. Agents that work may go on for so long."""
        if not self.is_stopped:
            self.is_stopped = True
            self._close(drain_seconds)

    def leave(self, drain_seconds: float) -> None:
        """Ask nothing more, let agents finish for so long, then interrupt them. Said again with 0: at once."""
        if self.is_closed:
            return
        if self._all_ended is not None:
            if drain_seconds == 0:
                self._leave_now()
            return
        self.admission.close()
        self._all_ended = asyncio.get_running_loop().create_future()
        if drain_seconds > 0 and self._has_tasks:
            self._timer = self.clock.call_later(drain_seconds, self._leave_now)
        else:
            self._leave_now()

    def abandon(self) -> None:
        """The run belongs to another host: end what works here, without a word to anybody."""
        self.is_stopped = self.is_leaving = True
        self._close(0.0)

    def release(self, agent: Agent) -> None:
        """Let go of an agent that has no end here."""
        self.repeats.stop(agent)
        self.live.discard(agent)
        self.admission.give_back(agent)
        self.notice()

    def stop_waiting(self, agent: Agent) -> None:
        """End an agent that no task works for; one whose ask or end is on the way to the journal comes by itself."""
        if (agent.is_asking or agent.is_ending) and not self.is_lost():
            return
        if self.is_leaving:
            self.release(agent)
            return
        self.repeats.stop(agent)
        if agent.attempts:
            self.end_cancelled(agent)

    def notice(self) -> None:
        """Somebody ended: see whether that was the last one."""
        if self._all_ended is None:
            return
        if not self.is_closed:
            if not self._has_tasks:  # Nobody is left who could finish: those who wait need not be waited for.
                self._leave_now()
        elif not self.live and not self._all_ended.done():
            # A run that drained to its end leaves no timer behind, which would keep it in memory for hours.
            self.patience.stop()
            if self._timer is not None:
                self._timer.cancel()
            self._all_ended.set_result(None)

    async def ended(self) -> None:
        """Wait until no agent is live. After `stop`, `leave` or `abandon`."""
        assert self._all_ended is not None
        await self._all_ended

    # ---- inside

    @property
    def _has_tasks(self) -> bool:
        return any(agent.task is not None or agent.is_ending for agent in self.live)

    def _leave_now(self) -> None:
        if not self.is_closed:
            self.is_leaving = True
            self._close(0.0)

    def _close(self, drain_seconds: float) -> None:
        self.admission.close()
        if self._all_ended is None:
            self._all_ended = asyncio.get_running_loop().create_future()
        if self._timer is not None:
            self._timer.cancel()
        # An ask that is on its way into the journal stands before the end there: it is paid for, so it is made.
        self.is_draining = drain_seconds > 0 and (self._has_tasks or any(agent.is_asking for agent in self.live))
        if self.is_draining:
            self._timer = self.clock.call_later(drain_seconds, self._drain_is_over)
        else:
            self.patience.stop()
        for agent in self.in_order():
            if agent.task is None:
                self.stop_waiting(agent)
            elif not self.is_draining:
                self.attendance.stop(agent, agent.attempts[-1])
        self.notice()

    def _drain_is_over(self) -> None:
        self.is_draining = False
        self.patience.stop()
        for agent in self.in_order():
            if agent.task is not None:
                self.attendance.stop(agent, agent.attempts[-1])
