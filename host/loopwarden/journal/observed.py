"""The events of a run as its journal tells them: what observers see who follow a run of another process, or later.

An event has the number of its entry, so that a reader goes on from any number, on any host. What a provider says while
it works is not in a journal.
"""

from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, assert_never

from loopwarden import events
from loopwarden.agent_reply import provider_words
from loopwarden.contract import AgentOutcome
from loopwarden.display import cut, duration, time_of_day
from loopwarden.events import Event, EventBase
from loopwarden.failure_class import FailureClass
from loopwarden.failures import Code, Failure
from loopwarden.journal.entries import (
    Asked,
    AttemptEnded,
    Chained,
    Claimed,
    Created,
    Ended,
    EntryError,
    Finished,
    Held,
    ItemFailed,
    LimitsRaised,
    Logged,
    Narration,
    PhaseNamed,
    Reopened,
    Stopping,
    WaitCancelled,
    Waiting,
)
from loopwarden.receipt import FailureRecord

_MAX_REASON_CHARS: Final = 500
_MAX_PROGRESS_CHARS: Final = 1000
_WORTH_A_TIME_SECONDS: Final = 60.0
_RUN_ENDED: Final = "the run ended"

EventT = TypeVar("EventT", bound=EventBase)


@dataclass(slots=True)
class _Seen:
    """An agent whose start observers saw."""

    started_at: float
    provider: str
    attempts: int
    is_live: bool = True


@dataclass(slots=True, kw_only=True)
class Observed:
    """Turns entries into events, at most one each. Give it every entry of a journal, from the first on, in order.

    It expects entries that `RunState.apply` takes; of others it makes nothing, or what fits best.
    """

    run_id: str
    _is_going: bool = False
    """True while a run was claimed and has neither ended nor is held."""
    _epoch: int = 0
    _host: str | None = None
    _stopping: Stopping | None = None
    _agents: dict[int, _Seen] = field(default_factory=dict)
    _calls: set[int] = field(default_factory=set)

    def events_of(self, chained: Chained) -> list[Event]:
        """What observers see of this entry: one event, or none. Raises `EntryError` for an unknown code of failure."""
        event = self._event(chained)
        return [] if event is None else [event]

    def _event(self, chained: Chained) -> Event | None:
        entry = chained.entry
        match entry:
            case Asked():
                return self._asked(chained, entry)
            case AttemptEnded() | Ended() | WaitCancelled():
                return self._end(chained, entry)
            case Waiting():
                return self._progress(chained, entry.seq, _words_of_wait(entry))
            case LimitsRaised():
                return None
            case PhaseNamed() | Logged() | ItemFailed():
                return self._narrated(chained, entry)
            case Created() | Claimed() | Stopping() | Finished() | Reopened() | Held():
                return self._of_the_run(chained, entry)
            case _:
                assert_never(entry)

    def _narrated(self, chained: Chained, entry: Narration) -> Event:
        match entry:
            case PhaseNamed(title=title):
                return self._make(events.Phase, chained, title=title)
            case Logged(message=message):
                return self._make(events.Log, chained, message=message)
            case ItemFailed():
                return self._make(
                    events.ItemFailed,
                    chained,
                    combinator=entry.combinator,
                    index=entry.index,
                    line=entry.line,
                    message=entry.message,
                )
            case _:
                assert_never(entry)

    def _of_the_run(
        self, chained: Chained, entry: Created | Claimed | Stopping | Finished | Reopened | Held
    ) -> Event | None:
        event: Event | None = None
        match entry:
            case Created(script=script, limits=limits):
                cap = int(limits.get("max_total_agents") or 0)
                event = self._make(events.RunStarted, chained, script=script, max_total_agents=cap)
            case Claimed(epoch=epoch, host=host):
                if self._is_going:
                    event = self._make(events.RunResumed, chained, epoch=epoch, host=host)
                self._is_going = self._is_going or self._epoch == 0
                self._epoch, self._host = epoch, host
            case Reopened(by=by, why=why):
                self._is_going, self._stopping = True, None
                event = self._make(events.RunResumed, chained, epoch=self._epoch, host=self._host, by=by, why=why)
            case Held(code=code, reason=reason):
                self._is_going = False
                event = self._make(events.RunHeld, chained, code=code, reason=reason)
            case Stopping():
                self._is_going, self._stopping = True, entry
            case Finished():
                event = self._finished(chained)
            case _:
                assert_never(entry)
        return event

    def _finished(self, chained: Chained) -> Event:
        stopping, self._is_going = self._stopping, False
        for agent in self._agents.values():
            agent.is_live = False
        return self._make(
            events.RunEnded,
            chained,
            stop_reason="error" if stopping is None else stopping.stop_reason,
            failure=None if stopping is None or stopping.failure is None else failure_of(stopping.failure),
            agents_started=len(self._calls),
        )

    # ---- agents

    def _asked(self, chained: Chained, asked: Asked) -> Event:
        self._calls.add(asked.seq)
        seen = self._agents.get(asked.seq)
        if seen is None or not seen.is_live:
            self._agents[asked.seq] = _Seen(asked.at, asked.provider, asked.attempt)
            return self._make(
                events.AgentStarted,
                chained,
                seq=asked.seq,
                label=asked.label,
                phase=asked.phase,
                provider=asked.provider,
            )
        seen.provider, seen.attempts = asked.provider, asked.attempt
        return self._remark(chained, asked.seq, _words_of_ask(asked))

    def _end(self, chained: Chained, end: AttemptEnded | Ended | WaitCancelled) -> Event | None:
        match end:
            case Ended():
                outcome = AgentOutcome.COMPLETED if end.outcome == "completed" else AgentOutcome.FAILED
                return self._agent_ended(chained, end.seq, outcome, end.reason, end.failure_class)
            case WaitCancelled():
                return self._agent_ended(chained, end.seq, AgentOutcome.CANCELLED, _RUN_ENDED, None)
            case AttemptEnded(is_last=True):
                outcome = AgentOutcome.FAILED if end.outcome == "failed" else AgentOutcome.CANCELLED
                if outcome is AgentOutcome.FAILED:
                    return self._agent_ended(chained, end.seq, outcome, end.reason, end.failure_class)
                # What a provider still said of an attempt that was cancelled is not why its agent ended.
                reason = end.reason if end.outcome == "interrupted" and end.reason is not None else _RUN_ENDED
                return self._agent_ended(chained, end.seq, outcome, reason, None)
            case AttemptEnded():
                return self._attempt_ended(chained, end)
            case _:
                assert_never(end)

    def _attempt_ended(self, chained: Chained, end: AttemptEnded) -> Event | None:
        seen = self._agents.get(end.seq)
        if seen is None:
            return None
        head = f"attempt {end.attempt} of {seen.provider}"
        if end.outcome == "interrupted":
            return self._progress(chained, end.seq, f"{head} was interrupted: its host stopped, died or lost the run")
        kind = f" ({end.failure_class})" if end.failure_class is not None else ""
        reason = f": {cut(end.reason, _MAX_REASON_CHARS)}" if end.reason else ""
        return self._progress(chained, end.seq, f"{head} {end.outcome}{kind}{reason}")

    def _agent_ended(
        self, chained: Chained, seq: int, outcome: AgentOutcome, reason: str | None, failure_class: str | None
    ) -> Event | None:
        seen = self._agents.get(seq)
        if seen is None or not seen.is_live:
            return None
        seen.is_live = False
        return self._make(
            events.AgentEnded,
            chained,
            seq=seq,
            outcome=outcome,
            reason=reason,
            seconds=round(max(0.0, chained.entry.at - seen.started_at), 6),
            failure_class=class_of(failure_class),
            attempts=seen.attempts,
        )

    def _progress(self, chained: Chained, seq: int, message: str | None) -> Event | None:
        seen = self._agents.get(seq)
        return None if message is None or seen is None or not seen.is_live else self._remark(chained, seq, message)

    def _remark(self, chained: Chained, seq: int, message: str) -> Event:
        words = provider_words(message)[:_MAX_PROGRESS_CHARS]
        return self._make(events.AgentProgress, chained, seq=seq, message=words, is_policy=True)

    def _make(self, kind: type[EventT], chained: Chained, **content: Any) -> EventT:
        return kind(number=chained.seq, run_id=self.run_id, at=chained.entry.at, **content)


def failure_of(record: FailureRecord) -> Failure:
    """A failure as a value. Raises `EntryError` when this version does not know its code."""
    try:
        code = Code(record.code)
    except ValueError:
        raise EntryError(
            f"the failure code {record.code[:40]!r} is not known; use the version of Loopwarden that wrote it"
        ) from None
    return Failure(code=code, message=record.message, line=record.line, details=record.details)


def class_of(name: str | None) -> FailureClass | None:
    """A class of failure as a value; one that this version does not know is unknown."""
    if name is None:
        return None
    try:
        return FailureClass(name)
    except ValueError:
        return FailureClass.UNKNOWN


def _words_of_ask(asked: Asked) -> str:
    match asked.ask:
        case "fallback":
            return f"asking {asked.provider} instead"
        case "wait":
            return f"the wait is over; asking {asked.provider} again"
        case "redo":
            return (
                f"asking {asked.provider} once more, with the same idempotency key: the attempt before was interrupted"
            )
        case "retry" | "first":
            return f"asking {asked.provider} again"
        case _:
            assert_never(asked.ask)


def _words_of_wait(waiting: Waiting) -> str | None:
    left = waiting.until - waiting.at
    if waiting.ask == "fallback":
        return None
    if left < _WORTH_A_TIME_SECONDS:
        return f"asking again in {duration(max(0.0, left))}"
    return f"waiting until {time_of_day(waiting.until, waiting.at)}, {duration(left)} left"
