"""Promise 8, as far as it holds without a store: all that is shown of a run is derived from what the host recorded.

Receipt, events, outcome and the files under the state folder tell one story, whichever of them is asked.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

from loopwarden import AgentFailed, AgentRequest, Host, Outcome, Run, Script, events
from loopwarden.receipt import Receipt, read_receipt

SOURCE = """
def main(args):
    phase("Asking")
    return parallel([lambda n=n: agent(f"question {n}") for n in range(4)])
"""


async def reply(request: AgentRequest) -> str:
    """Fail every third agent."""
    if request.seq % 3 == 0:
        raise AgentFailed("the third one never works")
    return f"answer to {request.prompt}"


def play(runner: asyncio.Runner, state_folder: Path) -> tuple[Run[Any], Outcome[Any], list[events.Event]]:
    """One run with everything kept."""

    async def run_it() -> tuple[Run[Any], Outcome[Any], list[events.Event]]:
        async with Host(providers={"default": reply}, state_folder=state_folder) as host:
            run = await host.start(Script.from_text(SOURCE))
            outcome = await run.wait()
            return run, outcome, [event async for event in run.events()]

    return runner.run(run_it())


def test_events_receipt_outcome_and_disk_tell_the_same_story(runner: asyncio.Runner, tmp_path: Path) -> None:
    """Agents, their ends, counters and result agree."""
    run, outcome, seen = play(runner, tmp_path)
    receipt = outcome.receipt
    started = {event.seq: event for event in seen if isinstance(event, events.AgentStarted)}
    ended = {event.seq: event for event in seen if isinstance(event, events.AgentEnded)}
    assert receipt.agents_started == outcome.agents_started == len(started) == len(ended) == 4
    for record in receipt.agents:
        assert (record.label, record.phase) == (started[record.seq].label, started[record.seq].phase)
        assert (record.outcome, record.reason) == (ended[record.seq].outcome.value, ended[record.seq].reason)
    assert receipt.result == outcome.value
    assert run.folder is not None
    assert read_receipt(run.folder / "receipt.json") == Receipt.model_validate(receipt.to_json())


def test_what_every_agent_was_asked_and_answered_lies_in_the_runs_folder(
    runner: asyncio.Runner, tmp_path: Path
) -> None:
    """A person can see what round 3 did; nobody else can."""
    run, outcome, _ = play(runner, tmp_path)
    assert run.folder is not None
    for record in outcome.receipt.agents:
        assert record.folder is not None
        folder = run.folder / record.folder
        assert (folder / "prompt.txt").read_text() == f"question {record.seq - 1}"
        assert (folder / "output.txt").exists() == (record.outcome == "completed")
    kept = [path for path in run.folder.rglob("*") if path.is_file()]
    assert {path.stat().st_mode & 0o777 for path in kept} == {0o600}
    assert json.loads((run.folder / "receipt.json").read_text())["runId"] == run.id


def test_the_receipt_on_disk_is_never_much_older_than_the_run(runner: asyncio.Runner, tmp_path: Path) -> None:
    """Who kills the host with kill -9 finds what was started, and the last ends, a moment later."""

    async def play() -> None:
        gate = asyncio.Event()

        async def waits(request: AgentRequest) -> str:
            if request.seq == 2:
                await gate.wait()
            return "done"

        async with Host(providers={"default": waits}, state_folder=tmp_path) as host:
            run = await host.start(Script.from_text("def main(args):\n    return [agent('a'), agent('b')]\n"))
            assert run.folder is not None
            async with asyncio.timeout(10):
                while read_receipt(run.folder / "receipt.json").agents_started < 2:
                    await asyncio.sleep(0.02)
            kept = read_receipt(run.folder / "receipt.json")
            assert [agent.outcome for agent in kept.agents] == ["completed", None]
            gate.set()
            await run.wait()

    runner.run(play())
