"""Claims: which runs a host gets, in which order, and what keeps two hosts apart."""

import pytest

from loopwarden.journal.chain import decode_rows
from loopwarden.journal.entries import Claimed, Held, Logged
from loopwarden.store.api import Store
from loopwarden.store.appends import Appended, FencedOut, LeaseExpired
from loopwarden.store.errors import UnknownRun, WorkspaceBusy
from loopwarden.store.runs import (
    MAX_IDLE_CLAIMS,
    Claim,
    Owner,
    RunRow,
    Status,
)
from support.store_lab import (
    ALICE,
    BOB,
    GRACE,
    REPLAY,
    StoreLab,
    append,
    ask,
    asked,
    claim_of,
    finish,
    journal,
    names,
    new_run,
    row_of,
    started,
    wanted,
)


async def claimed(store: Store, owner: Owner = ALICE, *, limit: int = 100, **changes: object) -> list[str]:
    return [claim.row.run_id for claim in await store.claim(owner, wanted(**changes), limit=limit)]


async def test_a_claim_gives_the_whole_journal_and_makes_its_host_the_owner(store: Store) -> None:
    await store.create([new_run("r1", source="x" * 100_000)])
    [claim] = await store.claim(ALICE, wanted(), limit=1)
    row = claim.row
    assert row == await store.get("r1")
    assert (row.status, row.epoch, row.owner, row.idle_claims) == (Status.RUNNING, 1, "alice", 1)
    assert row.lease_until == pytest.approx(await store.now() + ALICE.lease_seconds, abs=2)
    chained = decode_rows("r1", claim.rows, claim.blobs)
    assert [link.entry.entry for link in chained] == ["created", "claimed"]
    last = chained[-1].entry
    assert isinstance(last, Claimed)
    assert (last.epoch, last.host) == (1, "alice")
    assert (row.head_seq, row.head_hash) == (2, chained[-1].hash)
    assert isinstance(await ask(store, "r1", 1), Appended)


async def test_each_run_is_claimed_once(store: Store) -> None:
    await store.create([new_run(f"r{n}") for n in range(6)])
    first = await claimed(store, ALICE, limit=4)
    second = await claimed(store, BOB, limit=4)
    assert sorted(first + second) == [f"r{n}" for n in range(6)]
    assert await claimed(store, ALICE) == []


async def test_higher_priority_goes_first_then_the_older(store: Store) -> None:
    await store.create([new_run("d"), new_run("b", priority=5), new_run("a"), new_run("c", priority=5)])
    assert await claimed(store, limit=3) == ["b", "c", "d"]
    assert await claimed(store) == ["a"]


async def test_priority_holds_across_queues_and_places_within_each(store: Store) -> None:
    await store.create([new_run("a", queue="x"), new_run("b", queue="x"), new_run("c", queue="y", priority=1)])
    assert await claimed(store, queues={"x": 1, "y": 1}) == ["c", "a"]
    assert await claimed(store, queues={"x": 0, "y": 1}) == []
    assert await claimed(store, queues={}) == []
    assert await claimed(store, queues={"x": 5}, limit=0) == []


async def test_a_run_is_due_only_when_its_time_has_come(lab: StoreLab) -> None:
    await lab.store.create([new_run("r1", not_before=await lab.store.now() + 50)])
    assert await claimed(lab.store) == []
    await lab.pass_seconds(60)
    assert await claimed(lab.store) == ["r1"]


@pytest.mark.parametrize(
    "changes",
    [
        {"scripts": {"other": "sha256:contract"}},
        {"scripts": {"ralph": "sha256:newer"}},
        {"scripts": {}},
        {"providers": ["codex"]},
        {"providers": []},
        {"replay": REPLAY.model_copy(update={"python": "3.12"})},
        {"sources": ["sha256:approved"]},
        {"sources": []},
        {"queues": {"other": 5}},
    ],
    ids=str,
)
async def test_a_host_is_given_only_what_it_can_drive(store: Store, changes: dict[str, object]) -> None:
    await store.create([new_run("r1")])
    assert await claimed(store, **changes) == []
    assert await claimed(store, sources=["sha256:source", "sha256:other"], providers=["x", "claude"]) == ["r1"]


async def test_a_named_workspace_needs_a_host_that_declares_it(store: Store) -> None:
    await store.create([new_run("r1", workspace="docs")])
    assert await claimed(store) == []
    assert await claimed(store, workspaces=["site"]) == []
    assert await claimed(store, workspaces=["docs", "site"]) == ["r1"]


async def test_a_named_workspace_takes_one_run_at_a_time(store: Store) -> None:
    await store.create([new_run("r1", workspace="docs"), new_run("r2", workspace="docs"), new_run("r3")])
    assert await claimed(store, ALICE, workspaces=["docs"]) == ["r1", "r3"]
    assert await claimed(store, BOB, workspaces=["docs"]) == []
    with pytest.raises(WorkspaceBusy, match="run r1 works in the workspace 'docs'"):
        await store.claim_one(BOB, "r2", kill_grace_seconds=GRACE)
    assert (await row_of(store, "r2")).status is Status.QUEUED
    await finish(store, "r1")
    assert await claimed(store, BOB, workspaces=["docs"]) == ["r2"]


async def test_runs_that_share_a_workspace_are_claimed_together_but_not_beside_one_that_does_not(store: Store) -> None:
    shared = [new_run(run_id, workspace="docs", share_workspace=True) for run_id in ("r1", "r2")]
    await store.create([*shared, new_run("r3", workspace="docs")])
    assert await claimed(store, workspaces=["docs"]) == ["r1", "r2"]
    assert await claimed(store, workspaces=["docs"]) == []


async def test_a_path_is_guarded_by_the_hosts_of_its_machine_not_by_the_store(store: Store) -> None:
    await store.create([new_run("r1", workspace="/a/path"), new_run("r2", workspace="/a/path")])
    assert await claimed(store, workspaces=["/a/path"]) == ["r1", "r2"]


async def test_a_workspace_is_held_on_by_a_run_whose_lease_expired(lab: StoreLab) -> None:
    await lab.store.create([new_run("r1", workspace="docs"), new_run("r2", workspace="docs")])
    await claimed(lab.store, workspaces=["docs"])
    await lab.pass_seconds(1000)
    # Its agents may live on another machine: it is taken over before another run is let in.
    assert await claimed(lab.store, BOB, workspaces=["docs"]) == ["r1"]


async def test_a_lost_run_is_claimed_after_its_lease_and_the_kill_grace(lab: StoreLab) -> None:
    await lab.store.create([new_run("r1")])
    await claimed(lab.store)
    await ask(lab.store, "r1", 1)
    await lab.pass_seconds(ALICE.lease_seconds + GRACE - 2)
    assert await claimed(lab.store, BOB) == []
    row = await lab.store.claim_one(BOB, "r1", kill_grace_seconds=GRACE)
    assert isinstance(row, RunRow)
    assert (row.owner, row.epoch) == ("alice", 1)
    await lab.pass_seconds(4)
    [claim] = await lab.store.claim(BOB, wanted(), limit=1)
    assert (claim.row.owner, claim.row.epoch) == ("bob", 2)
    assert await names(lab.store, "r1") == ["created", "claimed", "asked", "claimed"]


async def test_a_renewed_lease_keeps_a_run(lab: StoreLab) -> None:
    await started(lab.store, "r1")
    await started(lab.store, "r2")
    await lab.pass_seconds(20)
    assert await lab.store.renew(ALICE, {"r1": 1, "r2": 2, "none": 1}) == {"r1"}
    assert await lab.store.renew(BOB, {"r1": 1}) == set()
    await lab.pass_seconds(20)
    assert await claimed(lab.store, BOB) == ["r2"]
    assert isinstance(await ask(lab.store, "r1", 1), Appended)
    assert await ask(lab.store, "r2", 1) == FencedOut()


async def test_a_lease_that_expired_comes_alive_again_only_while_nobody_claimed(lab: StoreLab) -> None:
    await started(lab.store, "r1")
    await lab.pass_seconds(1000)
    assert await ask(lab.store, "r1", 1) == LeaseExpired()
    assert await lab.store.renew(ALICE, {"r1": 1}) == {"r1"}
    assert isinstance(await ask(lab.store, "r1", 1), Appended)
    await lab.pass_seconds(1000)
    assert await claimed(lab.store, BOB) == ["r1"]
    assert await lab.store.renew(ALICE, {"r1": 1}) == set()


async def test_a_finished_run_has_no_lease_to_renew(store: Store) -> None:
    await started(store, "r1")
    await finish(store, "r1")
    assert await store.renew(ALICE, {"r1": 1}) == set()


async def test_a_run_that_is_given_back_in_order_is_claimed_at_once(store: Store) -> None:
    await started(store, "r1")
    await append(store, "r1", 1, Logged(at=1.0, message="x"), change="queued")
    assert await claimed(store, BOB) == ["r1"]
    assert (await row_of(store, "r1")).epoch == 2


async def test_a_run_without_a_queue_is_claimed_under_the_empty_name(lab: StoreLab) -> None:
    await started(lab.store, "r1", queue=None)
    await lab.pass_seconds(1000)
    assert await claimed(lab.store, BOB) == []
    assert await claimed(lab.store, BOB, queues={"": 3}) == ["r1"]


async def test_a_run_that_may_be_killing_its_hosts_is_held(lab: StoreLab) -> None:
    await lab.store.create([new_run("r1")])
    for count in range(1, MAX_IDLE_CLAIMS + 1):
        assert await claimed(lab.store) == ["r1"]
        assert (await row_of(lab.store, "r1")).idle_claims == count
        await lab.pass_seconds(1000)
    assert await claimed(lab.store) == []
    row = await row_of(lab.store, "r1")
    assert (row.status, row.owner, row.failure_code) == (Status.HELD, None, "HOST_LOST")
    assert row.reason is not None
    assert row.reason.startswith("claimed 5 times in a row without progress; it may be killing its hosts")
    last = (await journal(lab.store, "r1"))[-1]
    assert isinstance(last.entry, Held)
    assert (last.entry.code, last.entry.reason, last.hash) == ("HOST_LOST", row.reason, row.head_hash)
    # A person may let it go on.
    claim = await claim_of(lab.store, "r1")
    assert (claim.row.status, claim.row.epoch, claim.row.idle_claims) == (Status.RUNNING, MAX_IDLE_CLAIMS + 1, 1)


async def test_progress_between_claims_keeps_a_run_from_being_held(lab: StoreLab) -> None:
    await lab.store.create([new_run("r1")])
    for epoch in range(1, 2 * MAX_IDLE_CLAIMS):
        assert await claimed(lab.store) == ["r1"]
        await append(lab.store, "r1", epoch, Logged(at=1.0, message="x"))
        await lab.pass_seconds(1000)
    assert (await row_of(lab.store, "r1")).status is Status.RUNNING


async def test_one_run_is_claimed_whatever_its_state(store: Store) -> None:
    await store.create([new_run("queued", not_before=4e9, workspace="docs", queue=None)])
    assert (await claim_of(store, "queued")).row.epoch == 1
    await started(store, "over")
    await finish(store, "over")
    claim = await claim_of(store, "over")
    assert (claim.row.status, claim.row.epoch) == (Status.RUNNING, 2)
    assert [link.entry.entry for link in decode_rows("over", claim.rows, claim.blobs)][-1] == "claimed"


async def test_a_live_lease_of_somebody_else_is_respected_and_the_own_one_is_not_in_the_way(store: Store) -> None:
    row = await started(store, "r1")
    assert await store.claim_one(BOB, "r1", kill_grace_seconds=GRACE) == row
    claim = await store.claim_one(ALICE, "r1", kill_grace_seconds=GRACE)
    assert isinstance(claim, Claim)
    assert claim.row.epoch == 2
    assert await append(store, "r1", 1, asked(1)) == FencedOut()


async def test_a_run_that_there_is_not_cannot_be_claimed(store: Store) -> None:
    with pytest.raises(UnknownRun, match="the store holds no run 'none'"):
        await store.claim_one(ALICE, "none", kill_grace_seconds=GRACE)


async def test_a_cancelled_run_that_nobody_owns_is_claimed_like_others(store: Store) -> None:
    await store.create([new_run("r1")])
    await store.request("r1", "cancel", {"reason": "enough"}, "ops")
    [claim] = await store.claim(ALICE, wanted(), limit=1)
    assert claim.row.cancel_reason == "enough"


async def test_a_host_gets_no_more_than_its_free_places_of_new_and_lost_runs_together(lab: StoreLab) -> None:
    await lab.store.create([new_run("lost", priority=1)])
    assert await claimed(lab.store, BOB) == ["lost"]
    await lab.pass_seconds(1000)
    await lab.store.create([new_run("new", priority=2), new_run("last")])
    assert await claimed(lab.store, queues={"nightly": 2}) == ["new", "lost"]
    assert await claimed(lab.store, queues={"nightly": 2}) == ["last"]


async def test_a_lost_run_is_claimed_though_its_queue_is_full(lab: StoreLab) -> None:
    await lab.store.set_queue("nightly", max_running=1)
    await lab.store.create([new_run("lost"), new_run("new", priority=5)])
    assert await claimed(lab.store, BOB) == ["new"]
    await lab.pass_seconds(1000)
    assert await claimed(lab.store) == ["new"]
    assert await claimed(lab.store) == []
