"""What one run makes its host hold is bounded: prompts, options and replies, and the events that are kept."""

import asyncio
import sys
from typing import Any

import pytest

from loopwarden import AgentRequest, Code, Host, Limits, Script, events
from loopwarden.event_log import MAX_KEPT_BYTES, EventLog
from loopwarden.holding import memory_bytes

LIMITS = Limits(max_held_bytes=1_000_000)
FIVE = "def main(args):\n    return [len(agent(args['prompt'] + str(i))) for i in range(5)]\n"


async def reply(request: AgentRequest) -> str:
    return "y" * 300_000 if request.prompt.startswith("long") else "short"


@pytest.mark.parametrize(("prompt", "agents_started"), [("x" * 300_000, 3), ("long", 4)], ids=["prompts", "replies"])
def test_a_run_that_makes_its_host_hold_too_much_is_ended(
    prompt: str, agents_started: int, runner: asyncio.Runner
) -> None:
    async def play() -> Any:
        async with Host(providers={"default": reply}, limits=LIMITS) as host:
            return await host.run(Script.from_text(FIVE), {"prompt": prompt})

    outcome = runner.run(play())
    assert outcome.failure.code is Code.MEMORY_LIMIT
    assert "maxHeldBytes allows 1000000" in outcome.failure.message
    assert outcome.failure.line == 2
    assert outcome.agents_started == agents_started


def test_what_stays_below_the_limit_goes_on(runner: asyncio.Runner) -> None:
    async def play() -> Any:
        async with Host(providers={"default": reply}, limits=LIMITS) as host:
            return await host.run(Script.from_text(FIVE), {"prompt": "x" * 100_000})

    assert runner.run(play()).value == [5] * 5


def test_memory_counts_every_part_of_a_value() -> None:
    assert memory_bytes("\N{GRINNING FACE}" * 1000) > 4000
    assert memory_bytes([[]] * 1000) > 1000 * sys.getsizeof([])
    assert memory_bytes({"k" * 1000: {"a": 1}}) > 1000 + sys.getsizeof({"a": 1})


def test_the_oldest_events_are_forgotten_when_their_texts_take_too_much() -> None:
    async def play() -> list[int]:
        log = EventLog("run-1")
        for _ in range(1000):
            log.emit(events.Log, message="\N{GRINNING FACE}" * 4096)
        log.emit(events.RunEnded, stop_reason="completed", failure=None, agents_started=0)
        return [event.number async for event in log.read(0)]

    numbers = asyncio.run(play())
    assert numbers[-1] == 1001
    assert numbers == list(range(numbers[0], 1002))
    assert 0.9 * MAX_KEPT_BYTES < len(numbers) * 4 * 4096 < MAX_KEPT_BYTES
