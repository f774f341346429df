"""Ralph end to end in a confined worker: the rows of kind `run`, and the prompts of its rounds."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from loopwarden import AgentFailed, AgentReply, AgentRequest, Host, Outcome, events
from loopwarden_scripts import ralph
from support.corpus import cases, same_json

CASES = [case for case in cases(Path(__file__).parent / "ralph.jsonl") if case.values[0]["kind"] == "run"]
CONTINUE = {"status": "continue", "summary": "first step", "evidence": [], "nextSteps": ["second step"], "blocker": ""}
COMPLETE = {"status": "complete", "summary": "all done", "evidence": ["seen"], "nextSteps": [], "blocker": ""}


async def play(
    rounds: list[dict[str, Any]], objective: str, max_rounds: int, max_handoff_chars: int = 16384
) -> tuple[Outcome[Any], list[Any], list[AgentRequest]]:
    """Run Ralph against agents that end as `rounds` says."""
    requests: list[AgentRequest] = []

    async def reply(request: AgentRequest) -> AgentReply:
        requests.append(request)
        row = rounds[request.seq - 1]
        if row["outcome"] != "completed":
            raise AgentFailed("the case says so")
        return AgentReply(value=row.get("structured"))

    script = ralph.build(ralph.RalphSettings(max_handoff_chars=max_handoff_chars))
    async with Host(providers={"default": reply}) as host:
        run = await host.start(script, ralph.Args(objective=objective, max_rounds=max_rounds))
        outcome = await run.wait()
        return outcome, [event async for event in run.events()], requests


@pytest.mark.parametrize("case", CASES)
def test_ralph_run(case: dict[str, Any], runner: asyncio.Runner) -> None:
    """Status, value, code, counters, labels and phases are as the row says."""
    given, expected = case["input"], case["expect"]
    outcome, seen, _ = runner.run(
        play(given["rounds"], given["objective"], given["max_rounds"], given["max_handoff_chars"])
    )
    assert outcome.stop_reason == expected["status"]
    assert outcome.agents_started == expected["agents_started"]
    if "value" in expected:
        assert same_json(outcome.receipt.result, expected["value"])
    if "error_code" in expected:
        assert outcome.failure is not None
        assert outcome.failure.code == expected["error_code"]
    if "labels" in expected:
        assert [event.label for event in seen if isinstance(event, events.AgentStarted)] == expected["labels"]
    if "phases" in expected:
        assert [event.title for event in seen if isinstance(event, events.Phase)] == expected["phases"]


def completed(*reports: dict[str, Any]) -> list[dict[str, Any]]:
    """Rounds that all gave a report."""
    return [{"outcome": "completed", "structured": report} for report in reports]


def test_each_round_gets_the_objective_and_the_last_report_alone(runner: asyncio.Runner) -> None:
    """The handoff of the round before crosses over; older ones do not, and no prompt names the total."""
    second = {**CONTINUE, "summary": "another step"}
    outcome, _, requests = runner.run(play(completed(CONTINUE, second, COMPLETE), "Build the bridge.", 97))
    assert outcome.value.status == "complete"
    prompts = [request.prompt for request in requests]
    assert all("Build the bridge." in prompt and "97" not in prompt for prompt in prompts)
    assert [f"Round {number}" in prompts[number - 1] for number in (1, 2, 3)] == [True, True, True]
    assert "first step" not in prompts[0]
    assert json.dumps(CONTINUE, separators=(",", ":")) in prompts[1]
    assert "another step" in prompts[2]
    assert "first step" not in prompts[2]


def test_the_agent_cap_of_a_ralph_run_is_its_round_limit(runner: asyncio.Runner) -> None:
    """One number: after the last round the run ends as budget-limited, with no call refused."""
    outcome, _, _ = runner.run(play(completed(CONTINUE, CONTINUE), "x", 2))
    assert (outcome.value.status, outcome.agents_started) == ("budget-limited", 2)
    assert outcome.receipt.limits["maxTotalAgents"] == 2


def test_a_rule_violation_and_a_failed_round_both_keep_the_last_good_handoff(runner: asyncio.Runner) -> None:
    """For `continue`, and for the reader of the receipt."""
    broken = {**CONTINUE, "nextSteps": []}
    outcome, _, _ = runner.run(play(completed(CONTINUE, broken), "x", 5))
    assert outcome.failure is not None
    assert outcome.failure.code == "SCRIPT_ERROR"
    assert "next step" in outcome.failure.message
    assert outcome.receipt.last_handoff == CONTINUE
    outcome, _, _ = runner.run(play([*completed(CONTINUE), {"outcome": "failed"}], "x", 5))
    assert outcome.value.status == "round-failed"
    assert outcome.receipt.last_handoff == CONTINUE


def test_a_report_that_breaks_the_schema_is_a_failed_round(runner: asyncio.Runner) -> None:
    """It never reaches the script: the host validates, whatever the provider claims."""
    outcome, _, _ = runner.run(play(completed({"status": "complete"}), "x", 5))
    assert (outcome.value.status, outcome.value.rounds_started) == ("round-failed", 1)
    assert "does not fit the schema" in (outcome.receipt.agents[0].reason or "")
