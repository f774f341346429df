"""A broker with a journal that is closed while something is on its way: nothing is left, nothing is said twice."""

import asyncio
import itertools

import pytest

from loopwarden import FailureClass, Limits, Policy, Wait
from loopwarden.journal.entries import Asked, AttemptEnded, Ended, WaitCancelled, Waiting
from loopwarden.store.appends import CancelPending, CapReached
from support.broker_lab import ScriptedProvider, failure
from support.journal_closings import CLOSINGS, RATE_LIMITED, RETRIES, over, quick, spent
from support.journal_lab import JournalLab, play


def test_an_ask_that_is_on_its_way_when_the_run_drains_is_made_and_what_it_brings_is_kept() -> None:
    """It stands before the end in the journal, and is paid for."""

    async def case() -> None:
        lab = JournalLab(providers={"main": ScriptedProvider(["one", "two"])})
        lab.call()
        lab.call()
        CLOSINGS["drain"](lab)
        await over(lab)
        assert [request.seq for request in lab.providers["main"].requests] == [1, 2]
        assert [(end.seq, end.value) for end in lab.pen.of(Ended)] == [(1, "one"), (2, "two")]
        assert lab.replied == []
        lab.assert_nothing_is_left()

    play(case)


@pytest.mark.parametrize("how", [how for how in CLOSINGS if how != "drain"])
def test_an_ask_that_commits_after_the_closing_is_charged_and_never_handed_over(how: str) -> None:
    async def case() -> None:
        lab = JournalLab(providers={"main": ScriptedProvider([])})
        lab.call()
        lab.call()
        CLOSINGS[how](lab)
        await over(lab)
        asked = lab.pen.of(Asked)
        if how == "abandon":
            # The store took what was on its way: whoever has the run now finds it.
            assert [ask.seq for ask in asked] == [1, 2]
            assert (lab.starts, lab.ends) == ([], [])
            assert len(lab.pen.entries) == 4
        else:
            assert lab.providers["main"].requests == []
            assert lab.starts == [1, 2]
            outcomes = {(end.seq, end.outcome, end.is_last) for end in lab.pen.of(AttemptEnded)}
            is_leaving = how.startswith("leave")
            outcome = "interrupted" if is_leaving else "cancelled"
            assert outcomes == {(1, outcome, not is_leaving), (2, outcome, not is_leaving)}
            assert [end.seq for end in lab.ends] == ([] if is_leaving else [1, 2])
        assert lab.providers["main"].requests == []
        assert lab.replied == []
        lab.assert_nothing_is_left()

    play(case)


@pytest.mark.parametrize("how", CLOSINGS)
@pytest.mark.parametrize("refusal", ["cancel", "cap", "budget", "waiting budget"])
def test_an_ask_that_is_refused_after_the_closing_leaves_nothing(how: str, refusal: str) -> None:
    async def case() -> None:
        lab = JournalLab(providers={"main": ScriptedProvider([])})
        lab.call()
        CLOSINGS[how](lab)
        why = {
            "cancel": CancelPending("enough"),
            "cap": CapReached("calls"),
            "budget": spent(wait=False),
            "waiting budget": spent(wait=True),
        }[refusal]
        lab.pen.answer(why)
        await over(lab)
        assert lab.pen.of(Asked) == []
        assert (lab.starts, lab.ends, lab.failures, lab.cancelled) == ([], [], [], [])
        assert [event for event in lab.events if event.kind == "runWaiting"] == []
        lab.assert_nothing_is_left()

    play(case)


@pytest.mark.parametrize("how", CLOSINGS)
@pytest.mark.parametrize("on_its_way", ["ask", "end", "ask of a repeat"])
def test_a_fence_in_between_leaves_nothing(how: str, on_its_way: str) -> None:
    async def case() -> None:
        provider = ScriptedProvider([failure(FailureClass.OVERLOADED)] if on_its_way == "ask of a repeat" else [])
        lab = JournalLab(providers={"main": provider}, policies={"main": RETRIES})
        lab.call()
        if on_its_way != "ask":
            lab.pen.commit()
            await lab.settle()
        if on_its_way == "ask of a repeat":
            lab.pen.commit()
            lab.clock.advance(20)
            assert lab.pen.waiting == ["asked"]
        before, asked = len(lab.pen.entries), len(provider.requests)
        CLOSINGS[how](lab)
        lab.pen.fence()
        await asyncio.wait_for(lab.broker.ended(), 1)
        await lab.settle()
        assert len(lab.lost) == (0 if how == "abandon" else 1)
        assert len(lab.pen.entries) == before
        assert (lab.replied, lab.ends) == ([], [])
        assert len(provider.requests) == asked
        lab.assert_nothing_is_left()

    play(case)


@pytest.mark.parametrize("how", CLOSINGS)
def test_an_end_that_commits_after_the_closing_is_the_agents_end(how: str) -> None:
    async def case() -> None:
        lab = JournalLab(providers={"main": ScriptedProvider([])})
        lab.call()
        lab.pen.commit()
        await lab.settle()
        assert lab.pen.waiting == ["ended"]
        CLOSINGS[how](lab)
        await over(lab)
        assert [end.value for end in lab.pen.of(Ended)] == ["ok"]
        assert lab.pen.of(AttemptEnded) == []
        assert [end.outcome for end in lab.ends] == ([] if how == "abandon" else ["completed"])
        assert lab.replied == ([1] if how.startswith("leave") else [])
        lab.assert_nothing_is_left()

    play(case)


@pytest.mark.parametrize("how", CLOSINGS)
def test_an_end_that_commits_after_the_closing_of_a_worker_that_is_stuck_still_lets_it_end(how: str) -> None:
    async def case() -> None:
        lab = JournalLab(providers={"main": ScriptedProvider([])})
        lab.call()
        lab.pen.commit()
        await lab.settle()
        lab.is_stuck = True
        CLOSINGS[how](lab)
        await over(lab)

    play(case)


@pytest.mark.parametrize("how", CLOSINGS)
def test_agents_at_work_are_closed_as_the_closing_says(how: str) -> None:
    async def case() -> None:
        provider = ScriptedProvider([], hold=asyncio.Event())
        lab = JournalLab(providers={"main": provider}, pen=quick())
        lab.call()
        await lab.settle()
        CLOSINGS[how](lab)
        await lab.settle()
        if "drain" in how:
            assert lab.broker.has_live_agents
            provider.hold.set()
        await over(lab)
        ends = [(end.entry, end.outcome) for end in lab.pen.of(AttemptEnded, Ended)]
        assert (
            ends
            == {
                "stop": [("attemptEnded", "cancelled")],
                "drain": [("ended", "completed")],
                "leave": [("attemptEnded", "interrupted")],
                "leave and drain": [("ended", "completed")],
                "abandon": [],
            }[how]
        )
        assert lab.replied == ([1] if how == "leave and drain" else [])
        assert [end.outcome.value for end in lab.ends] == {
            "stop": ["cancelled"],
            "drain": ["completed"],
            "leave": [],
            "leave and drain": ["completed"],
            "abandon": [],
        }[how]
        lab.assert_nothing_is_left()

    play(case)


@pytest.mark.parametrize("how", CLOSINGS)
def test_calls_that_a_policy_lets_wait_are_closed_as_the_closing_says(how: str) -> None:
    async def case() -> None:
        lab = JournalLab(
            providers={"main": ScriptedProvider([failure(**RATE_LIMITED)])},
            policies={"main": Policy(wait=Wait())},
            pen=quick(),
        )
        lab.call()
        await lab.settle()
        assert [waiting.ask for waiting in lab.pen.of(Waiting)] == ["wait"]
        CLOSINGS[how](lab)
        await over(lab)
        is_end = how in ("stop", "drain")
        assert [end.seq for end in lab.pen.of(WaitCancelled)] == ([1] if is_end else [])
        assert [(end.outcome.value, end.attempts) for end in lab.ends] == ([("cancelled", 1)] if is_end else [])
        assert (1 in lab.pen.state.waiting) is not is_end
        if is_end:
            await lab.finish()
        lab.assert_nothing_is_left()

    play(case)


def test_whatever_is_on_its_way_in_whatever_order_every_agent_that_started_has_one_end() -> None:
    async def case(closing: str, commits: int, calls: int) -> None:
        limits = Limits(max_extra_attempts=0, max_concurrent_agents=2)
        lab = JournalLab(providers={"main": ScriptedProvider([])}, limits=limits)
        for _ in range(calls):
            lab.call()
        for _ in range(commits):
            lab.pen.commit(1)
            await lab.settle()
        CLOSINGS[closing](lab)
        await over(lab)
        assert len(lab.starts) == len(set(lab.starts))
        assert len(lab.ends) == len({end.seq for end in lab.ends})
        if closing in ("stop", "drain"):
            assert sorted(lab.starts) == sorted(end.seq for end in lab.ends)
            await lab.finish()
        assert len(lab.pen.spent) == len({(end.seq, end.attempt) for end in lab.pen.of(AttemptEnded, Ended)})
        lab.assert_nothing_is_left()

    for closing, commits, calls in itertools.product(CLOSINGS, range(9), (1, 2, 4)):
        asyncio.run(case(closing, commits, calls))


# ---- leaving


def test_a_host_that_leaves_delivers_what_its_agents_bring_and_asks_nothing_more() -> None:
    async def case() -> None:
        hold = asyncio.Event()
        lab = JournalLab(providers={"main": ScriptedProvider(["one", "silence"], hold=hold)}, pen=quick())
        lab.call()
        lab.call()
        await lab.settle()
        lab.broker.leave(drain_seconds=50)
        lab.call()
        hold.set()
        await lab.settle()
        assert lab.replies == {1: "one"}
        assert lab.broker.has_live_agents
        lab.clock.advance(50)
        await over(lab)
        assert [(end.seq, end.outcome, end.is_last) for end in lab.pen.of(AttemptEnded)] == [(2, "interrupted", False)]
        assert [ask.seq for ask in lab.pen.of(Asked)] == [1, 2]
        assert [end.seq for end in lab.ends] == [1]
        lab.assert_nothing_is_left()

    play(case)


def test_a_failure_that_a_policy_repeats_is_left_to_the_next_host_at_once() -> None:
    async def case() -> None:
        hold = asyncio.Event()
        provider = ScriptedProvider([failure(FailureClass.OVERLOADED)], hold=hold)
        lab = JournalLab(providers={"main": provider}, policies={"main": RETRIES}, pen=quick())
        lab.call()
        await lab.settle()
        lab.broker.leave(drain_seconds=50)
        hold.set()
        await over(lab)
        assert lab.clock.time == 0
        assert lab.pen.state.waiting[1].ask == "retry"
        lab.assert_nothing_is_left()

    play(case)


def test_a_run_that_ends_while_its_host_leaves_ends_as_any_other() -> None:
    async def case() -> None:
        lab = JournalLab(providers={"main": ScriptedProvider([], hold=asyncio.Event())}, pen=quick())
        lab.call()
        await lab.settle()
        lab.broker.leave(drain_seconds=50)
        lab.stop()
        await over(lab)
        assert [(end.seq, end.outcome) for end in lab.pen.of(AttemptEnded)] == [(1, "cancelled")]
        await lab.finish()
        lab.assert_nothing_is_left()

    play(case)


def test_leaving_twice_and_stopping_twice_is_harmless() -> None:
    async def case() -> None:
        lab = JournalLab(providers={"main": ScriptedProvider([], hold=asyncio.Event())}, pen=quick())
        lab.call()
        await lab.settle()
        lab.broker.leave(drain_seconds=50)
        lab.broker.leave()
        assert lab.broker.has_live_agents
        lab.broker.stop()
        lab.broker.stop()
        lab.broker.leave()
        lab.journal.lose()
        lab.broker.abandon()
        await over(lab)
        lab.assert_nothing_is_left()

    play(case)
