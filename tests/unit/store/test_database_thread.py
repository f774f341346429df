"""What a store does when its database gives transactions up, or cannot tell whether a commit happened."""

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loopwarden.journal.codec import PLAIN, PlainCodec
from loopwarden.store.appends import Appended, AppendFailed
from loopwarden.store.errors import StoreError, StoreUnavailable
from loopwarden.store.sql.transaction import CommitUnknown, MustRetry, Transaction
from loopwarden.store.sqlite import BUSY_SECONDS, SqliteSession, SqliteStore, open_sqlite
from support.store_lab import CALL, asked, ended, hand_over, journal, names, new_run, started

Trouble = Callable[["TroubledSession"], None]


class TroubledSession(SqliteSession):
    """A session to which the next commits bring trouble, one each."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), lambda: 1_796_000_000.0, BUSY_SECONDS, begin="BEGIN IMMEDIATE")
        self.troubles: list[Trouble] = []
        self.commits = 0
        self.has_happened = False
        self.unreachable = 0

    def commit(self) -> None:
        self.commits += 1
        if self.troubles:
            self.troubles.pop(0)(self)
        super().commit()

    def explain(self, error: Exception) -> Exception:
        return error if isinstance(error, ConnectionError) else super().explain(error)

    def find_out(self) -> bool:
        if self.unreachable:
            self.unreachable -= 1
            raise StoreUnavailable("the database cannot be reached")
        return self.has_happened


def lost_after(session: TroubledSession) -> None:
    """The commit happened, and its answer was lost."""
    SqliteSession.commit(session)
    session.has_happened = True
    raise CommitUnknown("lost")


def lost_before(session: TroubledSession) -> None:
    """The commit never reached the database."""
    session.rollback()
    session.has_happened = False
    raise CommitUnknown("lost")


def given_up(_: TroubledSession) -> None:
    raise MustRetry


def away(_: TroubledSession) -> None:
    raise StoreUnavailable("the database cannot be reached")


def at_fault(_: TroubledSession) -> None:
    raise ConnectionError("no words of a database")


def play(scenario: Callable[[SqliteStore, TroubledSession], Any], tmp_path: Path) -> None:
    async def run() -> None:
        path = tmp_path / "s.db"
        await (await open_sqlite(path)).close()
        session = TroubledSession(path)
        store = SqliteStore(name=str(path), durable=True, writer=session, reader=None, codec=PLAIN)
        try:
            await scenario(store, session)
        finally:
            await store.close()

    asyncio.run(run())


@pytest.mark.parametrize("trouble", [lost_after, lost_before, given_up, away])
def test_entries_are_written_once_whatever_became_of_a_commit(trouble: Trouble, tmp_path: Path) -> None:
    async def scenario(store: SqliteStore, session: TroubledSession) -> None:
        await started(store, "r1")
        session.troubles, session.unreachable = [trouble], 2
        results = await asyncio.gather(
            hand_over(store, "r1", 1, asked(1), charge=CALL),
            hand_over(store, "r1", 1, ended(1)),
            hand_over(store, "r1", 1, ended(2)),
        )
        assert [result.seq for result in results if isinstance(result, Appended)] == [3, 4, 5]
        assert not session.troubles
        assert len(await journal(store, "r1")) == 5

    play(scenario, tmp_path)


@pytest.mark.parametrize("trouble", [lost_after, lost_before, given_up])
def test_a_run_is_created_once_whatever_became_of_the_commit(trouble: Trouble, tmp_path: Path) -> None:
    async def scenario(store: SqliteStore, session: TroubledSession) -> None:
        session.troubles = [trouble]
        [row] = await store.create([new_run("r1", key="k")])
        assert row.run_id == "r1"
        assert await names(store, "r1") == ["created"]

    play(scenario, tmp_path)


def test_operations_that_are_given_up_together_are_done_apart(tmp_path: Path) -> None:
    async def scenario(store: SqliteStore, session: TroubledSession) -> None:
        await started(store, "r1")
        session.troubles = [given_up] * 3
        before = session.commits
        rows, result, pruned = await asyncio.gather(
            store.create([new_run("r2")]), hand_over(store, "r1", 1, ended(1)), store.prune(finished_before=0)
        )
        assert (rows[0].run_id, pruned) == ("r2", [])
        assert isinstance(result, Appended)
        assert session.commits >= before + 4

    play(scenario, tmp_path)


def test_a_database_that_gives_everything_up_is_too_busy(tmp_path: Path) -> None:
    async def scenario(store: SqliteStore, session: TroubledSession) -> None:
        session.troubles = [given_up] * 21
        with pytest.raises(StoreUnavailable, match="too busy: it gave up every try"):
            await store.create([new_run("r1")])
        assert await store.get("r1") is None

    play(scenario, tmp_path)


def test_later_appends_never_overtake_those_that_were_put_off(tmp_path: Path) -> None:
    async def scenario(store: SqliteStore, session: TroubledSession) -> None:
        await started(store, "r1")
        session.troubles = [away, given_up, away]
        waiting = []
        for seq in range(1, 9):
            waiting.append(hand_over(store, "r1", 1, ended(seq)))
            await asyncio.sleep(0)
        assert [result.seq for result in await asyncio.gather(*waiting) if isinstance(result, Appended)] == [
            *range(3, 11)
        ]
        ends = [link.entry.seq for link in await journal(store, "r1") if link.entry.entry == "ended"]
        assert ends == [*range(1, 9)]

    play(scenario, tmp_path)


def test_a_store_that_closes_while_its_database_is_away_says_what_was_not_stored(tmp_path: Path) -> None:
    async def scenario(store: SqliteStore, session: TroubledSession) -> None:
        await started(store, "r1")
        session.troubles = [away] * 1000
        waiting = hand_over(store, "r1", 1, ended(1))
        await store.close()
        result = await waiting
        assert isinstance(result, AppendFailed)
        assert isinstance(result.error, StoreUnavailable)
        late = await hand_over(store, "r1", 1, ended(1))
        assert isinstance(late, AppendFailed)
        assert str(late.error) == "the store is closed"
        session.troubles = []

    play(scenario, tmp_path)


def test_an_operation_that_fails_is_undone_alone(tmp_path: Path) -> None:
    async def scenario(store: SqliteStore, session: TroubledSession) -> None:
        def half_done(tx: Transaction) -> None:
            tx.execute("DELETE FROM runs")
            raise ValueError("a fault of ours")

        await started(store, "r1")
        outcomes = await asyncio.gather(
            store.create([new_run("r2")]),
            store._write(half_done),
            store._write(lambda tx: tx.rows("SELECT x FROM nowhere")),
            hand_over(store, "r1", 1, ended(1)),
            return_exceptions=True,
        )
        assert isinstance(outcomes[1], ValueError)
        assert isinstance(outcomes[2], StoreError)
        assert str(outcomes[2]).endswith("s.db refused what was asked: no such table: nowhere")
        assert isinstance(outcomes[3], Appended)
        assert await store.get("r2") is not None
        with pytest.raises(ValueError, match="a fault of ours"):
            await store._write(half_done)
        assert await store.get("r1") is not None

    play(scenario, tmp_path)


def test_a_fault_is_no_refusal(tmp_path: Path) -> None:
    async def scenario(store: SqliteStore, session: TroubledSession) -> None:
        await started(store, "r1")
        session.troubles = [at_fault, at_fault]
        result = await hand_over(store, "r1", 1, ended(1))
        assert isinstance(result, AppendFailed)
        assert str(result.error) == "a fault of Loopwarden kept the entries from being stored: ConnectionError"
        assert await names(store, "r1") == ["created", "claimed"]

    play(scenario, tmp_path)


def test_a_cancelled_operation_that_has_not_begun_is_not_done(tmp_path: Path) -> None:
    async def scenario(store: SqliteStore, session: TroubledSession) -> None:
        blocker = sqlite3.connect(tmp_path / "s.db", isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        first = asyncio.ensure_future(store.create([new_run("r1")]))
        await asyncio.sleep(0)
        while not store._writer._queue.empty():  # until the writer waits for the file with it
            await asyncio.sleep(0)
        second = asyncio.ensure_future(store.create([new_run("r2")]))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.sleep(0)
        blocker.close()
        assert (await first)[0].run_id == "r1"
        assert await store.get("r2") is None

    play(scenario, tmp_path)


def test_a_fault_of_a_session_leaves_nobody_waiting(tmp_path: Path) -> None:
    async def scenario(store: SqliteStore, session: TroubledSession) -> None:
        def broken(_: TroubledSession) -> bool:
            raise RuntimeError("a fault of ours")

        await started(store, "r1")
        session.troubles = [lost_before, lost_before]
        session.find_out = broken.__get__(session)  # type: ignore[method-assign]
        result = await hand_over(store, "r1", 1, ended(1))
        assert isinstance(result, AppendFailed)
        with pytest.raises(RuntimeError, match="a fault of ours"):
            await store.create([new_run("r2")])
        assert await store.get("r2") is None

    play(scenario, tmp_path)


def test_what_may_be_stored_already_is_not_stored_again_by_a_store_that_closes(tmp_path: Path) -> None:
    async def scenario(store: SqliteStore, session: TroubledSession) -> None:
        await started(store, "r1")
        session.troubles, session.unreachable = [lost_after], 1000
        waiting = hand_over(store, "r1", 1, asked(1), charge=CALL)
        while session.unreachable == 1000:  # until the thread asks what became of the commit
            await asyncio.sleep(0)
        await store.close()
        result = await waiting
        assert isinstance(result, AppendFailed)
        assert isinstance(result.error, StoreUnavailable)
        again = await open_sqlite(tmp_path / "s.db")
        assert await names(again, "r1") == ["created", "claimed", "asked"]
        await again.close()

    play(scenario, tmp_path)


def test_a_codec_that_wants_to_leave_does_not_take_the_store_with_it(tmp_path: Path) -> None:
    class Leaving(PlainCodec):
        def encode(self, data: bytes) -> bytes:
            raise SystemExit(3)

    async def run() -> None:
        store = await open_sqlite(tmp_path / "s.db", codec=Leaving())
        with pytest.raises(StoreError, match="the codec 'plain' of the store failed with SystemExit"):
            await store.create([new_run("r1")])
        assert await store.get("r1") is None
        await store.close()

    asyncio.run(run())
