"""Creating, getting, listing and reading runs."""

import asyncio

import pytest

from loopwarden.journal.codec import PLAIN
from loopwarden.store.api import Store
from loopwarden.store.appends import Appended
from loopwarden.store.errors import KeyConflict, StoreError, WorkspaceBusy
from loopwarden.store.runs import NewRun, RunFilter, Status
from support.store_lab import (
    ALICE,
    append,
    asked,
    created,
    ended,
    finish,
    hand_over,
    journal,
    names,
    new_run,
    row_of,
    started,
)


async def test_a_submitted_run_waits_with_all_that_was_asked_for(store: Store) -> None:
    run = new_run("r1", key="k", workspace="docs", priority=7, labels={"team": "æ"}, scopes=["b", "a"], not_before=12.5)
    [row] = await store.create([run])
    assert row == await store.get("r1")
    assert (row.status, row.epoch, row.owner, row.lease_until, row.head_seq) == (Status.QUEUED, 0, None, None, 1)
    assert (row.key, row.workspace, row.priority, row.not_before) == ("k", "docs", 7, 12.5)
    assert (row.labels, row.scopes, row.queue) == ({"team": "æ"}, ("a", "b"), "nightly")
    assert (row.max_calls, row.max_extra, row.calls, row.extra) == (3, 1, 0, 0)
    assert row.submitted_at == pytest.approx(await store.now(), abs=5)
    assert await names(store, "r1") == ["created"]


async def test_a_run_with_an_owner_is_born_claimed(store: Store) -> None:
    row = await started(store, "r1", queue=None)
    assert (row.status, row.epoch, row.owner, row.queue) == (Status.RUNNING, 1, "alice", None)
    assert row.lease_until == pytest.approx(row.submitted_at + ALICE.lease_seconds, abs=2)
    assert await names(store, "r1") == ["created", "claimed"]
    chained = await journal(store, "r1")
    assert (row.head_seq, row.head_hash) == (2, chained[-1].hash)


async def test_the_same_key_with_the_same_content_gives_the_same_run(store: Store) -> None:
    [first] = await store.create([new_run("r1", key="k")])
    [again] = await store.create([new_run("r2", key="k")])
    assert again == first
    assert await store.get("r2") is None


async def test_the_same_key_with_other_content_is_refused_and_nothing_of_the_batch_is_made(store: Store) -> None:
    await store.create([new_run("r1", key="k")])
    with pytest.raises(KeyConflict, match="the key 'k' belongs to run r1, which was asked for with other content"):
        await store.create([new_run("r2"), new_run("r3", key="k", content_digest="other")])
    assert await store.get("r2") is None


async def test_creating_the_same_run_twice_makes_it_once(store: Store) -> None:
    [first] = await store.create([new_run("r1")])
    assert await store.create([new_run("r1")]) == [first]
    with pytest.raises(StoreError, match="there is a run r1 already"):
        await store.create([new_run("r1", content_digest="other")])


async def test_names_that_no_database_keeps_are_refused(store: Store) -> None:
    with pytest.raises(StoreError, match=r"the key 'a\\x00b' holds characters that cannot be stored"):
        await store.create([new_run("r1", key="a\0b")])
    with pytest.raises(StoreError, match="the queue"):
        await store.create([new_run("r1", queue="\ud800")])


async def test_large_values_rest_as_blobs(store: Store) -> None:
    source = "x" * 100_000
    await store.create([new_run("r1", source=source)])
    [row] = await store.read("r1")
    assert len(row.body) < 2000
    blobs = await store.blobs("r1")
    assert len(blobs) == 1
    assert await store.blobs("r1", list(blobs)) == blobs
    assert await store.blobs("r1", []) == {}
    assert await store.blobs("r1", ["sha256:none"]) == {}
    [entry] = await journal(store, "r1")
    assert entry.entry == created("r1", source=source, queue="nightly")


async def test_a_run_that_there_is_not_is_none(store: Store) -> None:
    assert await store.get("none") is None
    assert await store.read("none") == []
    assert await store.blobs("none") == {}


async def test_runs_are_listed_the_newest_first_page_by_page(store: Store) -> None:
    # Ids in an order that is not that of submission, all within one transaction.
    await store.create([new_run(run_id) for run_id in ("b", "d", "a", "c", "e")])
    first = await store.find(RunFilter(limit=2))
    assert [row.run_id for row in first] == ["e", "c"]
    second = await store.find(RunFilter(limit=2, before="c"))
    assert [row.run_id for row in second] == ["a", "d"]
    assert [row.run_id for row in await store.find(RunFilter(before="d"))] == ["b"]


async def test_runs_are_listed_by_what_they_are(store: Store) -> None:
    await store.create([new_run("r1", labels={"a": "1", "b": "2"}), new_run("r2", labels={"a": "1"}, queue="other")])
    await store.create([new_run("r3", script="night"), new_run("r4")])
    await started(store, "r5")

    async def found(**conditions: object) -> list[str]:
        return [row.run_id for row in await store.find(RunFilter(**conditions))]  # type: ignore[arg-type]

    assert await found(labels={"a": "1"}) == ["r2", "r1"]
    assert await found(labels={"a": "1", "b": "2"}, limit=1) == ["r1"]
    assert await found(queue="other") == ["r2"]
    assert await found(script="night") == ["r3"]
    assert await found(status=Status.RUNNING) == ["r5"]
    assert await found(status=Status.QUEUED, script="ralph", queue="nightly") == ["r4", "r1"]
    assert await found(limit=0) == []


async def test_a_journal_is_read_in_pages(store: Store) -> None:
    await started(store, "r1", limits={"max_total_agents": 9, "max_extra_attempts": 0})
    await asyncio.gather(*(hand_over(store, "r1", 1, ended(seq)) for seq in range(1, 6)))
    assert [row.seq for row in await store.read("r1", after=3)] == [4, 5, 6, 7]
    assert [row.seq for row in await store.read("r1", after=3, limit=2)] == [4, 5]
    assert await store.read("r1", after=7) == []


async def test_a_codec_is_applied_before_hashing(store: Store) -> None:
    # The store was opened with the plain codec: what is read back are the bytes that were hashed.
    await started(store, "r1")
    rows = await store.read("r1")
    assert all(PLAIN.decode(row.body).startswith(b'{"number":') for row in rows)


async def test_text_is_kept_whatever_it_is(store: Store) -> None:
    await started(store, "r1")
    value = "zero \0, quote ', percent % and ? and emoji 😀"
    assert isinstance(await append(store, "r1", 1, ended(1, value=value)), Appended)
    assert (await journal(store, "r1"))[-1].entry == ended(1, value=value)


async def test_a_named_workspace_takes_one_started_run_at_a_time(store: Store) -> None:
    await started(store, "r1", workspace="docs")
    with pytest.raises(WorkspaceBusy, match="run r1 works in the workspace 'docs'"):
        await started(store, "r2", workspace="docs")
    assert await store.get("r2") is None
    await started(store, "r3", workspace="/a/path")
    await started(store, "r4", workspace="/a/path")
    await finish(store, "r1")
    await started(store, "r2", workspace="docs")


async def test_runs_that_share_a_workspace_start_together(store: Store) -> None:
    await started(store, "r1", workspace="docs", share_workspace=True)
    await started(store, "r2", workspace="docs", share_workspace=True)
    with pytest.raises(WorkspaceBusy):
        await started(store, "r3", workspace="docs")


async def test_many_runs_are_created_in_one_go(store: Store) -> None:
    rows = await store.create([NewRun(created=created(f"r{n:03}", queue="q"), content_digest="c") for n in range(200)])
    assert [row.run_id for row in rows] == [f"r{n:03}" for n in range(200)]
    assert (await row_of(store, "r199")).status is Status.QUEUED


async def test_what_was_handed_over_is_committed_before_the_store_closes(store: Store) -> None:
    await started(store, "r1")
    waiting = [hand_over(store, "r1", 1, asked(1), charge=None), hand_over(store, "r1", 1, ended(1))]
    await store.close()
    await store.close()
    assert isinstance(await waiting[1], Appended)
    with pytest.raises(StoreError, match="the store is closed"):
        await store.get("r1")


async def test_runs_are_listed_by_labels_of_any_text(store: Store) -> None:
    odd = {'a":"1': "%_?'\\", "\N{GREEK SMALL LETTER PI}": '"x":"y"'}
    await store.create([new_run("r1", labels=odd), new_run("r2", labels={"x": "y"}), new_run("r3", labels={"x": "y2"})])
    for name, value in odd.items():
        assert [row.run_id for row in await store.find(RunFilter(labels={name: value}))] == ["r1"]
    assert [row.run_id for row in await store.find(RunFilter(labels={"x": "y"}))] == ["r2"]
    assert await store.find(RunFilter(labels={"a": "1"})) == []


async def test_what_no_column_holds_is_refused_with_a_sentence(store: Store) -> None:
    with pytest.raises(StoreError, match=r"^(a text that is not Unicode|.* refused what)"):
        await store.create([new_run("r1", priority=2**70)])
    with pytest.raises(StoreError, match=r"^a text that is not Unicode"):
        await store.get("\udce4")
    assert await store.find(RunFilter()) == []
