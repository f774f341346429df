"""A broker with a journal whose commits the test decides on."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from loopwarden import Limits
from loopwarden.agent import BrokerPorts
from loopwarden.agent_journal import AgentJournal
from loopwarden.events import AgentEnded, AgentStarted, Event
from loopwarden.failures import Code, Failure
from loopwarden.journal.codec import PLAIN, Codec
from loopwarden.journal.entries import Asked, Chained, Claimed, Entry, Finished, Stopping
from loopwarden.journal.fold import RunState, fold
from loopwarden.journal.observed import Observed
from loopwarden.journal.run_journal import Loss, RunJournal
from loopwarden.lease_view import LeaseView
from loopwarden.receipt import FailureRecord
from loopwarden.replaying import Replay
from loopwarden.store.appends import Append, Appended, AppendResult, CapReached, FencedOut
from support.broker_lab import EPOCH, BrokerLab
from support.journals import Journal

WINDOWS = {"nightly": "2026-11-30"}
"""By scope: the window that every ask is charged to."""


@dataclass
class Pen:
    """Takes the appends of one run and keeps them on their way, until the test commits, refuses or fences them."""

    run_id: str = "lab"
    is_quick: bool = False
    """Commit what comes in the next turn of the event loop."""
    max_calls: int = 1000
    max_extra: int = 1000
    codec: Codec = PLAIN
    pending: deque[Append] = field(default_factory=deque)
    parts: list[int] = field(default_factory=list)
    """How long the journal was after each append: a crash leaves it at one of these lengths."""
    spent: list[tuple[Mapping[str, str], Any]] = field(default_factory=list)
    """What budgets were told of attempts that ended."""
    journal: Journal = field(init=False)
    state: RunState = field(init=False)

    def __post_init__(self) -> None:
        self.journal = Journal(self.run_id)
        self.state = RunState(run_id=self.run_id)

    def begin(self, limits: Limits) -> "Pen":
        """Let the journal begin: created, and claimed for the first time."""
        named = {"max_total_agents": limits.max_total_agents, "max_extra_attempts": limits.extra_attempts}
        self.max_calls, self.max_extra = limits.max_total_agents, limits.extra_attempts
        self.journal.created(limits=named)
        self.claim()
        return self

    def claim(self) -> None:
        """Another host takes the run over."""
        self.journal.add(Claimed(at=EPOCH, epoch=self.state.epoch + 1, host=f"host-{self.state.epoch + 1}"))
        self._fold()

    def write(self, *entries: Entry) -> None:
        """Add entries that do not come from a broker."""
        self.journal.add(*entries)
        self._fold()

    def cut(self, part: int) -> "Pen":
        """The journal of a host that died after its append number `part` (from 0)."""
        left = Pen(run_id=self.run_id, is_quick=self.is_quick, max_calls=self.max_calls, max_extra=self.max_extra)
        length = self.parts[part]
        left.journal.add(*self.journal.entries[:length])
        left._fold()
        left.parts = self.parts[: part + 1]
        return left

    # ---- what a `RunJournal` needs of a store

    def append(self, append: Append) -> None:
        """Take an append over."""
        self.pending.append(append)
        if self.is_quick:
            asyncio.get_running_loop().call_soon(self._commit_if_pending)

    # ---- what a test decides

    @property
    def waiting(self) -> list[str]:
        """The entries that are on their way, in order."""
        return [entry.entry for append in self.pending for entry in append.entries]

    def commit(self, times: int | None = None) -> None:
        """Commit what came first; None: all that is on its way now, and all that follows from it."""
        while self.pending and times != 0:
            self._commit()
            times = None if times is None else times - 1

    def answer(self, result: AppendResult) -> None:
        """Let the append that came first end with `result`; nothing is stored."""
        self.pending.popleft().done(result)

    def fence(self) -> None:
        """Another host has the run: whatever is on its way is refused."""
        while self.pending:
            self.answer(FencedOut())

    # ---- inside

    def _commit_if_pending(self) -> None:
        if self.pending:
            self._commit()

    def _commit(self) -> None:
        append = self.pending.popleft()
        if append.charge is not None:
            repeat = append.charge.is_repeat
            if (self.state.extra >= self.max_extra) if repeat else (len(self.state.calls) >= self.max_calls):
                append.done(CapReached("extra" if repeat else "calls"))
                return
        entries = [
            entry.model_copy(update={"windows": WINDOWS}) if isinstance(entry, Asked) else entry
            for entry in append.entries
        ]
        self.journal.add(*entries)
        self._fold()
        self.parts.append(len(self.journal.entries))
        if append.spent is not None:
            self.spent.append((append.spent.windows, append.spent.usage))
        windows = WINDOWS if append.charge is not None else {}
        append.done(Appended(self.state.seq, self.state.hash, windows))

    def _fold(self) -> None:
        for chained in self.journal.chained[self.state.seq :]:
            self.state.apply(chained)

    @property
    def entries(self) -> list[Entry]:
        """What is committed."""
        return self.journal.entries

    def of(self, *kinds: type[Entry]) -> list[Any]:
        """The committed entries of these kinds."""
        return [entry for entry in self.entries if isinstance(entry, kinds)]


@dataclass
class JournalLab(BrokerLab):
    """A broker with a journal. With a journal that holds calls already, they are replayed first."""

    pen: Pen = field(default_factory=Pen)
    lease: LeaseView | None = None
    lost: list[Loss] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    divergences: list[str] = field(default_factory=list)
    faults: list[BaseException] = field(default_factory=list)
    """What went wrong in what follows from an entry: mistakes of ours."""
    drain_seconds: float = 0.0
    """How long agents may go on when the run fails."""
    replay: Replay | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.pen.journal.entries:
            self.pen.begin(self.limits)
        state = fold(self.run_id, self.pen.journal.chained)
        lease = self.lease or LeaseView(self.clock.time + 1e9, clock=self.clock.now)
        self.lease = lease
        journal = RunJournal(
            self.pen,  # type: ignore[arg-type]
            self.run_id,
            state.epoch,
            (state.seq, state.hash),
            lease=lease,
            observe=self._observe,
            on_lost=self._lost,
            on_fault=self.faults.append,
        )
        self.journal = journal
        ports: BrokerPorts = self.broker.ports
        ports.cancel = self._cancel
        ports.restore = lambda agent: self.replay is not None and self.replay.accepted(agent)
        ports.refused = lambda seq, failure: self.replay is not None and self.replay.refused(seq, failure)
        self.broker.attach(AgentJournal(journal=journal, wall=self.clock.wall), lease=lease, epoch=state.epoch)
        self.observed = Observed(run_id=self.run_id)
        self.past: list[Event] = [event for one in self.pen.journal.chained for event in self.observed.events_of(one)]
        if state.calls or state.narration:
            self.broker.hold()
            self.replay = Replay(
                state=state,
                restore=self.broker.past.restore,
                deliver=self.broker.past.deliver_recorded,
                live=lambda: self.broker.past.go_live(self.broker.agents, state),
                diverged=self.divergences.append,
            )

    def _lost(self, loss: Loss) -> None:
        self.lost.append(loss)
        self.broker.abandon()

    def _cancel(self, reason: str) -> None:
        self.cancelled.append(reason)
        self.stop()

    def _observe(self, chained: Chained) -> None:
        self.events += self.observed.events_of(chained)

    def _emit(self, kind: Any, **content: Any) -> None:
        assert kind not in (AgentStarted, AgentEnded), "observers hear of this from the journal"
        self.events.append(kind(number=self.pen.state.seq, run_id=self.run_id, at=self.clock.wall(), **content))

    def _fail(self, failure: Failure) -> None:
        self.failures.append(failure)
        self.stop(failure, drain_seconds=self.drain_seconds)

    def stop(self, failure: Failure | None = None, *, drain_seconds: float = 0.0) -> None:
        """End the run as `Run` does it: journaled first, then carried out."""
        failure = failure or Failure(code=Code.CANCELLED, message="the run was cancelled")
        record = FailureRecord(code=failure.code.value, message=failure.message)
        reason: Any = "cancelled" if failure.code is Code.CANCELLED else "error"
        self.journal.write(Stopping(at=self.clock.wall(), stop_reason=reason, failure=record), change="stopping")
        self.broker.stop(drain_seconds=drain_seconds)

    async def finish(self) -> None:
        """Let the run end after `stop`, and prove that its journal can be folded."""
        await self.broker.ended()
        state = self.pen.state
        self.journal.write(
            Finished(at=self.clock.wall(), agents_started=state.agents_started, attempts=state.attempts),
            change="finished",
        )
        self.pen.commit()

    @property
    def starts(self) -> list[int]:
        """The calls whose agents observers saw start, in order."""
        return [event.seq for event in self.events if isinstance(event, AgentStarted)]

    def assert_no_slot_is_taken(self) -> None:
        """No slot is taken, nobody is live, and nothing went wrong on the way."""
        assert self.faults == []
        assert self.broker._admission._live_slots == 0
        assert self.broker.slots._free == self.limits.max_live_agents
        assert not self.broker.has_live_agents

    def assert_nothing_is_left(self) -> None:
        """As `assert_no_slot_is_taken`, and no timer waits: the run is over here."""
        self.assert_no_slot_is_taken()
        assert not self.clock.jump(), "no timer is left"


def play(case: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Play a case on an event loop of its own."""
    asyncio.run(case())
