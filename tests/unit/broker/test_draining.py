"""A run that failed: its agents may go on for a while, and what they bring is recorded."""

import asyncio
from typing import Any

import pytest

from loopwarden import AgentReply, FailureClass, Limits, ProviderStartError, Usage
from loopwarden.failures import Code
from loopwarden.journal.entries import AttemptEnded, Ended, Stopping, Waiting
from support.broker_lab import ScriptedProvider, failure
from support.journal_closings import PRICED, RETRIES, over, quick
from support.journal_lab import JournalLab, play


async def drained(provider: ScriptedProvider, **more: Any) -> JournalLab:
    """Two agents are at work, and the script asked for a third."""
    limits = Limits(max_extra_attempts=5, max_total_agents=2)
    lab = JournalLab(providers={"main": provider}, limits=limits, pen=quick(), drain_seconds=50, **more)
    lab.call()
    lab.call()
    await lab.settle()
    lab.call()
    await lab.settle()
    return lab


def test_after_the_agent_cap_what_agents_bring_is_recorded_and_not_delivered() -> None:
    async def case() -> None:
        hold = asyncio.Event()
        lab = await drained(ScriptedProvider([], hold=hold))
        assert [fault.code for fault in lab.failures] == [Code.AGENT_CAP]
        hold.set()
        await over(lab)
        assert [(end.seq, end.value) for end in lab.pen.of(Ended)] == [(1, "ok"), (2, "ok")]
        assert (lab.replied, lab.broker.facts.deliveries) == ([], [])
        assert [end.outcome.value for end in lab.ends] == ["completed", "completed"]
        await lab.finish()
        lab.assert_nothing_is_left()

    play(case)


def test_agents_that_fail_while_a_run_drains_are_not_asked_again() -> None:
    async def case() -> None:
        hold = asyncio.Event()
        lab = await drained(ScriptedProvider([failure(FailureClass.OVERLOADED)], hold=hold), policies={"main": RETRIES})
        hold.set()
        await over(lab)
        [end] = lab.pen.of(AttemptEnded)
        assert (end.seq, end.outcome, end.failure_class, end.is_last) == (1, "failed", "overloaded", True)
        assert [(end.seq, end.outcome.value) for end in lab.ends] == [(1, "failed"), (2, "completed")]
        assert lab.pen.of(Waiting) == []
        await lab.finish()
        lab.assert_nothing_is_left()

    play(case)


def test_a_drain_has_an_end_and_the_rest_is_cancelled() -> None:
    async def case() -> None:
        lab = await drained(ScriptedProvider(["silence", "quick"]))
        lab.clock.advance(49)
        await lab.settle()
        assert lab.broker.has_live_agents
        lab.clock.advance(1)
        await over(lab)
        assert [(end.seq, end.outcome) for end in lab.pen.of(AttemptEnded)] == [(1, "cancelled")]
        await lab.finish()
        lab.assert_nothing_is_left()

    play(case)


def test_an_agent_that_may_drain_longer_than_its_own_time_is_stopped_by_that() -> None:
    async def case() -> None:
        limits = Limits(max_extra_attempts=5, max_total_agents=1, agent_timeout_seconds=20)
        lab = JournalLab(
            providers={"main": ScriptedProvider(["silence"])}, limits=limits, pen=quick(), drain_seconds=50
        )
        lab.call()
        await lab.settle()
        lab.call()
        await lab.settle()
        lab.clock.advance(20)
        await over(lab)
        [end] = lab.pen.of(AttemptEnded)
        assert (end.outcome, end.failure_class, end.is_last) == ("failed", "timeout", True)
        await lab.finish()
        lab.assert_nothing_is_left()

    play(case)


def test_a_cancel_after_the_drain_began_changes_nothing() -> None:
    async def case() -> None:
        hold = asyncio.Event()
        lab = await drained(ScriptedProvider([], hold=hold))
        lab.broker.stop()
        await lab.settle()
        hold.set()
        await over(lab)
        assert len(lab.pen.of(Ended)) == 2
        lab.assert_nothing_is_left()

    play(case)


def test_a_run_that_is_lost_while_it_drains_ends_its_agents_without_a_word() -> None:
    async def case() -> None:
        lab = await drained(ScriptedProvider([], hold=asyncio.Event()))
        before = len(lab.pen.entries)
        lab.journal.lose()
        lab.broker.abandon()
        await over(lab)
        assert (len(lab.pen.entries), lab.ends) == (before, [])
        lab.assert_nothing_is_left()

    play(case)


def test_a_run_that_ends_by_its_cap_on_money_drains_too() -> None:
    async def case() -> None:
        provider = ScriptedProvider([AgentReply(text="dear", usage=Usage(cost_usd=3.0))], capabilities=PRICED)
        limits = Limits(max_extra_attempts=0, max_cost_usd=2.0, max_concurrent_agents=2)
        lab = JournalLab(providers={"main": provider}, limits=limits, pen=quick(), drain_seconds=50)
        lab.call()
        await lab.settle()
        lab.call()
        await over(lab)
        assert [fault.code for fault in lab.failures] == [Code.COST_CAP]
        assert lab.broker.spending.cost_usd == 3.0
        await lab.finish()
        lab.assert_nothing_is_left()

    play(case)


@pytest.mark.parametrize("what", ["fault", "cost"])
def test_the_last_end_of_a_call_is_never_in_a_journal_without_the_end_of_its_run(what: str) -> None:
    """A host that dies between the two would leave a call that may not be asked again in a run that goes on."""

    async def case() -> None:
        if what == "fault":
            provider = ScriptedProvider([ProviderStartError("no such program")])
            limits = Limits(max_extra_attempts=0)
        else:
            limit = failure(FailureClass.LIMIT, usage=Usage(cost_usd=5.0))
            provider = ScriptedProvider([limit], capabilities=PRICED)
            limits = Limits(max_extra_attempts=0, max_cost_usd=2.0)
        lab = JournalLab(providers={"main": provider}, limits=limits)
        lab.call()
        lab.pen.commit()
        await lab.settle()
        kinds = [{type(entry) for entry in append.entries} for append in lab.pen.pending]
        last = next(index for index, kind in enumerate(kinds) if AttemptEnded in kind)
        stops = next(index for index, kind in enumerate(kinds) if Stopping in kind)
        assert stops <= last
        await over(lab)
        [end] = lab.pen.of(AttemptEnded)
        assert (end.outcome, end.is_last) == ("failed", True)
        assert [end.outcome.value for end in lab.ends] == ["failed"]
        assert [fault.code for fault in lab.failures] == [Code.AGENT_START if what == "fault" else Code.COST_CAP]
        await lab.finish()
        lab.assert_nothing_is_left()

    play(case)
