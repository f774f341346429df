"""Promise 9: whatever finishes first, the same script makes the same calls with the same identities."""

import asyncio
import random
from typing import Any

import pytest

from loopwarden import AgentRequest, Host, Limits, Script

SOURCE = """
def main(args):
    def review(previous, item, index):
        votes = parallel([lambda i=i: agent(f"{item}: judge {i} of {previous}") for i in range(3)])
        return [vote for vote in votes if vote]

    def late():
        first = agent("late, first")
        return [first, agent(f"late, second after {first}")]

    gen = (agent(f"lazy {n}") for n in range(3))
    drafts = parallel([
        lambda: pipeline(["a", "b", "c"], lambda p, i, x: agent(f"draft {i}"), review),
        late,
        lambda: list(gen),
        lambda: sorted(["x", "y", "z"], key=lambda item: agent(f"rank {item}")),
    ])
    return [drafts, agent("last")]
"""
ORDERS = 50


@pytest.mark.parametrize("part", range(4))
def test_two_hundred_completion_orders_give_the_same_keys_and_digests(runner: asyncio.Runner, part: int) -> None:
    """Nested fan-outs, a generator and a sort key, each call identified by its place alone."""

    async def play(seed: int, host: Host, waiting: list[asyncio.Future[None]]) -> tuple[Any, set[tuple[str, str]]]:
        chance = random.Random(seed)
        run = await host.start(Script.from_text(SOURCE))
        while not run.is_over:
            await asyncio.sleep(0)
            if run._session.is_waiting and waiting and len(waiting) == len(run._broker._live):
                waiting.pop(chance.randrange(len(waiting))).set_result(None)
                await asyncio.sleep(0)
        outcome = await run.wait()
        outcome.raise_for_failure()
        records = outcome.receipt.agents
        assert [record.seq for record in records] == list(range(1, len(records) + 1))
        return outcome.value, {(record.key, record.digest) for record in records}

    async def play_all() -> None:
        waiting: list[asyncio.Future[None]] = []

        async def reply(request: AgentRequest) -> str:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            waiting.append(turn)
            await turn
            return f"<{request.prompt}>"

        async with Host(providers={"default": reply}, limits=Limits(max_concurrent_agents=64)) as host:
            first = await play(0, host, waiting)
            assert len(first[1]) == 3 + 9 + 2 + 3 + 3 + 1
            for seed in range(part * ORDERS + 1, (part + 1) * ORDERS + 1):
                assert await play(seed, host, waiting) == first

    runner.run(play_all())
