"""What a store refuses: an ask after a cancel, above a cap, or beyond a budget."""

import asyncio

import pytest

from loopwarden import FailureClass, Limits
from loopwarden.failures import Code
from loopwarden.journal.entries import Asked
from loopwarden.store.appends import CancelPending, CapReached
from support.broker_lab import EPOCH, ScriptedProvider, failure
from support.journal_closings import CLOSINGS, RETRIES, over, spent
from support.journal_lab import JournalLab, play


def test_a_committed_cancel_ends_the_run_and_no_ask_follows() -> None:
    async def case() -> None:
        lab = JournalLab(providers={"main": ScriptedProvider([])})
        lab.call()
        lab.call()
        lab.pen.answer(CancelPending("enough"))
        assert lab.cancelled == ["enough"]
        lab.pen.answer(CancelPending("enough"))
        await over(lab)
        assert lab.cancelled == ["enough"]
        assert lab.pen.of(Asked) == []
        lab.assert_nothing_is_left()

    play(case)


def test_a_cap_of_the_store_ends_the_run_as_a_fault() -> None:
    async def case() -> None:
        lab = JournalLab(providers={"main": ScriptedProvider([])})
        lab.call()
        lab.pen.answer(CapReached("calls"))
        await over(lab)
        assert [
            (fault.code, "holds more asks than this host counted (calls)" in fault.message) for fault in lab.failures
        ] == [(Code.AGENT_CAP, True)]
        lab.assert_nothing_is_left()

    play(case)


def test_a_budget_that_ends_runs_says_which_and_when_it_frees() -> None:
    async def case() -> None:
        lab = JournalLab(providers={"main": ScriptedProvider([])})
        lab.call()
        lab.call()
        lab.pen.answer(spent(wait=False))
        await over(lab)
        [fault] = lab.failures
        assert (fault.code, fault.line) == (Code.SCOPE_BUDGET, 1)
        assert fault.details == {
            "scope": "nightly", "measure": "agents", "used": 5, "limit": 5, "freesAt": EPOCH + 7200,
        }  # fmt: skip
        assert "loopwarden budget set" in fault.message
        lab.assert_nothing_is_left()

    play(case)


@pytest.mark.parametrize(("frees_in", "asked_after"), [(12.0, 12.0), (7200.0, 30.0), (None, 30.0), (-5.0, 1.0)])
def test_a_budget_that_is_waited_for_is_asked_when_it_frees_or_every_30_seconds(
    frees_in: float | None, asked_after: float
) -> None:
    async def case() -> None:
        lab = JournalLab(providers={"main": ScriptedProvider([])})
        lab.call()
        lab.pen.answer(spent(wait=True, frees_in=frees_in))
        [waits] = [event for event in lab.events if event.kind == "runWaiting"]
        assert waits.until == (None if frees_in is None else EPOCH + frees_in)
        assert lab.pen.waiting == []
        lab.clock.advance(asked_after - 0.5)
        assert lab.pen.waiting == []
        lab.clock.advance(0.5)
        assert lab.pen.waiting == ["asked"]
        lab.pen.commit()
        await lab.settle()
        lab.pen.commit()
        assert lab.replies == {1: "ok"}
        lab.assert_no_slot_is_taken()

    play(case)


def test_many_calls_that_meet_a_spent_budget_wait_together_and_go_on_in_their_order() -> None:
    async def case() -> None:
        lab = JournalLab(providers={"main": ScriptedProvider([])})
        for _ in range(3):
            lab.call()
        for _ in range(3):
            lab.pen.answer(spent(wait=True))
        assert lab.pen.waiting == []
        lab.call()
        assert lab.pen.waiting == []
        assert len([event for event in lab.events if event.kind == "runWaiting"]) == 1
        lab.clock.advance(30)
        assert [entry.seq for append in lab.pen.pending for entry in append.entries] == [1, 2, 3, 4]
        for _ in range(4):
            lab.pen.answer(spent(wait=True))
        lab.clock.advance(30)
        lab.pen.commit()
        await lab.settle()
        lab.pen.commit()
        assert sorted(lab.replies) == [1, 2, 3, 4]
        assert lab.starts == [1, 2, 3, 4]
        lab.assert_no_slot_is_taken()

    play(case)


@pytest.mark.parametrize("how", ["stop", "leave"])
def test_a_run_that_waits_for_a_budget_can_be_closed(how: str) -> None:
    async def case() -> None:
        lab = JournalLab(providers={"main": ScriptedProvider([])})
        lab.call()
        lab.pen.answer(spent(wait=True))
        CLOSINGS[how](lab)
        await over(lab)
        while lab.clock.jump():
            await over(lab)
        assert lab.pen.of(Asked) == []
        lab.assert_nothing_is_left()

    play(case)


def test_agents_at_work_go_on_while_the_run_waits_for_a_budget() -> None:
    async def case() -> None:
        hold = asyncio.Event()
        limits = Limits(max_extra_attempts=0, agent_timeout_seconds=100)
        lab = JournalLab(providers={"main": ScriptedProvider([], hold=hold)}, limits=limits)
        lab.call()
        lab.pen.commit()
        await lab.settle()
        lab.call()
        lab.pen.answer(spent(wait=True))
        hold.set()
        await lab.settle()
        lab.pen.commit()
        assert lab.replies == {1: "ok"}
        assert lab.pen.waiting == []

    play(case)


def test_a_repeat_that_meets_a_spent_budget_is_asked_later_and_stays_a_repeat() -> None:
    async def case() -> None:
        lab = JournalLab(
            providers={"main": ScriptedProvider([failure(FailureClass.OVERLOADED)])}, policies={"main": RETRIES}
        )
        lab.call()
        lab.pen.commit()
        await lab.settle()
        lab.pen.commit()
        lab.clock.advance(10)
        lab.pen.answer(spent(wait=True))
        lab.clock.advance(30)
        lab.pen.commit()
        await lab.settle()
        lab.pen.commit()
        assert [(ask.attempt, ask.ask) for ask in lab.pen.of(Asked)] == [(1, "first"), (2, "retry")]
        assert lab.replies == {1: "ok"}
        lab.assert_no_slot_is_taken()

    play(case)
