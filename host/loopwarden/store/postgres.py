"""Stores in a Postgres database: the shared SQL, with a writer and a reader connection in a thread of their own each.

- Several hosts on any machines use one database. Rows are locked, in one order, so hosts wait only for what they share.
- A commit that is reported is on the disk, whatever the database's default is.
- The connection may go and come back: appends wait in order, and a commit whose answer never came is looked up first.
- Time is the database's.

Connections must reach the server itself, or a pooler that keeps sessions: locks, prepared statements and LISTEN belong
to a session. A host has up to six of them.
"""

import asyncio
import time
from collections.abc import Collection
from typing import Any, Final

import psycopg
from psycopg import sql

from loopwarden.journal.codec import PLAIN, Codec
from loopwarden.store.errors import StoreError
from loopwarden.store.postgres_bell import ChangeBell
from loopwarden.store.postgres_link import SCHEMA, Place, connect, place_of, said_by
from loopwarden.store.postgres_session import PostgresSession, PostgresTransaction
from loopwarden.store.sql.migrations import migrate
from loopwarden.store.sql.store import SqlStore
from loopwarden.store.wake import WakeJobs, WakeListener, install, wake_schema

LOOK_SECONDS: Final = 5.0
"""How often those who wait for a run look for themselves, whatever LISTEN tells them."""
_OLDEST_VERSION: Final = 13
_MIGRATION_LOCK: Final = 4_137_552_281_043
"""An advisory lock: one host at a time makes or changes tables."""


class PostgresStore(SqlStore):
    """A store in a Postgres database. Made by `open_postgres`."""

    is_shared = True

    def __init__(self, place: Place, codec: Codec, writer: PostgresSession, reader: PostgresSession) -> None:
        super().__init__(name=place.name, durable=True, writer=writer, reader=reader, codec=codec)
        self._bell = ChangeBell(place, self._changes.tell, self._changes.tell_all)
        self._wakes = WakeListener(place, wake_schema())

    async def close(self) -> None:
        """Commit what was handed over, then close. Harmless when repeated."""
        await self._wakes.close()
        await self._bell.close()
        await super().close()

    async def changed(self, run_id: str, *, after: int, timeout_seconds: float) -> bool:
        """Wait until the journal has a row above `after`, or the row of the run changed; False after the timeout."""
        self._bell.listen()
        return await super().changed(run_id, after=after, timeout_seconds=timeout_seconds)

    async def woken(self, queues: Collection[str], timeout_seconds: float) -> bool:
        """Wait until somebody submitted or gave back a run of these queues, or one of them came due; see `Store`."""
        return await self._wakes.woken(queues, timeout_seconds)

    async def _version(self) -> object:
        return int(time.monotonic() / LOOK_SECONDS)


async def open_postgres(url: str, *, codec: Codec = PLAIN) -> PostgresStore:
    """Open the store in a database, whose tables are made or brought to the newest format, in schemas of their own.

    `url` is any URL or conninfo that libpq takes; what it leaves out comes from where libpq looks (a service file, a
    password file). Raises `StoreError`: `StoreUnavailable` when trying again later may help, `StoreTooNew` for a store
    of a newer Loopwarden. No error holds a password.
    """
    place = place_of(url)
    await asyncio.to_thread(_prepare, place)
    path = (SCHEMA, wake_schema())
    jobs = WakeJobs()
    return PostgresStore(place, codec, PostgresSession(place, path, jobs), PostgresSession(place, path, jobs))


def _prepare(place: Place) -> None:
    """Make or change tables, one host at a time."""
    try:
        with connect(place, search_path=(SCHEMA,)) as connection, connection.transaction():
            if connection.info.server_version < _OLDEST_VERSION * 10_000:
                raise StoreError(
                    f"the database {place.name} is of Postgres {connection.info.server_version // 10_000}; "
                    f"use one of Postgres {_OLDEST_VERSION} or newer"
                )
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_MIGRATION_LOCK,))
            _make_schema(connection)
            migrate(PostgresTransaction(connection), place.name)
            install(connection, wake_schema())
    except (psycopg.Error, OSError) as error:
        raise said_by(place, error) from None


def _make_schema(connection: psycopg.Connection[Any]) -> None:
    # Asked first: who may not make a schema may well use one that somebody made.
    there = connection.execute("SELECT to_regnamespace(%s)", (SCHEMA,)).fetchone()
    if there is None or there[0] is None:
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(SCHEMA)))
