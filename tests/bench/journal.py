"""Figures of the journal: how fast stores commit what runs write, with values of 500 bytes, each entry chained.

A pair is an ask and its end, two commits in a row: each run writes the next entry when the one before is committed, as
a run with one agent at a time does. Runs do not wait for each other. No worker and no agent takes part.
"""

import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

from measuring import median

from loopwarden.journal.entries import Asked, Created, Ended
from loopwarden.replay_version import replay_version
from loopwarden.store.api import Store
from loopwarden.store.appends import (
    Append,
    Appended,
    AppendResult,
    Charge,
    Spent,
)
from loopwarden.store.runs import NewRun, Owner
from loopwarden.store.shared import Scope
from loopwarden.store.sqlite import open_sqlite

VALUE = "v" * 500
HOST = Owner(host_id="bench", lease_seconds=3600.0)
AT_ONCE = 64
SCOPE = "tenant:bench"
_MANY = 1_000_000
_DIGEST = "sha256:" + "0" * 64


def new_run(run_id: str, *, scopes: Sequence[str] = (), queue: str = "bench") -> NewRun:
    """A run to be created."""
    created = Created(
        at=time.time(),
        run_id=run_id,
        script="bench",
        source="def main(args): ...",
        source_digest=_DIGEST,
        contract_digest=_DIGEST,
        args={},
        limits={"max_total_agents": _MANY, "max_extra_attempts": 0},
        provider="default",
        replay=replay_version(),
        queue=queue,
        scopes=list(scopes),
    )
    return NewRun(created=created, content_digest=f"sha256:{run_id}")


class Writer:
    """One run that asks and ends, on and on."""

    def __init__(self, store: Store, run_id: str, calls: int) -> None:
        self._store = store
        self._run_id = run_id
        self._calls = calls
        self._call = 0
        self._windows: dict[str, str] = {}
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def ask(self) -> None:
        """Write the ask of the next call."""
        self._call += 1
        entry = Asked(
            at=time.time(), seq=self._call, key=f"0.{self._call}", digest=_DIGEST, attempt=1, ask="first",
            provider="default", label="call", phase="Working",
        )  # fmt: skip
        charge = Charge(is_repeat=False)
        self._store.append(Append(run_id=self._run_id, epoch=1, entries=(entry,), done=self._asked, charge=charge))

    def _asked(self, result: AppendResult) -> None:
        windows = self._committed(result).windows
        entry = Ended(at=time.time(), seq=self._call, attempt=1, outcome="completed", value=VALUE, seconds=0.001)
        spent = Spent(windows=windows, usage=None)
        self._store.append(Append(run_id=self._run_id, epoch=1, entries=(entry,), done=self._ended, spent=spent))

    def _ended(self, result: AppendResult) -> None:
        self._committed(result)
        if self._call < self._calls:
            self.ask()
        else:
            self.finished.set_result(None)

    def _committed(self, result: AppendResult) -> Appended:
        assert isinstance(result, Appended), result
        return result


async def write_pairs(store: Store, run_ids: Sequence[str], calls: int) -> float:
    """Let runs, that were created and claimed, write so many pairs each; pairs per second in all."""
    writers = [Writer(store, run_id, calls) for run_id in run_ids]
    began = time.perf_counter()
    for writer in writers:
        writer.ask()
    await asyncio.gather(*[writer.finished for writer in writers])
    return len(run_ids) * calls / (time.perf_counter() - began)


@contextlib.asynccontextmanager
async def sqlite() -> AsyncIterator[Store]:
    """A store in a file of its own."""
    with tempfile.TemporaryDirectory() as folder:
        store = await open_sqlite(Path(folder) / "state" / "runs.db")
        try:
            yield store
        finally:
            await store.close()


@contextlib.contextmanager
def postgres_server() -> Iterator[str]:
    """A database of an own server, which waits for its disk as one that matters does; its address."""
    sys.path.append(str(Path(__file__).parents[1]))
    from support.embedded_postgres import EmbeddedPostgres

    server = EmbeddedPostgres(fsync=True)
    try:
        yield server.url()
    finally:
        server.close()


@contextlib.asynccontextmanager
async def postgres() -> AsyncIterator[Store]:
    """A store in a database of an own server."""
    from loopwarden.store.postgres import open_postgres

    with postgres_server() as url:
        store = await open_postgres(url)
        try:
            yield store
        finally:
            await store.close()


async def _pairs(store: Store, runs: int, calls: int, repeats: int, scopes: Sequence[str] = ()) -> float:
    count = 0

    async def measure() -> float:
        nonlocal count
        count += 1
        run_ids = [f"{count}-{number}" for number in range(runs)]
        await store.create([new_run(run_id, scopes=scopes) for run_id in run_ids], owner=HOST)
        return await write_pairs(store, run_ids, calls)

    return await median(repeats, measure)


async def sqlite_at_once() -> float:
    """Pairs per second of 64 runs on SQLite."""
    async with sqlite() as store:
        return await _pairs(store, AT_ONCE, 100, 3)


async def sqlite_alone() -> float:
    """Pairs per second of one run on SQLite."""
    async with sqlite() as store:
        return await _pairs(store, 1, 400, 3)


async def postgres_at_once() -> float:
    """Pairs per second of 64 runs on Postgres."""
    async with postgres() as store:
        return await _pairs(store, AT_ONCE, 25, 3)


async def postgres_one_scope() -> float:
    """Pairs per second of 64 runs on Postgres that share a budget."""
    async with postgres() as store:
        await store.set_scope(Scope(name=SCOPE, max_agents=_MANY, per="day"), "bench")
        return await _pairs(store, AT_ONCE, 15, 3, [SCOPE])
