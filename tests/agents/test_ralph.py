"""The Ralph loop with real agent programs, as a person starts it: three rounds to a verified completion."""

import asyncio
import json
import subprocess

from agents.brain import DONE, ROUND, ROUNDS
from agents.deployments import settings_file
from agents.stage import OBJECTIVE, Stage
from support.command_line import PROGRAM

RUN_SECONDS = 150


def test_ralph_comes_to_a_verified_completion_in_three_rounds(stage: Stage) -> None:
    config = settings_file(stage.home.root, stage.program, stage.table())
    argv = ["run", "ralph", "--config", str(config), "--provider", stage.program, "--objective", OBJECTIVE]
    argv += ["--workspace", str(stage.workspace), "--max-rounds", "5", "--check", f"test -f {DONE}", "--json"]
    done = subprocess.run(
        [*PROGRAM, *argv], stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=stage.home.root,
        env=stage.home.environment, timeout=RUN_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    receipt = said["receipt"]
    assert said["verdict"] == f"agent reported completion after 3 rounds; verified by: test -f {DONE}"
    assert receipt["result"] == {"status": "complete", "roundsStarted": ROUNDS, "report": stage.brain.reports[ROUNDS]}
    assert sorted(path.name for path in stage.workspace.iterdir()) == [DONE, "round-1.txt", "round-2.txt"]
    assert [agent["outcome"] for agent in receipt["agents"]] == ["completed"] * ROUNDS
    for agent in receipt["agents"]:
        [ask] = agent["asks"]
        cost = ask["usage"].pop("costUsd")
        assert ask["usage"] == {"inputTokens": 2400, "cachedInputTokens": 400, "outputTokens": 60}
        assert (cost is not None and cost > 0) is stage.provider().capabilities.cost_known


def test_each_agent_starts_without_what_the_one_before_it_said(stage: Stage) -> None:
    provider = stage.provider()
    asyncio.run(stage.ask(provider))
    first = len(stage.server.requests)
    asyncio.run(stage.ask(provider))
    opening = next(ask for ask in stage.server.requests[first:] if ROUND.search(ask.asked.prompt))
    assert opening.asked.tool_results == ()
    assert "did round 1" not in json.dumps(opening.body)
