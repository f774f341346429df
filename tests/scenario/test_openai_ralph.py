"""The Ralph loop against a chat-completions endpoint, with the openai provider, to its end."""

import asyncio
from typing import Any

import pytest

from loopwarden import Host, Outcome
from loopwarden_scripts import ralph
from support.asking import provider_at
from support.model_server import Fail, ModelAnswer, ModelServer, Say, Structured, in_order

FIRST = {"status": "continue", "summary": "first step", "evidence": [], "nextSteps": ["second step"], "blocker": ""}
SECOND = FIRST | {"summary": "another step"}
DONE = {"status": "complete", "summary": "all done", "evidence": ["seen"], "nextSteps": [], "blocker": ""}


def play(runner: asyncio.Runner, server: ModelServer, **options: Any) -> Outcome[Any]:
    """One Ralph run of at most five rounds."""

    async def run() -> Outcome[Any]:
        provider = provider_at(server.url, input_price_usd=1.0, output_price_usd=2.0, **options)
        async with Host(providers={"default": provider}) as host:
            return await host.run(ralph.build(ralph.RalphSettings()), ralph.Args(objective="Build it.", max_rounds=5))

    return runner.run(run())


@pytest.mark.parametrize("mode", ["json_schema", "tool", "text"])
def test_ralph_comes_to_a_completion_in_three_rounds(runner: asyncio.Runner, mode: str) -> None:
    answers: list[ModelAnswer] = [Structured(value=report) for report in (FIRST, SECOND, DONE)]
    with ModelServer(in_order(*answers)) as server:
        outcome = play(runner, server, structured_output=mode)
        prompts = [request.asked.prompt for request in server.requests]
    assert (outcome.value.status, outcome.value.rounds_started, outcome.agents_started) == ("complete", 3, 3)
    assert all("Build it." in prompt for prompt in prompts)
    assert ["first step" in prompt for prompt in prompts] == [False, True, False]
    assert ["another step" in prompt for prompt in prompts] == [False, False, True]


@pytest.mark.parametrize(
    "answer",
    [
        Structured(value=FIRST | {"status": "done"}),
        Say(text="I am finished."),
        Say(text='{"status": "complete"', finish="length"),
        Fail(status=500, message="oops"),
    ],
)
def test_an_answer_that_is_no_report_is_a_failed_round(runner: asyncio.Runner, answer: ModelAnswer) -> None:
    """And the last good handoff is kept."""
    with ModelServer(in_order(Structured(value=FIRST), answer)) as server:
        outcome = play(runner, server)
    assert (outcome.value.status, outcome.value.rounds_started) == ("round-failed", 2)
    assert outcome.receipt.last_handoff == FIRST


def test_a_wrong_address_ends_the_run_with_words(runner: asyncio.Runner) -> None:
    """Not as a failed round: no round could ever succeed."""
    with ModelServer(in_order(Fail(status=404, message="model 'model-1' not found, try pulling it first"))) as server:
        outcome = play(runner, server)
    assert outcome.failure is not None
    assert outcome.failure.code == "AGENT_START"
    assert "check model and base_url: model 'model-1' not found, try pulling it first" in outcome.failure.message
