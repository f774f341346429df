"""SQLite alone: a row that was edited by hand harms its run, is named, and leaves the other runs alone."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from loopwarden.store.appends import Appended, AppendFailed
from loopwarden.store.errors import StoreCorrupt
from loopwarden.store.runs import RunFilter, Status
from loopwarden.store.shared import Scope
from loopwarden.store.sqlite import SqliteStore, open_sqlite
from support.store_lab import (
    ALICE,
    BOB,
    CALL,
    TickingClock,
    ask,
    asked,
    hand_over,
    journal,
    new_run,
    row_of,
    started,
    wanted,
)

EDITS = [
    "status = 'lost'",
    "epoch = 'one'",
    "epoch = 9223372036854775807",
    "head_seq = 9223372036854775807",
    "head_seq = 0",
    "head_seq = 2.5",
    "head_hash = 'sha256:short'",
    "calls = -1",
    "scopes = '{}'",
    "scopes = '[1]'",
    "scopes = 'x'",
    "lease_until = 'soon'",
    "owner = CAST(x'ff00' AS TEXT)",
    "reason = x'00'",
]


async def edited(path: Path, clock: TickingClock, edit: str) -> SqliteStore:
    store = await open_sqlite(path, clock=clock)
    await started(store, "bad")
    await started(store, "good")
    with closing(sqlite3.connect(path)) as editor, editor:
        editor.execute(f"UPDATE runs SET {edit} WHERE run_id = 'bad'")
    return store


@pytest.mark.parametrize("edit", [*EDITS, "labels = '[]'", "replay = '{}'", "submitted_at = 'x'", "priority = 'high'"])
async def test_a_damaged_row_is_named_and_left_out_of_lists(swift_path: Path, edit: str) -> None:
    store = await edited(swift_path / "s.db", TickingClock(), edit)
    with pytest.raises(StoreCorrupt, match=r"what the store holds for run bad is damaged: (its|one of its)"):
        await store.get("bad")
    assert [row.run_id for row in await store.find(RunFilter())] == ["good"]
    await store.close()


@pytest.mark.parametrize("edit", EDITS)
async def test_appends_to_a_damaged_row_fail_and_others_of_the_batch_do_not(swift_path: Path, edit: str) -> None:
    store = await edited(swift_path / "s.db", TickingClock(), edit)
    bad = hand_over(store, "bad", 1, asked(1), charge=CALL)
    good = hand_over(store, "good", 1, asked(1), charge=CALL)
    result = await bad
    assert isinstance(result, AppendFailed)
    assert isinstance(result.error, StoreCorrupt)
    assert result.error.run_id == "bad"
    assert isinstance(await good, Appended)
    await store.close()


async def test_a_head_that_was_set_back_keeps_appends_from_overwriting_what_is_there(swift_path: Path) -> None:
    store = await edited(swift_path / "s.db", TickingClock(), "head_seq = 1")
    bad = hand_over(store, "bad", 1, asked(1), charge=CALL)
    good = hand_over(store, "good", 1, asked(1), charge=CALL)
    assert isinstance(await bad, AppendFailed)
    assert isinstance(await good, Appended)
    assert len(await store.read("bad")) == 2
    await store.close()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE runs SET head_seq = 7 WHERE run_id = 'bad'",
        "UPDATE runs SET labels = 'x' WHERE run_id = 'bad'",
        "UPDATE runs SET epoch = 9223372036854775807 WHERE run_id = 'bad'",
        "UPDATE runs SET idle_claims = 7, head_seq = 1 WHERE run_id = 'bad'",
        "UPDATE runs SET idle_claims = 7, head_hash = 'sha256:' || hex(zeroblob(32)) WHERE run_id = 'bad'",
        "UPDATE entries SET body = 'text' WHERE run_id = 'bad' AND seq = 1",
        "UPDATE entries SET hash = 'x' WHERE run_id = 'bad' AND seq = 1",
        "DELETE FROM entries WHERE run_id = 'bad' AND seq = 2",
        "DELETE FROM entries WHERE run_id = 'bad' AND seq = 1",
        "DELETE FROM entries WHERE run_id = 'bad'",
    ],
)
async def test_a_damaged_run_is_held_instead_of_claimed(swift_path: Path, statement: str) -> None:
    clock = TickingClock()
    store = await edited(swift_path / "s.db", clock, "priority = 5")
    with closing(sqlite3.connect(swift_path / "s.db")) as editor, editor:
        editor.execute(statement)
    clock.now += 1000
    assert [claim.row.run_id for claim in await store.claim(BOB, wanted(), limit=5)] == ["good"]
    assert await store.claim(BOB, wanted(), limit=5) == []
    with closing(sqlite3.connect(swift_path / "s.db")) as reader:
        found = reader.execute("SELECT status, owner, failure_code FROM runs WHERE run_id = 'bad'").fetchall()
    assert found == [("held", None, "STORE_CORRUPT")]
    with pytest.raises(StoreCorrupt, match="for run bad is damaged"):
        await store.claim_one(BOB, "bad", kill_grace_seconds=5)
    await store.close()


async def test_damaged_entries_and_blobs_are_named(swift_path: Path) -> None:
    store = await open_sqlite(swift_path / "s.db")
    await store.create([new_run("bad", source="x" * 100_000), new_run("good")])
    with closing(sqlite3.connect(swift_path / "s.db")) as editor, editor:
        editor.execute("UPDATE entries SET body = 'text' WHERE run_id = 'bad'")
        editor.execute("UPDATE blobs SET content = 5 WHERE run_id = 'bad'")
    with pytest.raises(StoreCorrupt, match="run bad is damaged: entry 1 is not stored as bytes"):
        await store.read("bad")
    with pytest.raises(StoreCorrupt, match="run bad is damaged: one of its blobs is not stored as bytes"):
        await store.blobs("bad")
    assert len(await journal(store, "good")) == 1
    await store.close()


async def test_a_damaged_budget_stops_the_runs_that_are_charged_to_it_alone(swift_path: Path) -> None:
    store = await open_sqlite(swift_path / "s.db")
    await store.set_scope(Scope(name="a"), "ops")
    await store.set_scope(Scope(name="b"), "ops")
    await started(store, "bad", scopes=["a", "b"])
    await started(store, "good", scopes=["b"])
    with closing(sqlite3.connect(swift_path / "s.db")) as editor, editor:
        editor.execute("UPDATE scopes SET zone = 'Mars/Olympus' WHERE name = 'a'")
    bad = hand_over(store, "bad", 1, asked(1), charge=CALL)
    good = hand_over(store, "good", 1, asked(1), charge=CALL)
    result = await bad
    assert isinstance(result, AppendFailed)
    assert str(result.error).startswith("nothing was stored for run bad: the rows of the budget 'a' are damaged")
    assert isinstance(await good, Appended)
    assert [(use.scope.name, use.agents) for use in await store.scopes()] == [("b", 1)]
    # Setting it again repairs it.
    await store.set_scope(Scope(name="a"), "ops")
    assert isinstance(await ask(store, "bad", 1), Appended)
    await store.close()


async def test_damaged_settings_pause_their_queue_and_no_other_one(
    swift_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = await open_sqlite(swift_path / "s.db")
    await store.set_queue("q", max_running=7)
    await store.create([new_run("r1", queue="q"), new_run("r2", queue="other")])
    with closing(sqlite3.connect(swift_path / "s.db")) as editor, editor:
        editor.execute("UPDATE queues SET max_running = 'many'")
    claims = await store.claim(ALICE, wanted(queues={"q": 5, "other": 5}), limit=5)
    assert [claim.row.run_id for claim in claims] == ["r2"]
    assert "a queue is paused: its settings are damaged; set them again" in caplog.text
    assert [(queue.name, queue.is_paused) for queue in await store.queues()] == [("other", False), ("q", True)]
    await store.set_queue("q", max_running=3)
    assert [(queue.max_running, queue.is_paused) for queue in await store.queues()] == [(None, False), (3, False)]
    await store.close()


async def test_a_damaged_schedule_is_left_out_and_the_others_go_on(
    swift_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = await open_sqlite(swift_path / "s.db")
    with closing(sqlite3.connect(swift_path / "s.db")) as editor, editor:
        editor.execute("INSERT INTO schedules VALUES ('s', '* * * * *', 'UTC', 'skip', 0, 1.0, 'x')")
        editor.execute("INSERT INTO schedules VALUES ('t', '* * * * *', 'UTC', 'skip', 0, 1.0, '{}')")
    assert [schedule.name for schedule in await store.schedules()] == ["t"]
    assert "a schedule is left out: it is damaged; remove it and add it again" in caplog.text
    assert await store.remove_schedule("s") is True
    await store.close()


async def test_damaged_requests_are_left_out(swift_path: Path) -> None:
    store = await open_sqlite(swift_path / "s.db")
    await started(store, "r1")
    await store.request("r1", "raise", {"maxTotalAgents": 9}, "ops")
    await store.request("r1", "cancel", {"reason": "x"}, "ops")
    with closing(sqlite3.connect(swift_path / "s.db")) as editor, editor:
        editor.execute("UPDATE requests SET body = 'x' WHERE kind = 'raise'")
    assert [request.kind for request in await store.take_requests(ALICE)] == ["cancel"]
    assert (await row_of(store, "r1")).status is Status.RUNNING
    await store.close()
