"""Stores for tests, opened and with a time that tests move; and the runs and entries that they are fed."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol
from unittest.mock import patch

from loopwarden.journal.chain import decode_rows
from loopwarden.journal.entries import Asked, Chained, Created, Ended, Entry, Finished, ReplayVersion, Stopping
from loopwarden.store.api import Store
from loopwarden.store.appends import Append, AppendResult, Charge, Spent
from loopwarden.store.postgres import open_postgres
from loopwarden.store.postgres_session import PostgresTransaction
from loopwarden.store.runs import (
    Claim,
    NewRun,
    Owner,
    RunRow,
    Wanted,
)
from loopwarden.store.sqlite import open_memory, open_sqlite
from support.postgres_server import emptied_database

REPLAY = ReplayVersion(python="3.11", restricted_python="9.0", policy="sha256:policy")
ALICE = Owner(host_id="alice", lease_seconds=30.0)
BOB = Owner(host_id="bob", lease_seconds=30.0)
GRACE = 5.0
CALL = Charge(is_repeat=False)
REPEAT = Charge(is_repeat=True)


class StoreLab(Protocol):
    """One store, and its time."""

    store: Store

    async def pass_seconds(self, seconds: float) -> None:
        """Let time pass for the store: leases expire, budgets begin new windows."""
        ...


class TickingClock:
    """A clock that stands still unless it is moved."""

    def __init__(self, now: float = 1_796_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class LocalLab:
    """A store of this machine, on a clock of its own."""

    def __init__(self, store: Store, clock: TickingClock) -> None:
        self.store = store
        self.clock = clock

    async def pass_seconds(self, seconds: float) -> None:
        self.clock.now += seconds


@contextlib.asynccontextmanager
async def memory_lab(folder: Path) -> AsyncIterator[StoreLab]:
    """A store in memory."""
    clock = TickingClock()
    store = await open_memory(clock=clock)
    try:
        yield LocalLab(store, clock)
    finally:
        await store.close()


@contextlib.asynccontextmanager
async def sqlite_lab(folder: Path) -> AsyncIterator[StoreLab]:
    """A store in a file below `folder`."""
    clock = TickingClock()
    store = await open_sqlite(folder / "state" / "store.db", clock=clock)
    try:
        yield LocalLab(store, clock)
    finally:
        await store.close()


@contextlib.asynccontextmanager
async def postgres_lab(folder: Path) -> AsyncIterator[StoreLab]:
    """A store in an empty Postgres database. Its time stands still like that of the others."""
    clock = TickingClock()
    with emptied_database() as url, patch.object(PostgresTransaction, "now", lambda _: clock()):
        store = await open_postgres(url)
        try:
            yield LocalLab(store, clock)
        finally:
            await store.close()


LABS: dict[str, Callable[[Path], AbstractAsyncContextManager[StoreLab]]] = {
    "memory": memory_lab,
    "sqlite": sqlite_lab,
    "postgres": postgres_lab,
}
"""Every store that the conformance suite holds to the rules."""


def created(run_id: str, **content: Any) -> Created:
    """The first entry of a run."""
    known: dict[str, Any] = {
        "at": 1.0,
        "run_id": run_id,
        "script": "ralph",
        "source": "def main(args): ...",
        "source_digest": "sha256:source",
        "contract_digest": "sha256:contract",
        "args": {},
        "limits": {"max_total_agents": 3, "max_extra_attempts": 1},
        "provider": "claude",
        "replay": REPLAY,
    }
    return Created(**(known | content))


def new_run(run_id: str, *, content_digest: str = "content", not_before: float = 0.0, **content: Any) -> NewRun:
    """A run to be created, in the queue "nightly" unless told otherwise."""
    return NewRun(
        created=created(run_id, **({"queue": "nightly"} | content)),
        content_digest=content_digest,
        not_before=not_before,
    )


def wanted(**changes: Any) -> Wanted:
    """A host that can drive whatever `new_run` makes."""
    known: dict[str, Any] = {
        "queues": {"nightly": 100},
        "scripts": {"ralph": "sha256:contract"},
        "replay": REPLAY,
        "providers": ["claude"],
        "workspaces": [],
        "kill_grace_seconds": GRACE,
    }
    return Wanted(**(known | changes))


def asked(seq: int, attempt: int = 1, **content: Any) -> Asked:
    """A call that is asked."""
    known: dict[str, Any] = {"key": f"0.{seq}", "digest": "sha256:prompt", "provider": "claude", "label": "round"}
    return Asked(at=2.0, seq=seq, attempt=attempt, ask="first" if attempt == 1 else "redo", **(known | content))


def ended(seq: int, attempt: int = 1, value: Any = "done") -> Ended:
    """A call that ended well."""
    return Ended(at=3.0, seq=seq, attempt=attempt, outcome="completed", value=value)


def stopping(reason: Any = "completed") -> Stopping:
    """The first terminal event."""
    return Stopping(at=4.0, stop_reason=reason)


def finished() -> Finished:
    """The end."""
    return Finished(at=5.0, agents_started=0, attempts=0)


_GENERATIONS = itertools.count(1)


def hand_over(store: Store, run_id: str, epoch: int, *entries: Entry, **more: Any) -> "asyncio.Future[AppendResult]":
    """Hand an append over without waiting for it. Each is of a new generation, unless one is given."""
    more.setdefault("generation", next(_GENERATIONS))
    future: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
    store.append(Append(run_id=run_id, epoch=epoch, entries=list(entries), done=future.set_result, **more))
    return future


async def append(store: Store, run_id: str, epoch: int, *entries: Entry, **more: Any) -> AppendResult:
    """Append entries, and wait for what came of it."""
    return await hand_over(store, run_id, epoch, *entries, **more)


async def ask(store: Store, run_id: str, seq: int, *, epoch: int = 1, attempt: int = 1) -> AppendResult:
    """Ask a call, charged."""
    charge = CALL if attempt == 1 else REPEAT
    return await append(store, run_id, epoch, asked(seq, attempt), charge=charge)


async def end(
    store: Store, run_id: str, seq: int, *, epoch: int = 1, windows: Mapping[str, str] | None = None, usage: Any = None
) -> AppendResult:
    """End a call, with what it used."""
    return await append(store, run_id, epoch, ended(seq), spent=Spent(windows=windows or {}, usage=usage))


async def started(store: Store, run_id: str, owner: Owner = ALICE, **content: Any) -> RunRow:
    """A run that is born claimed."""
    [row] = await store.create([new_run(run_id, **content)], owner=owner)
    return row


async def finish(store: Store, run_id: str, epoch: int = 1) -> AppendResult:
    """Let a run end well."""
    await append(store, run_id, epoch, stopping(), change="stopping")
    return await append(store, run_id, epoch, finished(), change="finished")


async def journal(store: Store, run_id: str) -> list[Chained]:
    """The journal of a run, with its chain proved."""
    return decode_rows(run_id, await store.read(run_id), await store.blobs(run_id))


async def names(store: Store, run_id: str) -> list[str]:
    """What the entries of a run are, in order."""
    return [chained.entry.entry for chained in await journal(store, run_id)]


async def row_of(store: Store, run_id: str) -> RunRow:
    """The row of a run that there is."""
    row = await store.get(run_id)
    assert row is not None
    return row


async def claim_of(store: Store, run_id: str, owner: Owner = ALICE) -> Claim:
    """Claim one run, which nobody has."""
    claim = await store.claim_one(owner, run_id, kill_grace_seconds=GRACE)
    assert isinstance(claim, Claim)
    return claim
