"""This host's ownership of one run in a store: the pen of its journal, its lease, and what was recorded before."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from loopwarden.event_log import EventLog
from loopwarden.failures import Code, Failure
from loopwarden.following import Following
from loopwarden.journal.chain import decode_rows
from loopwarden.journal.entries import (
    AttemptEnded,
    Chained,
    Claimed,
    ConclusionRecord,
    Created,
    Entry,
    Finished,
    Held,
    Reopened,
    Stopping,
    WaitCancelled,
)
from loopwarden.journal.fold import fold
from loopwarden.journal.moves import Stage
from loopwarden.journal.observed import Observed
from loopwarden.journal.receipt_fold import receipt_of
from loopwarden.journal.run_journal import Loss, RunJournal
from loopwarden.lease_view import LeaseView
from loopwarden.receipt import FailureRecord, JournalRecord, Receipt
from loopwarden.run_record import Ending
from loopwarden.store.api import Store
from loopwarden.store.appends import RowChange, Spent
from loopwarden.store.errors import StoreError
from loopwarden.store.runs import Claim

DRAINED: Final = frozenset({Code.AGENT_CAP, Code.COST_CAP, Code.SCOPE_BUDGET})
"""A run that ends so lets its agents finish: they are paid for, and a run that is resumed takes what they bring."""


class Tenure:
    """One run, from its claim until it ends, is given back, or is lost to another host.

    Raises `StoreCorrupt` when the journal that was claimed is damaged.
    """

    def __init__(self, store: Store, claim: Claim, lease: LeaseView, wall: Callable[[], float]) -> None:
        self.store = store
        self.run_id = claim.row.run_id
        self.epoch = claim.row.epoch
        self.lease = lease
        self._wall = wall
        chained = decode_rows(self.run_id, claim.rows, claim.blobs, store.codec)
        self.recorded = fold(self.run_id, chained)
        """What the journal held when the run was claimed."""
        self._observed = Observed(run_id=self.run_id)
        self._past = [event for one in chained for event in self._observed.events_of(one)]
        self._events: EventLog | None = None
        self.active_seconds = active_seconds([one.entry for one in chained])
        """How long hosts have driven this run so far: what counts against its deadline, in all its segments."""
        self.journal = RunJournal(
            store,
            self.run_id,
            self.epoch,
            (self.recorded.seq, self.recorded.hash),
            lease=lease,
            observe=self._tell,
            on_lost=self.lost,
            on_fault=lambda error: None if self.on_fault is None else self.on_fault(error),
        )
        self.on_lost: Callable[[Loss], None] | None = None
        self.on_fault: Callable[[BaseException], None] | None = None
        self.is_ending = False
        """The entry that gives the lease back is on its way: a renewal that is refused then means nothing."""
        self._commits: set[asyncio.Future[int | None]] = set()

    def head(self) -> JournalRecord:
        """Where the journal stands."""
        return JournalRecord(seq=self.journal.seq, head=self.journal.hash, epoch=self.epoch)

    def fill(self, events: EventLog) -> None:
        """Let observers see what was recorded before, and every entry from here on."""
        events.take_numbers_from_journal()
        for event in self._past:
            events.add(event)
        self._past = []
        self._events = events

    def _tell(self, chained: Chained) -> None:
        for event in self._observed.events_of(chained):
            if self._events is not None:
                self._events.add(event)

    # ---- entries

    def stop(self, ending: Ending) -> None:
        """Record the first terminal event."""
        conclusion = ending.conclusion
        self.journal.write(
            Stopping(
                at=self._wall(),
                stop_reason=ending.stop_reason,
                failure=None if ending.failure is None else failure_record(ending.failure),
                result=ending.result,
                conclusion=None
                if conclusion is None
                else ConclusionRecord(
                    standing=conclusion.standing.value, sentence=conclusion.sentence, body=conclusion.body
                ),
            ),
            change="stopping",
        )

    async def end(self, ending: Ending, receipt: Receipt) -> int | None:
        """Record that a run has ended, or is held. Returns the number of the entry; None when it was lost before."""
        if ending.held is not None:
            return await self.hold(ending.held, ending.reason)
        return await self.finish(receipt)

    async def finish(self, receipt: Receipt) -> int | None:
        """Record the end, from the receipt. Returns the number of the entry; None when the run was lost before."""
        entry = Finished(
            at=self._wall(),
            agents_started=receipt.agents_started,
            attempts=receipt.attempts,
            verified=receipt.verified,
            checks=receipt.checks,
            worktree=receipt.worktree,
            last_handoff=receipt.last_handoff,
            walls=receipt.walls,
            problems=receipt.problems,
        )
        return await self._commit(entry, change="finished")

    async def read_receipt(self) -> Receipt:
        """The receipt as the journal tells it by now, once the run has ended here; what cannot be read is left out."""
        following = Following(self.store, self.run_id)
        try:
            await following.more()
        except StoreError:
            return receipt_of(self.recorded)
        return receipt_of(following.state)

    async def hold(self, code: Code, reason: str) -> int | None:
        """Hold the run, and give the lease back."""
        return await self._commit(Held(at=self._wall(), code=code.value, reason=reason), change="held")

    async def give_back(self) -> int | None:
        """Give the run back: the next host goes on at once."""
        return await self._commit(change="queued")

    async def reopen(self, entry: Reopened) -> int | None:
        """An operator lets a run go on. Returns the number of the entry; None when the run was lost before."""
        return await self._commit(entry, is_ending=False)

    async def put_back(self) -> None:
        """Give back what was claimed and is over, or held: its row says so again, its journal says nothing."""
        match self.recorded.stage:
            case Stage.FINISHED:
                await self._commit(change="finished")
            case Stage.HELD:
                await self._commit(change="held")
            case _:
                await self.give_back()

    def close_asks(self, reason: str) -> bool:
        """End the agents that were recorded and have no end, for a run that is over. False when there are none."""
        left = [call for call in self.recorded.calls.values() if not call.is_closed]
        for call in left:
            if not call.is_open:  # between two attempts
                self.journal.write(WaitCancelled(at=self._wall(), seq=call.seq))
                continue
            end = AttemptEnded(
                at=self._wall(),
                seq=call.seq,
                attempt=len(call.asks),
                outcome="interrupted",
                reason=reason,
                is_last=True,
            )
            self.journal.write(end, spent=Spent(windows=call.asks[-1].windows, usage=None))
        return bool(left)

    async def _commit(self, *entries: Entry, change: RowChange = "none", is_ending: bool = True) -> int | None:
        if self.journal.is_lost:
            return None
        self.is_ending = is_ending
        committed: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._commits.add(committed)

        def done() -> None:
            self._commits.discard(committed)
            if not committed.done():
                committed.set_result(self.journal.seq)

        self.journal.write(*entries, then=done, change=change)
        return await committed

    def lost(self, loss: Loss) -> None:
        """The run is another host's, or its rows are damaged."""
        self.lose()
        if self.on_lost is not None:
            self.on_lost(loss)

    def lose(self) -> None:
        """The run is another host's: nothing more is written, nobody waits for a commit any more."""
        self.journal.lose()
        for committed in self._commits:
            if not committed.done():
                committed.set_result(None)
        self._commits.clear()


def failure_record(failure: Failure) -> FailureRecord:
    """A failure in the form of receipts and journals."""
    return FailureRecord(
        code=failure.code.value, message=failure.message, line=failure.line, details=dict(failure.details)
    )


def active_seconds(recorded: Sequence[Entry]) -> float:
    """How long a run was driven, by its journal: neither the time in a queue nor that between two segments.

    A segment lasts from the first entry that its host wrote to the last. A claim, and a hold for want of a host, carry
    the time of the store, whose clock may differ from those of hosts by any amount: what lies between an entry of the
    one and an entry of the other is no length of time.
    """
    total, began, last = 0.0, None, 0.0
    is_over = False
    for entry in recorded:
        match entry:
            case Created():
                pass  # by whoever submitted the run
            case Claimed() | Held():
                total += 0.0 if began is None else max(0.0, last - began)
                began = None
            case Stopping():
                total += 0.0 if began is None else max(0.0, entry.at - began)
                began, is_over = None, True
            case Reopened():
                began, last, is_over = entry.at, entry.at, False
            case _ if not is_over:
                began, last = entry.at if began is None else began, entry.at
    return total
