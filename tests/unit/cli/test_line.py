"""What is read of a command line before its options are."""

from pathlib import Path

import pytest

from loopwarden.cli.app import Line
from loopwarden.cli.request import is_file_name


@pytest.mark.parametrize(
    ("argv", "command", "target", "config", "program"),
    [
        ([], None, None, None, ()),
        (["runs"], "runs", None, None, ()),
        (["run", "ralph", "--objective", "x"], "run", "ralph", None, ()),
        (["run", "--help"], "run", None, None, ()),
        (["--config", "a.toml", "run", "ralph"], "run", "ralph", Path("a.toml"), ()),
        (["-v", "--log-level", "info", "run", "ralph", "--config=b.toml"], "run", "ralph", Path("b.toml"), ()),
        (["run", "ralph", "--", "run", "--config", "x", "--"], "run", "ralph", None, ("run", "--config", "x", "--")),
        (["--config"], None, None, None, ()),
    ],
)
def test_a_line_is_taken_apart(
    argv: list[str], command: str | None, target: str | None, config: Path | None, program: tuple[str, ...]
) -> None:
    line = Line.read(argv)
    assert (line.command, line.target, line.config, line.program) == (command, target, config, program)
    assert line.has_program == ("--" in argv)


@pytest.mark.parametrize(("word", "is_file"), [("ralph", False), ("a.py", True), ("./ralph", True), ("dir/x", True)])
def test_a_file_is_told_from_a_name(word: str, is_file: bool) -> None:
    assert is_file_name(word) is is_file
