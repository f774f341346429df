"""SQLite alone: who may read the file, what an operator is told, and several processes on one file."""

import asyncio
import os
import sqlite3
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from loopwarden.store.appends import Appended, LeaseExpired
from loopwarden.store.errors import StoreError, StoreTooNew, StoreUnavailable
from loopwarden.store.sql import migrations
from loopwarden.store.sql.transaction import Dialect, Transaction
from loopwarden.store.sqlite import SqliteSession, SqliteStore, SqliteTransaction, open_memory, open_sqlite
from support.store_lab import (
    ALICE,
    BOB,
    TickingClock,
    append,
    ask,
    end,
    ended,
    hand_over,
    journal,
    names,
    new_run,
    row_of,
    started,
    wanted,
)


@asynccontextmanager
async def opened(path: Path, **more: Any) -> AsyncIterator[SqliteStore]:
    store = await open_sqlite(path, **more)
    try:
        yield store
    finally:
        await store.close()


async def pragma(store: SqliteStore, text: str) -> None:
    """Change a setting of the connection that writes."""
    await store._write(lambda tx: tx.rows(f"PRAGMA {text}"))


async def test_the_file_and_its_folder_are_for_this_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        path = tmp_path / "a" / "b" / "store.db"
        async with opened(path) as store:
            await started(store, "r1")
            files = sorted(path.parent.iterdir())
            assert [file.name for file in files] == ["store.db", "store.db-shm", "store.db-wal"]
            assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
            assert {stat.S_IMODE(folder.stat().st_mode) for folder in path.parents[:2]} == {0o700}
            assert (store.name, store.durable) == (str(path), True)
    finally:
        os.umask(before)


async def test_a_store_in_memory_ends_with_its_process(tmp_path: Path) -> None:
    store = await open_memory()
    assert (store.name, store.durable) == ("memory", False)
    await started(store, "r1")
    await store.close()
    other = await open_memory()
    assert await other.get("r1") is None
    await other.close()


async def test_what_was_committed_is_there_when_the_store_is_opened_again(tmp_path: Path) -> None:
    async with opened(tmp_path / "s.db") as store:
        await started(store, "r1")
        await ask(store, "r1", 1)
        before = await row_of(store, "r1")
    async with opened(tmp_path / "s.db") as store:
        assert await row_of(store, "r1") == before
        assert await names(store, "r1") == ["created", "claimed", "asked"]


async def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path / "s.db"):
        pass
    (tmp_path / "s.db").chmod(0o640)
    with pytest.raises(StoreError, match=r"the store \S+s.db can be read or written by others; run `chmod 600` on it"):
        await open_sqlite(tmp_path / "s.db")


async def test_a_folder_that_others_may_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(StoreError, match="can be written by others"):
        await open_sqlite(tmp_path / "open" / "s.db")


async def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere.db")
    for name in ("folder", "link"):
        with pytest.raises(StoreError, match=f"{name} is not a regular file"):
            await open_sqlite(tmp_path / name)
    assert not (tmp_path / "elsewhere.db").exists()


async def test_what_is_no_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("These are my notes, and they are long enough to be looked at.\n" * 100)
    path.chmod(0o600)
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"the store \S+notes.txt is not a SQLite file; choose another path"):
        await open_sqlite(path)
    assert path.read_bytes() == before


async def test_a_newer_format_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    async with opened(path) as old:
        await old.create([new_run("r1"), new_run("r2")])
        [claim] = await old.claim(ALICE, wanted(), limit=1)
        with closing(sqlite3.connect(path)) as newer, newer:
            newer.execute("UPDATE meta SET content = '99' WHERE name = 'format'")
        # A host of the version before finishes what it runs, and claims nothing more.
        message = r"the store \S+s.db has format 99, and this Loopwarden knows formats up to \d+; install the newer"
        with pytest.raises(StoreTooNew, match=message):
            await old.claim(ALICE, wanted(), limit=1)
        with pytest.raises(StoreTooNew):
            await old.claim_one(ALICE, "r2", kill_grace_seconds=5)
        assert isinstance(await append(old, claim.row.run_id, 1, ended(1)), Appended)
        with pytest.raises(StoreTooNew, match=message):
            await open_sqlite(path)


async def test_a_format_that_was_changed_by_hand_is_an_error(tmp_path: Path) -> None:
    async with opened(tmp_path / "s.db"):
        pass
    with closing(sqlite3.connect(tmp_path / "s.db")) as editor, editor:
        editor.execute("UPDATE meta SET content = 'new' WHERE name = 'format'")
    with pytest.raises(StoreError, match="its table meta was changed by hand"):
        await open_sqlite(tmp_path / "s.db")


async def test_a_file_that_somebody_keeps_locked_is_named(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    async with opened(path, busy_seconds=0.05) as store:
        await started(store, "r1")
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreUnavailable, match=r"the store \S+s.db is locked by another program"):
                await store.create([new_run("r2")])
            with pytest.raises(StoreUnavailable, match="is locked by another program"):
                await open_sqlite(path, busy_seconds=0.05)
            # Readers do not wait for a writer.
            assert (await row_of(store, "r1")).run_id == "r1"
            waiting = hand_over(store, "r1", 1, ended(1))
            with pytest.raises(StoreUnavailable):
                await store.create([new_run("r2")])
            assert not waiting.done()
            other.execute("ROLLBACK")
        # Appends wait for the store, so nothing is lost.
        assert isinstance(await waiting, Appended)


async def test_a_full_disk_is_told_and_appends_wait_for_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    most_pages = 1_000_000
    begin = SqliteSession.begin

    def begin_on_a_small_disk(session: SqliteSession) -> Transaction:
        session._connected().execute(f"PRAGMA max_page_count = {most_pages}")
        return begin(session)

    monkeypatch.setattr(SqliteSession, "begin", begin_on_a_small_disk)
    async with opened(tmp_path / "s.db") as store:
        await started(store, "r1")
        most_pages = 1  # SQLite takes the present size
        with pytest.raises(StoreUnavailable, match=r"the store \S+s.db cannot grow: its disk is full; free some space"):
            await store.create([new_run("r2", source="x" * 1_000_000)])
        first = hand_over(store, "r1", 1, ended(1, value="y" * 50_000))
        second = hand_over(store, "r1", 1, ended(2))
        with pytest.raises(StoreUnavailable):
            await store.create([new_run("r2", source="x" * 1_000_000)])
        assert await names(store, "r1") == ["created", "claimed"]
        most_pages = 1_000_000
        results = [await first, await second]
        assert [result.seq for result in results if isinstance(result, Appended)] == [3, 4]
        assert len(await journal(store, "r1")) == 4
        assert await store.get("r2") is None


async def test_a_store_that_became_read_only_is_named(tmp_path: Path) -> None:
    async with opened(tmp_path / "s.db") as store:
        await started(store, "r1")
        await pragma(store, "query_only = ON")
        with pytest.raises(
            StoreError, match=r"the store \S+s.db is read-only; make it and its folder writable"
        ) as told:
            await store.create([new_run("r2")])
        assert not isinstance(told.value, StoreUnavailable)


async def test_appends_that_waited_for_the_store_are_made_though_the_lease_ran_out(tmp_path: Path) -> None:
    clock = TickingClock()
    path = tmp_path / "s.db"
    async with opened(path, busy_seconds=0.01, clock=clock) as store:
        await started(store, "r1")
        await started(store, "r2")
        await ask(store, "r1", 1)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            kept = hand_over(store, "r1", 1, ended(1))
            foreign = hand_over(store, "r2", 1, ended(1))
            with pytest.raises(StoreUnavailable):
                await store.renew(ALICE, {"r1": 1})
            clock.now += 1000
            other.execute("ROLLBACK")
        assert isinstance(await kept, Appended)
        assert await foreign == LeaseExpired()
        assert (await row_of(store, "r1")).lease_until == clock.now + ALICE.lease_seconds


async def test_two_stores_on_one_file_share_runs_and_claim_each_once(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    async with opened(path) as one, opened(path) as two:
        await one.create([new_run(f"r{n:02}") for n in range(40)])
        claims = await asyncio.gather(
            *(store.claim(owner, wanted(), limit=5) for _ in range(4) for store, owner in ((one, ALICE), (two, BOB)))
        )
        claimed = [(claim.row.run_id, claim.row.owner) for batch in claims for claim in batch]
        assert sorted(run_id for run_id, _ in claimed) == [f"r{n:02}" for n in range(40)]
        assert {owner for _, owner in claimed} == {"alice", "bob"}
        await asyncio.gather(
            *(
                hand_over(one if owner == "alice" else two, run_id, 1, ended(seq))
                for seq in range(1, 6)
                for run_id, owner in claimed
            )
        )
        for run_id, _ in claimed:
            assert len(await journal(one, run_id)) == 7


async def test_what_another_process_commits_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    async with opened(path) as one, opened(path) as two:
        await started(one, "r1")
        waiting = asyncio.ensure_future(two.changed("r1", after=2, timeout_seconds=60))
        await two.get("r1")
        assert isinstance(await end(one, "r1", 1), Appended)
        assert await waiting is True


async def test_hosts_that_open_a_new_store_at_once_all_get_it(tmp_path: Path) -> None:
    for folder in ("a", "b", "c"):
        stores = await asyncio.gather(*(open_sqlite(tmp_path / folder / "s.db") for _ in range(6)))
        await stores[0].create([new_run("r1")])
        assert [(await row_of(store, "r1")).run_id for store in stores] == ["r1"] * 6
        for store in stores:
            await store.close()


async def test_the_first_of_many_runs_that_wait_is_found_without_looking_at_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_for: list[tuple[str, Any]] = []
    real = SqliteTransaction.rows

    def rows(tx: SqliteTransaction, sql: str, parameters: Any = ()) -> list[Any]:
        asked_for.append((sql, parameters))
        return real(tx, sql, parameters)

    async with opened(tmp_path / "s.db") as store:
        with monkeypatch.context() as watched:
            watched.setattr(SqliteTransaction, "rows", rows)
            await store.claim(ALICE, wanted(), limit=1)
            await store.woken(["nightly"], 0)
        plans = [
            " ".join(row[3] for row in await store._read(lambda tx: tx.rows(f"EXPLAIN QUERY PLAN {sql}", given)))  # noqa: B023
            for sql, given in asked_for
            if "status = 'queued'" in sql
        ]
    assert len(plans) >= 2  # the claim, and the look for arrivals
    for plan in plans:
        assert plan.startswith("SEARCH runs USING INDEX runs_waiting (queue=?")
        assert "TEMP B-TREE" not in plan


async def test_a_store_is_brought_to_the_next_format_with_all_that_it_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.db"
    async with opened(path) as old:
        await started(old, "r1")
        await old.create([new_run("r2")])
        with monkeypatch.context() as newer:
            newer.setattr(migrations, "STEPS", (*migrations.STEPS, next_format))
            newer.setattr(migrations, "NEWEST", migrations.NEWEST + 1)
            async with opened(path) as new:
                [claim] = await new.claim(BOB, wanted(), limit=5)
                assert (claim.row.run_id, await names(new, "r1")) == ("r2", ["created", "claimed"])
                assert await new._read(lambda tx: tx.rows("SELECT colour FROM runs")) == [("none",)] * 2
        # The host of the version before ends what it has, and claims nothing more.
        assert isinstance(await ask(old, "r1", 1), Appended)
        assert await old.renew(ALICE, {"r1": 1}) == {"r1"}
        with pytest.raises(StoreTooNew):
            await old.claim(ALICE, wanted(), limit=1)


def next_format(d: Dialect) -> list[str]:
    return [f"ALTER TABLE runs ADD COLUMN colour {d.text} NOT NULL DEFAULT 'none'"]
