"""Behaviours of a live run: cancel, the worker's death, observers, and what comes too late."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import fields
from typing import Any

import pytest

from loopwarden import AgentRequest, Code, Host, Outcome, Run, RunCancelled, RunFailed, Script, StartRefused, events
from loopwarden_engine.messages import Call, Fatal, FromWorker, ItemFailed, Log, Phase, Ready, Result
from support.lent_launcher import LentLauncher
from support.stand_in import Peer, with_stand_in

ONE = Script.from_text("def main(args):\n    return 1\n")
AGENT = Script.from_text("def main(args):\n    return agent('p')\n")
SPIN = Script.from_text(
    "def main(args):\n    log('spinning')\n    while True:\n        try:\n            while True:\n"
    "                pass\n        except BaseException:\n            pass\n"
)


async def never(request: AgentRequest) -> str:
    """Wait until cancelled."""
    await asyncio.Event().wait()
    return "never"


async def first(run: Run[Any], kind: type[events.EventBase]) -> None:
    """Wait for an event of that kind."""
    async for event in run.events():
        if isinstance(event, kind):
            return


def play_stand_in(
    runner: asyncio.Runner, attack: Callable[[Peer, Run[Any]], Awaitable[None]]
) -> tuple[Outcome[Any], list[events.Event], list[int]]:
    """A run whose worker is the test: its outcome, its events, and the calls for which a provider was asked."""
    asked: list[int] = []

    async def reply(request: AgentRequest) -> str:
        asked.append(request.seq)
        await asyncio.Event().wait()
        return "never"

    async def play() -> tuple[Outcome[Any], list[events.Event]]:
        async with Host(providers={"default": reply}) as host:
            launcher = with_stand_in(host)
            starting = asyncio.create_task(host.start(ONE))
            peer = await launcher.peers.get()
            await peer.begin()
            run = await starting
            await peer.go()
            await attack(peer, run)
            outcome = await asyncio.wait_for(run.wait(), 10)
            peer.end.close()
            return outcome, [event async for event in run.events()]

    outcome, seen = runner.run(play())
    return outcome, seen, asked


LATE: list[FromWorker] = [Phase("late"), Log("late"), ItemFailed("1", 0, 1, "late"), Call(1, "1", 1, "late", {})]


@pytest.mark.parametrize("ending", [Result(1), Fatal("ITEM_CAP", "late", 1), None], ids=["result", "fatal", "silence"])
def test_nothing_of_a_worker_is_heard_after_a_cancel(runner: asyncio.Runner, ending: Any) -> None:
    """Narration, calls and even a result that were on their way are not reported: the outcome is fixed."""

    async def attack(peer: Peer, run: Run[Any]) -> None:
        peer.send(*LATE, *([] if ending is None else [ending]))
        run.cancel("enough")

    outcome, seen, asked = play_stand_in(runner, attack)
    assert outcome.stop_reason == "cancelled"
    assert (outcome.value, outcome.agents_started, asked) == (None, 0, [])
    assert [event.kind for event in seen] == ["runStarted", "runEnded"]


def test_a_result_that_came_before_the_cancel_stands(runner: asyncio.Runner) -> None:
    """The first terminal event wins."""

    async def attack(peer: Peer, run: Run[Any]) -> None:
        peer.send(Result(7))
        while run._record.ending is None:
            await asyncio.sleep(0)
        run.cancel("too late")

    outcome, _, _ = play_stand_in(runner, attack)
    assert (outcome.stop_reason, outcome.value) == ("completed", 7)


def test_death_right_after_the_result_keeps_the_result(runner: asyncio.Runner) -> None:
    """What follows an ending changes nothing."""

    async def attack(peer: Peer, run: Run[Any]) -> None:
        peer.send(Result(7))
        peer.end.close()

    assert play_stand_in(runner, attack)[0].value == 7


def test_death_ends_live_agents_and_a_cancel_in_its_wake_does_not_rename_it(runner: asyncio.Runner) -> None:
    """Who observes the end of an agent and cancels then finds the outcome decided."""

    async def attack(peer: Peer, run: Run[Any]) -> None:
        peer.send(Call(1, "1", 1, "p", {}))
        await first(run, events.AgentStarted)
        peer.end.close()
        await first(run, events.AgentEnded)
        run.cancel("too late")

    outcome, seen, _ = play_stand_in(runner, attack)
    assert outcome.failure is not None
    assert outcome.failure.code is Code.WORKER_LOST
    assert [event.kind for event in seen] == ["runStarted", "agentStarted", "agentEnded", "runEnded"]
    assert [event.outcome for event in seen if isinstance(event, events.AgentEnded)] == ["cancelled"]


def test_a_breach_in_one_breath_with_ready_refuses_the_start(runner: asyncio.Runner) -> None:
    """No run hangs because its worker spoke before anybody could listen."""

    async def play() -> None:
        async with Host(providers={"default": never}) as host:
            launcher = with_stand_in(host)
            starting = asyncio.create_task(host.start(ONE))
            peer = await launcher.peers.get()
            await peer.receive()
            peer.send(Ready("x"), Log("too early"))
            with pytest.raises(StartRefused):
                await asyncio.wait_for(starting, 10)
            assert host.runs() == []
            peer.end.close()

    runner.run(play())


def test_a_start_that_is_cancelled_leaves_no_run(runner: asyncio.Runner, launcher: LentLauncher) -> None:
    """Whatever the moment."""
    long = Script.from_text("x = 1\n" * 2000 + "def main(args):\n    return 1\n")

    async def play(turns: int) -> None:
        async with Host(providers={"default": never}) as host:
            launcher.lend_to(host)
            starting = asyncio.create_task(host.start(long))
            for _ in range(turns):
                await asyncio.sleep(0)
            starting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(starting, 10)
            assert host.runs() == []

    for turns in (0, 1, 2, 3, 5, 8, 13):
        runner.run(play(turns))


def test_cancelling_who_waits_leaves_the_run_alone(runner: asyncio.Runner, launcher: LentLauncher) -> None:
    """And many may wait for one end."""
    release = asyncio.Event()

    async def reply(request: AgentRequest) -> str:
        await release.wait()
        return "done"

    async def play() -> list[Any]:
        async with Host(providers={"default": reply}) as host:
            launcher.lend_to(host)
            run = await host.start(AGENT)
            waiters = [asyncio.create_task(run.wait()) for _ in range(3)]
            await asyncio.sleep(0)
            waiters[0].cancel()
            await asyncio.sleep(0)
            release.set()
            ended = await asyncio.gather(*waiters, return_exceptions=True)
            return [outcome if isinstance(outcome, BaseException) else outcome.value for outcome in ended]

    cancelled, *others = runner.run(play())
    assert isinstance(cancelled, asyncio.CancelledError)
    assert others == ["done", "done"]


def test_leaving_a_run_cancels_it_and_waits_and_leaving_it_again_is_clean(
    runner: asyncio.Runner, launcher: LentLauncher
) -> None:
    """Also a run that is over, also inside of itself."""

    async def play() -> None:
        async with Host(providers={"default": never}) as host:
            launcher.lend_to(host)
            async with await host.start(AGENT) as run, run:
                await first(run, events.AgentStarted)
            assert run.is_over
            outcome = await run.wait()
            assert outcome.failure is not None
            assert outcome.failure.message == "the run was cancelled: the run was left"
            async with run:
                assert (await run.wait()) is outcome
            async with await host.start(ONE) as completed:
                await completed.wait()
            assert (await completed.wait()).value == 1

    runner.run(play())


def test_a_stuck_script_is_left_within_a_second(runner: asyncio.Runner, launcher: LentLauncher) -> None:
    """The worker is killed at once: grace is for agents."""

    async def play() -> float:
        async with Host(providers={"default": never}) as host:
            launcher.lend_to(host)
            run = await host.start(SPIN)
            await first(run, events.Log)
            began = time.monotonic()
            run.cancel("enough")
            assert (await run.wait()).stop_reason == "cancelled"
            return time.monotonic() - began

    assert runner.run(play()) < 1


def test_an_ending_is_a_value_and_an_exception_on_request(runner: asyncio.Runner, launcher: LentLauncher) -> None:
    """`wait` never raises; `raise_for_failure` does, with a class of its own for a cancel."""

    async def play() -> list[Outcome[Any]]:
        async with Host(providers={"default": never}) as host:
            launcher.lend_to(host)
            failing = await host.run(Script.from_text("def main(args):\n    return 1 / 0\n"))
            run = await host.start(AGENT)
            run.cancel("enough")
            return [failing, await run.wait(), await host.run(ONE)]

    failed, cancelled, completed = runner.run(play())
    with pytest.raises(RunFailed, match="SCRIPT_ERROR: ZeroDivisionError"):
        failed.raise_for_failure()
    with pytest.raises(RunCancelled, match="CANCELLED: the run was cancelled: enough"):
        cancelled.raise_for_failure()
    assert completed.raise_for_failure() is completed


NARRATING = Script.from_text("def main(args):\n    for i in range(5):\n        log(str(i))\n    return 'done'\n")


def test_readers_that_fail_lag_or_come_late_change_nothing(runner: asyncio.Runner, launcher: LentLauncher) -> None:
    """Each reads on its own, from any number on."""

    async def play() -> tuple[Any, list[int], list[int], list[int], BaseException | None]:
        async with Host(providers={"default": never}) as host:
            launcher.lend_to(host)
            run = await host.start(NARRATING)

            async def failing() -> None:
                async for _ in run.events():
                    raise ValueError("a reader's own mistake")

            async def slow() -> list[int]:
                numbers = []
                async for event in run.events():
                    numbers.append(event.number)
                    if isinstance(event, events.Log):
                        await run.wait()
                return numbers

            readers = asyncio.create_task(failing()), asyncio.create_task(slow())
            value = (await run.wait()).value
            _, numbers = await asyncio.gather(*readers, return_exceptions=True)
            assert isinstance(numbers, list)
            later = [event.number async for event in run.events(after=4)]
            after_all = [event.number async for event in run.events(after=99)]
            return value, numbers, later, after_all, readers[0].exception()

    value, numbers, later, after_all, error = runner.run(play())
    assert value == "done"
    assert numbers == list(range(1, 8))
    assert later == [5, 6, 7]
    assert after_all == []
    assert isinstance(error, ValueError)


def test_events_are_a_closed_set_and_the_last_one_carries_no_value() -> None:
    """Observe-only: no event has anything to call, and a result is for `wait` alone."""
    kinds = {kind.kind: {field.name for field in fields(kind)} for kind in events.EventBase.__subclasses__()}
    assert set(kinds) == {
        "runStarted", "phase", "log", "itemFailed", "agentStarted", "agentProgress", "agentEnded", "runEnded",
        "runHeld", "runResumed", "runWaiting",
    }  # fmt: skip
    assert kinds["runEnded"] == {"number", "run_id", "at", "stop_reason", "failure", "agents_started"}
    assert {"seq", "label", "phase"} < kinds["agentStarted"]
    assert {"seq", "outcome", "reason"} < kinds["agentEnded"]


@pytest.mark.parametrize(
    ("source", "line", "words"),
    [
        ("def main(args):\n    raise ValueError('bad')\n", 2, "ValueError: bad"),
        ("def main(args):\n    raise ValueError\n", 2, "ValueError"),
        ("def main(args):\n    raise ValueError(main)\n", 2, "ValueError: <function main>"),
        ("def main(args):\n    raise ValueError('\\ud800')\n", 2, "ValueError: "),
        ("def main(args):\n    raise ValueError('x' * 100000)\n", 2, "ValueError: xxx"),
        ("def f(n):\n    return f(n + 1)\ndef main(args):\n    return f(0)\n", 2, "RecursionError"),
    ],
)
def test_what_a_script_throws_becomes_words_without_a_path(
    runner: asyncio.Runner, launcher: LentLauncher, source: str, line: int, words: str
) -> None:
    """Rendering is total: type, message, the script's own line."""

    async def play() -> Outcome[Any]:
        async with Host(providers={"default": never}) as host:
            launcher.lend_to(host)
            return await host.run(Script.from_text(source))

    failure = runner.run(play()).failure
    assert failure is not None
    assert (failure.code, failure.line) == (Code.SCRIPT_ERROR, line)
    assert failure.message.startswith(words)
    assert "/" not in failure.message
    assert ".py" not in failure.message
    assert len(failure.message) < 10_000
