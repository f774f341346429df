"""What a journal adds up to. Status, counters, results and receipts of a run are read from this, nothing is kept twice.

A fold trusts nothing: a sequence of entries that no owner writes is `JournalBroken`, even when its chain is whole.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, assert_never

from loopwarden.failures import Code
from loopwarden.journal.calls import CallState
from loopwarden.journal.chain import START
from loopwarden.journal.entries import (
    Asked,
    AttemptEnded,
    Chained,
    Claimed,
    Created,
    Ended,
    Entry,
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
from loopwarden.journal.moves import MOVES, Stage
from loopwarden.receipt import UsageRecord
from loopwarden.store.errors import StoreCorrupt
from loopwarden.usage import Usage

_CODES: Final = frozenset(code.value for code in Code)


class JournalBroken(StoreCorrupt):
    """The entries of a run are in an order that no owner writes."""


@dataclass(slots=True, kw_only=True)
class RunState:
    """Where a run stands. Made by `fold`, or empty and then by `apply`, entry by entry."""

    run_id: str
    stage: Stage = Stage.NEW
    seq: int = 0
    """Of the head of the journal."""
    hash: str = START
    """Of the head of the journal."""
    limits: dict[str, int | float | None] = field(default_factory=dict)
    """In force, by their Python names."""
    args: dict[str, Any] = field(default_factory=dict)
    """In force, as the contract shows them."""
    epoch: int = 0
    host: str | None = None
    claims: list[Claimed] = field(default_factory=list)
    calls: dict[int, CallState] = field(default_factory=dict)
    """Those that were asked, by number of the call, in the order of their first asks."""
    ends: list[Ended] = field(default_factory=list)
    """In the order in which they were recorded: the order in which a replay answers."""
    narration: list[Narration] = field(default_factory=list)
    """In order."""
    waiting: dict[int, Waiting] = field(default_factory=dict)
    """Calls that a policy or a budget lets wait now, by number; also such as were not asked yet."""
    stopping: Stopping | None = None
    """Of the present segment."""
    finished: Finished | None = None
    """Of the present segment."""
    held: Held | None = None
    """Why the run is held; None when it is not."""
    reopened: list[Reopened] = field(default_factory=list)
    attempts: int = 0
    extra: int = 0
    """Asks beyond the first of a call."""
    usage: Usage | None = None
    """The sum over all attempts that said what they used; None while nothing is known."""
    attempts_of_unknown_cost: int = 0
    _created: Created | None = None
    _keys: set[str] = field(default_factory=set)

    @property
    def created(self) -> Created:
        """The first entry. Raises `JournalBroken` while there is none."""
        if self._created is None:
            raise JournalBroken(self.run_id, "its journal is empty")
        return self._created

    @property
    def agents_started(self) -> int:
        """Calls that were asked."""
        return len(self.calls)

    @property
    def segment(self) -> int:
        """1, and one more for each time the run was reopened."""
        return len(self.reopened) + 1

    def waiting_until(self, seq: int) -> float | None:
        """Unix time until which a call waits to be asked; None when it does not."""
        entry = self.waiting.get(seq)
        return None if entry is None else entry.until

    def apply(self, chained: Chained) -> None:
        """Take the next entry. Raises `JournalBroken`, and is then as before."""
        entry, seq = chained.entry, chained.seq
        if seq != self.seq + 1:
            raise JournalBroken(self.run_id, f"entry {seq} follows on entry {self.seq}")
        stage = MOVES[self.stage].get(type(entry))
        if stage is None:
            raise JournalBroken(self.run_id, f"entry {seq}, {entry.entry!r}, comes while the run {self.stage.value}")
        problem = self._take(entry, seq)
        if problem is not None:
            raise JournalBroken(self.run_id, f"entry {seq}, {entry.entry!r}: {problem}")
        self.stage, self.seq, self.hash = stage, seq, chained.hash

    def _take(self, entry: Entry, seq: int) -> str | None:  # noqa: PLR0912 -- an arm per entry
        """Change the state by an entry that may come now. Changes nothing when it returns what is wrong."""
        problem: str | None = None
        match entry:
            case Asked():
                problem = self._ask(entry, seq)
            case Ended() | AttemptEnded():
                problem = self._end(entry)
            case Waiting():
                problem = self._wait(entry)
            case WaitCancelled():
                problem = self._cancel_wait(entry)
            case PhaseNamed() | Logged() | ItemFailed():
                self.narration.append(entry)
            case Claimed():
                problem = self._claim(entry)
            case Created():
                problem = self._create(entry)
            case Stopping():
                problem = self._stop(entry)
            case Finished():
                problem = self._finish(entry)
            case Reopened():
                self._reopen(entry)
            case LimitsRaised():
                self.limits.update(entry.limits)
            case Held():
                self.held = entry
            case _:
                assert_never(entry)
        return problem

    # ---- the run

    def _create(self, created: Created) -> str | None:
        if created.run_id != self.run_id:
            return f"it begins the run {created.run_id[:100]!r}"
        self._created = created
        self.limits, self.args = dict(created.limits), dict(created.args)
        return None

    def _claim(self, claimed: Claimed) -> str | None:
        if claimed.epoch <= self.epoch:
            return f"epoch {claimed.epoch} does not rise above epoch {self.epoch}"
        self.epoch, self.host = claimed.epoch, claimed.host
        self.claims.append(claimed)
        return None

    def _stop(self, stopping: Stopping) -> str | None:
        if (stopping.failure is None) is not (stopping.stop_reason == "completed"):
            return (
                f"a run that is {stopping.stop_reason!r} {'needs a' if stopping.failure is None else 'has no'} failure"
            )
        if stopping.failure is not None and stopping.failure.code not in _CODES:
            return f"its failure code {stopping.failure.code[:40]!r} is not known; use the version that wrote it"
        self.stopping, self.held = stopping, None
        self.waiting.clear()
        return None

    def _finish(self, finished: Finished) -> str | None:
        for call in self.calls.values():
            if call.is_open:
                return f"attempt {len(call.asks)} of call {call.seq} has no end"
        self.finished = finished
        return None

    def _reopen(self, reopened: Reopened) -> None:
        self.reopened.append(reopened)
        self.limits.update(reopened.limits)
        self.args.update(reopened.args)
        self.stopping = self.finished = self.held = None
        for call in self.calls.values():
            call.reopen()

    # ---- its calls

    def _ask(self, asked: Asked, entry_seq: int) -> str | None:
        call = self.calls.get(asked.seq)
        if call is None:
            if asked.key in self._keys:
                return f"call {asked.seq} has the key of an earlier call"
            call = CallState(
                seq=asked.seq,
                key=asked.key,
                digest=asked.digest,
                label=asked.label,
                phase=asked.phase,
                line=asked.line,
            )
        problem = call.problem_of_ask(asked)
        if problem is not None:
            return f"call {asked.seq} {problem}"
        if not call.asks:
            self.calls[asked.seq] = call
            self._keys.add(asked.key)
        else:
            self.extra += 1
        call.add(asked, entry_seq)
        self.attempts += 1
        self.waiting.pop(asked.seq, None)
        return None

    def _end(self, end: AttemptEnded | Ended) -> str | None:
        call = self.calls.get(end.seq)
        problem = "was never asked" if call is None else call.problem_of_end(end)
        if call is None or problem is not None:
            return f"call {end.seq} {problem}"
        if call.end(end):
            self._count(end.usage)
        if call.is_closed:
            self.waiting.pop(end.seq, None)
        if isinstance(end, Ended):
            self.ends.append(end)
        return None

    def _wait(self, waiting: Waiting) -> str | None:
        call = self.calls.get(waiting.seq)
        if call is not None and (call.is_open or call.is_closed):
            return f"call {waiting.seq} waits {'while it is asked' if call.is_open else 'after its end'}"
        self.waiting[waiting.seq] = waiting
        return None

    def _cancel_wait(self, cancelled: WaitCancelled) -> str | None:
        call = self.calls.get(cancelled.seq)
        if call is None:
            self.waiting.pop(cancelled.seq, None)
            return None
        if call.is_open or call.is_closed:
            return f"call {cancelled.seq} does not wait"
        self.waiting.pop(cancelled.seq, None)
        call.cancel_wait(cancelled)
        return None

    def _count(self, usage: UsageRecord | None) -> None:
        if usage is None or usage.cost_usd is None:
            self.attempts_of_unknown_cost += 1
        if usage is not None:
            used = usage.to_usage()
            self.usage = used if self.usage is None else self.usage + used


def fold(run_id: str, chained: Iterable[Chained]) -> RunState:
    """The state after these entries, the first of them included. Raises `JournalBroken`."""
    state = RunState(run_id=run_id)
    for one in chained:
        state.apply(one)
    return state
