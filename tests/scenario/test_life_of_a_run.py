"""Promise 6: every stop ends a run once, pairs its events, and leaves no process and no descriptor behind."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from loopwarden import (
    AgentReply,
    AgentRequest,
    Code,
    Host,
    Limits,
    Outcome,
    ProviderStartError,
    Run,
    Script,
    attendance,
    events,
)
from support.census import descendants, descriptors

Reply = Callable[[AgentRequest], Awaitable[Any]]
Poke = Callable[[Host, Run[Any]], Awaitable[None]]

LIMITS = Limits(
    max_total_agents=3,
    max_items_per_call=5,
    max_narration=20,
    cpu_seconds_per_turn=0.3,
    memory_bytes=128 * 1024 * 1024,
    agent_grace_seconds=0.2,
)


async def prompt_reply(request: AgentRequest) -> str:
    """Answer at once."""
    return f"reply to {request.prompt}"


async def never(request: AgentRequest) -> str:
    """Never answer; go when told to."""
    await asyncio.Event().wait()
    return "never"


async def stubborn(request: AgentRequest) -> str:
    """Never answer, and go only when told a second time, which the test's event loop does when it is closed."""
    for _ in range(2):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0.05)
    return "too late"


async def cannot_start(request: AgentRequest) -> str:
    """Refuse to start."""
    raise ProviderStartError("the program does not exist")


async def breaks(request: AgentRequest) -> str:
    """Raise what no provider should raise."""
    raise RuntimeError("boom")


async def no_reply(request: AgentRequest) -> Any:
    """Return nothing."""
    return


async def nothing(host: Host, run: Run[Any]) -> None:
    """Leave the run alone."""


async def cancel_now(host: Host, run: Run[Any]) -> None:
    """Cancel before go: `start` has returned, no other callback ran yet."""
    run.cancel("before go")


async def until_started(run: Run[Any], agents: int = 1) -> None:
    """Wait until that many agents have started."""
    async for event in run.events():
        if isinstance(event, events.AgentStarted) and event.seq >= agents:
            return


async def cancel_with_agents(host: Host, run: Run[Any]) -> None:
    """Cancel while an agent runs."""
    await until_started(run)
    run.cancel("enough")
    run.cancel("a second reason is not heard")


async def cancel_spinning(host: Host, run: Run[Any]) -> None:
    """Cancel while the script computes: it said so in its log."""
    async for event in run.events():
        if isinstance(event, events.Log):
            run.cancel("enough")
            return


async def kill_worker(host: Host, run: Run[Any]) -> None:
    """Kill the worker from outside."""
    await until_started(run)
    os.kill(run._session.worker.pid, signal.SIGKILL)


async def kill_launcher(host: Host, run: Run[Any]) -> None:
    """Kill the launcher from outside."""
    await until_started(run)
    assert host._launcher is not None
    os.kill(host._launcher._process.pid, signal.SIGKILL)


async def close_host(host: Host, run: Run[Any]) -> None:
    """Close the host with the run alive."""
    await until_started(run)
    await host.close()


CAP_INSIDE = """
def main(args):
    try:
        return parallel([lambda: agent("p")] * 5)
    except BaseException:
        return "caught"
"""
MEMORY = """
def main(args):
    x = []
    while True:
        x.append("a" * 1000000 + str(len(x)))
"""
FAN_OUT = "def main(args):\n    return parallel([lambda: agent('p')] * 3)\n"
SPIN = """
def main(args):
    log("spinning")
    while True:
        try:
            while True:
                pass
        except BaseException:
            pass
"""
AGENT = "def main(args):\n    return agent('p')\n"
STOPS: dict[str, tuple[str, Reply, Poke, str | Code, int]] = {
    "return": ("def main(args):\n    return agent('p')\n", prompt_reply, nothing, "completed", 1),
    "script error": (
        "def main(args):\n    agent('p')\n    return 1 / 0\n",
        prompt_reply,
        nothing,
        Code.SCRIPT_ERROR,
        1,
    ),
    "invalid argument": (
        "def main(args):\n    agent('p')\n    agent('')\n",
        prompt_reply,
        nothing,
        Code.INVALID_ARGUMENT,
        1,
    ),
    "unsupported option": (
        "def main(args):\n    agent('p', retries=3)\n",
        prompt_reply,
        nothing,
        Code.UNSUPPORTED_OPTION,
        0,
    ),
    "unsupported schema": (
        "def main(args):\n    agent('p', schema={'type': 'array'})\n",
        prompt_reply,
        nothing,
        Code.UNSUPPORTED_SCHEMA,
        0,
    ),
    "agent cap": (
        "def main(args):\n    for i in range(9):\n        agent('p')\n",
        prompt_reply,
        nothing,
        Code.AGENT_CAP,
        3,
    ),
    "agent cap inside parallel inside try": (
        CAP_INSIDE,
        never,
        nothing,
        Code.AGENT_CAP,
        3,
    ),
    "item cap": ("def main(args):\n    parallel([lambda: 1] * 6)\n", prompt_reply, nothing, Code.ITEM_CAP, 0),
    "start refused by provider": (AGENT, cannot_start, nothing, Code.AGENT_START, 1),
    "unknown provider": ("def main(args):\n    agent('p', provider='x')\n", prompt_reply, nothing, Code.AGENT_START, 0),
    "provider breaks": (AGENT, breaks, nothing, Code.AGENT_RESULT, 1),
    "provider returns nothing": (AGENT, no_reply, nothing, Code.AGENT_RESULT, 1),
    "result is no data": ("def main(args):\n    return {'a': {1, 2}}\n", prompt_reply, nothing, Code.RESULT_INVALID, 0),
    "cancel before go": (
        "def main(args):\n    log('ran')\n    while True:\n        pass\n",
        prompt_reply,
        cancel_now,
        Code.CANCELLED,
        0,
    ),
    "cancel while spinning": (
        SPIN,
        prompt_reply,
        cancel_spinning,
        Code.CANCELLED,
        0,
    ),
    "cancel while agents run": (FAN_OUT, never, cancel_with_agents, Code.CANCELLED, 3),
    "cancel with a stubborn provider": (AGENT, stubborn, cancel_with_agents, Code.CANCELLED, 1),
    "cpu limit": ("def main(args):\n    while True:\n        pass\n", prompt_reply, nothing, Code.CPU_LIMIT, 0),
    "cpu limit in the module body": (
        "while True:\n    pass\ndef main(args):\n    return 1\n",
        prompt_reply,
        nothing,
        Code.CPU_LIMIT,
        0,
    ),
    "memory limit": (MEMORY, prompt_reply, nothing, Code.MEMORY_LIMIT, 0),
    "narration limit": (
        "def main(args):\n    for i in range(99):\n        log('x')\n",
        prompt_reply,
        nothing,
        Code.NARRATION_LIMIT,
        0,
    ),
    "worker killed": (AGENT, never, kill_worker, Code.WORKER_LOST, 1),
    "launcher killed": (AGENT, never, kill_launcher, Code.WORKER_LOST, 1),
    "host closed": (AGENT, never, close_host, Code.CANCELLED, 1),
}


@pytest.mark.parametrize("name", STOPS)
def test_every_stop_ends_once_and_leaves_nothing_behind(
    name: str, runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outcome, events, processes and descriptors after each kind of end."""
    monkeypatch.setattr(attendance, "ABANDON_SECONDS", 0.2)
    source, reply, poke, ending, agents = STOPS[name]
    before = descriptors(), descendants(os.getpid())

    async def play() -> tuple[Outcome[Any], list[events.Event], set[int]]:
        async with Host(providers={"default": reply}, limits=LIMITS) as host:
            run = await host.start(Script.from_text(source))
            await poke(host, run)
            outcome = await asyncio.wait_for(run.wait(), 20)
            left = descendants(os.getpid())
            if host._launcher is not None:
                left.discard(host._launcher._process.pid)
            assert (await run.wait()) is outcome
            run.cancel("too late")
            assert (await run.wait()) is outcome
            return outcome, [event async for event in run.events()], left

    outcome, seen, left = runner.run(play())
    assert left - before[1] == set()
    assert descriptors() == before[0]
    assert descendants(os.getpid()) == before[1]
    if ending == "completed":
        assert outcome.failure is None
    else:
        assert outcome.failure is not None
        assert outcome.failure.code is ending
    assert outcome.agents_started == agents
    assert_well_formed(seen, agents)
    assert outcome.receipt.agents_started == agents
    assert [record.outcome for record in outcome.receipt.agents].count(None) == 0


def assert_well_formed(seen: list[events.Event], agents: int) -> None:
    """One start first, one end last, numbers without a gap, every agent paired."""
    assert [event.number for event in seen] == list(range(1, len(seen) + 1))
    kinds = [event.kind for event in seen]
    assert (kinds[0], kinds[-1]) == ("runStarted", "runEnded")
    assert (kinds.count("runStarted"), kinds.count("runEnded")) == (1, 1)
    started = [event.seq for event in seen if isinstance(event, events.AgentStarted)]
    ended = [event.seq for event in seen if isinstance(event, events.AgentEnded)]
    assert sorted(started) == sorted(ended) == list(range(1, agents + 1))


def test_cancel_before_go_never_runs_the_body(runner: asyncio.Runner) -> None:
    """The log line of the body does not appear."""

    async def play() -> list[events.Event]:
        async with Host(providers={"default": prompt_reply}) as host:
            run = await host.start(Script.from_text("def main(args):\n    log('ran')\n    return 1\n"))
            run.cancel("no")
            await run.wait()
            return [event async for event in run.events()]

    assert [event.kind for event in runner.run(play())] == ["runStarted", "runEnded"]


def test_a_provider_that_never_ends_is_left_alone_after_its_grace(
    runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent's end is recorded; a task that ignores its cancellation cannot hold up the run for ever."""
    monkeypatch.setattr(attendance, "ABANDON_SECONDS", 0.2)
    release = asyncio.Event()

    async def immortal(request: AgentRequest) -> str:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return "at last"

    async def play() -> Outcome[Any]:
        limits = Limits(agent_grace_seconds=0.0)
        async with Host(providers={"default": immortal}, limits=limits) as host:
            run = await host.start(Script.from_text(AGENT))
            await until_started(run)
            run.cancel("enough")
            outcome = await asyncio.wait_for(run.wait(), 10)
        release.set()
        await asyncio.sleep(0)
        return outcome

    outcome = runner.run(play())
    assert outcome.stop_reason == "cancelled"
    assert [record.outcome for record in outcome.receipt.agents] == ["cancelled"]


def test_an_agent_that_takes_too_long_is_a_failed_child(runner: asyncio.Runner) -> None:
    """agentTimeoutSeconds makes the call None, with its reason in the receipt; the run goes on."""

    async def play() -> Outcome[Any]:
        async with Host(providers={"default": never}) as host:
            source = "def main(args):\n    return [agent('p'), 'after']\n"
            return await host.run(Script.from_text(source), agent_timeout_seconds=0.05)

    outcome = runner.run(play())
    assert outcome.value == [None, "after"]
    record = outcome.receipt.agents[0]
    assert record.outcome == "failed"
    assert record.reason == "it took longer than agentTimeoutSeconds allows, 0.05 s"


def test_cancelling_the_caller_of_run_cancels_the_run(runner: asyncio.Runner) -> None:
    """`host.run` owns its run."""

    async def play() -> list[Run[Any]]:
        async with Host(providers={"default": never}) as host:
            caller = asyncio.create_task(host.run(Script.from_text(AGENT)))
            while not host.runs() or host.runs()[0].agents_started == 0:
                await asyncio.sleep(0.001)
            caller.cancel()
            with pytest.raises(asyncio.CancelledError):
                await caller
            return host.runs()

    (run,) = runner.run(play())
    assert run.is_over
    assert run.receipt().stop_reason == "cancelled"


def test_after_the_launcher_died_the_next_run_gets_a_new_one(runner: asyncio.Runner) -> None:
    """Its death ends live runs; it is no reason to restart the host."""

    async def play() -> Outcome[Any]:
        async with Host(providers={"default": never}) as host:
            run = await host.start(Script.from_text(AGENT))
            await kill_launcher(host, run)
            await run.wait()
            return await host.run(Script.from_text("def main(args):\n    return 2\n"))

    assert runner.run(play()).value == 2


def test_a_script_that_returns_with_agents_in_flight_ends_them(runner: asyncio.Runner) -> None:
    """Fan-out is a barrier, so this takes a failing sibling: its agents are cancelled, and each has its end."""

    async def mixed(request: AgentRequest) -> AgentReply:
        if request.prompt == "bad":
            raise ProviderStartError("no")
        await asyncio.Event().wait()
        return AgentReply(text="never")

    async def play() -> Outcome[Any]:
        async with Host(providers={"default": mixed}) as host:
            source = "def main(args):\n    return parallel([lambda: agent('good'), lambda: agent('bad')])\n"
            return await host.run(Script.from_text(source))

    outcome = runner.run(play())
    assert [record.outcome for record in outcome.receipt.agents] == ["cancelled", "failed"]
