"""Behaviours towards providers: foreign code that may return, raise or ignore anything, and cannot hold up a run."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from loopwarden import (
    AgentFailed,
    AgentReply,
    AgentRequest,
    Capabilities,
    Code,
    Host,
    Limits,
    Outcome,
    ProviderStartError,
    Run,
    Script,
    events,
)
from loopwarden.receipt import read_receipt
from support.lent_launcher import LentLauncher
from support.ticks import TickClock

Reply = Callable[[AgentRequest], Awaitable[Any]]
AGENT = "def main(args):\n    return agent('p')\n"
STRUCTURED = "def main(args):\n    return agent('p', schema={'type': 'object'})\n"


class Unprintable(Exception):
    """Its text cannot be had."""

    def __str__(self) -> str:
        raise ValueError("no text")


class Odd(BaseException):
    """No Exception, and no interrupt either."""


def raising(error: BaseException) -> Reply:
    """A provider that raises."""

    async def reply(request: AgentRequest) -> Any:
        raise error

    return reply


def giving(value: Any) -> Reply:
    """A provider that returns."""

    async def reply(request: AgentRequest) -> Any:
        return value

    return reply


async def never(request: AgentRequest) -> str:
    """A provider that waits until it is cancelled."""
    await asyncio.Event().wait()
    return "never"


def outcome_of(runner: asyncio.Runner, launcher: LentLauncher, reply: Any, state: Path, source: str) -> Outcome[Any]:
    """One run, whose receipt on disk can be read back."""

    async def play() -> Outcome[Any]:
        async with Host(providers={"default": reply}, state_folder=state) as host:
            launcher.lend_to(host)
            run = await host.start(Script.from_text(source))
            outcome = await asyncio.wait_for(run.wait(), 10)
            assert run.folder is not None
            assert read_receipt(run.folder / "receipt.json") == outcome.receipt
            return outcome

    return runner.run(play())


FAULTS: list[tuple[Reply, Code, str]] = [
    (raising(RuntimeError("boom")), Code.AGENT_RESULT, "it raised RuntimeError: boom"),
    (raising(RuntimeError()), Code.AGENT_RESULT, "it raised RuntimeError"),
    (raising(RuntimeError("\ud800")), Code.AGENT_RESULT, "it raised RuntimeError: ?"),
    (raising(Unprintable()), Code.AGENT_RESULT, "it raised Unprintable: (Unprintable, which cannot be shown)"),
    (raising(Odd("odd")), Code.AGENT_RESULT, "it raised Odd: odd"),
    (raising(ExceptionGroup("many", [ValueError("x")])), Code.AGENT_RESULT, "it raised ExceptionGroup: many"),
    (raising(TimeoutError()), Code.AGENT_RESULT, "it raised TimeoutError"),
    (raising(asyncio.CancelledError()), Code.AGENT_RESULT, "the provider cancelled its own call"),
    (raising(ProviderStartError("no program")), Code.AGENT_START, "no program"),
    (raising(ProviderStartError("\udfff")), Code.AGENT_START, "?"),
    (raising(ProviderStartError(None)), Code.AGENT_START, "None"),  # type: ignore[arg-type]
    (giving(None), Code.AGENT_RESULT, "it returned NoneType where a text, an object or an AgentReply is due"),
    (giving(b"bytes"), Code.AGENT_RESULT, "it returned bytes where"),
    (giving([1]), Code.AGENT_RESULT, "it returned list where"),
    (giving(5), Code.AGENT_RESULT, "it returned int where"),
]


@pytest.mark.parametrize(("reply", "code", "reason"), FAULTS, ids=[row[2][:40] for row in FAULTS])
def test_a_fault_of_a_provider_ends_the_run_typed_and_in_words(
    runner: asyncio.Runner, launcher: LentLauncher, tmp_path: Path, reply: Reply, code: Code, reason: str
) -> None:
    """Rendering what it raised cannot fail, and the agent has its one end."""
    outcome = outcome_of(runner, launcher, reply, tmp_path, AGENT)
    assert outcome.failure is not None
    assert outcome.failure.code is code
    assert reason in outcome.failure.message
    (agent,) = outcome.receipt.agents
    assert agent.outcome == "failed"
    assert (agent.reason or "").startswith(reason)


FAILED: list[tuple[Reply, str, str]] = [
    (raising(AgentFailed("why")), AGENT, "why"),
    (raising(AgentFailed("\ud800")), AGENT, "?"),
    (raising(AgentFailed(None)), AGENT, "None"),  # type: ignore[arg-type]
    (raising(AgentFailed("x" * 1_000_000)), AGENT, "x" * 3999 + "…"),
    (raising(AgentFailed("x", notes=(5, "\ud800"))), AGENT, "x"),  # type: ignore[arg-type]
    (raising(AgentFailed("x", notes=5)), AGENT, "x"),  # type: ignore[arg-type]
    (giving(AgentReply(text=None)), AGENT, "the text of the reply is not a text"),  # type: ignore[arg-type]
    (giving(AgentReply(text="\ud800")), AGENT, "the text of the reply holds a lone surrogate"),
    (giving({"a": 1}), AGENT, "the agent gave a structured value, but the call has no schema"),
    (giving("text"), STRUCTURED, "the agent gave no structured value"),
    (giving(AgentReply(text="\ud800")), STRUCTURED, "the agent gave no structured value"),
    (giving(AgentReply(value=[1])), STRUCTURED, "the structured value is not plain JSON"),  # type: ignore[arg-type]
    (giving({"a": {1}}), STRUCTURED, "the structured value is not plain JSON: value.a: set is not JSON data"),
    (giving({"a": float("nan")}), STRUCTURED, "the structured value is not plain JSON: value.a: nan"),
    (giving({1: 2}), STRUCTURED, "the structured value is not plain JSON: value: a key of type int"),
    (giving({"k" * 100_000: {1}}), STRUCTURED, "the structured value is not plain JSON"),
]


@pytest.mark.parametrize(("reply", "source", "reason"), FAILED, ids=[row[2][:40] for row in FAILED])
def test_a_reply_that_cannot_be_used_is_a_failed_child_with_its_reason(
    runner: asyncio.Runner, launcher: LentLauncher, tmp_path: Path, reply: Reply, source: str, reason: str
) -> None:
    """None for the script, words for the reader, bounded and readable on disk."""
    outcome = outcome_of(runner, launcher, reply, tmp_path, source)
    assert outcome.stop_reason == "completed"
    assert outcome.value is None
    (agent,) = outcome.receipt.agents
    assert agent.outcome == "failed"
    assert (agent.reason or "").startswith(reason)
    assert len(agent.reason or "") <= 4000


def test_what_stands_beside_a_structured_value_cannot_spoil_it(
    runner: asyncio.Runner, launcher: LentLauncher, tmp_path: Path
) -> None:
    """Text and notes are for people."""
    reply = AgentReply(text=b"no text", value={"n": 1}, notes=(object(), "\udc00"))  # type: ignore[arg-type]
    outcome = outcome_of(runner, launcher, giving(reply), tmp_path, STRUCTURED)
    assert outcome.value == {"n": 1}
    assert outcome.receipt.agents[0].notes[1] == "?"


def test_a_delivered_value_is_a_copy(runner: asyncio.Runner, launcher: LentLauncher, tmp_path: Path) -> None:
    """What a provider changes later has no effect, neither on the script nor on the facts of the host."""
    value: dict[str, Any] = {"n": [1]}

    async def reply(request: AgentRequest) -> Any:
        value["n"].append(2)
        return value

    source = "def main(args):\n    s = {'type': 'object'}\n    return [agent('a', schema=s), agent('b', schema=s)]\n"
    outcome = outcome_of(runner, launcher, reply, tmp_path, source)
    assert outcome.value == [{"n": [1, 2]}, {"n": [1, 2, 2]}]


def test_a_provider_that_fails_while_it_winds_down_changes_nothing(
    runner: asyncio.Runner, launcher: LentLauncher, tmp_path: Path
) -> None:
    """Its agent was cancelled with the run; what it raises then is not heard."""

    async def reply(request: AgentRequest) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise Unprintable from None
        return "never"

    async def play() -> Outcome[Any]:
        async with Host(providers={"default": reply}, state_folder=tmp_path) as host:
            launcher.lend_to(host)
            run = await host.start(Script.from_text(AGENT))
            await until_started(run, 1)
            run.cancel("enough")
            return await asyncio.wait_for(run.wait(), 10)

    outcome = runner.run(play())
    assert outcome.stop_reason == "cancelled"
    assert [(agent.outcome, agent.reason) for agent in outcome.receipt.agents] == [("cancelled", "the run ended")]


async def until_started(run: Run[Any], agents: int) -> None:
    """Wait until that many agents have started."""
    async for event in run.events():
        if isinstance(event, events.AgentStarted) and event.seq >= agents:
            return


STREAMS = Capabilities(streams=True)


@dataclass
class Streaming:
    """A provider whose agents say what they do, `words` times, one second apart."""

    clock: TickClock
    words: int
    capabilities: Capabilities = STREAMS

    async def reply(self, request: AgentRequest) -> str:
        """Report, then fall silent."""
        for number in range(1, self.words + 1):
            self.clock.call_later(number, lambda: request.progress("working"))
        await asyncio.Event().wait()
        return "never"


@pytest.mark.parametrize(("words", "silent_at"), [(0, 5), (3, 8)])
def test_silence_is_measured_for_the_agents_that_stream_beside_others_that_do_not(
    runner: asyncio.Runner, launcher: LentLauncher, words: int, silent_at: int
) -> None:
    """A provider that started earlier and may take longer does not put off the look at the silent one."""
    clock = TickClock()
    source = "def main(args):\n    return parallel([lambda: agent('a'), lambda: agent('b', provider='s')])\n"

    async def play() -> Outcome[Any]:
        limits = Limits(agent_idle_seconds=5, agent_timeout_seconds=50)
        providers: dict[str, Any] = {"default": never, "s": Streaming(clock, words)}
        async with Host(providers=providers, limits=limits, clock=clock) as host:
            launcher.lend_to(host)
            run = await host.start(Script.from_text(source))
            await until_started(run, 2)
            while not run.is_over:
                for _ in range(20):
                    await asyncio.sleep(0)
                if run.agents_started == 2 and run._session.is_waiting:
                    clock.tick()
                assert clock.ticks < 200
            return await run.wait()

    slow, silent = runner.run(play()).receipt.agents
    assert silent.reason == "it was silent for longer than agentIdleSeconds allows, 5 s"
    assert silent.seconds == silent_at
    assert slow.reason == "it took longer than agentTimeoutSeconds allows, 50 s"
    assert slow.seconds == 50


def test_what_was_charged_is_what_the_provider_was_asked(runner: asyncio.Runner, launcher: LentLauncher) -> None:
    """Also when the call that breaks the cap comes in the same breath as those before it."""
    asked: list[int] = []

    async def reply(request: AgentRequest) -> str:
        asked.append(request.seq)
        await asyncio.Event().wait()
        return "never"

    async def play() -> Outcome[Any]:
        async with Host(providers={"default": reply}) as host:
            launcher.lend_to(host)
            source = "def main(args):\n    return parallel([lambda: agent('p')] * 9)\n"
            return await host.run(Script.from_text(source), max_total_agents=4)

    outcome = runner.run(play())
    assert outcome.failure is not None
    assert outcome.failure.code is Code.AGENT_CAP
    assert asked == [1, 2, 3, 4]
    assert outcome.agents_started == 4


def test_slots_of_the_host_are_shared_by_its_runs_first_come_first_served(
    runner: asyncio.Runner, launcher: LentLauncher
) -> None:
    """`maxLiveAgents` holds over all runs, and a run that ends gives its slots to those that wait."""
    live = most = 0
    release = asyncio.Event()

    async def reply(request: AgentRequest) -> str:
        nonlocal live, most
        live += 1
        most = max(most, live)
        try:
            await release.wait()
        finally:
            live -= 1
        return request.prompt

    async def play() -> tuple[Outcome[Any], Outcome[Any]]:
        async with Host(providers={"default": reply}, limits=Limits(max_live_agents=3)) as host:
            launcher.lend_to(host)
            source = "def main(args):\n    return parallel([lambda i=i: agent('p' + str(i)) for i in range(5)])\n"
            first = await host.start(Script.from_text(source))
            await until_started(first, 3)
            second = await host.start(Script.from_text(source))
            first.cancel("make room")
            await until_started(second, 3)
            release.set()
            return await first.wait(), await second.wait()

    first, second = runner.run(play())
    assert (first.stop_reason, first.agents_started) == ("cancelled", 3)
    assert second.value == [f"p{i}" for i in range(5)]
    assert most == 3
