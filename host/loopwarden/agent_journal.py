"""What a broker writes into the journal of its run: asks, ends of attempts, ends of calls. Without a store, nothing."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from loopwarden.agent import Agent
from loopwarden.attempt import Attempt, AttemptKind, Failed, Faulty
from loopwarden.contract import AgentOutcome
from loopwarden.journal.entries import Asked, AttemptEnded, Ended, WaitCancelled, Waiting
from loopwarden.journal.run_journal import AskRefused, RunJournal
from loopwarden.receipt import UsageRecord
from loopwarden.store.appends import Spent
from loopwarden_engine.plain import JsonValue

Then: TypeAlias = Callable[[], None]

_NO_WINDOWS: Mapping[str, str] = {}


@dataclass(slots=True, kw_only=True, eq=False)
class AgentJournal:
    """The pen of one broker. What is passed as `then` happens after the commit; without a store, at once."""

    journal: RunJournal | None
    wall: Callable[[], float]
    keep_prompts: bool = False

    @property
    def is_kept(self) -> bool:
        """True when there is a journal: then observers are told of its entries, and of nothing else that it holds."""
        return self.journal is not None

    @property
    def is_lost(self) -> bool:
        """True once the run belongs to another host: nothing that is on its way comes back."""
        return self.journal is not None and self.journal.is_lost

    def ask(
        self,
        agent: Agent,
        then: Callable[[Mapping[str, str]], None],
        refused: Callable[[AskRefused], None],
    ) -> None:
        """Charge the next attempt of an agent."""
        if self.journal is None:
            then(_NO_WINDOWS)
            return
        entries: list[AttemptEnded | Asked] = []
        spent: Spent | None = None
        interrupted = agent.interrupted
        if interrupted is not None:
            # In the transaction that asks again: whoever reads the journal sees why.
            entries.append(self._attempt_ended(agent, interrupted, outcome="interrupted", is_last=False))
            # Recorded once the ask is: a budget may refuse both.
            spent = Spent(windows=interrupted.windows, usage=interrupted.usage)
        call, number = agent.call, len(agent.attempts) + 1
        entries.append(
            Asked(
                at=self.wall(),
                seq=agent.seq,
                key=call.written.key,
                digest=agent.known_digest(),
                attempt=number,
                ask=agent.next_kind,
                provider=agent.provider_name,
                label=call.label,
                phase=call.facts.phase,
                line=agent.line or None,
                prompt=call.facts.prompt if self.keep_prompts else None,
            )
        )

        def asked(windows: Mapping[str, str]) -> None:
            if interrupted is not None:
                interrupted.is_recorded, agent.interrupted = True, None
            then(windows)

        self.journal.ask(*entries, is_repeat=number > 1, then=asked, refused=refused, spent=spent)

    def goes_on(self, agent: Agent, attempt: Attempt, ask: AttemptKind, until: float) -> None:
        """An attempt failed, and the call will be asked again at `until`. Nobody has to wait for this."""
        if self.journal is not None:
            self.journal.write(
                self._attempt_ended(agent, attempt, outcome="failed", is_last=False),
                Waiting(at=self.wall(), seq=agent.seq, until=until, ask=ask),
                spent=_spent(attempt),
            )

    def interrupted(self, agent: Agent, attempt: Attempt) -> None:
        """The host gives the run back while an attempt is live; whoever takes it over asks the call again."""
        if self.journal is not None:
            self.journal.write(
                self._attempt_ended(agent, attempt, outcome="interrupted", is_last=False), spent=_spent(attempt)
            )

    def ended(self, agent: Agent, outcome: AgentOutcome, value: JsonValue, reason: str | None, then: Then) -> None:
        """The call has the end that its script gets."""
        if self.journal is None:
            then()
            return
        attempt = agent.attempts[-1]
        failed = attempt.end if isinstance(attempt.end, Failed) else None
        self.journal.write(
            Ended(
                at=self.wall(),
                seq=agent.seq,
                attempt=attempt.number,
                outcome="completed" if outcome is AgentOutcome.COMPLETED else "failed",
                value=value,
                reason=reason,
                failure_class=None if agent.failure_class is None else agent.failure_class.value,
                evidence=None if failed is None else failed.evidence,
                notes=list(agent.notes),
                usage=UsageRecord.of(attempt.usage),
                seconds=attempt.seconds,
            ),
            then=then,
            spent=_spent(attempt),
        )

    def stopped(self, agent: Agent, outcome: AgentOutcome, reason: str | None, then: Then) -> None:
        """The agent ends with its run; its script gets nothing, and a run that is reopened asks the call again."""
        if self.journal is None:
            then()
            return
        attempt = agent.attempts[-1]
        if agent.paused_at is not None:
            self.journal.write(WaitCancelled(at=self.wall(), seq=agent.seq), then=then)
            return
        how: Literal["failed", "cancelled", "interrupted"]
        how = "failed" if outcome is AgentOutcome.FAILED else "interrupted" if attempt.is_interrupted else "cancelled"
        entry = self._attempt_ended(
            agent, attempt, outcome=how, is_last=True, reason=reason if how == "failed" else None
        )
        self.journal.write(entry, then=then, spent=_spent(attempt))

    def _attempt_ended(
        self,
        agent: Agent,
        attempt: Attempt,
        *,
        outcome: Literal["failed", "cancelled", "interrupted"],
        is_last: bool,
        reason: str | None = None,
    ) -> AttemptEnded:
        failed = attempt.end if isinstance(attempt.end, Failed) else None
        said = attempt.end.reason if isinstance(attempt.end, Failed | Faulty) else None
        return AttemptEnded(
            at=self.wall(),
            seq=agent.seq,
            attempt=attempt.number,
            outcome=outcome,
            reason=reason if reason is not None else said,
            failure_class=None if failed is None else failed.failure_class.value,
            evidence=None if failed is None else failed.evidence,
            usage=UsageRecord.of(attempt.usage),
            seconds=attempt.seconds,
            is_last=is_last,
        )


def _spent(attempt: Attempt) -> Spent | None:
    """What an attempt adds to its budgets: once, with the first end of it that is written."""
    if attempt.is_recorded:
        return None
    attempt.is_recorded = True
    return Spent(windows=attempt.windows, usage=attempt.usage)
