"""Promises 2 and 6: whatever policies grant, however asks end and in whatever order, the numbers are exact, each agent
has one end, and when all is over nothing is left: no slot, no timer, nobody who waits."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from hypothesis import given, settings
from hypothesis import strategies as st

from loopwarden import BreakerRule, Capabilities, FailureClass, Limits, Policy, Retry, Wait
from loopwarden.policy import NEVER_REPEATED
from support.shared_night import MANNERS, End, Night

NAMES = ["a", "b", "c"]
Step: TypeAlias = Callable[[Night], Any]


def weighted(*parts: tuple[int, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    """One of some strategies, each so often. `one_of` takes each as often as any other."""
    return st.sampled_from([part for times, part in parts for _ in range(times)]).flatmap(lambda part: part)


def policies(names: list[str]) -> st.SearchStrategy[dict[str, Policy]]:
    """For each provider anything from nothing to everything."""
    classes = st.sets(st.sampled_from([each for each in FailureClass if each not in NEVER_REPEATED]), min_size=3)
    retries = st.builds(
        Retry,
        classes=classes.map(frozenset),
        times=st.integers(1, 2),
        first_seconds=st.sampled_from([0, 1, 16]),
        max_seconds=st.just(20),
        max_server_delay_seconds=st.just(100),
    )
    breakers = st.builds(BreakerRule, failures=st.integers(1, 3), reopen_seconds=st.sampled_from([8, 64]))

    def policy(name: str) -> st.SearchStrategy[Policy]:
        others = [other for other in names if other != name]
        return st.builds(
            Policy,
            retry=weighted((1, st.none()), (2, retries)),
            wait=st.sampled_from([None, Wait(max_seconds=1000), Wait(max_seconds=1000)]),
            fallback=st.sampled_from([None, None, *others]),
            breaker=weighted((1, st.none()), (2, breakers)),
        )

    return st.fixed_dictionaries({name: policy(name) for name in names})


def capabilities(names: list[str]) -> st.SearchStrategy[dict[str, Capabilities]]:
    able = st.builds(
        Capabilities,
        structured_output=st.just(True),
        streams=st.booleans(),
        converses=st.booleans(),
        cost_known=st.sampled_from([True] * 9 + [False]),
    )
    return st.fixed_dictionaries(dict.fromkeys(names, able))


LIMITS = st.builds(
    Limits,
    max_total_agents=st.integers(2, 12),
    max_extra_attempts=st.sampled_from([0, 1, 4, 16, 16]),
    max_concurrent_agents=st.integers(1, 4),
    max_live_agents=st.integers(1, 6),
    max_cost_usd=st.sampled_from([None, None, None, 2.0]),
    agent_timeout_seconds=st.just(128.0),
    agent_idle_seconds=st.sampled_from([32.0, 1000.0]),
    wrap_up_seconds=st.just(16.0),
)
COSTS = st.sampled_from([None, 0.0, 0.25, 1.5])
ANSWERS = st.builds(End, kind=st.just("answer"), cost=COSTS)
FAILURES = st.builds(
    End,
    kind=st.just("failed"),
    failure_class=st.sampled_from([*FailureClass, *[FailureClass.RATE_LIMITED] * 6, *[FailureClass.OVERLOADED] * 6]),
    resets_in=st.sampled_from([None, -10, 0, 32, 512, 5000]),
    retry_after=st.sampled_from([None, None, 0, 8, 64, 1024]),
    cost=COSTS,
)
FAULTS = st.builds(End, kind=st.sampled_from(["no start", "cancels itself", "returns nothing", "raises"]), cost=COSTS)
ENDS = weighted((8, ANSWERS), (16, FAILURES), (2, st.builds(End, kind=st.just("no text"), cost=COSTS)), (1, FAULTS))
WHICH = st.integers(0, 5)


def steps(names: list[str]) -> st.SearchStrategy[Step]:
    """What may happen next."""
    calls: st.SearchStrategy[Step] = st.builds(
        lambda run, name: partial(Night.call, run=run, provider=name), WHICH, st.sampled_from([None, *names])
    )
    ends: st.SearchStrategy[Step] = st.builds(lambda which, end: partial(Night.end, which=which, end=end), WHICH, ENDS)
    times: st.SearchStrategy[Step] = st.builds(
        lambda seconds: partial(Night.pass_time, seconds=seconds), st.sampled_from([None, None, 1, 8, 40, 64, 700])
    )
    signs: st.SearchStrategy[Step] = st.builds(
        lambda which, sign: partial(Night.sign, which=which, sign=sign),
        WHICH,
        st.sampled_from(["alive", "progress", "remark"]),
    )
    stuck: st.SearchStrategy[Step] = st.builds(
        lambda run, is_stuck: partial(Night.stick, run=run, stuck=is_stuck), WHICH, st.booleans()
    )
    stops: st.SearchStrategy[Step] = st.builds(lambda run: partial(Night.stop, run=run), WHICH)
    return weighted((10, calls), (14, ends), (7, times), (2, signs), (2, stuck), (1, stops))


NIGHTS = st.sampled_from([1, 2, 2, 3]).flatmap(
    lambda count: st.tuples(
        policies(NAMES[:count]),
        capabilities(NAMES[:count]),
        st.lists(st.tuples(steps(NAMES[:count]), st.integers(0, 4)), min_size=25, max_size=80),
    )
)


@settings(max_examples=150, deadline=None)
@given(
    night=NIGHTS,
    limits=LIMITS,
    runs=st.integers(1, 3),
    manners=st.lists(st.sampled_from(sorted(MANNERS)), min_size=1, max_size=3),
    jitter=st.sampled_from([0.0, 0.5, 0.75]),
)
def test_the_numbers_are_exact_and_nothing_is_left_whatever_policies_grant(
    runner: asyncio.Runner, night: Any, limits: Limits, runs: int, manners: list[str], jitter: float
) -> None:
    async def play() -> None:
        granted, able, script = night
        world = Night(policies=granted, capabilities=able, limits=limits, runs=runs, manners=manners, jitter=jitter)
        try:
            for step, turns in script:
                waited = step(world)
                if waited is not None:
                    await waited
                for _ in range(turns):
                    await asyncio.sleep(0)
                world.check()
            await world.finish()
        finally:
            world.release()

    runner.run(play())
