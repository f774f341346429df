"""Hearing what other processes change on Postgres: LISTEN on one channel. A hint; who waits also looks now and then."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final

import psycopg
from psycopg import sql

from loopwarden.logs import host_logger
from loopwarden.store.postgres_link import Place
from loopwarden.store.postgres_session import CHANNEL

_CHECK_SECONDS: Final = 30.0
"""How long the connection may be silent before it is asked whether it lives."""
_FIRST_PAUSE_SECONDS: Final = 0.2
_LAST_PAUSE_SECONDS: Final = 10.0


class ChangeBell:
    """A connection of its own on the event loop, which listens until it is closed."""

    def __init__(self, place: Place, tell: Callable[[set[str]], None], tell_all: Callable[[], None]) -> None:
        """`tell` is called with the runs that changed, `tell_all` when nobody knows which, after a gap."""
        self._place = place
        self._tell = tell
        self._tell_all = tell_all
        self._task: asyncio.Task[None] | None = None

    def listen(self) -> None:
        """Begin to listen, unless that was begun before."""
        if self._task is None:
            self._task = asyncio.create_task(self._listen(), name="loopwarden changes")

    async def close(self) -> None:
        """Stop listening. Harmless when repeated."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _listen(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(
                    self._place.conninfo, autocommit=True, **self._place.parameters
                ) as connection:
                    await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(CHANNEL)))
                    pause = _FIRST_PAUSE_SECONDS
                    self._tell_all()
                    await self._hear(connection)
            except (psycopg.Error, OSError) as error:
                why = type(error).__name__
                host_logger().warning("changes are found by looking alone for a while", store=self._place.name, why=why)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LAST_PAUSE_SECONDS)

    async def _hear(self, connection: psycopg.AsyncConnection[Any]) -> None:
        while True:
            async for notification in connection.notifies(timeout=_CHECK_SECONDS):
                self._tell(set(notification.payload.split()))
            await connection.execute("SELECT 1")
