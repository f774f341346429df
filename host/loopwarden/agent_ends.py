"""Ends of agents: recorded once, then told to observers and to the script, and only then their slot is free."""

from collections.abc import Callable
from dataclasses import dataclass

from loopwarden import events
from loopwarden.admission import Admission
from loopwarden.agent import Agent, BrokerPorts, Keeper
from loopwarden.agent_journal import AgentJournal
from loopwarden.attempt import Failed
from loopwarden.clock import Clock
from loopwarden.closing import Closing
from loopwarden.contract import AgentOutcome, Delivery, Facts
from loopwarden.failures import Code, Failure
from loopwarden.holding import Holding
from loopwarden.limits import Limits
from loopwarden_engine.plain import JsonValue


@dataclass(slots=True, kw_only=True, eq=False)
class AgentEnds:
    """Ends the agents of one run. An end takes effect once it is in the journal; without one, at once."""

    limits: Limits
    clock: Clock
    facts: Facts
    ports: BrokerPorts
    keeper: Keeper | None
    journal: AgentJournal
    admission: Admission
    closing: Closing
    holding: Holding
    write: Callable[[], None]
    """Writes the receipt, not too often."""

    def keep(self, agent: Agent, text: str) -> None:
        """Keep what an agent answered, for people."""
        if self.keeper is not None and text and not agent.output_kept:
            agent.output_kept = True
            self.keeper.keep_output(agent.seq, _cut_bytes(text, self.limits.max_output_bytes))

    def failed(self, agent: Agent, failed: Failed, *, more: str = "", deliver: bool = True) -> None:
        """The call failed, and nobody asks again. Without `deliver` its run has ended."""
        agent.failure_class = failed.failure_class
        notes = (*failed.notes, more) if more else failed.notes
        self.end(agent, AgentOutcome.FAILED, None, failed.reason, notes, deliver=deliver)

    def cancelled(self, agent: Agent) -> None:
        """The run ended first."""
        self.end(agent, AgentOutcome.CANCELLED, None, "the run ended", (), deliver=False)

    def fault(self, agent: Agent, code: Code, reason: str) -> None:
        """The provider broke its promise: the agent ends, and its run with it."""
        # The run ends with this: the slot that comes free must not start one more agent on the way.
        self.admission.clear()
        what = "could not start an agent" if code is Code.AGENT_START else "gave no usable end of an agent"
        message = f"the provider {agent.provider_name!r} {what}: {reason}"
        failure = Failure(code=code, message=message, line=agent.line or None)
        self._end_both(
            agent,
            lambda: self.end(agent, AgentOutcome.FAILED, None, reason, (), deliver=False),
            lambda: self.ports.fail(failure),
        )

    def failed_last(self, agent: Agent, failed: Failed, end_run: Callable[[], None]) -> None:
        """The call failed, and its run ends with it."""
        self.admission.clear()
        self._end_both(agent, lambda: self.failed(agent, failed, deliver=False), end_run)

    def _end_both(self, agent: Agent, end: Callable[[], None], end_run: Callable[[], None]) -> None:
        """End an agent, and its run with it.

        In a journal the run comes first: a host that dies in between leaves a run that is over, and not one that goes
        on with a call that may not be asked again.
        """
        if not self.journal.is_kept:
            end()
            end_run()
            return
        agent.is_ending = True
        end_run()
        agent.is_ending = False
        end()

    def end(
        self,
        agent: Agent,
        outcome: AgentOutcome,
        value: JsonValue,
        reason: str | None,
        notes: tuple[str, ...],
        *,
        deliver: bool = True,
    ) -> None:
        """End an agent, once."""
        if agent.outcome is not None or agent.is_ending:
            return
        agent.is_ending = True
        agent.notes = notes

        def ended() -> None:
            self._ended(agent, outcome, value, reason, deliver=deliver)

        if deliver:
            self.journal.ended(agent, outcome, value, reason, ended)
        else:
            self.journal.stopped(agent, outcome, reason, ended)

    def _ended(
        self,
        agent: Agent,
        outcome: AgentOutcome,
        value: JsonValue,
        reason: str | None,
        *,
        deliver: bool,
    ) -> None:
        assert agent.started_at is not None
        agent.is_ending = False
        agent.outcome, agent.reason = outcome, reason
        agent.seconds = self.clock.now() - agent.started_at
        self.closing.live.discard(agent)
        if not self.journal.is_kept:
            self.ports.emit(
                events.AgentEnded,
                seq=agent.seq,
                outcome=outcome,
                reason=reason,
                seconds=round(agent.seconds, 6),
                failure_class=agent.failure_class,
                attempts=len(agent.attempts),
            )
        self.write()
        if deliver and not self.closing.is_stopped:
            self.deliver(agent, outcome, value)
            held_too_much = self.holding.failure(agent.line or None)
            if held_too_much is not None:
                self.ports.fail(held_too_much)
        if self.ports.is_stuck() and not self.closing.is_stopped:
            self.admission.keep_until_drained(agent)
            self.closing.notice()
            return
        self.admission.give_back(agent)
        self.closing.notice()
        self.admission.pump()

    def deliver(self, agent: Agent, outcome: AgentOutcome, value: JsonValue) -> None:
        """Give the script the end of its call, and remember what it got."""
        self.holding.add(value)
        self.facts.deliveries.append(Delivery(seq=agent.seq, outcome=outcome, value=value))
        self.ports.reply(agent.seq, value)


def _cut_bytes(text: str, max_bytes: int) -> str:
    if len(text) * 4 <= max_bytes:
        return text
    return text.encode("utf-8", "replace")[:max_bytes].decode("utf-8", "ignore")
