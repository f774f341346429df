"""The language corpus, end to end in confined workers."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from loopwarden import Host, Script, StartRefused
from support.corpus import cases, same_json
from support.lent_launcher import LentLauncher
from support.replies import ScriptedReplies

CASES = cases(Path(__file__).parent / "language.jsonl")


@pytest.mark.parametrize("case", CASES)
def test_language_case(case: dict[str, Any], runner: asyncio.Runner, launcher: LentLauncher) -> None:
    """The value, types included, or the error code and line, is what the case says."""
    seen = runner.run(play(case, launcher))
    expected = case["expect"]
    for variant in expected.get("either", [expected]):
        if matches(case, variant, seen):
            return
    pytest.fail(f"expected {expected}, saw {seen}")


async def play(case: dict[str, Any], launcher: LentLauncher) -> dict[str, Any]:
    """Run the case and return value or failure."""
    async with Host(providers={"default": ScriptedReplies(case["agent_replies"])}) as host:
        launcher.lend_to(host)
        try:
            outcome = await host.run(Script.from_text(case["source"]), case["args"])
        except StartRefused as refusal:
            lines = {row["line"] for row in refusal.details.get("violations", [])} | {refusal.line}
            return {"error_code": refusal.code.value, "lines": lines, "message": refusal.message}
    if outcome.failure is None:
        return {"value": outcome.value}
    failure = outcome.failure
    return {"error_code": failure.code.value, "lines": {failure.line}, "message": failure.message}


def matches(case: dict[str, Any], expected: dict[str, Any], seen: dict[str, Any]) -> bool:
    """True when `seen` is what one variant of the expectation says."""
    if "value" in expected:
        return "value" in seen and same_json(seen["value"], expected["value"])
    return (
        seen.get("error_code") == expected["error_code"]
        and ("line" not in expected or expected["line"] in seen["lines"])
        and case.get("error_contains", "") in seen["message"]
    )
