"""Promise 2: the agent budget is exact under any interleaving; the provider itself counts what it was asked."""

import asyncio
import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from loopwarden import AgentFailed, AgentRequest, Host, Limits, Outcome, Script
from loopwarden_engine.messages import Call
from support.stand_in import Peer, with_stand_in

SCRIPT = Script.from_text("def main(args):\n    return 1\n")


@settings(max_examples=60, deadline=None)
@given(
    cap=st.integers(1, 6),
    slots=st.integers(1, 4),
    bursts=st.lists(st.integers(1, 5), min_size=1, max_size=5),
    seed=st.integers(0, 2**32),
    failing=st.sets(st.integers(1, 12)),
)
def test_no_interleaving_of_calls_and_ends_starts_more_agents_than_the_cap(
    runner: asyncio.Runner, cap: int, slots: int, bursts: list[int], seed: int, failing: set[int]
) -> None:
    """Calls come in bursts, ends in any order: never more than cap asks, never more than the slots at once."""
    order = random.Random(seed)
    waiting: dict[int, asyncio.Future[None]] = {}
    asked: list[int] = []
    most_at_once = 0

    async def reply(request: AgentRequest) -> str:
        nonlocal most_at_once
        asked.append(request.seq)
        waiting[request.seq] = asyncio.get_running_loop().create_future()
        most_at_once = max(most_at_once, len(waiting))
        try:
            await waiting[request.seq]
        finally:
            del waiting[request.seq]
        if request.seq in failing:
            raise AgentFailed("no")
        return "yes"

    async def end_one() -> None:
        for _ in range(4):
            await asyncio.sleep(0)
        open_calls = [seq for seq, future in waiting.items() if not future.done()]
        if open_calls:
            waiting[order.choice(open_calls)].set_result(None)

    async def play() -> Outcome[Any]:
        limits = Limits(max_total_agents=cap, max_concurrent_agents=slots, agent_grace_seconds=0.0)
        async with Host(providers={"default": reply}, limits=limits) as host:
            launcher = with_stand_in(host)
            starting = asyncio.create_task(host.start(SCRIPT))
            peer: Peer = await launcher.peers.get()
            await peer.begin()
            run = await starting
            await peer.go()
            number = 0
            for burst in bursts:
                peer.send(*[Call(number + n, str(number + n), 1, "p", {}) for n in range(1, burst + 1)])
                number += burst
                for _ in range(order.randint(0, 6)):
                    await end_one()
            run.cancel("the case is over")
            outcome = await run.wait()
            peer.end.close()
            return outcome

    outcome = runner.run(play())
    assert len(asked) <= cap
    assert asked == sorted(asked)
    assert most_at_once <= slots
    # Charged before it is asked: an agent that was cancelled before its provider's first line counts all the same.
    assert len(asked) <= outcome.agents_started <= min(cap, sum(bursts))
