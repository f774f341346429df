"""The seams of a host: moments at which a test kills it, stops it, or takes its power away. For child processes alone.

A seam has a name and is passed many times; a point is the n-th passage of one seam. What is counted is what the run
does (appends, frames, asks), never how it was batched, so that a point is the same moment in every process.

    create.*  claim.*     the transaction that makes, or claims, the run: written and not committed; committed
    append.*              handed: before the transaction; written: before COMMIT; committed: before the host hears of it
    send.*    read.*      before and after a write to the worker; before a frame is read, and before it is acted upon
    ask.*                 before it is handed over; past the check of the lease; the provider was asked
    answer.*              the provider has its answer; the host took it
    check.*               before and after a check that the host runs at the end
    launcher, fork.*, go.*
"""

import os
import signal
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import loopwarden.attendance
import loopwarden.checks
from loopwarden.attendance import Attendance
from loopwarden.broker import Broker
from loopwarden.channel import WorkerChannel
from loopwarden.launching import Launcher
from loopwarden.session import Session
from loopwarden.store.postgres_session import PostgresSession
from loopwarden.store.sql import appends, claims, run_rows
from loopwarden.store.sql.store import SqlStore
from loopwarden.store.sqlite import SqliteSession
from loopwarden_engine.protocol import HostProtocol

Action: TypeAlias = Literal["kill", "stop", "power"]
WRITER = "loopwarden-store-writer"


@dataclass(slots=True)
class Seams:
    """Counts the passages of all seams, and acts at one of them."""

    seam: str | None = None
    at: int = 0
    action: Action = "kill"
    cut_power: Callable[[], None] | None = None
    """Takes back what was written and not synced, and kills this process."""
    counts: Counter[str] = field(default_factory=Counter)
    has_acted: bool = False
    transaction: threading.Lock = field(default_factory=threading.Lock)
    """Held while a transaction writes."""

    def passes(self, name: str, at: int | None = None) -> None:
        """Pass a seam. `at`: which passage this is; at least the one that is waited for makes it act."""
        self.counts[name] = self.counts[name] + 1 if at is None else max(at, self.counts[name])
        if name == self.seam and self.counts[name] >= self.at and not self.has_acted:
            self.has_acted = True
            if self.action == "power":
                assert self.cut_power is not None
                self.cut_power()
            if self.action == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            # A process that is stopped in the middle of a transaction keeps a SQLite file locked for everybody.
            with self.transaction:
                os.kill(os.getpid(), signal.SIGSTOP)

    def install(self) -> None:
        """Take part in everything that hosts of this process do from now on."""
        self._transactions()
        self._channel()
        self._asks()
        self._checks()
        self._spawns()

    def _transactions(self) -> None:
        handed = SqlStore.append
        append_all, create, claim = appends.append_all, run_rows.create_runs, claims.claim_one
        written: list[str] = []

        def append(store: SqlStore, one: Any) -> None:
            self.passes("append.handed")
            handed(store, one)

        def appended(tx: Any, batch: Any, *more: Any) -> Any:
            results = append_all(tx, batch, *more)
            for _ in batch:
                written.append("append")
                self.passes("append.written")
            return results

        def created(*arguments: Any) -> Any:
            rows = create(*arguments)
            written.append("create")
            self.passes("create.written")
            return rows

        def claimed(*arguments: Any) -> Any:
            claim_or_row = claim(*arguments)
            written.append("claim")
            self.passes("claim.written")
            return claim_or_row

        def beginning(begin: Callable[[Any], Any]) -> Callable[[Any], Any]:
            def began(session: Any) -> Any:
                if threading.current_thread().name == WRITER:
                    self.transaction.acquire()
                return begin(session)

            return began

        def ending(end: Callable[[Any], None]) -> Callable[[Any], None]:
            def ended(session: Any) -> None:
                try:
                    end(session)
                finally:
                    if threading.current_thread().name == WRITER and self.transaction.locked():
                        self.transaction.release()

            return ended

        def committing(commit: Callable[[Any], None]) -> Callable[[Any], None]:
            def committed(session: Any) -> None:
                commit(session)
                if threading.current_thread().name == WRITER:
                    names, written[:] = list(written), []
                    for name in names:
                        self.passes(f"{name}.committed")

            return committed

        SqlStore.append = append  # type: ignore[method-assign]
        appends.append_all, run_rows.create_runs, claims.claim_one = appended, created, claimed
        for session in (SqliteSession, PostgresSession):
            session.begin = beginning(session.begin)  # type: ignore[method-assign]
            session.commit = committing(ending(session.commit))  # type: ignore[method-assign]
            session.rollback = ending(session.rollback)  # type: ignore[method-assign]

    def _channel(self) -> None:
        flush, readable = WorkerChannel._flush, WorkerChannel._readable
        next_message = HostProtocol.next_message
        heard = 0

        def flushed(channel: WorkerChannel) -> None:
            if not channel._backlog or channel._closed:
                flush(channel)
                return
            self.passes("send.before")
            flush(channel)
            self.passes("send.after")

        def read(channel: WorkerChannel) -> None:
            self.passes("read.before", heard + 1)
            readable(channel)

        def message(protocol: HostProtocol) -> Any:
            nonlocal heard
            found = next_message(protocol)
            if found is not None:
                heard += 1
                self.passes("read.after", heard)
            return found

        WorkerChannel._flush, WorkerChannel._readable = flushed, read  # type: ignore[method-assign]
        HostProtocol.next_message = message  # type: ignore[method-assign]

    def _asks(self) -> None:
        begin, over = Attendance._attend, Broker._attempt_over
        ask = loopwarden.attendance.ask

        async def attended(attendance: Attendance, *arguments: Any) -> None:
            self.passes("ask.before")
            await begin(attendance, *arguments)

        async def asked(*arguments: Any) -> Any:
            self.passes("ask.checked")
            return await ask(*arguments)

        def taken(broker: Broker, agent: Any, attempt: Any, end: Any) -> None:
            is_first = not attempt.is_over
            over(broker, agent, attempt, end)
            if is_first:
                self.passes("answer.taken")

        Attendance._attend = attended  # type: ignore[method-assign, assignment]
        loopwarden.attendance.ask = asked  # type: ignore[attr-defined]
        Broker._attempt_over = taken  # type: ignore[method-assign]

    def _checks(self) -> None:
        run_check = loopwarden.checks.run_check

        async def checked(*arguments: Any, **options: Any) -> Any:
            self.passes("check.before")
            record = await run_check(*arguments, **options)
            self.passes("check.after")
            return record

        loopwarden.checks.run_check = checked  # type: ignore[attr-defined]

    def _spawns(self) -> None:
        start, fork, go = Launcher.start, Launcher.fork, Session.go

        async def started(*arguments: Any, **options: Any) -> Any:
            self.passes("launcher")
            return await start(*arguments, **options)

        async def forked(launcher: Launcher, *arguments: Any) -> Any:
            self.passes("fork.before")
            worker = await fork(launcher, *arguments)
            self.passes("fork.after")
            return worker

        def gone(session: Session) -> None:
            self.passes("go.before")
            go(session)
            self.passes("go.after")

        Launcher.start = started  # type: ignore[method-assign, assignment]
        Launcher.fork = forked  # type: ignore[method-assign]
        Session.go = gone  # type: ignore[method-assign]


def set_pragmas(pragmas: Sequence[str]) -> None:
    """Set up every connection to a SQLite store in this way, too."""
    connected = SqliteSession._connected

    def connect(session: SqliteSession) -> sqlite3.Connection:
        is_new = session._connection is None
        connection = connected(session)
        for pragma in pragmas if is_new else ():
            connection.execute(f"PRAGMA {pragma}")
        return connection

    SqliteSession._connected = connect  # type: ignore[method-assign]
