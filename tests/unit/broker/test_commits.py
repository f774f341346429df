"""A broker with a journal: nothing takes effect before its commit, and nothing leaks."""

import asyncio
import itertools

from loopwarden import AgentReply, FailureClass, Limits, Usage
from loopwarden.journal.entries import Asked, Ended
from loopwarden.slots import AgentSlots, ProviderPlaces
from support.broker_lab import BrokerLab, ScriptedProvider, failure
from support.journal_closings import CLOSINGS, RETRIES, over, quick
from support.journal_lab import WINDOWS, JournalLab, Pen, play


def test_an_ask_is_made_only_after_its_commit() -> None:
    async def case() -> None:
        lab = JournalLab(providers={"main": ScriptedProvider([])})
        lab.call()
        await lab.settle()
        assert lab.pen.waiting == ["asked"]
        assert lab.providers["main"].requests == []
        assert lab.starts == []
        assert lab.broker.facts.agents_started == 0
        lab.pen.commit()
        assert lab.starts == [1]
        await lab.settle()
        assert [request.seq for request in lab.providers["main"].requests] == [1]

    play(case)


def test_an_end_reaches_the_script_and_frees_its_slot_only_after_its_commit() -> None:
    async def case() -> None:
        limits = Limits(max_extra_attempts=0, max_concurrent_agents=1)
        lab = JournalLab(providers={"main": ScriptedProvider([])}, limits=limits)
        lab.call("one")
        lab.call("two")
        lab.pen.commit()
        await lab.settle()
        assert lab.pen.waiting == ["ended"]
        assert (lab.replies, lab.ends) == ({}, [])
        assert lab.broker.facts.deliveries == []
        lab.pen.commit(1)
        assert lab.replies == {1: "ok"}
        assert [end.seq for end in lab.ends] == [1]
        assert lab.pen.waiting == ["asked"]

    play(case)


def test_ends_reach_the_script_in_the_order_of_their_commits() -> None:
    async def case() -> None:
        lab = JournalLab(providers={"main": ScriptedProvider([])})
        for _ in range(4):
            lab.call()
        lab.pen.commit()
        await lab.settle()
        assert lab.pen.waiting == ["ended"] * 4
        for done in range(1, 5):
            lab.pen.commit(1)
            assert lab.replied == [end.seq for end in lab.pen.of(Ended)]
            assert len(lab.replied) == done
        assert [delivery.seq for delivery in lab.broker.facts.deliveries] == lab.replied

    play(case)


def test_events_have_the_numbers_of_their_entries() -> None:
    async def case() -> None:
        lab = JournalLab(providers={"main": ScriptedProvider([])}, pen=quick())
        lab.call()
        lab.call()
        await lab.settle()
        numbers = {
            chained.seq: chained.entry.entry
            for chained in lab.pen.journal.chained
            if isinstance(chained.entry, Asked | Ended)
        }
        assert {event.number: {"agentStarted": "asked", "agentEnded": "ended"}[event.kind] for event in lab.events} == (
            numbers
        )

    play(case)


def test_without_a_store_nothing_waits() -> None:
    async def case() -> None:
        lab = BrokerLab(providers={"main": ScriptedProvider([])})
        lab.call()
        assert lab.broker.facts.agents_started == 1
        await lab.settle()
        assert lab.replies == {1: "ok"}

    play(case)


# ---- slots and places


def test_slots_and_places_never_leak_whatever_becomes_of_the_journal() -> None:
    async def case(closing: str, commits: int) -> None:
        slots, places = AgentSlots(3), ProviderPlaces({"main": 1})
        limits = Limits(max_extra_attempts=5, max_concurrent_agents=2, max_live_agents=3)
        labs = [
            JournalLab(providers={"main": ScriptedProvider([failure(FailureClass.OVERLOADED)])},
                       policies={"main": RETRIES}, limits=limits, slots=slots, run_id=f"run-{n}",
                       pen=Pen(run_id=f"run-{n}"))
            for n in range(2)
        ]  # fmt: skip
        for lab in labs:
            lab.broker._admission.places = places
            for _ in range(3):
                lab.call()
        for _ in range(commits):
            for lab in labs:
                lab.pen.commit(1)
                await lab.settle()
        CLOSINGS[closing](labs[0])
        await over(labs[0])
        for lab in labs[:1]:
            assert lab.broker._admission._live_slots == 0
        while labs[1].broker.has_live_agents or labs[1].pen.pending or len(labs[1].replied) < 3:
            labs[1].pen.commit()
            await labs[1].settle()
            if not labs[1].pen.pending and len(labs[1].replied) < 3:
                assert labs[1].clock.jump(), "the other run waits for ever"
        assert slots._free == 3
        assert not slots._waiting
        assert places._slots["main"]._free == 1
        assert not places._slots["main"]._waiting

    for closing, commits in itertools.product(CLOSINGS, range(8)):
        asyncio.run(case(closing, commits))


def test_a_provider_that_is_full_does_not_hold_up_the_others() -> None:
    async def case() -> None:
        hold = asyncio.Event()
        lab = JournalLab(
            providers={"main": ScriptedProvider([], hold=hold), "spare": ScriptedProvider([])}, pen=quick()
        )
        lab.broker._admission.places = ProviderPlaces({"main": 1})
        first, crowded, other = lab.call(), lab.call(), lab.call(provider="spare")
        await lab.settle()
        assert lab.replies == {other: "ok"}
        hold.set()
        await lab.settle()
        assert sorted(lab.replies) == [first, crowded, other]
        lab.assert_no_slot_is_taken()

    play(case)


# ---- what is spent


def test_budgets_hear_of_each_attempt_once() -> None:
    async def case() -> None:
        usage = Usage(input_tokens=10, output_tokens=1, cost_usd=0.5)
        answers = [failure(FailureClass.OVERLOADED, usage=usage), AgentReply(text="done", usage=usage)]
        lab = JournalLab(providers={"main": ScriptedProvider(answers)}, policies={"main": RETRIES}, pen=quick())
        lab.call()
        await lab.settle()
        lab.clock.advance(10)
        await lab.settle()
        assert lab.pen.spent == [(WINDOWS, usage), (WINDOWS, usage)]
        assert lab.broker.spending.cost_usd == 1.0 == lab.pen.state.usage.cost_usd
        assert lab.broker.spending.unknown_attempts == 0 == lab.pen.state.attempts_of_unknown_cost

    play(case)


def test_what_a_cancelled_attempt_used_is_told_once_and_unknown_is_not_zero() -> None:
    async def case() -> None:
        lab = JournalLab(providers={"main": ScriptedProvider(["silence"])}, pen=quick())
        lab.call()
        await lab.settle()
        lab.stop()
        await over(lab)
        assert lab.pen.spent == [(WINDOWS, None)]
        assert lab.broker.spending.unknown_attempts == 1 == lab.pen.state.attempts_of_unknown_cost

    play(case)
