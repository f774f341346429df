"""Agent programs that do what they should not: how each ends, and that nothing of any is left."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loopwarden.failure_class import FailureClass
from loopwarden.provider import AgentFailed, AgentReply
from loopwarden.providers.verdict import has_answered
from support import census
from support.agents import carrying, processes_below, request, until, wait_until
from support.toy_dialect import misbehaving

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
LIVES = [
    "hangs before its answer", "hangs in its answer", "hangs after its answer", "ignores TERM",
    "closes its output and lives", "writes 1 GB", "writes 1 GB in one line",
]  # fmt: skip
DEADLY = [
    number
    for number in signal.valid_signals()
    if number not in {signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH}
    and number not in {signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
]


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Path]:
    found = {name: tmp_path / name for name in ("program", "workspace", "agent")}
    for place in found.values():
        place.mkdir(mode=0o700)
    return found


@pytest.fixture(autouse=True)
def nothing_is_left(mark: str, places: dict[str, Path]) -> Iterator[None]:
    before = census.descendants(os.getpid()), census.descriptors()
    yield
    assert carrying("TEST_MARK", mark) == set()
    assert (census.descendants(os.getpid()), census.descriptors()) == before
    assert [path.name for path in places["agent"].iterdir() if path.name not in {"output.txt", "error.txt"}] == []


def start_host(places: dict[str, Path], mode: str, mark: str, cap: int) -> "subprocess.Popen[bytes]":
    tests = Path(__file__).parent.parent
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tests), *filter(None, sys.path)])}
    argv = [mode, mark, str(cap), *map(os.fspath, places.values())]
    program = [sys.executable, str(tests / "support" / "host_with_program.py")]
    return subprocess.Popen([*program, *argv], env=environment, stdout=subprocess.PIPE)


async def ask(mode: str, mark: str, places: dict[str, Path], **changes: Any) -> AgentReply:
    asked = request(places["workspace"], folder=places["agent"], schema=SCHEMA, **changes)
    return await misbehaving(places["program"], mode, mark).reply(asked)


def reply_of(mode: str, mark: str, places: dict[str, Path], **changes: Any) -> AgentReply:
    return asyncio.run(ask(mode, mark, places, **changes))


@pytest.mark.parametrize(
    "mode",
    [
        "leaves a process in another session", "leaves a daemon", "leaves a daemon without its environment",
        "leaves a process that holds its output open",
    ],
)  # fmt: skip
def test_an_agent_that_leaves_a_process_is_done_when_it_ended_itself(
    places: dict[str, Path], mark: str, mode: str
) -> None:
    reply = reply_of(mode, mark, places)
    assert reply.value == {"n": 1}
    assert reply.notes == ("a note", "it left 1 process behind, which the host ended")


@pytest.mark.parametrize("mode", ["writes single bytes", "prints two results", "does not read its prompt"])
def test_an_odd_way_to_answer_is_an_answer(places: dict[str, Path], mark: str, mode: str) -> None:
    reply = reply_of(mode, mark, places, prompt="p" * 500_000)
    assert (reply.text, reply.value, reply.notes) == ("done", {"n": 1}, ("a note",))


@pytest.mark.parametrize("mode", ["writes 1 GB", "writes 1 GB in one line"])
def test_an_agent_that_prints_too_much_is_ended_at_the_cap(places: dict[str, Path], mark: str, mode: str) -> None:
    with pytest.raises(AgentFailed, match=r"^toy was ended: it printed more than 3000000 bytes$") as caught:
        reply_of(mode, mark, places, max_output_bytes=3_000_000)
    assert caught.value.failure_class is FailureClass.INVALID_OUTPUT
    assert (places["agent"] / "output.txt").stat().st_size == 3_000_000


@pytest.mark.parametrize(
    ("mode", "how"),
    [
        ("writes 1 GB", "toy was ended: it printed more than 4000000 bytes"),
        ("writes 1 GB in one line", "toy was ended: it printed more than 4000000 bytes"),
        ("writes 200 MB of errors", "answered"),
    ],
)
def test_what_an_agent_prints_does_not_pile_up_in_memory(
    places: dict[str, Path], mark: str, mode: str, how: str
) -> None:
    """In a process of its own: the high-water mark of this one may lie above anything that happens here."""
    host = start_host(places, mode, mark, 4_000_000)
    output = host.communicate()[0].decode()
    assert output.split("\n")[0] == how
    assert int(output.split("\n")[1]) < 25


@pytest.mark.parametrize("mode", ["hangs before its answer", "hangs in its answer", "ignores TERM"])
def test_a_time_limit_ends_an_agent_that_hangs(places: dict[str, Path], mark: str, mode: str) -> None:
    async def scenario() -> None:
        task = asyncio.create_task(ask(mode, mark, places))
        await until((places["workspace"] / "up").exists)
        task.cancel()
        await task

    with pytest.raises((asyncio.CancelledError, AgentFailed)) as caught:
        asyncio.run(scenario())
    if mode == "hangs in its answer":
        assert isinstance(caught.value, AgentFailed)
        assert caught.value.failure_class is FailureClass.CANCELLED
        assert caught.value.usage is not None
        assert caught.value.usage.output_tokens == 7
        assert caught.value.notes[-1] == "its output held 1 line of JSON that is broken"
    else:
        assert isinstance(caught.value, asyncio.CancelledError)


@pytest.mark.parametrize("mode", ["hangs after its answer", "closes its output and lives"])
def test_an_agent_that_answers_and_does_not_end_says_so_when_it_is_ended(
    places: dict[str, Path], mark: str, mode: str
) -> None:
    async def scenario() -> None:
        task = asyncio.create_task(ask(mode, mark, places))
        await until((places["workspace"] / "up").exists)
        task.cancel()
        await task

    with pytest.raises(AgentFailed, match="toy had given an answer when the host ended it") as caught:
        asyncio.run(scenario())
    assert caught.value.failure_class is FailureClass.CANCELLED


@pytest.mark.parametrize("number", DEADLY, ids=lambda number: f"signal {int(number)}")
def test_an_answer_of_an_agent_that_dies_of_a_signal_does_not_count(
    places: dict[str, Path], mark: str, number: int
) -> None:
    name = re.escape(number.name if isinstance(number, signal.Signals) else str(number))
    with pytest.raises(AgentFailed, match=f"^toy gave an answer, and then was ended by signal {name}$") as caught:
        reply_of(f"dies of {int(number)}", mark, places)
    assert caught.value.failure_class is FailureClass.CRASHED


@pytest.mark.parametrize("mode", LIVES)
@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8, 13])
def test_a_cancellation_before_and_while_it_starts_leaves_nothing(
    places: dict[str, Path], mark: str, mode: str, turns: int
) -> None:
    async def scenario() -> None:
        task = asyncio.create_task(ask(mode, mark, places, prompt="p" * 200_000))
        for _ in range(turns):
            await asyncio.sleep(0.002)
        task.cancel()
        await task

    with pytest.raises((asyncio.CancelledError, AgentFailed)):
        asyncio.run(scenario())


@pytest.mark.parametrize("mode", LIVES)
@pytest.mark.parametrize("again", [1, 2, 3])
def test_a_cancellation_while_it_is_ended_leaves_nothing(
    places: dict[str, Path], mark: str, mode: str, again: int
) -> None:
    async def scenario() -> None:
        task = asyncio.create_task(ask(mode, mark, places, grace_seconds=60, max_output_bytes=2**40))
        await until((places["workspace"] / "up").exists)
        for _ in range(again + 1):
            task.cancel()
            await asyncio.sleep(0.001)
        await task

    with pytest.raises((asyncio.CancelledError, AgentFailed)):
        asyncio.run(scenario())


@pytest.mark.parametrize("mode", LIVES)
def test_an_event_loop_that_is_shut_down_leaves_nothing(places: dict[str, Path], mark: str, mode: str) -> None:
    async def scenario() -> None:
        tasks.append(asyncio.create_task(ask(mode, mark, places, max_output_bytes=2**40)))
        await until((places["workspace"] / "up").exists)

    tasks: list[asyncio.Task[AgentReply]] = []
    asyncio.run(scenario())
    assert tasks[0].done()
    assert tasks[0].cancelled() or isinstance(tasks[0].exception(), AgentFailed)


@pytest.mark.parametrize("mode", [*LIVES, "leaves a daemon without its environment"])
def test_a_host_that_is_killed_leaves_nothing(places: dict[str, Path], mark: str, mode: str) -> None:
    host = start_host(places, mode, mark, 2**40)
    try:
        assert wait_until((places["workspace"] / "up").exists)
        tree = processes_below(host.pid)
    finally:
        host.kill()
        host.communicate()
    assert wait_until(lambda: not carrying("TEST_MARK", mark))
    assert wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in tree))
    assert wait_until(lambda: not list(places["agent"].glob("home-*")))


@pytest.mark.parametrize("mode", ["hangs after its answer", "closes its output and lives"])
def test_the_answer_of_an_agent_that_does_not_end_is_taken_after_a_while(
    places: dict[str, Path], mark: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loopwarden.providers.overdue.LINGER_SECONDS", 0.1)
    reply = reply_of(mode, mark, places)
    assert reply.value == {"n": 1}
    assert "it did not end after its answer, so the host ended it" in reply.notes


@pytest.mark.parametrize("mode", ["hangs before its answer", "hangs in its answer"])
def test_an_agent_without_an_answer_is_not_ended_for_its_silence_by_that(
    places: dict[str, Path], mark: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loopwarden.providers.overdue.LINGER_SECONDS", 0.01)
    looks: list[bool] = []
    real = has_answered

    def look(reading: Any) -> bool:
        looks.append(real(reading))
        return looks[-1]

    monkeypatch.setattr("loopwarden.providers.driver.has_answered", look)

    async def scenario() -> None:
        task = asyncio.create_task(ask(mode, mark, places))
        await until(lambda: (places["workspace"] / "up").exists() and len(looks) >= 3)
        assert not task.done()
        task.cancel()
        await task

    with pytest.raises((asyncio.CancelledError, AgentFailed)):
        asyncio.run(scenario())
    assert not any(looks)
