"""The streams of a supervised program: what it says is passed on as it comes, and it can be spoken to."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from loopwarden.providers import streams
from loopwarden.providers.process import Ending, Program, SupervisedProcess
from loopwarden.providers.streams import InputNotTaken
from support.agents import carrying, descendants, until

REPEATS = 'while read line; do echo "got $line"; done; echo over'


def program(folder: Path, script: str, mark: str, **changes: Any) -> Program:
    fields: dict[str, Any] = {
        "what": "agent program",
        "argv": ["sh", "-c", script],
        "folder": folder,
        "environment": {"PATH": os.environ["PATH"], "TEST_MARK": mark},
        "stdin": None,
        "grace_seconds": 0.15,
        "max_output_bytes": 1_000_000,
        "keep_output": False,
    }
    return Program(**(fields | changes))


def test_each_stream_is_passed_on_while_the_program_runs(tmp_path: Path, mark: str) -> None:
    heard: dict[str, bytearray] = {"output": bytearray(), "errors": bytearray()}

    async def scenario() -> Ending:
        script = "echo one; echo two >&2; until [ -e go ]; do sleep 0.01; done; echo three"
        callbacks = {"on_output": heard["output"].extend, "on_errors": heard["errors"].extend}
        process = await SupervisedProcess.start(program(tmp_path, script, mark, **callbacks))
        await until(lambda: heard == {"output": b"one\n", "errors": b"two\n"})
        (tmp_path / "go").touch()
        return await process.wait()

    assert asyncio.run(scenario()).exit == 0
    assert heard == {"output": b"one\nthree\n", "errors": b"two\n"}


def test_late_output_is_passed_on_before_the_end_is_told(tmp_path: Path, mark: str) -> None:
    """The loop is kept busy while the program ends, so that its end and its output are seen in the same turn."""
    heard = bytearray()

    async def scenario() -> None:
        process = await SupervisedProcess.start(
            program(tmp_path, "head -c 60000 /dev/zero", mark, on_output=heard.extend)
        )
        pid = process.pid
        while Path(f"/proc/{pid}").exists():
            pass
        await process.wait()
        assert len(heard) == 60_000

    asyncio.run(scenario())


def test_no_more_than_the_cap_is_passed_on(tmp_path: Path, mark: str) -> None:
    heard = bytearray()

    async def scenario() -> Ending:
        changes: dict[str, Any] = {"on_output": heard.extend, "max_output_bytes": 100_001}
        return await (await SupervisedProcess.start(program(tmp_path, "cat /dev/zero", mark, **changes))).wait()

    ending = asyncio.run(scenario())
    assert ending.output_excess
    assert len(heard) == 100_001


@pytest.mark.parametrize("stream", ["on_output", "on_errors"])
def test_a_listener_that_raises_ends_the_program_and_is_told_so(tmp_path: Path, mark: str, stream: str) -> None:
    calls = []

    def listen(data: bytes) -> None:
        calls.append(data)
        raise ZeroDivisionError("broken listener")

    async def scenario() -> None:
        script = "while :; do echo x; echo y >&2; sleep 0.01; done"
        process = await SupervisedProcess.start(program(tmp_path, script, mark, **{stream: listen}))
        with pytest.raises(ZeroDivisionError, match="broken listener"):
            await process.wait()

    before, descriptors = descendants(), len(os.listdir("/proc/self/fd"))
    asyncio.run(scenario())
    assert len(calls) == 1
    assert carrying("TEST_MARK", mark) == set()
    assert (descendants(), len(os.listdir("/proc/self/fd"))) == (before, descriptors)


def test_a_program_can_be_spoken_to_and_its_input_ended(tmp_path: Path, mark: str) -> None:
    heard = bytearray()

    async def scenario() -> Ending:
        process = await SupervisedProcess.start(
            program(tmp_path, REPEATS, mark, stdin=b"hello\n", keep_stdin_open=True, on_output=heard.extend)
        )
        await until(lambda: heard == b"got hello\n")
        process.write(b"a\nb")
        await until(lambda: heard == b"got hello\ngot a\n")
        process.write(b"c\n" + b"long" * 50_000 + b"\n")
        process.close_stdin()
        process.close_stdin()
        with pytest.raises(InputNotTaken, match="does not read its input any more"):
            process.write(b"too late")
        return await process.wait()

    assert asyncio.run(scenario()).exit == 0
    assert heard == b"got hello\ngot a\ngot bc\ngot " + b"long" * 50_000 + b"\nover\n"


def test_a_program_that_does_not_read_makes_the_writer_fail_at_a_cap(
    tmp_path: Path, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "INPUT_WAITING_BYTES", 100_000)

    async def scenario() -> None:
        process = await SupervisedProcess.start(program(tmp_path, "sleep 600", mark, stdin=b"", keep_stdin_open=True))
        process.write(b"x" * 99_999)
        process.write(b"x")
        with pytest.raises(InputNotTaken, match="does not read its input: 100000 bytes wait to be read"):
            process.write(b"x")
        await process.end(0)
        with pytest.raises(InputNotTaken, match="does not read its input any more"):
            process.write(b"x")

    descriptors = len(os.listdir("/proc/self/fd"))
    asyncio.run(scenario())
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_a_program_that_closed_its_input_is_known_after_a_write(tmp_path: Path, mark: str) -> None:
    async def scenario() -> None:
        script = "exec 0<&-; touch up; sleep 600"
        process = await SupervisedProcess.start(program(tmp_path, script, mark, stdin=b"", keep_stdin_open=True))
        await until((tmp_path / "up").exists)

        def refused() -> bool:
            try:
                process.write(b"x")
            except InputNotTaken:
                return True
            return False

        await until(refused)
        assert (await process.end(0)).signal is not None

    asyncio.run(scenario())


def test_a_program_without_an_input_stream_cannot_be_spoken_to(tmp_path: Path, mark: str) -> None:
    async def scenario() -> None:
        process = await SupervisedProcess.start(program(tmp_path, "sleep 600", mark))
        with pytest.raises(InputNotTaken, match="has no input stream"):
            process.write(b"x")
        process.close_stdin()
        await process.end(0)

    asyncio.run(scenario())
