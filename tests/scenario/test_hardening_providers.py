"""Providers are foreign code: whatever they raise, return, keep or call, the run ends typed and the host goes on."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from loopwarden import AgentFailed, AgentReply, AgentRequest, Code, Host, Limits, Outcome, Script, events

Reply = Callable[[AgentRequest], Awaitable[Any]]
LIMITS = Limits(agent_grace_seconds=0.1, max_frame_bytes=64 * 1024)
ASK = Script.from_text("def main(args):\n    return agent('p')\n")
SCHEMA = '{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}'
ASK_FOR_A_NUMBER = Script.from_text(f"def main(args):\n    return agent('p', schema={SCHEMA})\n")


class Mute(Exception):
    """An exception whose own text fails."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class Forgetful(AgentFailed):
    """A failure whose author forgot the base class."""

    def __init__(self) -> None:
        pass


class NotAnException(BaseException):
    """What a library in Rust raises when it panics."""


def raising(error: BaseException) -> Reply:
    """A provider that raises."""

    async def reply(request: AgentRequest) -> Any:
        raise error

    return reply


def returning(value: Any) -> Reply:
    """A provider that returns."""

    async def reply(request: AgentRequest) -> Any:
        return value

    return reply


def end_of(runner: asyncio.Runner, reply: Reply, script: Script[Any, Any] = ASK, **host: Any) -> Outcome[Any]:
    """The outcome of one run, which comes in time; afterwards the same host completes another run."""

    async def play() -> Outcome[Any]:
        async with Host(providers={"default": reply, "good": returning("good")}, limits=LIMITS, **host) as embedded:
            outcome = await asyncio.wait_for(embedded.run(script), 20)
            assert (await embedded.run(ASK, provider="good")).value == "good"
            return outcome

    return runner.run(play())


@pytest.mark.parametrize(
    "error",
    [
        SystemExit("a provider must not end the host"),
        GeneratorExit(),
        NotAnException("panic"),
        Mute(),
        asyncio.CancelledError(),
        asyncio.InvalidStateError(),
        StopAsyncIteration(),
        RuntimeError("x" * 5_000_000),
        RuntimeError("\ud800"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_a_provider_raises_is_its_fault_typed(runner: asyncio.Runner, error: BaseException) -> None:
    """AGENT_RESULT, in a sentence of bounded length that can be sent anywhere."""
    outcome = end_of(runner, raising(error))
    assert outcome.failure is not None
    assert outcome.failure.code is Code.AGENT_RESULT
    assert len(outcome.failure.message.encode()) < 20_000
    assert [agent.outcome for agent in outcome.receipt.agents] == ["failed"]


@pytest.mark.parametrize("error", [Forgetful(), AgentFailed(None), AgentFailed("no", notes=5)])  # type: ignore[arg-type]
def test_a_careless_failure_is_still_the_failure_of_the_agent(runner: asyncio.Runner, error: AgentFailed) -> None:
    """The script gets None, the receipt a reason in words."""
    outcome = end_of(runner, raising(error))
    assert (outcome.stop_reason, outcome.value) == ("completed", None)
    assert outcome.receipt.agents[0].reason
    outcome.receipt.to_json()


@pytest.mark.parametrize(
    "value",
    [
        AgentReply(text=5),  # type: ignore[arg-type]
        AgentReply(text="x" * 10_000_000),
        AgentReply(text="fine", notes=7),  # type: ignore[arg-type]
        AgentReply(value={"n": float("nan")}),
        AgentReply(value={"k" * 50_000: [1] * 5000}),
    ],
)
def test_an_odd_reply_ends_the_agent_and_not_the_run(runner: asyncio.Runner, value: AgentReply) -> None:
    """Failed or completed, it has its end and the run its own."""
    outcome = end_of(runner, returning(value))
    assert outcome.stop_reason == "completed"
    outcome.receipt.to_json()


def test_what_is_kept_of_a_huge_reply_is_capped(runner: asyncio.Runner, tmp_path: Path) -> None:
    """Also of a provider that is a function, whose text nobody capped before."""
    text = "é" * 200_000

    async def play() -> Path:
        limits = Limits(max_output_bytes=100_001, max_frame_bytes=64 * 1024)
        async with Host(providers={"default": returning(text)}, limits=limits, state_folder=tmp_path) as host:
            run = await host.start(ASK)
            assert (await run.wait()).value is None
            assert run.folder is not None
            return run.folder

    kept = (runner.run(play()) / "agents" / "0001" / "output.txt").read_bytes()
    assert kept.decode() == "é" * 50_000


def test_a_provider_that_changes_the_schema_of_its_request_is_checked_against_the_real_one(
    runner: asyncio.Runner,
) -> None:
    """The request holds a copy, so that neither the check nor the digest of the call follows."""

    async def mutate(request: AgentRequest) -> Any:
        assert request.schema is not None
        request.schema["properties"]["n"] = {"type": "string"}  # type: ignore[index, call-overload]
        request.schema["required"] = []
        return {"n": "no number"}

    async def honest(request: AgentRequest) -> Any:
        return {"n": "no number"}

    changed = end_of(runner, mutate, ASK_FOR_A_NUMBER)
    unchanged = end_of(runner, honest, ASK_FOR_A_NUMBER)
    assert changed.value is None
    assert changed.receipt.agents[0].digest == unchanged.receipt.agents[0].digest


def test_progress_may_come_from_a_thread_and_after_the_end(runner: asyncio.Runner) -> None:
    """It is heard on the host's own thread, and an agent that ended says nothing any more."""
    kept: list[Callable[[str], None]] = []

    async def reply(request: AgentRequest) -> str:
        heard = asyncio.Event()
        kept.append(request.progress)

        def work() -> None:
            request.progress("from a thread")
            loop.call_soon_threadsafe(heard.set)

        loop = asyncio.get_running_loop()
        thread = threading.Thread(target=work)
        thread.start()
        await heard.wait()
        thread.join()
        return "done"

    async def play() -> list[events.Event]:
        loop = asyncio.get_running_loop()
        loop.set_debug(True)  # In debug mode asyncio refuses calls from a thread that is not its own.
        try:
            async with Host(providers={"default": reply}) as host:
                run = await host.start(ASK)
                outcome = await asyncio.wait_for(run.wait(), 20)
                assert outcome.value == "done"
                kept[0]("too late")
                late = threading.Thread(target=kept[0], args=("too late, from a thread",))
                late.start()
                late.join()
                await asyncio.sleep(0)
                return [event async for event in run.events()]
        finally:
            loop.set_debug(False)

    seen = runner.run(play())
    assert [event.message for event in seen if isinstance(event, events.AgentProgress)] == ["from a thread"]
    assert isinstance(seen[-1], events.RunEnded)
    kept[0]("after the loop has moved on")


def test_an_interrupt_inside_a_provider_is_not_swallowed() -> None:
    """A person's Ctrl-C reaches the program; closing the host still ends the run."""
    ends: list[str] = []

    async def main() -> None:
        async with Host(providers={"default": raising(KeyboardInterrupt())}, limits=LIMITS) as host:
            run = await host.start(ASK)
            try:
                await run.wait()
            finally:
                ends.append("left")

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert ends == ["left"]
