"""Promise 3: hostile scripts, end to end. What was obtained is looked at; an exception alone proves nothing."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from loopwarden import Code, Host, Limits, Outcome, Script, StartRefused
from support.corpus import cases, same_json
from support.replies import ScriptedReplies

CASES = cases(Path(__file__).parent / "escapes.jsonl")
LIMITS = Limits(cpu_seconds_per_turn=0.6, cpu_seconds_per_run=2.0, memory_bytes=256 * 1024 * 1024)
CANCEL_AFTER_SECONDS = 0.3


@pytest.mark.parametrize("case", CASES)
def test_hostile_script(case: dict[str, Any], runner: asyncio.Runner) -> None:
    """The script obtains nothing, and the run ends typed and in time."""
    outcomes = [runner.run(asyncio.wait_for(play(case), 30)) for _ in range(case.get("compare_runs", 1))]
    for outcome in outcomes:
        judge(case, outcome)
    values = [outcome.value for outcome in outcomes if isinstance(outcome, Outcome)]
    assert all(same_json(value, values[0]) for value in values)


def judge(case: dict[str, Any], outcome: "Outcome[Any] | StartRefused") -> None:
    """Compare one ending with the case."""
    if isinstance(outcome, StartRefused):
        assert outcome.code is Code.SCRIPT_REJECTED
        return
    assert case["expect"] != "rejected", "the script ran"
    if outcome.failure is not None:
        assert outcome.failure.code not in {Code.WORKER_LOST, Code.PROTOCOL}
        assert "/lib/python" not in outcome.failure.message
    elif "must_not" in case:
        # The expression is the corpus's own, over the value that the run returned.
        assert not eval(case["must_not"], {}, {"v": outcome.value}), outcome.value
    else:
        assert case["expect"] != "limit", "no limit ended the run"


async def play(case: dict[str, Any]) -> "Outcome[Any] | StartRefused":
    """Run the case."""
    source = case["source"]
    if "pad" in case:
        source = source.replace(case["pad"]["token"], case["pad"]["char"] * case["pad"]["count"])
    args = case.get("args", {})
    replies = case.get("agent_replies", {})

    async def never(request: Any) -> str:
        await asyncio.Event().wait()
        return "never"

    is_cancelled = case.get("limit_kind") == "cancel"
    provider = never if is_cancelled else ScriptedReplies(replies)
    async with Host(providers={"default": provider}, limits=LIMITS) as host:
        try:
            run = await host.start(Script.from_text(source), args)
        except StartRefused as refusal:
            return refusal
        if is_cancelled:
            await asyncio.sleep(CANCEL_AFTER_SECONDS)
            run.cancel("user")
        outcome = await run.wait()
    if is_cancelled:
        assert outcome.stop_reason == "cancelled"
    assert case.get("args", {}) == args
    return outcome
