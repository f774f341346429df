"""How conversations with ACP agents end: late, cancelled, handed over. Nothing is left of any."""

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from loopwarden.provider import AgentFailed, AgentReply, ProviderStartError
from loopwarden.usage import Usage
from support import census
from support.acp_lab import Lab, leaving_nothing
from support.agents import carrying, until, wait_until

HANDED_OVER = "its time was nearly over, so it was asked to hand over"
LIVES = ["hangs", "is deaf", "hangs at once", "closes its output", "floods", "lingers"]


@pytest.fixture
def lab(tmp_path: Path, mark: str, caplog: pytest.LogCaptureFixture) -> Iterator[Lab]:
    with leaving_nothing(mark, caplog):
        yield Lab(tmp_path, mark)


# ---- after the answer


def test_an_agent_that_leaves_late_gave_its_answer(lab: Lab) -> None:
    reply = asyncio.run(lab.ask("leaves late"))
    assert reply.value == {"n": 1}
    assert reply.notes[1:] == ("after its answer it ended with exit 7",)


def test_an_agent_that_does_not_leave_is_ended(lab: Lab) -> None:
    reply = asyncio.run(lab.ask("lingers", grace_seconds=0.1))
    assert reply.value == {"n": 1}
    assert reply.notes[1:] == ("it did not end when its input was closed, and was ended by the host",)


def test_a_grandchild_that_is_left_behind_is_ended(lab: Lab) -> None:
    reply = asyncio.run(lab.ask("leaves a grandchild"))
    assert reply.value == {"n": 1}
    assert reply.notes[1:] == ("it left 1 process behind, which the host ended",)


def test_twenty_agents_at_once_leave_no_descriptor(lab: Lab) -> None:
    async def scenario() -> list[AgentReply]:
        await lab.ask("answers")
        before = census.descriptors()
        replies = await asyncio.gather(*(lab.ask("answers") for _ in range(20)))
        assert census.descriptors() == before
        return replies

    assert [reply.value for reply in asyncio.run(scenario())] == [{"n": 1}] * 20


@pytest.mark.parametrize("mode", ["answers", "dies", "prints garbage", "speaks another version", "asks for a file"])
def test_no_task_is_left_when_the_reply_is_there(lab: Lab, mode: str) -> None:
    async def scenario() -> None:
        with contextlib.suppress(AgentFailed, ProviderStartError):
            await lab.ask(mode, wrap_up=asyncio.Event())
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())


@pytest.mark.parametrize("mode", LIVES)
def test_no_task_is_left_when_the_cancellation_comes_through(lab: Lab, mode: str) -> None:
    async def scenario() -> None:
        task = asyncio.create_task(lab.ask(mode, grace_seconds=0.1, max_output_bytes=2**40, wrap_up=asyncio.Event()))
        await until(lambda: lab.is_up or len(lab.progress) > 0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() or isinstance(task.exception(), AgentFailed)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())


# ---- handing over


async def wrapped_up(lab: Lab, mode: str, *arguments: str, **changes: object) -> AgentReply:
    bell = asyncio.Event()
    task = asyncio.create_task(lab.ask(mode, *arguments, wrap_up=bell, **changes))
    await until(lambda: lab.is_up)
    bell.set()
    return await task


def test_an_agent_whose_time_is_nearly_over_hands_over_in_the_same_session(lab: Lab) -> None:
    reply = asyncio.run(wrapped_up(lab, "hands over"))
    assert reply.value == {"n": 2}
    assert reply.text == '{"n": 2}'
    assert HANDED_OVER in reply.notes
    assert [message["method"] for message in lab.heard()[2:]] == ["session/prompt", "session/cancel", "session/prompt"]
    first, second = lab.heard("session/prompt")
    assert second["params"]["sessionId"] == first["params"]["sessionId"]
    [block] = second["params"]["prompt"]
    assert block["text"].startswith("Time is nearly over. Stop working and hand over now: ")
    assert "JSON Schema" in block["text"]


def test_an_agent_that_answers_a_cancelled_turn_with_an_error_still_hands_over(lab: Lab) -> None:
    assert asyncio.run(wrapped_up(lab, "hands over after an error")).value == {"n": 1}


def test_an_answer_that_was_done_when_it_was_cancelled_is_taken(lab: Lab) -> None:
    assert asyncio.run(wrapped_up(lab, "is done when cancelled")).value == {"n": 1}
    assert len(lab.heard("session/prompt")) == 1


def test_permissions_of_a_turn_that_is_ended_are_answered_with_cancelled(lab: Lab) -> None:
    reply = asyncio.run(wrapped_up(lab, "asks while cancelled", schema=None))
    assert reply.text == "handed over"
    [answered] = [message["result"] for message in lab.heard() if message.get("id") == "ask-1"]
    assert answered == {"outcome": {"outcome": "cancelled"}}
    assert "1 request for permission answered with cancelled, outside of a turn that goes on" in reply.notes


def test_a_bell_that_rang_before_the_turn_is_heard(lab: Lab) -> None:
    async def scenario() -> AgentReply:
        bell = asyncio.Event()
        bell.set()
        return await lab.ask("hands over", wrap_up=bell)

    assert asyncio.run(scenario()).value == {"n": 2}


def test_the_usage_of_both_turns_is_summed_and_the_cost_of_the_session_is_not(lab: Lab) -> None:
    reply = asyncio.run(wrapped_up(lab, "says its usage", "late", schema=None))
    assert reply.usage == Usage(input_tokens=220, cached_input_tokens=200, output_tokens=14, cost_usd=0.5)


def test_an_agent_that_ends_in_time_is_not_asked_to_hand_over(lab: Lab) -> None:
    reply = asyncio.run(lab.ask("answers", wrap_up=asyncio.Event()))
    assert HANDED_OVER not in reply.notes


# ---- cancelled


def test_a_cancelled_agent_is_told_first_and_ends_its_turn(lab: Lab) -> None:
    async def scenario() -> float:
        task = asyncio.create_task(lab.ask("hangs", grace_seconds=30))
        await until(lambda: lab.is_up)
        began = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return time.monotonic() - began

    assert asyncio.run(scenario()) < 10
    assert len(lab.heard("session/cancel")) == 1


@pytest.mark.parametrize("mode", LIVES)
def test_a_cancellation_in_the_middle_leaves_nothing(lab: Lab, mode: str) -> None:
    async def scenario() -> None:
        task = asyncio.create_task(lab.ask(mode, grace_seconds=0.1, max_output_bytes=2**40))
        await until(lambda: lab.is_up or len(lab.progress) > 0)
        task.cancel()
        await task

    with pytest.raises((asyncio.CancelledError, AgentFailed)):
        asyncio.run(scenario())


@pytest.mark.parametrize("mode", LIVES)
@pytest.mark.parametrize("again", [1, 2, 3])
def test_a_second_cancellation_cuts_the_grace_and_leaves_nothing(lab: Lab, mode: str, again: int) -> None:
    async def scenario() -> None:
        task = asyncio.create_task(lab.ask(mode, grace_seconds=60, max_output_bytes=2**40))
        await until(lambda: lab.is_up or len(lab.progress) > 0)
        for _ in range(again + 1):
            task.cancel()
            await asyncio.sleep(0.001)
        await task

    with pytest.raises((asyncio.CancelledError, AgentFailed)):
        asyncio.run(scenario())


@pytest.mark.parametrize("pause_milliseconds", [0, 2, 10, 20, 30, 40, 60, 80, 120])
@pytest.mark.parametrize("mode", ["answers", "hangs"])
def test_a_cancellation_at_any_moment_leaves_nothing(lab: Lab, mode: str, pause_milliseconds: int) -> None:
    async def scenario() -> None:
        task = asyncio.create_task(lab.ask(mode, grace_seconds=0.1))
        await asyncio.sleep(pause_milliseconds / 1000)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() or isinstance(task.exception(), AgentFailed | None)

    asyncio.run(scenario())


@pytest.mark.parametrize("mode", LIVES)
def test_an_event_loop_that_is_shut_down_leaves_nothing(lab: Lab, mode: str) -> None:
    async def scenario() -> None:
        tasks.append(asyncio.create_task(lab.ask(mode, grace_seconds=0.1, max_output_bytes=2**40)))
        await until(lambda: lab.is_up or len(lab.progress) > 0)

    tasks: list[asyncio.Task[AgentReply]] = []
    asyncio.run(scenario())
    assert tasks[0].done()
    assert tasks[0].cancelled() or isinstance(tasks[0].exception(), AgentFailed)


@pytest.mark.parametrize("mode", ["hangs", "is deaf"])
def test_a_host_that_is_killed_leaves_neither_processes_nor_a_home(
    lab: Lab, tmp_path: Path, mark: str, mode: str
) -> None:
    code = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from support.acp_lab import Lab\n"
        "workspace, mark, mode = sys.argv[1:]\n"
        "asyncio.run(Lab(Path(workspace), mark).ask(mode, folder=Path(workspace), grace_seconds=0.1))\n"
    )
    tests = os.fspath(Path(__file__).parent.parent)
    host = subprocess.Popen(
        [sys.executable, "-c", code, os.fspath(tmp_path), mark, mode],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([tests, *filter(None, sys.path)])},
    )
    try:
        assert wait_until(lambda: lab.is_up)
        assert list(tmp_path.glob("home-*")) != []
    finally:
        host.kill()
        host.wait()
    assert wait_until(lambda: not carrying("TEST_MARK", mark))
    assert wait_until(lambda: not list(tmp_path.glob("home-*")))
