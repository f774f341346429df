"""What a host finds in a journal and goes on with: waits, retries, fallbacks, interrupted calls."""

import asyncio

from loopwarden import AgentFailed, FailureClass, Limits, Policy, Retry, Wait
from loopwarden.journal.entries import Asked, AttemptEnded, Claimed, Ended, Reopened
from loopwarden.journal.observed import Observed
from loopwarden.store.appends import ScopeSpent
from support.broker_lab import EPOCH, VirtualClock
from support.journal_lab import JournalLab, Pen, play
from support.replay_lab import Fate, check_events, check_spending, first_host, lab_of, leave_behind

RETRIES = Policy(retry=Retry(classes=frozenset({FailureClass.OVERLOADED}), times=1, first_seconds=100))
OVERLOADED = AgentFailed("too busy", failure_class=FailureClass.OVERLOADED)
LIMITED = AgentFailed("plan limit", failure_class=FailureClass.RATE_LIMITED, resets_at=EPOCH + 7200)


async def next_host(before: JournalLab, fate: Fate, *, time: float = 0.0, calls: int = 1) -> JournalLab:
    before.pen.claim()
    lab = lab_of(before.pen, fate, dict(before.policies), before.limits, VirtualClock(time=time))
    for _ in range(calls):
        lab.call()
    assert lab.replay is not None
    lab.replay.idle()
    await lab.settle()
    return lab


def test_a_call_that_waits_goes_on_waiting_until_its_time() -> None:
    async def case() -> None:
        before = await first_host(Fate({("do it", 1): LIMITED}), {"main": Policy(wait=Wait())})
        fate = Fate()
        lab = await next_host(before, fate, time=3600)
        assert lab.broker.waiting_until(lab.broker.agents[0]) == EPOCH + 7200 + 5 + 5
        lab.clock.advance(3609)
        await lab.settle()
        assert fate.asked == []
        lab.clock.advance(1)
        await lab.settle()
        assert fate.asked == [("do it", 2, "lab/1/2")]
        assert lab.replies == {1: "do it 2"}

    play(case)


def test_a_wait_whose_time_has_come_meanwhile_is_over_at_once() -> None:
    async def case() -> None:
        before = await first_host(Fate({("do it", 1): LIMITED}), {"main": Policy(wait=Wait())})
        lab = await next_host(before, Fate(), time=9000)
        assert lab.replies == {1: "do it 2"}

    play(case)


def test_a_retry_that_was_granted_counts_as_one_on_the_next_host() -> None:
    async def case() -> None:
        ends = {("do it", 1): OVERLOADED, ("do it", 2): OVERLOADED}
        before = await first_host(Fate(ends), {"main": RETRIES})
        lab = await next_host(before, Fate(ends))
        lab.clock.advance(100)
        await lab.settle()
        assert [ask.ask for ask in lab.pen.of(Asked)] == ["first", "retry"]
        assert lab.replies == {1: None}
        assert lab.pen.state.extra == 1 == lab.broker._repeats._used

    play(case)


def test_a_fallback_that_was_granted_stays_the_fallback() -> None:
    async def case() -> None:
        policies = {"main": Policy(fallback="spare")}
        before = await first_host(Fate({("do it", 1): OVERLOADED, ("do it", 2): "silence"}), policies)
        assert [(ask.ask, ask.provider) for ask in before.pen.of(Asked)] == [("first", "main"), ("fallback", "spare")]
        lab = await next_host(before, Fate({("do it", 2): OVERLOADED}))
        assert [(ask.ask, ask.provider) for ask in lab.pen.of(Asked)][2:] == [("redo", "spare")]
        assert lab.replies == {1: None}

    play(case)


def test_an_interrupted_call_is_asked_again_with_its_key_and_the_journal_says_why() -> None:
    async def case() -> None:
        before = await first_host(Fate({("do it", 1): "silence"}), {})
        fate = Fate()
        lab = await next_host(before, fate)
        assert fate.asked == [("do it", 1, "lab/1/1")]
        assert [(entry.entry, getattr(entry, "outcome", None)) for entry in lab.pen.of(Asked, AttemptEnded, Ended)] == [
            ("asked", None), ("attemptEnded", "interrupted"), ("asked", None), ("ended", "completed"),
        ]  # fmt: skip
        assert (lab.starts, len(lab.ends), lab.ends[0].attempts) == ([], 1, 2)
        assert len(lab.pen.spent) == 2
        check_spending(lab)

    play(case)


def test_a_call_is_redone_twice_at_most_and_then_ends_interrupted() -> None:
    async def case() -> None:
        silence = {("do it", 1): "silence"}
        lab = await first_host(Fate(silence), {})
        for _ in range(2):
            lab = await next_host(lab, Fate(silence))
            await leave_behind(lab)
        fate = Fate()
        lab = await next_host(lab, fate)
        assert fate.asked == []
        assert lab.replies == {1: None}
        [end] = lab.pen.of(Ended)
        assert (end.outcome, end.failure_class, end.attempt) == ("failed", "interrupted", 3)
        assert "asked again 2 times already" in end.reason
        assert lab.pen.state.extra == 2
        first, *_, last = lab.broker.agents[0].attempts
        assert (first.is_interrupted, first.end) == (True, None)
        assert (last.is_interrupted, last.end is None) == (False, False)

    play(case)


def test_with_no_extra_attempt_left_an_interrupted_call_ends_at_once() -> None:
    async def case() -> None:
        before = await first_host(Fate({("do it", 1): "silence"}), {}, max_extra_attempts=0)
        fate = Fate()
        lab = await next_host(before, fate)
        assert fate.asked == []
        [end] = lab.pen.of(Ended)
        assert (end.outcome, end.failure_class) == ("failed", "interrupted")
        assert "maxExtraAttempts of this run, 0, is used up" in end.reason
        assert len(lab.pen.spent) == 1
        check_spending(lab)

    play(case)


def test_of_many_interrupted_calls_the_first_ones_get_the_extra_attempts() -> None:
    async def case() -> None:
        before = await first_host(Fate({("do it", 1): "silence"}), {}, calls=4, max_extra_attempts=2)
        lab = await next_host(before, Fate(), calls=4)
        assert lab.replies == {1: "do it 1", 2: "do it 1", 3: None, 4: None}

    play(case)


def test_new_calls_begin_after_those_that_are_asked_again() -> None:
    async def case() -> None:
        before = await first_host(Fate({("do it", 1): "silence"}), {}, calls=2, max_concurrent_agents=1)
        assert [ask.seq for ask in before.pen.of(Asked)] == [1]
        lab = await next_host(before, Fate(), calls=2)
        assert [ask.seq for ask in lab.pen.of(Asked)] == [1, 1, 2]

    play(case)


def test_nothing_is_asked_while_a_replay_goes_on() -> None:
    async def case() -> None:
        before = await first_host(Fate({("do it", 1): "silence"}), {}, calls=1)
        before.pen.claim()
        lab = lab_of(before.pen, Fate(), {}, before.limits, VirtualClock())
        lab.call()
        lab.call()
        await lab.settle()
        assert len(lab.pen.of(Asked)) == 1
        assert lab.replay is not None
        lab.replay.idle()
        await lab.settle()
        assert lab.replies == {1: "do it 1", 2: "do it 1"}

    play(case)


def test_a_refused_redo_is_told_to_budgets_once_it_is_recorded() -> None:
    async def case() -> None:
        before = await first_host(Fate({("do it", 1): "silence"}), {})
        before.pen.is_quick = False
        lab = await next_host(before, Fate())
        lab.pen.answer(ScopeSpent(scope="nightly", measure="agents", used=1, limit=1, frees_at=None, wait=True))
        assert lab.pen.spent == []
        lab.clock.advance(30)
        lab.pen.commit()
        assert len(lab.pen.spent) == 1
        await lab.settle()
        lab.pen.commit()
        assert len(lab.pen.spent) == 2
        check_spending(lab)

    play(case)


def test_a_run_that_was_reopened_shows_its_agents_start_once_more_and_counts_redos_anew() -> None:
    async def case() -> None:
        silence = {("do it", 1): "silence"}
        lab = await first_host(Fate(silence), {})
        for _ in range(2):
            lab = await next_host(lab, Fate(silence))
            if len(lab.pen.of(Asked)) < 3:
                await leave_behind(lab)
        lab.stop()
        await lab.settle()
        await lab.finish()
        assert [(end.outcome.value, end.attempts) for end in lab.ends] == [("cancelled", 3)]
        lab.pen.write(Claimed(at=EPOCH, epoch=9, host="host-9"), Reopened(at=EPOCH, by="olga", why="more"))
        before = len(lab.pen.entries)
        for _ in range(2):
            lab = await next_host(lab, Fate(silence))
            await leave_behind(lab)
        lab = await next_host(lab, Fate())
        assert [ask.ask for ask in lab.pen.of(Asked)] == ["first", "redo", "redo", "redo", "redo"]
        assert lab.replies == {1: None}
        observed = Observed(run_id="lab")
        seen = [event.kind for one in lab.pen.journal.chained for event in observed.events_of(one)]
        assert seen.count("agentStarted") == 2 == seen.count("agentEnded")
        assert before < len(lab.pen.entries)

    play(case)


def test_the_first_ask_after_a_reopening_is_announced_live_as_the_journal_shows_it() -> None:
    async def case() -> None:
        lab = await first_host_that_ends()
        lab.pen.write(Claimed(at=EPOCH, epoch=9, host="host-9"), Reopened(at=EPOCH, by="olga", why="more"))
        before = len(lab.pen.entries)
        again = await next_host(lab, Fate())
        assert (again.starts, [end.seq for end in again.ends]) == ([1], [1])
        check_events(again, before)
        assert again.pen.state.agents_started == 1 == again.broker.facts.agents_started

    play(case)


def test_an_interruption_that_is_recorded_already_is_told_to_budgets_once() -> None:
    async def case(extra: int) -> None:
        limits = Limits(max_extra_attempts=extra)
        lab = lab_of(Pen(is_quick=True), Fate({("do it", 1): "silence"}), {}, limits, VirtualClock())
        lab.call()
        await lab.settle()
        lab.broker.leave()
        await lab.settle()
        await lab.broker.ended()
        assert len(lab.pen.spent) == 1
        lab.pen.is_quick = False
        lab = await next_host(lab, Fate())
        if extra:
            lab.pen.answer(ScopeSpent(scope="nightly", measure="agents", used=1, limit=1, frees_at=None, wait=True))
            lab.stop()
        lab.pen.commit()
        assert len(lab.pen.spent) == 1
        if extra:
            await lab.finish()
            assert [(end.outcome, end.is_last) for end in lab.pen.of(AttemptEnded)] == [
                ("interrupted", False), ("interrupted", True),
            ]  # fmt: skip
        check_spending(lab)

    for extra in (0, 1):
        asyncio.run(case(extra))


def test_redos_of_a_lease_that_ended_count_per_segment_too() -> None:
    async def case() -> None:
        silence = {("do it", 1): "silence"}
        lab = await first_host(Fate(silence), {})
        for _ in range(2):
            lab = await next_host(lab, Fate(silence))
        lab.stop()
        await lab.settle()
        await lab.finish()
        lab.pen.write(Claimed(at=EPOCH, epoch=9, host="host-9"), Reopened(at=EPOCH, by="olga", why="more"))
        lab = await next_host(lab, Fate(silence))
        assert lab.lease is not None
        lab.clock.time = lab.lease.ends_at + 1
        lab.broker.past.interrupt()
        await lab.settle()
        lab.lease.renew(lab.clock.time + 30)
        await lab.settle()
        assert [ask.ask for ask in lab.pen.of(Asked)] == ["first", "redo", "redo", "redo", "redo"]
        assert lab.replies == {}
        lab.broker.abandon()

    play(case)


async def first_host_that_ends() -> JournalLab:
    lab = lab_of(Pen(is_quick=True), Fate({("do it", 1): "silence"}), {}, Limits(max_extra_attempts=3), VirtualClock())
    lab.call()
    await lab.settle()
    lab.stop()
    await lab.settle()
    await lab.finish()
    return lab
