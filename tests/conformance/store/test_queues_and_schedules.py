"""Queues over all hosts, and schedules that fire once."""

from dataclasses import replace

import pytest

from loopwarden.store.api import Store
from loopwarden.store.errors import StoreError
from loopwarden.store.runs import Status
from loopwarden.store.shared import Queue, Schedule
from support.store_lab import ALICE, BOB, StoreLab, finish, new_run, row_of, wanted

NIGHTLY = Schedule(
    name="nightly",
    cron="0 3 * * *",
    zone="Europe/Berlin",
    overlap="skip",
    is_paused=False,
    next_at=1000.25,
    request={"script": "ralph", "args": {"objective": "æ"}},
)


async def claimed(store: Store, limit: int = 100) -> list[str]:
    return [claim.row.run_id for claim in await store.claim(ALICE, wanted(), limit=limit)]


async def test_a_paused_queue_gives_nothing_until_it_is_resumed(lab: StoreLab) -> None:
    await lab.store.create([new_run("r1"), new_run("r2")])
    assert await claimed(lab.store, limit=1) == ["r1"]
    await lab.store.set_queue("nightly", is_paused=True)
    await lab.pass_seconds(1000)
    assert await claimed(lab.store) == []
    await lab.store.set_queue("nightly", is_paused=False)
    assert sorted(await claimed(lab.store)) == ["r1", "r2"]


async def test_a_bound_holds_over_all_hosts(store: Store) -> None:
    await store.create([new_run(f"r{n}") for n in range(4)])
    await store.set_queue("nightly", max_running=2)
    assert await claimed(store, limit=1) == ["r0"]
    assert [claim.row.run_id for claim in await store.claim(BOB, wanted(), limit=5)] == ["r1"]
    assert await claimed(store) == []
    await finish(store, "r0")
    assert await claimed(store) == ["r2"]
    await store.set_queue("nightly", max_running=0)
    assert await claimed(store) == ["r3"]


async def test_a_full_queue_still_gives_runs_that_lost_their_host(lab: StoreLab) -> None:
    await lab.store.create([new_run("r1"), new_run("r2", priority=9)])
    await lab.store.set_queue("nightly", max_running=1)
    assert await claimed(lab.store) == ["r2"]
    await lab.pass_seconds(1000)
    assert await claimed(lab.store) == ["r2"]


async def test_queues_are_listed_with_what_waits_and_runs(store: Store) -> None:
    await store.create([new_run("r1", queue="b"), new_run("r2", queue="b"), new_run("r3", queue="c")])
    await store.create([new_run("r4", queue=None)], owner=ALICE)
    await store.claim(ALICE, wanted(queues={"b": 1}), limit=1)
    await store.set_queue("a", is_paused=True, max_running=3)
    await store.set_queue("a")
    assert await store.queues() == [
        Queue(name="a", is_paused=True, max_running=3, queued=0, running=0),
        Queue(name="b", is_paused=False, max_running=None, queued=1, running=1),
        Queue(name="c", is_paused=False, max_running=None, queued=1, running=0),
    ]
    with pytest.raises(StoreError):
        await store.set_queue("a", max_running=-1)
    with pytest.raises(StoreError):
        await store.set_queue("", is_paused=True)


async def test_schedules_are_kept_replaced_and_removed(store: Store) -> None:
    await store.set_schedule(NIGHTLY)
    await store.set_schedule(replace(NIGHTLY, name="early"))
    changed = replace(NIGHTLY, is_paused=True, overlap="queue", next_at=2000.0)
    await store.set_schedule(changed)
    assert await store.schedules() == [replace(NIGHTLY, name="early"), changed]
    assert await store.remove_schedule("early") is True
    assert await store.remove_schedule("early") is False
    assert await store.schedules() == [changed]


async def test_a_time_fires_once(store: Store) -> None:
    await store.set_schedule(NIGHTLY)
    run = new_run("r1", key="schedule:nightly:1000")
    row = await store.fire("nightly", due_at=1000.25, next_at=2000.5, run=run)
    assert row == await row_of(store, "r1")
    assert row is not None
    assert row.status is Status.QUEUED
    again = new_run("r2", key="schedule:nightly:other")
    assert await store.fire("nightly", due_at=1000.25, next_at=2000.5, run=again) is None
    assert await store.get("r2") is None
    assert (await store.schedules())[0].next_at == 2000.5


async def test_a_time_that_is_skipped_makes_no_run(store: Store) -> None:
    await store.set_schedule(NIGHTLY)
    assert await store.fire("nightly", due_at=1000.25, next_at=2000.0, run=None) is None
    assert (await store.schedules())[0].next_at == 2000.0


async def test_a_schedule_that_is_paused_or_gone_does_not_fire(store: Store) -> None:
    await store.set_schedule(replace(NIGHTLY, is_paused=True))
    assert await store.fire("nightly", due_at=1000.25, next_at=2000.0, run=new_run("r1")) is None
    assert await store.fire("gone", due_at=1000.25, next_at=2000.0, run=new_run("r1")) is None
    assert await store.get("r1") is None


async def test_a_run_that_cannot_be_made_leaves_the_schedule_where_it_was(store: Store) -> None:
    await store.set_schedule(NIGHTLY)
    await store.create([new_run("r1", key="k")])
    with pytest.raises(StoreError):
        await store.fire("nightly", due_at=1000.25, next_at=2000.0, run=new_run("r2", key="k", content_digest="other"))
    assert await store.schedules() == [NIGHTLY]
