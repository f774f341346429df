"""A run goes on from any entry of its journal as if nothing had happened."""

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from loopwarden import AgentFailed, FailureClass, Limits, Policy, Retry, Wait
from loopwarden.journal.entries import Asked, Ended, Logged, Waiting
from loopwarden.journal.fold import fold
from support.broker_lab import EPOCH, VirtualClock
from support.journal_lab import Pen
from support.replay_lab import Fate, check_events, check_spending, drive, lab_of, numbered, prompts
from support.script_trees import Ask, Node, Tell, Then, Together

TREES: st.SearchStrategy[Node] = st.recursive(
    st.one_of(st.just(Ask("")), st.just(Tell(""))),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(Then),
        st.lists(inner, min_size=1, max_size=3).map(Together),
        inner.map(lambda node: Ask("", node)),
    ),
    max_leaves=8,
).map(numbered)
CLASSES = st.sampled_from([FailureClass.OVERLOADED, FailureClass.RATE_LIMITED, FailureClass.CRASHED])
# Whether a rate limit is retried depends on the time that is left of it: that may differ on a host that comes later.
RETRY = st.builds(
    Retry,
    classes=st.sets(st.sampled_from([FailureClass.OVERLOADED, FailureClass.CRASHED]), min_size=1).map(frozenset),
    times=st.integers(1, 2),
    first_seconds=st.sampled_from([0, 16]),
)
POLICY = st.builds(Policy, retry=st.one_of(st.none(), RETRY), wait=st.sampled_from([None, Wait()]), fallback=st.none())
POLICIES = st.builds(
    lambda main, spare, falls: {
        "main": Policy(retry=main.retry, wait=main.wait, fallback="spare" if falls else None),
        "spare": spare,
    },
    POLICY,
    POLICY,
    st.booleans(),
)
FAILURES = st.builds(
    lambda failure_class, resets: AgentFailed(
        "it failed",
        failure_class=failure_class,
        resets_at=EPOCH + resets if failure_class is FailureClass.RATE_LIMITED else None,
    ),
    CLASSES,
    st.sampled_from([-5, 100, 4000]),
)


def story(pen: Pen) -> dict[str, Any]:
    """What became of each call, by its key: its asks without redos, and its end."""
    return {
        call.key: (
            [(ask.ask, ask.provider) for ask in call.asks if ask.ask != "redo"],
            None if call.ended is None else (call.ended.outcome, call.ended.value, call.ended.failure_class),
        )
        for call in pen.state.calls.values()
    }


def check_waits(pen: Pen) -> None:
    """No call that waits is asked before its time."""
    until: dict[int, Waiting] = {}
    for entry in pen.entries:
        if isinstance(entry, Waiting):
            until[entry.seq] = entry
        elif isinstance(entry, Asked) and (waited := until.pop(entry.seq, None)) is not None:
            assert entry.at >= waited.until - 1e-6
            assert entry.ask == waited.ask


def told(pen: Pen) -> list[str]:
    return [entry.message for entry in pen.of(Logged)]


@settings(max_examples=300, deadline=None)
@given(tree=TREES, policies=POLICIES, data=st.data(), slots=st.integers(1, 4))
def test_a_run_that_is_cut_anywhere_goes_on_as_if_it_had_not_been(
    tree: Node, policies: dict[str, Policy], data: st.DataObject, slots: int
) -> None:
    names = prompts(tree)
    ends = data.draw(
        st.dictionaries(st.tuples(st.sampled_from(names), st.integers(1, 5)), FAILURES, max_size=12)
        if names
        else st.just({})
    )
    limits = Limits(max_extra_attempts=1000, max_concurrent_agents=slots)

    async def play() -> None:
        whole = Pen(is_quick=True)
        await drive(lab_of(whole, Fate(ends), policies, limits, VirtualClock()), tree)
        pen, clock = whole, VirtualClock()
        for cut in range(data.draw(st.integers(1, 2))):
            if not pen.parts:
                break
            part = data.draw(st.integers(0, len(pen.parts) - 1))
            pen = pen.cut(part)
            clock = VirtualClock(time=pen.entries[-1].at - EPOCH + data.draw(st.sampled_from([0, 1, 50, 5000])))
            pen.claim()
            before = len(pen.entries)
            recorded = fold("lab", pen.journal.chained)
            ended = {call.key for call in recorded.calls.values() if call.ended is not None}
            fate = Fate(ends)
            lab = lab_of(pen, fate, policies, limits, clock)
            worker = await drive(lab, tree)
            assert (lab.divergences, lab.faults, lab.lost) == ([], [], []), cut
            assert worker.is_over
            new = pen.journal.entries[before:]
            assert not [ask for ask in new if isinstance(ask, Asked) and ask.key in ended]
            check_waits(pen)
            check_spending(lab)
            handed = [(entry.seq, entry.attempt) for entry in new if isinstance(entry, Asked)]
            assert len(fate.asked) == len(handed)
            if fate.asked:
                assert lab.broker._repeats._used == pen.state.extra
            check_events(lab, before)
        assert story(pen) == story(whole)
        assert sorted(told(pen)) == sorted(told(whole))
        state = pen.state
        assert state.extra == whole.state.extra + sum(ask.ask == "redo" for ask in pen.of(Asked))
        assert len(pen.of(Ended)) == len(state.calls)

    asyncio.run(play())


@settings(max_examples=150, deadline=None)
@given(
    tree=TREES,
    cuts=st.lists(st.tuples(st.integers(0, 50), st.sampled_from([0, 5000])), max_size=6),
    extra=st.integers(0, 4),
    data=st.data(),
)
def test_whatever_is_cut_and_how_often_nothing_is_asked_beyond_the_promise(
    tree: Node, cuts: list[tuple[int, int]], extra: int, data: st.DataObject
) -> None:
    names = prompts(tree)
    ends = data.draw(st.dictionaries(st.tuples(st.sampled_from(names), st.integers(1, 4)), FAILURES, max_size=8)
                     if names else st.just({}))  # fmt: skip
    policies = {"main": Policy(retry=Retry(classes=frozenset({FailureClass.OVERLOADED}), times=2), fallback="spare")}
    limits = Limits(max_extra_attempts=extra, max_concurrent_agents=2, max_total_agents=max(1, len(names)))

    async def play() -> None:
        pen = Pen(is_quick=True)
        clock = VirtualClock()
        for part, pause in [*cuts, (-1, 0)]:
            lab = lab_of(pen, Fate(ends), policies, limits, clock)
            await drive(lab, tree)
            assert (lab.divergences, lab.faults, lab.lost) == ([], [], [])
            check_spending(lab)
            if part < 0:
                break
            if not pen.parts:
                continue
            # The host died early: only a part of this came to be.
            pen = pen.cut(part % len(pen.parts))
            clock = VirtualClock(time=pen.entries[-1].at - EPOCH + pause)
            pen.claim()
        state = pen.state
        assert state.extra <= extra
        assert len(state.calls) <= limits.max_total_agents
        for call in state.calls.values():
            assert sum(ask.ask == "redo" for ask in call.asks) <= 2
            assert call.ended is not None
            assert [ask.attempt for ask in call.asks] == list(range(1, len(call.asks) + 1))

    asyncio.run(play())
