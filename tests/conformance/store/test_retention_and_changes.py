"""Pruning, and waiting for changes."""

import asyncio

import pytest

from loopwarden.journal.entries import Held
from loopwarden.store.api import Store
from loopwarden.store.errors import KeyConflict, StoreError
from loopwarden.store.runs import Tombstone
from loopwarden.store.shared import Scope
from support.store_lab import (
    ALICE,
    StoreLab,
    append,
    ask,
    claim_of,
    ended,
    finish,
    new_run,
    row_of,
    started,
)


async def test_pruning_removes_whole_finished_runs_and_leaves_tombstones(lab: StoreLab) -> None:
    store = lab.store
    await store.set_scope(Scope(name="a", max_agents=3), "ops")
    await started(store, "r1", key="k", scopes=["a"], source="x" * 100_000)
    await ask(store, "r1", 1)
    await ask(store, "r1", 2)
    await ask(store, "r1", 1, attempt=2)
    await store.request("r1", "raise", {"maxTotalAgents": 9}, "ops")
    await finish(store, "r1")
    row = await row_of(store, "r1")
    await started(store, "live")
    await started(store, "held")
    await append(store, "held", 1, Held(at=1.0, code="REPLAY_DIVERGED", reason="x"), change="held")
    await store.create([new_run("queued")])
    assert await store.prune(finished_before=await store.now() - 100) == []
    await lab.pass_seconds(100)
    assert await store.prune(finished_before=await store.now() - 50) == ["r1"]
    assert await store.get("r1") is None
    assert await store.read("r1") == []
    assert await store.blobs("r1") == {}
    [tombstone] = await store.tombstones()
    assert tombstone == Tombstone(
        run_id="r1",
        key="k",
        head_seq=row.head_seq,
        head_hash=row.head_hash,
        calls=2,
        attempts=3,
        charges={"a": {"forever": 3}},
        pruned_at=tombstone.pruned_at,
    )
    assert tombstone.pruned_at == pytest.approx(await store.now(), abs=5)
    # The budget stays a sum.
    assert (await store.scopes())[0].agents == 3
    assert {row.run_id for row in [await row_of(store, name) for name in ("live", "held", "queued")]} == {
        "live",
        "held",
        "queued",
    }


async def test_pruning_begins_with_the_oldest_and_stops_at_its_limit(lab: StoreLab) -> None:
    for run_id in ("c", "a", "b"):
        await started(lab.store, run_id)
    for run_id in ("b", "c", "a"):
        await finish(lab.store, run_id)
        await lab.pass_seconds(1)
    later = await lab.store.now() + 1000
    assert await lab.store.prune(finished_before=later, limit=2) == ["b", "c"]
    assert await lab.store.prune(finished_before=later, limit=0) == []
    assert await lab.store.prune(finished_before=later) == ["a"]


async def test_the_key_and_the_id_of_a_pruned_run_stay_taken(lab: StoreLab) -> None:
    await started(lab.store, "r1", key="k")
    await finish(lab.store, "r1")
    await lab.store.prune(finished_before=await lab.store.now() + 1000)
    with pytest.raises(KeyConflict, match="the key 'k' belongs to run r1, which was pruned"):
        await lab.store.create([new_run("r2", key="k")])
    with pytest.raises(StoreError, match="there was a run r1 before, which was pruned"):
        await lab.store.create([new_run("r1")])


async def test_a_reader_behind_is_told_at_once(store: Store) -> None:
    await started(store, "r1")
    assert await store.changed("r1", after=1, timeout_seconds=0) is True
    assert await store.changed("r1", after=2, timeout_seconds=0) is False


async def test_a_waiter_is_woken_by_entries_and_by_changes_of_the_row(store: Store) -> None:
    await started(store, "r1")

    async def seen_during(work: "asyncio.Future[object] | object", after: int) -> bool:
        waiting = asyncio.ensure_future(store.changed("r1", after=after, timeout_seconds=60))
        # Once a read of the store is answered, the waiter has read the row too and waits.
        for _ in range(3):
            await store.get("r1")
        await work  # type: ignore[misc]
        return await waiting

    assert await seen_during(append(store, "r1", 1, ended(1)), 3 - 1) is True
    assert await seen_during(store.request("r1", "cancel", {"reason": "x"}, "ops"), 100) is True
    assert await seen_during(finish(store, "r1"), 100) is True
    assert await seen_during(claim_of(store, "r1"), 100) is True


async def test_a_waiter_sees_a_run_appear_and_vanish(lab: StoreLab) -> None:
    appearing = asyncio.ensure_future(lab.store.changed("r1", after=0, timeout_seconds=60))
    await lab.store.get("r1")
    await started(lab.store, "r1")
    assert await appearing is True
    await finish(lab.store, "r1")
    vanishing = asyncio.ensure_future(lab.store.changed("r1", after=100, timeout_seconds=60))
    for _ in range(3):
        await lab.store.get("r1")
    await lab.store.prune(finished_before=await lab.store.now() + 1000)
    assert await vanishing is True


async def test_other_runs_and_renewals_wake_nobody(store: Store) -> None:
    await started(store, "r1")
    await started(store, "r2")
    waiting = asyncio.ensure_future(store.changed("r1", after=2, timeout_seconds=0.3))
    await store.get("r1")
    await ask(store, "r2", 1)
    await store.renew(ALICE, {"r1": 1})
    assert await waiting is False


async def test_who_waits_when_the_store_closes_is_told(store: Store) -> None:
    await started(store, "r1")
    waiting = asyncio.ensure_future(store.changed("r1", after=2, timeout_seconds=60))
    await store.get("r1")
    await store.close()
    with pytest.raises(StoreError, match="the store is closed"):
        await waiting
