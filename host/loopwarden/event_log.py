"""The events of one run: numbered, kept within a bound, read by any number of observers at their own pace."""

import asyncio
import sys
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Final, TypeVar

from loopwarden.events import AgentProgress, Event, EventBase, ItemFailed, Log, RunEnded, RunHeld

MAX_KEPT: Final = 20_000
"""More than a run within default limits can emit apart from progress; the oldest are forgotten first."""

MAX_KEPT_BYTES: Final = 8 * 1024 * 1024
"""Of texts, in memory: a run may say so much that ten thousand messages take 160 MB."""
_WITH_TEXT: Final = (Log, ItemFailed, AgentProgress)

EventT = TypeVar("EventT", bound=EventBase)


class EventLog:
    """What one run emitted. Readers cannot hold it up or fail it: they only ever look at what is kept.

    With a journal, an event has the number of its entry, so that it is the same for every observer on every host. What
    is not journaled, such as progress, has the number of the entry before it.
    """

    __slots__ = ("_changed", "_dropped", "_has_journal", "_kept", "_kept_bytes", "_number", "_run_id")

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._has_journal = False
        self._number = 0
        self._dropped = 0
        self._kept: deque[Event] = deque()
        self._kept_bytes = 0
        self._changed: asyncio.Future[None] | None = None

    @property
    def number(self) -> int:
        """Of the last event."""
        return self._number

    def emit(self, kind: "type[EventT]", *, number: int | None = None, **content: Any) -> None:
        """Append one event. `number`: of its entry in the journal."""
        if number is None:
            number = self._number if self._has_journal else self._number + 1
        self.add(kind(number=number, run_id=self._run_id, at=time.time(), **content))  # type: ignore[arg-type]

    def take_numbers_from_journal(self) -> None:
        """From here on events have the numbers of their entries. Before the first event."""
        self._has_journal = True

    def add(self, event: Event) -> None:
        """Append one event that is made already."""
        self._number = max(self._number, event.number)
        self._kept.append(event)
        self._kept_bytes += _text_bytes(event)
        while len(self._kept) > MAX_KEPT or (self._kept_bytes > MAX_KEPT_BYTES and len(self._kept) > 1):
            self._kept_bytes -= _text_bytes(self._kept.popleft())
            self._dropped += 1
        changed, self._changed = self._changed, None
        if changed is not None and not changed.done():
            changed.set_result(None)

    def add_new(self, event: Event) -> None:
        """Append an event that is read back from the journal, unless it came about here and was seen then."""
        if event.number > self._number:
            self.add(event)

    async def read(self, after: int) -> AsyncIterator[Event]:
        """Yield the events with a number above `after`, waiting for more, until the run's end was yielded.

        A reader that falls behind by more than what is kept sees a gap in the numbers.
        """
        position = self._dropped + sum(event.number <= after for event in self._kept)
        while True:
            while (index := max(position - self._dropped, 0)) < len(self._kept):
                event = self._kept[index]
                position = self._dropped + index + 1
                yield event
                # A run that was reopened goes on after an end.
                if isinstance(event, RunEnded | RunHeld) and event is self._kept[-1]:
                    return
            if self._kept and isinstance(self._kept[-1], RunEnded | RunHeld):
                return
            if self._changed is None:
                self._changed = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._changed)


def _text_bytes(event: Event) -> int:
    return sys.getsizeof(event.message) if isinstance(event, _WITH_TEXT) else 0
