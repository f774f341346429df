"""A run that is cancelled leaves nothing of a real agent program, whatever the program is doing."""

import asyncio
import os
import signal
import subprocess

import pytest

from agents.brain import ENDLESS, ENDLESS_NAME
from agents.deployments import settings_file
from agents.stage import OBJECTIVE, Stage
from loopwarden import Host, Limits
from loopwarden_scripts import ralph
from support.agents import processes_below
from support.census import is_running
from support.command_line import PROGRAM, until
from support.model_server import ModelAnswer, ModelRequest, Stall

READY_SECONDS = 60.0
DOINGS = ["while its model is silent", "while a tool runs"]


def occupy(stage: Stage, doing: str) -> None:
    """Let the agent of round 1 come to no end."""

    def before(request: ModelRequest) -> ModelAnswer:
        return Stall() if doing == DOINGS[0] else stage.brain.run(request, ENDLESS)

    stage.brain.before = before


def is_occupied(stage: Stage, doing: str) -> bool:
    """Say whether the agent is where it is wanted."""
    if doing == DOINGS[0]:
        return any(exchange.state == "stalled" for exchange in stage.server.exchanges)
    return stage.running[ENDLESS_NAME] == 2


@pytest.mark.parametrize("doing", DOINGS)
def test_a_cancelled_run_leaves_no_process(stage: Stage, doing: str) -> None:
    occupy(stage, doing)

    async def main() -> None:
        async with Host(providers={"default": stage.provider()}, limits=Limits(agent_grace_seconds=2)) as host:
            run = await host.start(ralph.script, ralph.Args(objective=OBJECTIVE), workspace=stage.workspace)
            async with asyncio.timeout(READY_SECONDS):
                while not is_occupied(stage, doing):
                    await asyncio.sleep(0.01)
            assert stage.processes
            run.cancel()
            outcome = await run.wait()
            assert not stage.processes
            assert outcome.stop_reason == "cancelled"
            [agent] = outcome.receipt.agents
            assert (agent.outcome, agent.attempts) == ("cancelled", 1)

    asyncio.run(main())


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_a_command_line_that_is_signalled_while_a_tool_runs_leaves_no_process(
    stage: Stage, sent: signal.Signals, code: int
) -> None:
    occupy(stage, DOINGS[1])
    config = settings_file(stage.home.root, stage.program, stage.table())
    argv = ["run", "ralph", "--config", str(config), "--provider", stage.program, "--objective", OBJECTIVE]
    with (stage.home.root / "out").open("wb") as out:
        process = subprocess.Popen(
            [*PROGRAM, *argv, "--workspace", str(stage.workspace)], stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            cwd=stage.home.root, env=stage.home.environment,
        )  # fmt: skip
    try:
        until(lambda: is_occupied(stage, DOINGS[1]), READY_SECONDS)
        tree = processes_below(process.pid)
        os.kill(process.pid, sent)
        assert process.wait(30) == code
        until(lambda: not stage.processes and not any(map(is_running, tree)))
    finally:
        process.kill()
        process.wait()
