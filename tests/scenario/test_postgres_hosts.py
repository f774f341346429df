"""Promise 2 on Postgres: several hosts on one database, each run claimed once, each budget kept to the last agent."""

import asyncio
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from loopwarden.store import postgres_link
from loopwarden.store.appends import Appended
from loopwarden.store.errors import KeyConflict, StoreCorrupt, StoreTooNew, StoreUnavailable
from loopwarden.store.postgres import open_postgres
from loopwarden.store.postgres_link import place_of
from loopwarden.store.runs import Owner
from loopwarden.store.shared import Scope
from loopwarden.store.sql.transaction import Transaction
from support.postgres_lab import HOST, appended, ask, claimed, new_run, wanted
from support.postgres_server import fresh_database

SPENDER = Path(__file__).parent.parent / "support" / "scope_spender.py"
PROCESSES = 4
ATTEMPTS = 200
CAP = 500


@pytest.fixture
def url() -> Iterator[str]:
    with fresh_database() as url:
        yield url


def change(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement)


def test_two_hosts_that_claim_at_once_get_each_run_once(url: str) -> None:
    async def drain(name: str, claims: list[str]) -> None:
        store = await open_postgres(url)
        owner = Owner(host_id=name, lease_seconds=60)
        while True:
            got = await store.claim(owner, wanted(), limit=7)
            claims += [claim.row.run_id for claim in got]
            if not got and (await store.queues())[0].queued == 0:
                break
        await store.close()

    async def scene() -> None:
        store = await open_postgres(url)
        await store.create([new_run(f"run-{number}") for number in range(300)])
        first: list[str] = []
        second: list[str] = []
        await asyncio.gather(drain("host-1", first), drain("host-2", second))
        counts = Counter(first + second)
        assert len(counts) == 300
        assert set(counts.values()) == {1}
        assert first
        assert second
        await store.close()

    asyncio.run(scene())


def test_a_bound_of_a_queue_holds_over_hosts_that_claim_at_once(url: str) -> None:
    async def scene() -> None:
        stores = [await open_postgres(url) for _ in range(3)]
        await stores[0].create([new_run(f"run-{number}") for number in range(60)])
        await stores[0].set_queue("nightly", max_running=10)
        owners = [Owner(host_id=f"host-{number}", lease_seconds=60) for number in range(3)]
        got = await asyncio.gather(
            *(store.claim(owner, wanted(), limit=8) for store, owner in zip(stores, owners, strict=True))
        )
        assert sum(len(claims) for claims in got) == 10
        assert (await stores[0].queues())[0].running == 10
        for store in stores:
            await store.close()

    asyncio.run(scene())


def test_four_processes_ask_for_more_than_a_budget_holds_and_get_it_exactly(url: str) -> None:
    async def prepare() -> None:
        store = await open_postgres(url)
        await store.set_scope(Scope(name="tenant:acme", max_agents=CAP), "ann")
        await store.close()

    asyncio.run(prepare())
    argv = [sys.executable, str(SPENDER), url, str(PROCESSES), str(ATTEMPTS)]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, timeout=100, check=True)
    counts = [[int(count) for count in line.split()] for line in done.stdout.splitlines()]
    assert len(counts) == PROCESSES
    granted, refused = (sum(column) for column in zip(*counts, strict=True))
    assert (granted, refused) == (CAP, PROCESSES * ATTEMPTS - CAP)

    async def look() -> None:
        store = await open_postgres(url)
        (use,) = await store.scopes()
        assert use.agents == CAP
        runs = [await store.get(f"run-{number}") for number in range(PROCESSES)]
        assert sum(run.calls for run in runs if run is not None) == CAP
        await store.close()

    asyncio.run(look())


def test_a_store_of_a_newer_format_is_not_opened(url: str) -> None:
    async def scene() -> None:
        await (await open_postgres(url)).close()
        change(url, "UPDATE loopwarden.meta SET content = '99' WHERE name = 'format'")
        with pytest.raises(StoreTooNew) as refused:
            await open_postgres(url)
        assert place_of(url).name in str(refused.value)
        assert "99" in str(refused.value)

    asyncio.run(scene())


def test_a_host_whose_store_was_migrated_claims_nothing_more_but_ends_what_it_has(url: str) -> None:
    async def scene() -> None:
        store = await open_postgres(url)
        await claimed(store, "run-1")
        await store.create([new_run("run-2")])
        change(url, "UPDATE loopwarden.meta SET content = '99' WHERE name = 'format'")
        with pytest.raises(StoreTooNew):
            await store.claim(HOST, wanted(), limit=1)
        assert isinstance(await appended(store, ask, "run-1", 1), Appended)
        await store.close()

    asyncio.run(scene())


def test_hosts_that_open_an_empty_database_at_once_make_its_tables_once(url: str) -> None:
    async def scene() -> None:
        stores = await asyncio.gather(*(open_postgres(url) for _ in range(6)))
        await stores[0].create([new_run("run")])
        assert await stores[5].get("run") is not None
        for store in stores:
            await store.close()

    asyncio.run(scene())


def test_a_row_changed_by_hand_names_its_run_and_leaves_the_others_alone(url: str) -> None:
    async def scene() -> None:
        store = await open_postgres(url)
        await claimed(store, "run-1")
        await claimed(store, "run-2")
        change(url, "UPDATE loopwarden.runs SET head_hash = 'nonsense' WHERE run_id = 'run-1'")
        with pytest.raises(StoreCorrupt) as damaged:
            await store.get("run-1")
        assert damaged.value.run_id == "run-1"
        assert isinstance(await appended(store, ask, "run-2", 1), Appended)
        await store.close()

    asyncio.run(scene())


def test_a_change_is_heard_by_another_host(url: str) -> None:
    async def scene() -> None:
        store, other = await open_postgres(url), await open_postgres(url)
        await claimed(store, "run")
        # The first wait begins to listen; it ends by the look that comes with that.
        assert not await other.changed("run", after=2, timeout_seconds=0.3)
        waiting = asyncio.ensure_future(other.changed("run", after=2, timeout_seconds=60))
        begun = asyncio.get_running_loop().time()
        await appended(store, ask, "run", 1)
        assert await waiting
        assert asyncio.get_running_loop().time() - begun < 4, "found by looking, not by hearing"
        await store.close()
        await other.close()

    asyncio.run(scene())


def test_a_host_that_stands_still_in_a_transaction_does_not_keep_its_locks(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = [setting.replace("= '8s'", "= '300ms'") for setting in postgres_link._SETTINGS]
    assert quick != list(postgres_link._SETTINGS)
    is_locked, go_on = threading.Event(), threading.Event()

    def stand_still(tx: Transaction) -> None:
        tx.rows("SELECT 1 FROM runs FOR UPDATE")
        is_locked.set()
        assert go_on.wait(60)
        tx.rows("SELECT 1")

    async def scene() -> None:
        other = await open_postgres(url)
        await claimed(other, "run")
        monkeypatch.setattr(postgres_link, "_SETTINGS", quick)
        stopped = await open_postgres(url)
        still = asyncio.ensure_future(stopped._writer.do(stand_still))
        await asyncio.to_thread(is_locked.wait, 60)
        assert isinstance(await appended(other, ask, "run", 1), Appended)
        go_on.set()
        with pytest.raises(StoreUnavailable):
            await still
        assert isinstance(await appended(stopped, ask, "run", 2), Appended)
        await stopped.close()
        await other.close()

    asyncio.run(scene())


def test_a_commit_is_on_the_disk_even_where_the_database_would_not_wait_for_it(url: str) -> None:
    async def scene() -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            name = connection.info.dbname
            connection.execute(
                psycopg.sql.SQL("ALTER DATABASE {} SET synchronous_commit = off").format(psycopg.sql.Identifier(name))
            )
        store = await open_postgres(url)
        assert await store._writer.do(lambda tx: tx.rows("SHOW synchronous_commit")) == [("on",)]
        await store.close()

    asyncio.run(scene())


def test_time_is_the_database_s_whatever_the_clock_of_the_host_says(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        store = await open_postgres(url)
        monkeypatch.setattr(time, "time", lambda: 1000.0)
        with psycopg.connect(url) as connection:
            there = connection.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()
        assert there is not None
        assert abs(await store.now() - there[0]) < 60
        claim = await claimed(store, "run")
        assert claim.row.lease_until is not None
        assert abs(claim.row.lease_until - HOST.lease_seconds - there[0]) < 60
        await store.close()

    asyncio.run(scene())


def test_a_database_that_is_not_there_is_said_to_be_missing(url: str) -> None:
    async def scene() -> None:
        missing = psycopg.conninfo.make_conninfo(url, dbname="nowhere", password="s3cr3t")
        with pytest.raises(StoreUnavailable) as refused:
            await open_postgres(missing)
        said = str(refused.value)
        assert said.startswith(f"the database {place_of(missing).name} cannot be reached: ")
        assert '"nowhere" does not exist' in said
        assert "s3cr3t" not in said

    asyncio.run(scene())


def test_a_key_whose_run_is_pruned_at_that_moment_is_not_given_to_a_second_run(url: str) -> None:
    async def scene() -> None:
        store = await open_postgres(url)
        await store.create([new_run("run-1", key="nightly")])
        with psycopg.connect(url) as pruner:
            # As `prune` does it, stopped right before its commit.
            pruner.execute(
                "INSERT INTO loopwarden.tombstones SELECT run_id, run_key, head_seq, head_hash, 0, 0, '{}', 1.0 "
                "FROM loopwarden.runs"
            )
            pruner.execute("DELETE FROM loopwarden.runs")
            creating = asyncio.create_task(store.create([new_run("run-2", key="nightly")]))
            with psycopg.connect(url, autocommit=True) as watcher:
                while not watcher.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchall():
                    await asyncio.sleep(0)
            pruner.commit()
        with pytest.raises(KeyConflict, match=r"the key 'nightly' belongs to run run-1, which was pruned"):
            await creating
        assert await store.get("run-2") is None
        await store.close()

    asyncio.run(scene())
