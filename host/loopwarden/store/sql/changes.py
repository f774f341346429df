"""Waiting for changes of runs: at once for those of this process, by looking again for those of others."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from loopwarden.store.errors import StoreError, StoreUnavailable

LOOK_SECONDS: Final = 0.2
"""How often a store is asked whether another process has committed, while somebody waits."""


class Changes:
    """Who waits for which run. Belongs to one event loop."""

    def __init__(self, version: Callable[[], Awaitable[object]]) -> None:
        self._version = version
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._looking: asyncio.Task[None] | None = None

    def tell(self, names: set[str]) -> None:
        """Wake those who wait for these runs, or for arrivals in these queues."""
        for name in names:
            for event in self._waiting.get(name, ()):
                event.set()

    def tell_all(self) -> None:
        """Wake everybody: who knows what changed."""
        for events in self._waiting.values():
            for event in events:
                event.set()

    async def wait(
        self, names: Collection[str], has_changed: Callable[[], Awaitable[bool]], timeout_seconds: float
    ) -> bool:
        """Wait until `has_changed`, asked now and at each change of what is named; False after the timeout."""
        event = asyncio.Event()
        for name in names:
            self._waiting.setdefault(name, set()).add(event)
        if self._looking is None:
            self._looking = asyncio.ensure_future(self._look())
        try:
            async with asyncio.timeout(timeout_seconds):
                while not await has_changed():
                    await event.wait()
                    event.clear()
        except TimeoutError:
            return False
        else:
            return True
        finally:
            for name in names:
                self._waiting[name].discard(event)
                if not self._waiting[name]:
                    del self._waiting[name]
            if not self._waiting and self._looking is not None:
                self._looking.cancel()
                self._looking = None

    async def close(self) -> None:
        """Stop looking, and wake everybody."""
        self.tell_all()
        if self._looking is not None:
            self._looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._looking
            self._looking = None

    async def _look(self) -> None:
        seen: object = None
        while True:
            try:
                now = await self._version()
                if now != seen:
                    seen = now
                    self.tell_all()
            except StoreUnavailable:
                pass  # it may come back
            except StoreError:
                self.tell_all()  # who waits looks again, and is told the same
            await asyncio.sleep(LOOK_SECONDS)
