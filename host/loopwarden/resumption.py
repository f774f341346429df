"""Calls that were asked before: restored from the journal in a replay, asked again when something cut them short."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from loopwarden.admission import Admission
from loopwarden.agent import Agent
from loopwarden.agent_ends import AgentEnds
from loopwarden.attempt import Attempt
from loopwarden.attendance import Attendance
from loopwarden.breaker import BreakerBoard
from loopwarden.clock import Clock
from loopwarden.closing import Closing
from loopwarden.contract import AgentOutcome, Facts
from loopwarden.failure_class import FailureClass
from loopwarden.journal.calls import CallState
from loopwarden.journal.entries import Ended
from loopwarden.journal.fold import RunState
from loopwarden.provider import Provider
from loopwarden.repeats import Repeats
from loopwarden.restoring import MAX_REDOS, GoesOn, GoesOnWaiting, goes_on, restore, spent_failure
from loopwarden.spending import Spending

LEASE_LOST: Final = "the host lost the lease of the run"


@dataclass(slots=True, kw_only=True, eq=False)
class Resumption:
    """What a broker does with calls that have a past."""

    providers: Mapping[str, Provider]
    clock: Clock
    facts: Facts
    board: BreakerBoard
    spending: Spending
    repeats: Repeats
    admission: Admission
    attendance: Attendance
    closing: Closing
    ends: AgentEnds

    def restore(self, agent: Agent, call: CallState) -> None:
        """Give an accepted call its past."""
        restore(agent, call, self.providers, now=self.clock.now(), wall=self.clock.wall())
        self.facts.agents_started += 1
        for attempt in agent.attempts:
            self.spending.add(attempt.usage)

    def deliver_recorded(self, agent: Agent, ended: Ended) -> None:
        """Answer a call with its recorded end."""
        self.ends.deliver(agent, AgentOutcome(ended.outcome), ended.value)

    def go_live(self, agents: list[Agent], state: RunState) -> None:
        """All that is recorded was replayed: calls without an end go on, new ones begin."""
        self.repeats.restore(state.extra + sum(seq in state.calls for seq in state.waiting))
        for agent in agents:
            call = state.calls.get(agent.seq)
            if call is not None and agent.outcome is None:
                self.closing.live.add(agent)
                self._go_on(agent, goes_on(call, state.waiting.get(agent.seq)))
        self.admission.go_on()

    def interrupt(self) -> None:
        """The lease of the run has ended, for all that is known: nothing may work for it. It is asked again later."""
        for agent in self.closing.in_order():
            attempt = agent.attempts[-1] if agent.attempts else None
            if agent.task is not None and attempt is not None and attempt.stopped_because is None:
                attempt.stopped_because, attempt.stopped_class = LEASE_LOST, FailureClass.CANCELLED
                self.attendance.stop(agent, attempt)

    def interrupted(self, agent: Agent, attempt: Attempt) -> None:
        """An attempt ended because the lease had: the call is asked again."""
        attempt.is_interrupted = True
        self.board.undecided(attempt.provider_name, agent)
        self.ends.journal.interrupted(agent, attempt)
        self.admission.give_back(agent)
        redos = sum(each.kind == "redo" for each in agent.attempts) - agent.redos_before
        self._go_on(agent, "redo" if redos < MAX_REDOS else "spent")

    def _go_on(self, agent: Agent, how: GoesOn) -> None:
        if isinstance(how, GoesOnWaiting):
            agent.next_kind = how.waiting.ask
            fallback = self.repeats.fallback_of(agent)
            if agent.next_kind == "fallback" and fallback is not None:
                self.repeats.switch(agent, fallback)
            elif agent.next_kind == "retry":
                agent.trail = replace(agent.trail, retries=agent.trail.retries + 1)
            self.repeats.wait_on(agent, how.waiting.until, since=how.waiting.at)
        elif how == "redo" and self.repeats.reserve():
            agent.next_kind = "redo"
            self.admission.add(agent, first=True)
        else:
            failed = spent_failure(self.repeats.max_extra_attempts, by_call=how == "spent")
            last = agent.attempts[-1]
            if not last.is_recorded:
                # The end of the call is the first that the journal holds of its last attempt, too.
                last.end, last.is_interrupted = failed, False
            self.ends.failed(agent, failed)
