"""Appends: fence, caps, cancels, chaining; all of it or nothing."""

import asyncio

import pytest

from loopwarden.journal.entries import Entry, Held, Logged, Reopened, Stopping
from loopwarden.receipt import FailureRecord
from loopwarden.store.api import Store
from loopwarden.store.appends import (
    Append,
    Appended,
    AppendFailed,
    AppendResult,
    CancelPending,
    CapReached,
    FencedOut,
    LeaseExpired,
)
from loopwarden.store.runs import Status
from support.store_lab import (
    ALICE,
    BOB,
    CALL,
    StoreLab,
    append,
    ask,
    asked,
    claim_of,
    end,
    ended,
    finish,
    finished,
    hand_over,
    journal,
    names,
    row_of,
    started,
    stopping,
)


async def test_an_append_gives_the_new_head(store: Store) -> None:
    await started(store, "r1")
    result = await append(store, "r1", 1, asked(1), Logged(at=1.0, message="hello"), charge=CALL)
    chained = await journal(store, "r1")
    assert result == Appended(4, chained[-1].hash, {})
    assert [link.entry for link in chained[2:]] == [asked(1), Logged(at=1.0, message="hello")]
    row = await row_of(store, "r1")
    assert (row.head_seq, row.head_hash, row.calls, row.extra) == (4, chained[-1].hash, 1, 0)


async def test_appends_of_one_batch_see_each_other(store: Store) -> None:
    await started(store, "r1")
    results = await asyncio.gather(*(hand_over(store, "r1", 1, asked(seq), charge=CALL) for seq in range(1, 6)))
    assert [result.seq for result in results if isinstance(result, Appended)] == [3, 4, 5]
    assert results[3:] == [CapReached("calls")] * 2
    assert len(await journal(store, "r1")) == 5


async def test_results_come_in_the_order_of_submission(store: Store) -> None:
    await started(store, "r1")
    await started(store, "r2")
    seen: list[tuple[str, int]] = []
    last = asyncio.get_running_loop().create_future()

    def note(run_id: str, result: AppendResult) -> None:
        assert isinstance(result, Appended)
        seen.append((run_id, result.seq))
        if len(seen) == 100:
            last.set_result(None)

    for _ in range(50):
        for run_id in ("r2", "r1"):
            store.append(
                Append(
                    run_id=run_id,
                    epoch=1,
                    entries=[Logged(at=1.0, message="x")],
                    done=lambda result, run_id=run_id: note(run_id, result),  # type: ignore[misc]
                )
            )
    await last
    for run_id in ("r1", "r2"):
        assert [seq for name, seq in seen if name == run_id] == list(range(3, 53))
        assert len(await journal(store, run_id)) == 52


async def test_an_end_of_a_done_that_raises_does_not_keep_results_from_others(store: Store) -> None:
    await started(store, "r1")
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["message"]))

    def fail(_: AppendResult) -> None:
        raise RuntimeError

    store.append(Append(run_id="r1", epoch=1, entries=[ended(1)], done=fail))
    assert isinstance(await append(store, "r1", 1, ended(2)), Appended)
    assert complaints == ["the end of an append raised"]


async def test_calls_and_repeats_have_caps_of_their_own(store: Store) -> None:
    await started(store, "r1")
    for seq in (1, 2, 3):
        assert isinstance(await ask(store, "r1", seq), Appended)
    assert await ask(store, "r1", 4) == CapReached("calls")
    assert isinstance(await ask(store, "r1", 1, attempt=2), Appended)
    assert await ask(store, "r1", 2, attempt=2) == CapReached("extra")
    row = await row_of(store, "r1")
    assert (row.calls, row.extra, row.head_seq) == (3, 1, 6)


async def test_a_late_end_and_a_second_end_are_for_the_owner_to_judge_and_cost_nothing(store: Store) -> None:
    await started(store, "r1")
    await ask(store, "r1", 1)
    assert isinstance(await end(store, "r1", 1), Appended)
    assert isinstance(await end(store, "r1", 1), Appended)
    assert (await row_of(store, "r1")).calls == 1


async def test_an_ask_that_is_not_charged_is_refused(store: Store) -> None:
    await started(store, "r1")
    result = await append(store, "r1", 1, asked(1))
    assert isinstance(result, AppendFailed)
    assert "without being charged" in str(result.error)
    assert await names(store, "r1") == ["created", "claimed"]


@pytest.mark.parametrize("entries", [[], [ended(1)], [asked(1), asked(2)]])
async def test_a_charge_pays_for_exactly_one_ask(store: Store, entries: list[Entry]) -> None:
    await started(store, "r1")
    result = await append(store, "r1", 1, *entries, charge=CALL)
    assert isinstance(result, AppendFailed)
    assert "were asked for with a charge for one" in str(result.error)
    assert await names(store, "r1") == ["created", "claimed"]
    assert (await row_of(store, "r1")).calls == 0


@pytest.mark.parametrize("epoch", [0, 2])
async def test_another_epoch_is_fenced_out(store: Store, epoch: int) -> None:
    await started(store, "r1")
    assert await ask(store, "r1", 1, epoch=epoch) == FencedOut()
    assert await names(store, "r1") == ["created", "claimed"]


async def test_a_run_that_there_is_not_is_fenced_out(store: Store) -> None:
    assert await ask(store, "none", 1) == FencedOut()


async def test_nothing_is_appended_under_an_expired_lease_though_nobody_claimed(lab: StoreLab) -> None:
    await started(lab.store, "r1")
    await lab.pass_seconds(ALICE.lease_seconds - 1)
    assert isinstance(await ask(lab.store, "r1", 1), Appended)
    await lab.pass_seconds(2)
    assert await ask(lab.store, "r1", 2) == LeaseExpired()
    assert (await row_of(lab.store, "r1")).calls == 1


async def test_after_a_takeover_only_the_new_owner_appends(lab: StoreLab) -> None:
    await started(lab.store, "r1")
    await ask(lab.store, "r1", 1)
    await lab.pass_seconds(100)
    claim = await claim_of(lab.store, "r1", BOB)
    assert claim.row.epoch == 2
    assert await end(lab.store, "r1", 1, epoch=1) == FencedOut()
    assert isinstance(await end(lab.store, "r1", 1, epoch=2), Appended)
    assert await names(lab.store, "r1") == ["created", "claimed", "asked", "claimed", "ended"]


async def test_no_ask_commits_after_a_committed_cancel_but_ends_do(store: Store) -> None:
    await started(store, "r1")
    await ask(store, "r1", 1)
    await store.request("r1", "cancel", {"reason": "enough"}, "ops")
    assert await ask(store, "r1", 2) == CancelPending("enough")
    assert isinstance(await end(store, "r1", 1), Appended)
    assert isinstance(await finish(store, "r1"), Appended)


async def test_entries_that_cannot_be_written_change_nothing(store: Store) -> None:
    await started(store, "r1")
    await started(store, "r2")
    bad = hand_over(store, "r1", 1, asked(1), ended(1, value={"x": object()}), charge=CALL)
    good = hand_over(store, "r2", 1, asked(1), charge=CALL)
    assert isinstance(await bad, AppendFailed)
    assert isinstance(await good, Appended)
    assert (await row_of(store, "r1")).calls == 0
    assert await names(store, "r1") == ["created", "claimed"]


async def test_an_append_without_entries_changes_the_row_alone(store: Store) -> None:
    row = await started(store, "r1")
    assert await append(store, "r1", 1, change="queued") == Appended(2, row.head_hash, {})
    assert (await row_of(store, "r1")).status is Status.QUEUED


async def test_a_finished_run_gives_its_lease_back_and_says_how_it_ended(store: Store) -> None:
    await started(store, "r1")
    failure = FailureRecord(code="AGENT_CAP", message="used \0 up")
    await append(store, "r1", 1, Stopping(at=1.0, stop_reason="error", failure=failure), change="stopping")
    row = await row_of(store, "r1")
    assert (row.status, row.owner) == (Status.RUNNING, "alice")
    assert isinstance(await append(store, "r1", 1, finished(), change="finished"), Appended)
    row = await row_of(store, "r1")
    assert (row.status, row.owner, row.lease_until) == (Status.FINISHED, None, None)
    assert (row.stop_reason, row.failure_code, row.reason) == ("error", "AGENT_CAP", "used � up")
    assert row.finished_at == pytest.approx(await store.now(), abs=5)
    assert await end(store, "r1", 1) == FencedOut()


async def test_a_held_run_gives_its_lease_back_and_says_why(store: Store) -> None:
    await started(store, "r1")
    await append(store, "r1", 1, Held(at=1.0, code="REPLAY_DIVERGED", reason="it asked other things"), change="held")
    row = await row_of(store, "r1")
    assert (row.status, row.failure_code, row.reason) == (Status.HELD, "REPLAY_DIVERGED", "it asked other things")
    assert row.owner is None
    assert await ask(store, "r1", 1) == FencedOut()


async def test_what_follows_in_the_batch_in_which_a_lease_was_given_back_is_fenced_out(store: Store) -> None:
    await started(store, "r1")
    given_back = hand_over(store, "r1", 1, stopping(), finished(), change="finished")
    late = hand_over(store, "r1", 1, ended(1))
    assert isinstance(await given_back, Appended)
    assert await late == FencedOut()


async def test_reopening_a_finished_run_raises_its_caps_in_the_same_journal(store: Store) -> None:
    await started(store, "r1")
    for seq in (1, 2, 3):
        await ask(store, "r1", seq)
    await store.request("r1", "cancel", {"reason": "enough"}, "ops")
    await finish(store, "r1")
    claim = await claim_of(store, "r1")
    assert claim.row.stop_reason == "completed"
    reopened = Reopened(at=9.0, by="ops", why="more", limits={"max_total_agents": 4, "max_extra_attempts": 2})
    assert isinstance(await append(store, "r1", 2, reopened), Appended)
    row = await row_of(store, "r1")
    assert (row.status, row.stop_reason, row.finished_at, row.cancel_reason) == (Status.RUNNING, None, None, None)
    assert (row.max_calls, row.max_extra, row.calls) == (4, 2, 3)
    assert isinstance(await ask(store, "r1", 4, epoch=2), Appended)
    assert await ask(store, "r1", 5, epoch=2) == CapReached("calls")


async def test_many_runs_in_many_batches_each_keep_their_chain(store: Store) -> None:
    for n in range(20):
        await started(store, f"r{n:02}")

    async def drive(run_id: str) -> None:
        for seq in (1, 2, 3):
            assert isinstance(await ask(store, run_id, seq), Appended)
            assert isinstance(await end(store, run_id, seq), Appended)
        assert isinstance(await finish(store, run_id), Appended)

    await asyncio.gather(*(drive(f"r{n:02}") for n in range(20)))
    for n in range(20):
        assert await names(store, f"r{n:02}") == [
            "created", "claimed", *["asked", "ended"] * 3, "stopping", "finished",
        ]  # fmt: skip


async def test_entries_never_overtake_those_that_came_back_under_an_expired_lease(lab: StoreLab) -> None:
    """A renewal slips in between two appends: the second one must not stand before the first."""
    await started(lab.store, "r1")
    await lab.pass_seconds(1000)
    first = hand_over(lab.store, "r1", 1, Logged(at=1.0, message="first"), generation=0)
    renewal = asyncio.ensure_future(lab.store.renew(ALICE, {"r1": 1}))
    await asyncio.sleep(0)
    second = hand_over(lab.store, "r1", 1, Logged(at=1.0, message="second"), generation=0)
    assert await renewal == {"r1"}
    if await first == LeaseExpired():
        assert await second == LeaseExpired()
        for message in ("first", "second"):
            assert isinstance(await append(lab.store, "r1", 1, Logged(at=1.0, message=message), generation=1), Appended)
    else:  # Postgres renews before it appends what gathered meanwhile
        assert isinstance(await second, Appended)
    told = [one.entry for one in await journal(lab.store, "r1")]
    assert [entry.message for entry in told if isinstance(entry, Logged)] == ["first", "second"]
