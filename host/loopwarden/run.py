"""One run as its holder sees it: identity, events, receipt, cancel, the end. What drives it is in live_run.py."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Generic, Self, TypeVar

from loopwarden.broker import Broker
from loopwarden.contract import Conclusion
from loopwarden.event_log import EventLog
from loopwarden.events import Event
from loopwarden.outcome import Outcome
from loopwarden.receipt import Receipt
from loopwarden.run_record import Ending, RunRecord

ResultT = TypeVar("ResultT")


class Run(ABC, Generic[ResultT]):
    """A run that began. Leaving it as a context manager cancels it and waits for its end."""

    _broker: Broker

    def __init__(self, record: RunRecord) -> None:
        self._record = record
        self._events = EventLog(record.run_id)
        self._finished: asyncio.Future[Outcome[ResultT]] = asyncio.get_running_loop().create_future()
        self._value: ResultT | None = None
        self._final_receipt: Receipt | None = None

    @property
    def id(self) -> str:
        """The run's id, unique over all hosts."""
        return self._record.run_id

    @property
    def folder(self) -> Path | None:
        """Where the run's receipt and the agents' streams lie; None without a state folder."""
        return None if self._record.folder is None else self._record.folder.path

    @property
    def agents_started(self) -> int:
        """Agents charged so far. Exact at every moment."""
        return self._broker.facts.agents_started

    @property
    def has_journal(self) -> bool:
        """True when the run stands in a store."""
        return self._record.head is not None

    @property
    def is_over(self) -> bool:
        """True once `wait()` would return at once."""
        return self._finished.done()

    def receipt(self) -> Receipt:
        """The receipt as things stand now."""
        if self._final_receipt is not None:
            return self._final_receipt
        receipt = self._record.receipt(self._broker)
        if self.is_over:
            self._final_receipt = receipt
        return receipt

    def events(self, after: int = 0) -> AsyncIterator[Event]:
        """Events with a number above `after`, as they come, until `runEnded`. Many may read; nobody is waited for."""
        return self._events.read(after)

    async def wait(self) -> Outcome[ResultT]:
        """Wait for the end. Never raises for what happened in the run; cancelling the waiter leaves the run alone."""
        return await asyncio.shield(self._finished)

    async def __aenter__(self) -> Self:
        """The run itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Cancel the run unless it is over, and wait for its end."""
        self.cancel("the run was left")
        await self.wait()

    @abstractmethod
    def cancel(self, reason: str = "cancelled") -> None:
        """Fix the outcome as cancelled and kill the worker, now. The first reason wins; after the end it is a no-op.

        Checks that have not ended are left out. Raises RuntimeError on another thread or event loop.
        """

    def _outcome(self, ending: Ending, conclusion: Conclusion | None) -> Outcome[ResultT]:
        return Outcome(
            run_id=self.id,
            stop_reason=ending.stop_reason,
            value=self._value if ending.stop_reason == "completed" else None,
            failure=ending.failure,
            agents_started=self.agents_started,
            verified=self._record.verified,
            conclusion=conclusion,
            receipt_source=self.receipt,
        )
