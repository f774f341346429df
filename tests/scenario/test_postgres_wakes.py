"""Waking hosts by Procrastinate: at once when all is well, and never needed: the claim at each poll finds every run."""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from types import SimpleNamespace

import psycopg
import pytest
from procrastinate.schema import SchemaManager

from loopwarden.journal.entries import Logged
from loopwarden.store import wake
from loopwarden.store.appends import Appended
from loopwarden.store.errors import KeyConflict, StoreUnavailable
from loopwarden.store.postgres import PostgresStore, open_postgres
from loopwarden.store.wake import queue_name, wake_schema
from support.embedded_postgres import EmbeddedPostgres
from support.postgres_lab import HOST, appended, claimed, give_back, new_run, wanted
from support.postgres_server import fresh_database

LONG_SECONDS = 30.0
"""Longer than any of this takes; a wait that lasts so long has failed."""


@pytest.fixture
def url() -> Iterator[str]:
    with fresh_database() as url:
        yield url


def jobs(url: str) -> list[tuple[object, ...]]:
    """What is in Procrastinate's table."""
    with psycopg.connect(url) as connection:
        return connection.execute(
            f"SELECT queue_name, priority, args, status::text, scheduled_at IS NOT NULL "
            f"FROM {wake_schema()}.procrastinate_jobs ORDER BY id"
        ).fetchall()


def change(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"SET search_path TO {wake_schema()}")
        connection.execute(statement)


async def no_jobs(url: str) -> None:
    deadline = time.monotonic() + LONG_SECONDS
    while await asyncio.to_thread(jobs, url):
        assert time.monotonic() < deadline, "finished jobs are not deleted"
        await asyncio.sleep(0.01)


async def listening(store: PostgresStore, queue: str = "nightly") -> None:
    """Return when the store's worker hears what is submitted: shown by a run that wakes it."""
    await store.create([new_run(f"first-{queue}", queue=queue)])
    assert await store.woken([queue], LONG_SECONDS)


def test_a_submitted_run_wakes_a_host_that_waits_and_its_job_is_deleted(url: str) -> None:
    async def scene() -> None:
        host, other = await open_postgres(url), await open_postgres(url)
        await listening(host)
        waiting = asyncio.ensure_future(host.woken(["nightly"], LONG_SECONDS))
        await asyncio.sleep(0)
        begun = time.monotonic()
        await other.create([new_run("run")])
        assert await waiting
        assert time.monotonic() - begun < 4, "found by Procrastinate's poll, not by NOTIFY"
        await no_jobs(url)
        assert len(await host.claim(HOST, wanted(), limit=9)) == 2
        await host.close()
        await other.close()

    asyncio.run(scene())


def test_a_wake_between_two_waits_is_not_lost(url: str) -> None:
    async def scene() -> None:
        host = await open_postgres(url)
        await listening(host)
        await host.create([new_run("run")])
        await no_jobs(url)
        assert await host.woken(["nightly"], 0)
        assert not await host.woken(["nightly"], 0)
        await host.close()

    asyncio.run(scene())


def test_a_job_holds_the_id_of_its_run_and_nothing_else_and_respects_priority_and_time(url: str) -> None:
    async def scene() -> None:
        store = await open_postgres(url)
        later = new_run("later", not_before=await store.now() + 3600)
        await store.create([new_run("urgent", priority=7), later])
        assert jobs(url) == [
            ("nightly", 7, {"run": "urgent"}, "todo", False),
            ("nightly", 0, {"run": "later"}, "todo", True),
        ]
        await store.close()

    asyncio.run(scene())


def test_a_run_that_is_due_later_wakes_when_its_time_has_come(url: str) -> None:
    async def scene() -> None:
        store = await open_postgres(url)
        await listening(store)
        due = await store.now() + 0.5
        await store.create([new_run("later", not_before=due)])
        assert await store.woken(["nightly"], LONG_SECONDS)
        assert await store.now() >= due
        await store.close()

    asyncio.run(scene())


def test_a_run_that_is_not_created_leaves_no_job(url: str) -> None:
    async def scene() -> None:
        store = await open_postgres(url)
        await store.create([new_run("run-1", key="same")])
        before = jobs(url)
        with pytest.raises(KeyConflict):
            await store.create([new_run("run-2"), new_run("run-3", key="same")])
        assert jobs(url) == before
        assert await store.get("run-2") is None
        await store.close()

    asyncio.run(scene())


def test_a_run_that_is_given_back_wakes_the_next_host(url: str) -> None:
    async def scene() -> None:
        store, next_host = await open_postgres(url), await open_postgres(url)
        await claimed(store, "run")
        await listening(next_host)
        logged = Logged(at=5.0, message="stopping in order")
        while await next_host.woken(["nightly"], 0):
            pass
        assert isinstance(await appended(store, give_back, "run", logged), Appended)
        assert await next_host.woken(["nightly"], LONG_SECONDS)
        await store.close()
        await next_host.close()

    asyncio.run(scene())


def test_without_any_job_nothing_is_lost_only_later(url: str) -> None:
    async def scene() -> None:
        store = await open_postgres(url)
        await store.create([new_run(f"run-{number}") for number in range(20)])
        change(url, "DELETE FROM procrastinate_jobs")
        assert not await store.woken(["nightly"], 0.3)
        # The claim at each poll, which follows every wait, however it ended.
        assert len(await store.claim(HOST, wanted(), limit=100)) == 20
        await store.close()

    asyncio.run(scene())


def test_runs_are_created_and_claimed_where_procrastinate_has_no_tables_any_more(url: str) -> None:
    async def scene() -> None:
        store = await open_postgres(url)
        change(url, f"DROP SCHEMA {wake_schema()} CASCADE")
        await store.create([new_run("run")])
        assert not await store.woken(["nightly"], 0.1)
        assert len(await store.claim(HOST, wanted(), limit=1)) == 1
        await store.close()
        again = await open_postgres(url)
        assert jobs(url) == []
        await again.close()

    asyncio.run(scene())


def test_a_worker_goes_on_after_its_connections_were_ended(url: str) -> None:
    async def scene() -> None:
        store = await open_postgres(url)
        await listening(store)
        change(
            url,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()",
        )
        await store.create([new_run("run")])
        assert await store.woken(["nightly"], LONG_SECONDS)
        await store.close()

    asyncio.run(scene())


def test_a_worker_whose_server_is_away_is_stopped_at_once_and_one_that_comes_back_is_heard_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(wake, "_PATIENCE_SECONDS", 0.5)
    monkeypatch.setattr(wake, "host_logger", lambda: SimpleNamespace(warning=lambda line, **_: lines.append(line)))
    server = EmbeddedPostgres(fsync=False)

    async def scene() -> None:
        store, host = await open_postgres(server.url()), await open_postgres(server.url())
        await listening(store)
        await listening(host, "other")
        server.shut_down_at_once()
        assert not await store.woken(["nightly"], 0.5)
        begun = time.monotonic()
        await store.close()
        assert time.monotonic() - begun < 10
        server.start()
        deadline = time.monotonic() + LONG_SECONDS
        for attempt in range(1000):
            assert time.monotonic() < deadline, "the worker is not heard again"
            with contextlib.suppress(StoreUnavailable):
                await host.create([new_run(f"run-{attempt}", queue="other")])
            if await host.woken(["other"], 1):
                break
        await host.close()

    try:
        asyncio.run(scene())
    finally:
        server.close()
    assert "runs are found by the poll alone for a while" in lines
    assert [record.getMessage() for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []


def test_jobs_of_a_worker_that_is_gone_are_swept(url: str) -> None:
    async def scene() -> None:
        store = await open_postgres(url)
        await store.create([new_run("run")])
        change(url, "UPDATE procrastinate_jobs SET status = 'doing'")
        await store.woken(["nightly"], 0)
        await no_jobs(url)
        await store.close()

    asyncio.run(scene())


def test_another_queue_does_not_wake_and_a_long_name_does(url: str) -> None:
    long = "the-queue-of-a-department-with-a-very-long-name-that-no-channel-can-have"

    async def scene() -> None:
        store = await open_postgres(url)
        await listening(store, long)
        await store.create([new_run("run", queue="other")])
        assert not await store.woken([long], 0.2)
        assert await store.woken(["other", long], LONG_SECONDS)
        await store.close()

    asyncio.run(scene())
    assert len(queue_name(long).encode()) == 40
    assert queue_name(long) != queue_name(long + "r")
    assert queue_name("nightly") == "nightly"


def test_the_schema_is_that_of_the_library_in_a_schema_of_our_own(url: str) -> None:
    asyncio.run(_open_and_close(url))
    asyncio.run(_open_and_close(url))
    assert wake_schema().startswith("loopwarden_wake_")
    with psycopg.connect(url) as connection:
        found = connection.execute(
            "SELECT DISTINCT table_schema FROM information_schema.tables WHERE table_name LIKE 'procrastinate%'"
        ).fetchall()
    assert found == [(wake_schema(),)]
    assert "procrastinate_jobs" in SchemaManager.get_schema()


async def _open_and_close(url: str) -> None:
    await (await open_postgres(url)).close()
