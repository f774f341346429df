"""Checks with real commands: what they may do, how they end, what is kept of them."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from loopwarden.checks import Check, run_check
from loopwarden.receipt import CheckRecord
from support.agents import carrying, until


async def checked(command: str, workspace: Path, mark: str = "", **changes: Any) -> CheckRecord:
    options: dict[str, Any] = {
        "timeout_seconds": 30.0,
        "grace_seconds": 0.1,
        "max_output_bytes": 1024 * 1024,
        "env": {"PATH": os.environ["PATH"], "TEST_MARK": mark},
    }
    return await run_check(Check.parse(command), workspace=workspace, **(options | changes))


def test_a_check_that_passes_has_exit_zero_and_no_problem(tmp_path: Path) -> None:
    record = asyncio.run(checked("sh -c 'pwd -P; exit 0'", tmp_path))
    assert (record.exit, record.problem, record.output_tail) == (0, None, f"{tmp_path.resolve()}\n")
    assert record.argv == ["sh", "-c", "pwd -P; exit 0"]
    assert record.seconds > 0


def test_a_check_that_fails_keeps_its_exit(tmp_path: Path) -> None:
    record = asyncio.run(checked("sh -c 'exit 7'", tmp_path))
    assert (record.exit, record.problem) == (7, None)


def test_both_streams_are_kept_in_the_order_of_writing(tmp_path: Path) -> None:
    record = asyncio.run(checked("sh -c 'echo 1; echo 2 >&2; echo 3; echo 4 >&2'", tmp_path))
    assert record.output_tail == "1\n2\n3\n4\n"


def test_a_check_reads_nothing_and_gets_only_the_given_environment(tmp_path: Path) -> None:
    record = asyncio.run(checked("sh -c 'cat; env'", tmp_path, "m"))
    names = {line.split("=")[0] for line in record.output_tail.splitlines()}
    assert names - {"PWD", "_", "OLDPWD", "SHLVL"} == {"PATH", "TEST_MARK", "LOOPWARDEN_AGENT"}


def test_the_last_4000_characters_are_kept(tmp_path: Path) -> None:
    record = asyncio.run(checked("sh -c 'seq 100000; printf \"\\303\\251\\377\"'", tmp_path))
    assert len(record.output_tail) == 4000
    assert record.output_tail.endswith("100000\né\N{REPLACEMENT CHARACTER}")


def test_4000_characters_of_four_bytes_each_are_kept(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("😀" * 5000)
    assert asyncio.run(checked("cat out", tmp_path)).output_tail == "😀" * 4000


def test_a_check_that_takes_too_long_is_ended_with_all_it_started(tmp_path: Path, mark: str) -> None:
    record = asyncio.run(
        checked("sh -c 'echo begun; setsid sleep 600 & sleep 600'", tmp_path, mark, timeout_seconds=0.3)
    )
    assert record.exit is None
    assert record.problem == "the check was ended: it took longer than 0.3 seconds"
    assert record.output_tail == "begun\n"
    assert carrying("TEST_MARK", mark) == set()


def test_a_check_that_prints_too_much_is_ended(tmp_path: Path) -> None:
    record = asyncio.run(checked("yes", tmp_path, max_output_bytes=100_000))
    assert (record.exit, record.problem) == (None, "the check was ended: it printed more than 100000 bytes")
    assert len(record.output_tail) == 4000


def test_a_check_that_dies_by_a_signal_has_no_exit(tmp_path: Path) -> None:
    record = asyncio.run(checked("sh -c 'kill -KILL $$'", tmp_path))
    assert (record.exit, record.problem) == (None, "the check was ended by signal SIGKILL")


def test_a_check_leaves_nothing_behind(tmp_path: Path, mark: str) -> None:
    record = asyncio.run(checked("sh -c 'setsid sleep 600 & exit 0'", tmp_path, mark))
    assert (record.exit, record.problem) == (0, None)
    assert carrying("TEST_MARK", mark) == set()


def test_a_missing_program_is_a_problem_in_words(tmp_path: Path) -> None:
    record = asyncio.run(checked("no-such-check --all", tmp_path))
    assert record.exit is None
    assert record.problem == "the check 'no-such-check' was not found in PATH; check its name, or give its full path"


def test_a_missing_workspace_is_a_problem_in_words(tmp_path: Path) -> None:
    record = asyncio.run(checked("true", tmp_path / "gone"))
    assert record.problem is not None
    assert "does not exist" in record.problem


def test_a_cancelled_check_is_ended_with_all_it_started(tmp_path: Path, mark: str) -> None:
    async def scenario() -> None:
        task = asyncio.create_task(checked("sh -c 'setsid sleep 600 & touch up; sleep 600'", tmp_path, mark))
        await until((tmp_path / "up").exists)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    assert carrying("TEST_MARK", mark) == set()


def test_a_check_is_split_as_a_shell_would_and_run_without_one() -> None:
    assert Check.parse("""make "a b" 'c;d' $HOME *""").argv == ("make", "a b", "c;d", "$HOME", "*")


def test_a_relative_check_is_meant_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Check.parse("./verify --all").argv == (f"{tmp_path}/verify", "--all")


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("", "a check needs a command, such as 'make test'"),
        ("  ", "a check needs a command, such as 'make test'"),
        ("''", "a check needs a command, such as 'make test'"),
        ("make 'test", 'the check "make \'test" cannot be split into words: no closing quotation'),
        ("a\0b", "a check cannot hold a zero character"),
    ],
)
def test_what_cannot_be_a_check_is_refused_in_words(command: str, reason: str) -> None:
    with pytest.raises(ValueError, match="check") as refused:
        Check.parse(command)
    assert str(refused.value) == reason
