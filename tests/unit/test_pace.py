"""Large pieces of work take turns of the event loop, whichever run they belong to."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from loopwarden import AgentReply, AgentRequest, Host, Script, events
from loopwarden.pace import Pace, is_large


async def _turns(pace: Pace, count: int, cancelled: int | None = None) -> list[int]:
    """In which turn of the loop each waiter went on."""
    turn = 0
    went_on: list[int] = []

    async def wait() -> None:
        await pace.own_turn()
        went_on.append(turn)

    tasks = [asyncio.ensure_future(wait()) for _ in range(count)]
    while any(not task.done() for task in tasks):
        await asyncio.sleep(0)
        turn += 1
        if turn == 1 and cancelled is not None:
            tasks[cancelled].cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError):
            await task
    return went_on


def test_no_two_go_on_in_the_same_turn() -> None:
    turns = asyncio.run(_turns(Pace(), 20))
    assert len(turns) == 20
    assert turns == sorted(set(turns))


@pytest.mark.parametrize("cancelled", [0, 1, 4])
def test_one_that_is_cancelled_holds_up_nobody(cancelled: int) -> None:
    turns = asyncio.run(_turns(Pace(), 5, cancelled))
    assert len(turns) in {4, 5}  # the first may have its turn already
    assert turns == sorted(set(turns))


def test_a_pace_that_had_nothing_to_do_goes_on() -> None:
    async def twice() -> list[list[int]]:
        pace = Pace()
        return [await _turns(pace, 2), await _turns(pace, 2)]

    first, second = asyncio.run(twice())
    assert first == second


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("short", False),
        ("x" * 40_000, True),
        (AgentReply(text="x" * 40_000), True),
        (AgentReply(value={"a": [1] * 100}), False),
        (AgentReply(value={"a": [1] * 1000}), True),
        ({"a": ["x" * 20_000] * 2}, True),
        ({"k" * 40_000: 1}, True),
        ({str(number): number for number in range(1000)}, True),
        (None, False),
        (object(), False),
    ],
    ids=[
        "text",
        "long text",
        "long text of a reply",
        "value",
        "items",
        "texts",
        "name",
        "members",
        "nothing",
        "object",
    ],
)
def test_what_takes_long_to_decode_is_large(reply: Any, expected: bool) -> None:
    assert is_large(reply) is expected


def test_what_a_worker_says_is_heard_in_order_however_finely_it_is_cut(
    runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With slices of no time, each message is heard in a turn of its own."""
    monkeypatch.setattr("loopwarden.session._SLICE_SECONDS", -1.0)
    source = (
        "def main(args):\n    def ask(n):\n        log(str(n))\n        return agent(str(n))\n"
        "    return parallel([lambda n=n: ask(n) for n in range(60)])\n"
    )

    async def echo(request: AgentRequest) -> str:
        return request.prompt

    async def play() -> tuple[Any, list[str]]:
        async with Host(providers={"default": echo}) as host:
            run = await host.start(Script.from_text(source), {})
            told = [event.message async for event in run.events() if isinstance(event, events.Log)]
            return await run.wait(), told

    outcome, told = runner.run(play())
    assert outcome.value == told == [str(number) for number in range(60)]
