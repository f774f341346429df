"""Requests of those who do not own a run."""

import pytest

from loopwarden.store.api import Store
from loopwarden.store.errors import UnknownRun
from support.store_lab import ALICE, BOB, StoreLab, claim_of, finish, new_run, row_of, started


async def test_the_owner_gets_each_request_once_and_in_order(store: Store) -> None:
    await started(store, "r1")
    await started(store, "r2", BOB)
    await store.request("r1", "raise", {"maxTotalAgents": 9}, "ops")
    await store.request("r2", "raise", {"maxTotalAgents": 5}, "ops")
    row = await store.request("r1", "cancel", {"reason": "enough"}, "someone")
    assert row == await row_of(store, "r1")
    assert row.cancel_reason == "enough"
    first, second = await store.take_requests(ALICE)
    assert (first.run_id, first.kind, first.body, first.by) == ("r1", "raise", {"maxTotalAgents": 9}, "ops")
    assert (second.run_id, second.kind, second.body, second.by) == ("r1", "cancel", {"reason": "enough"}, "someone")
    assert first.number < second.number
    assert first.at == pytest.approx(await store.now(), abs=5)
    assert await store.take_requests(ALICE) == []
    assert [request.run_id for request in await store.take_requests(BOB)] == ["r2"]


async def test_requests_wait_for_an_owner(lab: StoreLab) -> None:
    await lab.store.create([new_run("r1")])
    await lab.store.request("r1", "raise", {"maxTotalAgents": 9}, "ops")
    assert await lab.store.take_requests(ALICE) == []
    await claim_of(lab.store, "r1")
    assert len(await lab.store.take_requests(ALICE)) == 1


async def test_a_request_is_given_again_to_the_next_owner(lab: StoreLab) -> None:
    """The one before may have died before it acted on it."""
    await started(lab.store, "r1")
    await lab.store.request("r1", "raise", {"maxTotalAgents": 9}, "ops")
    assert len(await lab.store.take_requests(ALICE)) == 1
    await lab.pass_seconds(1000)
    await claim_of(lab.store, "r1", BOB)
    assert [request.by for request in await lab.store.take_requests(BOB)] == ["ops"]
    assert await lab.store.take_requests(BOB) == []


async def test_the_first_cancel_counts(store: Store) -> None:
    await started(store, "r1")
    await store.request("r1", "cancel", {"reason": "one"}, "a")
    assert (await store.request("r1", "cancel", {}, "b")).cancel_reason == "one"
    await started(store, "r2")
    assert (await store.request("r2", "cancel", {}, "b")).cancel_reason == "cancelled"


async def test_a_finished_run_is_asked_for_nothing(store: Store) -> None:
    await started(store, "r1")
    await store.request("r1", "raise", {"maxTotalAgents": 9}, "ops")
    await finish(store, "r1")
    before = await row_of(store, "r1")
    assert await store.request("r1", "cancel", {"reason": "late"}, "ops") == before
    assert before.cancel_reason is None
    # What was asked of the segment that is over is not asked of the next one.
    await claim_of(store, "r1")
    assert await store.take_requests(ALICE) == []


async def test_a_run_that_there_is_not_is_asked_for_nothing(store: Store) -> None:
    with pytest.raises(UnknownRun, match="the store holds no run 'none'"):
        await store.request("none", "cancel", {}, "ops")
