"""Runs, asks and ends for tests of the Postgres store, and connections that are lost when a test wants it."""

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any

import psycopg

from loopwarden.journal.entries import Asked, Created, Ended, Entry, ReplayVersion
from loopwarden.store.appends import Append, AppendResult, Charge, Spent
from loopwarden.store.postgres import PostgresStore
from loopwarden.store.postgres_session import PostgresSession
from loopwarden.store.runs import Claim, NewRun, Owner, Wanted

REPLAY = ReplayVersion(python="3.11", restricted_python="8.1", policy="sha256:policy")
HOST = Owner(host_id="host-1", lease_seconds=60)


def new_run(
    run_id: str,
    *,
    key: str | None = None,
    scopes: Sequence[str] = (),
    queue: str = "nightly",
    priority: int = 0,
    calls: int = 1000,
    not_before: float = 0.0,
) -> NewRun:
    """A run that waits in a queue."""
    created = Created(
        at=1.0,
        run_id=run_id,
        script="loop",
        source="def main(args): ...",
        source_digest="sha256:source",
        contract_digest="sha256:contract",
        args={},
        limits={"max_total_agents": calls, "max_extra_attempts": 3},
        provider="default",
        replay=REPLAY,
        queue=queue,
        key=key,
        priority=priority,
        scopes=list(scopes),
    )
    return NewRun(created=created, content_digest=f"sha256:{run_id}", not_before=not_before)


def wanted(queue: str = "nightly", places: int = 100) -> Wanted:
    """What a host can drive: all of it."""
    return Wanted(
        queues={queue: places},
        scripts={"loop": "sha256:contract"},
        replay=REPLAY,
        providers={"default"},
        workspaces=(),
        kill_grace_seconds=1,
    )


def ask(run_id: str, seq: int, done: Callable[[AppendResult], None], *, epoch: int = 1) -> Append:
    """The first ask of a call."""
    entry = Asked(
        at=2.0, seq=seq, key=str(seq), digest="sha256:d", attempt=1, ask="first", provider="default", label="call"
    )
    return Append(run_id=run_id, epoch=epoch, entries=[entry], done=done, charge=Charge(is_repeat=False))


def end(run_id: str, seq: int, done: Callable[[AppendResult], None], *, epoch: int = 1) -> Append:
    """The end of a call."""
    entry = Ended(at=3.0, seq=seq, attempt=1, outcome="completed", value="v" * 500)
    return Append(run_id=run_id, epoch=epoch, entries=[entry], done=done, spent=Spent(windows={}, usage=None))


def give_back(run_id: str, last: Entry, done: Callable[[AppendResult], None]) -> Append:
    """The last entry of a host that stops in order: the run waits in its queue again."""
    return Append(run_id=run_id, epoch=1, entries=[last], done=done, change="queued")


async def appended(store: PostgresStore, make: Callable[..., Append], *arguments: Any, **options: Any) -> AppendResult:
    """Hand an append over and wait for its result."""
    result: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
    store.append(make(*arguments, result.set_result, **options))
    return await result


async def claimed(store: PostgresStore, run_id: str, owner: Owner = HOST) -> Claim:
    """Create a run and claim it."""
    await store.create([new_run(run_id)])
    claim = await store.claim_one(owner, run_id, kill_grace_seconds=1)
    assert isinstance(claim, Claim)
    return claim


class Losses:
    """Loses the connection of commits to come, before or after the server has heard of them."""

    def __init__(self) -> None:
        self.planned: list[Callable[[psycopg.Connection[Any]], None] | None] = []
        self.happened = 0

    def before_commit(self) -> None:
        """The next commit never arrives."""
        self.planned.append(cut)

    def after_commit(self) -> None:
        """The next commit is done, but its answer never arrives."""
        self.planned.append(_commit_and_cut)

    def install(self, monkeypatch: Any) -> None:
        """Take part in every commit of every store of this process."""
        real = PostgresSession._send_commit

        def send_commit(session: PostgresSession, connection: psycopg.Connection[Any]) -> None:
            # Only commits that write are lost: reads go on beside them.
            if self.planned and session._transaction is not None and session._transaction.touched:
                loss = self.planned.pop(0)
                if loss is not None:
                    self.happened += 1
                    loss(connection)
            real(session, connection)

        monkeypatch.setattr(PostgresSession, "_send_commit", send_commit)


def cut(connection: psycopg.Connection[Any]) -> None:
    """End the connection as a broken network does: neither side says goodbye."""
    link = socket.socket(fileno=os.dup(connection.pgconn.socket))
    link.shutdown(socket.SHUT_RDWR)
    link.close()


def _commit_and_cut(connection: psycopg.Connection[Any]) -> None:
    connection.execute("COMMIT")
    cut(connection)
