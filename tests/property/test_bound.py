"""The static bound is never too small: whatever a script does, no run of it makes more calls than its formula says."""

import json
import random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loopwarden.agent_bound import AgentBound
from loopwarden.findings import decode_findings
from loopwarden_engine.analysis import analyse
from loopwarden_engine.language import ScriptRejected, compile_script
from support.counted_run import MAX_CALLS, counted_calls
from support.script_maker import ScriptMaker

RUNS = 3
EXAMPLES = 200


def bound_of(source: str) -> AgentBound:
    """As the host gets it: through JSON."""
    return decode_findings(json.loads(json.dumps(analyse(source)))).bound


def check(maker: ScriptMaker, chance: random.Random) -> int:
    """Make a script, run it with some args, and compare. Gives how many runs could be compared."""
    source = maker.source()
    try:
        compiled = compile_script(source)
    except ScriptRejected:  # a nonlocal name, say, that is bound nowhere
        return 0
    bound = bound_of(source)
    compared = 0
    for _ in range(RUNS if bound.is_known else 0):
        args = maker.args()
        most = bound.evaluate(args)
        if most is None or most >= MAX_CALLS:
            continue
        calls = counted_calls(compiled, args, random.Random(chance.random()))
        assert calls <= most, f"{calls} calls, but {bound.text} with {args}:\n{source}"
        compared += 1
    return compared


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False), st.sampled_from([0.0, 0.3, 1.0]))
def test_no_generated_script_makes_more_calls_than_its_bound_says(chance: random.Random, hostility: float) -> None:
    """Hostility 0 makes shapes that can be counted; 1 mixes in what must make the bound unknown, or larger."""
    check(ScriptMaker(chance, hostility=hostility), chance)


def test_generated_scripts_are_mostly_bounded_and_the_bound_is_often_exact() -> None:
    """Else the test above would say nothing: an analysis that knows no bound would pass it."""
    compared = exact = called = 0
    for seed in range(170):
        chance = random.Random(seed)
        maker = ScriptMaker(chance, hostility=0.2)
        source = maker.source()
        try:
            compiled = compile_script(source)
        except ScriptRejected:
            continue
        bound = bound_of(source)
        args = {"n": 2, "m": 3, "files": ["a", "b"], "more": ["c"], "conf": {"n": 1, "files": ["d"]}}
        most = bound.evaluate(args)
        if most is None or most >= MAX_CALLS:
            continue
        calls = counted_calls(compiled, args, chance)
        compared += 1
        exact += calls == most
        called += calls > 0
    assert compared > 90
    assert called > 50
    assert exact > 30
