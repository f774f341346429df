"""The events of one run: numbered, kept within a bound, read by any number of observers at their own pace."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Final, TypeVar

from loopwarden.events import Event, EventBase, RunEnded

MAX_KEPT: Final = 20_000
"""More than a run within default limits can emit apart from progress; the oldest are forgotten first."""

EventT = TypeVar("EventT", bound=EventBase)


class EventLog:
    """What one run emitted. Readers cannot hold it up or fail it: they only ever look at what is kept."""

    __slots__ = ("_changed", "_kept", "_number", "_run_id")

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._number = 0
        self._kept: deque[Event] = deque(maxlen=MAX_KEPT)
        self._changed: asyncio.Future[None] | None = None

    def emit(self, kind: "type[EventT]", **content: Any) -> None:
        """Append one event."""
        self._number += 1
        event = kind(number=self._number, run_id=self._run_id, at=time.time(), **content)
        self._kept.append(event)  # type: ignore[arg-type]
        changed, self._changed = self._changed, None
        if changed is not None and not changed.done():
            changed.set_result(None)

    async def read(self, after: int) -> AsyncIterator[Event]:
        """Yield the events with a number above `after`, waiting for more, until the run's end was yielded.

        A reader that falls behind by more than what is kept sees a gap in the numbers.
        """
        while True:
            while (event := self._next(after)) is not None:
                after = event.number
                yield event
                if isinstance(event, RunEnded):
                    return
            if self._kept and isinstance(self._kept[-1], RunEnded):
                return
            if self._changed is None:
                self._changed = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._changed)

    def _next(self, after: int) -> Event | None:
        if after >= self._number:
            return None
        first = self._number - len(self._kept) + 1
        index = max(after + 1 - first, 0)
        return self._kept[index]
