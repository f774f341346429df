"""A run that another host drives, seen through the store: its events as they are committed, and its real end."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from loopwarden.contract import Conclusion, Standing
from loopwarden.events import Event
from loopwarden.failures import Code, Failure
from loopwarden.journal.chain import START, decode_rows, digests_in
from loopwarden.journal.entries import Chained
from loopwarden.journal.fold import RunState
from loopwarden.journal.moves import Stage
from loopwarden.journal.observed import Observed, failure_of
from loopwarden.journal.receipt_fold import receipt_of
from loopwarden.outcome import Outcome
from loopwarden.receipt import Receipt
from loopwarden.store.api import MAX_PAGE, Store
from loopwarden.store.errors import StoreCorrupt, StoreUnavailable
from loopwarden.store.runs import Status

LOOK_AGAIN_SECONDS: Final = 5.0
"""The longest that a store is waited for at a time; it tells of changes sooner when it can."""


class Following:
    """Reads the journal of one run as it grows."""

    def __init__(self, store: Store, run_id: str) -> None:
        self.store = store
        self.state = RunState(run_id=run_id)
        self._observed = Observed(run_id=run_id)

    @property
    def is_over(self) -> bool:
        """True once the run has ended, or is held; an operator may still reopen it."""
        return self.state.stage in (Stage.FINISHED, Stage.HELD)

    def take(self, chained: Chained) -> list[Event]:
        """Take an entry that was read already. Raises `StoreCorrupt`."""
        self.state.apply(chained)
        return self._observed.events_of(chained)

    async def more_or_damage(self) -> list[Event]:
        """As `more`, for who waits for the end. Raises `StoreCorrupt` also for a run that is held by its row alone.

        A claim that finds damage appends nothing, so the journal of such a run would be followed for ever.
        """
        row = await self.store.get(self.state.run_id)
        found = await self.more()
        if row is not None and row.status is Status.HELD and self.state.seq <= row.head_seq and not self.is_over:
            raise StoreCorrupt(row.run_id, row.reason or "it is held")
        return found

    async def more(self) -> list[Event]:
        """The events of what was committed since. Raises `StoreError`."""
        run_id = self.state.run_id
        found: list[Event] = []
        while True:
            rows = await self.store.read(run_id, after=self.state.seq)
            if not rows:
                return found
            large = {digest for row in rows for digest in digests_in(row.body, self.store.codec)}
            blobs = await self.store.blobs(run_id, large) if large else {}
            before = self.state.hash if self.state.seq else START
            chained = decode_rows(run_id, rows, blobs, self.store.codec, after_seq=self.state.seq, after_hash=before)
            for one in chained:
                found += self.take(one)
            if len(rows) < MAX_PAGE:
                return found

    async def until_over(self, emit: Callable[[Event], None]) -> RunState:
        """Follow the run to its end. A store that cannot be reached is waited for. Raises `StoreCorrupt`."""
        while True:
            try:
                for event in await self.more_or_damage():
                    emit(event)
                if self.is_over:
                    return self.state
                await self.store.changed(self.state.run_id, after=self.state.seq, timeout_seconds=LOOK_AGAIN_SECONDS)
            except StoreUnavailable:
                await asyncio.sleep(LOOK_AGAIN_SECONDS)


def outcome_of(state: RunState) -> Outcome[Any]:
    """The end of a run as its journal tells it. `value` is the result as plain JSON: no contract decoded it here."""
    receipt = receipt_of(state)

    def source() -> Receipt:
        return receipt

    stopping, held = state.stopping, state.held
    if held is not None or stopping is None:
        code = Code.HOST_LOST if held is None else _code(held.code)
        message = "the run has not ended" if held is None else held_sentence(state.run_id, held.reason, code)
        return Outcome(
            run_id=state.run_id,
            stop_reason="error",
            value=None,
            failure=Failure(code=code, message=message),
            agents_started=state.agents_started,
            verified=None,
            conclusion=None,
            receipt_source=source,
        )
    conclusion = stopping.conclusion
    return Outcome(
        run_id=state.run_id,
        stop_reason=stopping.stop_reason,
        value=stopping.result,
        failure=None if stopping.failure is None else failure_of(stopping.failure),
        agents_started=state.agents_started,
        verified=None if state.finished is None else state.finished.verified,
        conclusion=None
        if conclusion is None
        else Conclusion(standing=Standing(conclusion.standing), sentence=conclusion.sentence, body=conclusion.body),
        receipt_source=source,
    )


def held_sentence(run_id: str, reason: str, code: str) -> str:
    """What a person is told of a run that is held."""
    return f"the run is held: {reason}. {mending(run_id, code)}"


def mending(run_id: str, code: str | None) -> str:
    """What a person does about a run that is held by `code`."""
    mend = "Nothing is lost; mend it"
    if code == Code.STORE_CORRUPT:
        mend = f"`loopwarden verify {run_id}` says what is damaged; restore it from a backup"
    return f"{mend}, then `loopwarden resume {run_id}`"


def _code(name: str) -> Code:
    try:
        return Code(name)
    except ValueError:
        return Code.HOST_LOST
