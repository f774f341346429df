"""Promise 8 on Postgres: a commit whose answer never came is looked up before anything else, and done exactly once."""

import asyncio
import threading
from collections.abc import Iterator

import psycopg
import pytest

from loopwarden.journal.chain import decode_rows
from loopwarden.store.appends import Appended, AppendFailed, AppendResult, FencedOut
from loopwarden.store.errors import StoreUnavailable
from loopwarden.store.postgres import PostgresStore, open_postgres
from loopwarden.store.runs import Owner
from support.embedded_postgres import EmbeddedPostgres
from support.postgres_lab import HOST, Losses, appended, ask, claimed, end, new_run
from support.postgres_server import fresh_database


@pytest.fixture
def url() -> Iterator[str]:
    with fresh_database() as url:
        yield url


@pytest.fixture
def losses(monkeypatch: pytest.MonkeyPatch) -> Losses:
    losses = Losses()
    losses.install(monkeypatch)
    return losses


async def kinds(store: PostgresStore, run_id: str) -> list[str]:
    """The journal, verified, as the kinds of its entries."""
    return [chained.entry.entry for chained in decode_rows(run_id, await store.read(run_id), {})]


async def end_backends(url: str) -> None:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


@pytest.mark.parametrize("moment", ["before_commit", "after_commit"])
def test_an_append_whose_commit_was_lost_is_in_the_journal_once(url: str, losses: Losses, moment: str) -> None:
    async def scene() -> None:
        store = await open_postgres(url)
        await claimed(store, "run")
        getattr(losses, moment)()
        result = await appended(store, ask, "run", 1)
        assert losses.happened == 1
        assert isinstance(result, Appended)
        row = await store.get("run")
        assert row is not None
        assert (result.seq, result.hash) == (row.head_seq, row.head_hash)
        assert row.calls == 1
        assert await kinds(store, "run") == ["created", "claimed", "asked"]
        await store.close()

    asyncio.run(scene())


@pytest.mark.parametrize("moment", ["before_commit", "after_commit"])
def test_a_batch_whose_commit_was_lost_again_and_again_is_there_once_and_in_order(
    url: str, losses: Losses, moment: str
) -> None:
    async def scene() -> None:
        store = await open_postgres(url)
        runs = [f"run-{number}" for number in range(8)]
        for run_id in runs:
            await claimed(store, run_id)
        for _ in range(3):
            getattr(losses, moment)()
        results = await asyncio.gather(
            *(appended(store, make, run_id, seq) for seq in range(1, 6) for run_id in runs for make in (ask, end))
        )
        assert losses.happened >= 1
        assert all(isinstance(result, Appended) for result in results)
        for run_id in runs:
            assert await kinds(store, run_id) == ["created", "claimed", *["asked", "ended"] * 5]
            row = await store.get(run_id)
            assert row is not None
            assert row.calls == 5
        await store.close()

    asyncio.run(scene())


@pytest.mark.parametrize("moment", ["before_commit", "after_commit"])
def test_runs_whose_creation_was_lost_in_the_commit_exist_once(url: str, losses: Losses, moment: str) -> None:
    async def scene() -> None:
        store = await open_postgres(url)
        getattr(losses, moment)()
        rows = await store.create([new_run("run-1"), new_run("run-2")])
        assert losses.happened == 1
        assert [row.run_id for row in rows] == ["run-1", "run-2"]
        assert await kinds(store, "run-2") == ["created"]
        await store.close()

    asyncio.run(scene())


@pytest.mark.parametrize("moment", ["before_commit", "after_commit"])
def test_a_request_without_an_entry_is_made_once(url: str, losses: Losses, moment: str) -> None:
    async def scene() -> None:
        store = await open_postgres(url)
        await claimed(store, "run")
        getattr(losses, moment)()
        await store.request("run", "raise", {"maxTotalAgents": 7}, "ann")
        assert losses.happened == 1
        assert len(await store.take_requests(HOST)) == 1
        await store.close()

    asyncio.run(scene())


def test_a_run_whose_rows_refuse_a_change_harms_no_other_run_of_its_batch(url: str, losses: Losses) -> None:
    async def scene() -> None:
        store = await open_postgres(url)
        for run_id in ("run-1", "run-2"):
            await claimed(store, run_id)
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            await connection.execute(
                "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$"
            )
            await connection.execute(
                "CREATE TRIGGER refuse BEFORE UPDATE ON loopwarden.runs FOR EACH ROW "
                "WHEN (new.run_id = 'run-2') EXECUTE FUNCTION refuse()"
            )
        losses.after_commit()
        gate = threading.Event()
        gathering = asyncio.ensure_future(store._writer.do(lambda _: gate.wait(30)))
        await asyncio.sleep(0)
        both = asyncio.gather(appended(store, ask, "run-1", 1), appended(store, ask, "run-2", 1))
        await asyncio.sleep(0)
        gate.set()
        good, bad = await both
        assert await gathering
        assert losses.happened == 1
        assert isinstance(good, Appended)
        assert isinstance(bad, AppendFailed)
        assert await kinds(store, "run-1") == ["created", "claimed", "asked"]
        assert await kinds(store, "run-2") == ["created", "claimed"]
        await store.close()

    asyncio.run(scene())


def test_a_takeover_during_the_loss_fences_what_did_not_happen(
    url: str, losses: Losses, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        store, other = await open_postgres(url), await open_postgres(url)
        short = Owner(host_id="host-1", lease_seconds=0.2)
        await store.create([new_run("run")])
        await store.claim_one(short, "run", kill_grace_seconds=0)
        losses.before_commit()
        loop = asyncio.get_running_loop()
        taken = asyncio.Event()
        real = store._writer._session.find_out

        def find_out() -> bool:
            asyncio.run_coroutine_threadsafe(taken.wait(), loop).result(30)
            return real()

        monkeypatch.setattr(store._writer._session, "find_out", find_out)
        asked = asyncio.ensure_future(appended(store, ask, "run", 1))
        rival = Owner(host_id="host-2", lease_seconds=60)
        while (await other.claim_one(rival, "run", kill_grace_seconds=0)).__class__.__name__ != "Claim":
            await asyncio.sleep(0.02)
        taken.set()
        assert await asked == FencedOut()
        assert await kinds(other, "run") == ["created", "claimed", "claimed"]
        await store.close()
        await other.close()

    asyncio.run(scene())


def test_connections_that_the_server_ended_are_opened_again(url: str) -> None:
    async def scene() -> None:
        store = await open_postgres(url)
        await claimed(store, "run")
        for seq in range(1, 4):
            await end_backends(url)
            assert isinstance(await appended(store, ask, "run", seq), Appended)
            await end_backends(url)
            assert await store.get("run") is not None
        await store.close()

    asyncio.run(scene())


@pytest.fixture(scope="module")
def mortal() -> Iterator[EmbeddedPostgres]:
    """A server that really writes to the disk, and that tests may end."""
    server = EmbeddedPostgres(fsync=True)
    try:
        yield server
    finally:
        server.close()


def test_a_server_that_dies_before_and_after_commits_loses_nothing_that_was_reported(mortal: EmbeddedPostgres) -> None:
    async def scene() -> None:
        store = await open_postgres(mortal.url())
        await claimed(store, "run")
        reported: list[AppendResult] = []
        for seq in range(1, 6):
            store.append(ask("run", seq, reported.append))
            store.append(end("run", seq, reported.append))
            if seq % 2:
                # Wherever the commit is by now: nobody has been told yet.
                mortal.shut_down_at_once()
                with pytest.raises(StoreUnavailable):
                    await store.get("run")
                store.append(ask("run", 100 + seq, reported.append))
                mortal.start()
            while len(reported) < 2 * seq + (seq + 1) // 2:
                await asyncio.sleep(0.005)
        assert all(isinstance(result, Appended) for result in reported)
        seqs = [result.seq for result in reported if isinstance(result, Appended)]
        assert seqs == list(range(3, 3 + len(seqs)))
        assert len(await kinds(store, "run")) == 2 + len(seqs)
        await store.close()

    asyncio.run(scene())


@pytest.mark.parametrize("moment", ["before_commit", "after_commit"])
def test_a_server_that_dies_around_a_commit_is_asked_what_became_of_it(
    mortal: EmbeddedPostgres, losses: Losses, moment: str
) -> None:
    async def scene() -> None:
        store = await open_postgres(mortal.url())
        run_id = f"around-{moment}"
        await claimed(store, run_id)

        def die(connection: psycopg.Connection[object]) -> None:
            if moment == "after_commit":
                connection.execute("COMMIT")
            mortal.shut_down_at_once()
            mortal.start()

        losses.planned.append(die)
        result = await appended(store, ask, run_id, 1)
        assert losses.happened == 1
        assert isinstance(result, Appended)
        assert await kinds(store, run_id) == ["created", "claimed", "asked"]
        await store.close()

    asyncio.run(scene())


def test_a_store_that_is_closed_while_its_server_is_away_says_what_it_could_not_append(
    mortal: EmbeddedPostgres,
) -> None:
    async def scene() -> None:
        store = await open_postgres(mortal.url())
        await claimed(store, "closed")
        mortal.shut_down_at_once()
        try:
            result = asyncio.ensure_future(appended(store, ask, "closed", 1))
            await asyncio.sleep(0)
            await store.close()
            failed = await result
        finally:
            mortal.start()
        assert isinstance(failed, AppendFailed)
        assert isinstance(failed.error, StoreUnavailable)
        assert "cannot be reached" in str(failed.error)

    asyncio.run(scene())
