"""Values as people type them."""

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from loopwarden.cli import values


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("10", 10), ("-1", -1), ("256", 256)])
def test_a_whole_number_is_taken(text: str, number: int) -> None:
    assert values.whole_number(text) == number


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("08", "'08' is not written as a number usually is; write 8"),
        ("+5", "write 5"),
        ("-01", "write -1"),
        ("1e3", "'1e3' is not a whole number; write digits alone, such as 10"),
        ("1_000", "not a whole number"),
        ("1.0", "not a whole number"),
        (" 1", "not a whole number"),
        ("", "not a whole number"),
        ("ten", "not a whole number"),
        ("١٢", "not a whole number"),
        ("0x10", "not a whole number"),
        ("9" * 400, "too large"),
    ],
)
def test_what_is_no_plain_whole_number_is_refused_with_a_sentence(text: str, reason: str) -> None:
    with pytest.raises(typer.BadParameter) as caught:
        values.whole_number(text)
    assert reason in caught.value.message


@pytest.mark.parametrize("text", ["0", "-1"])
def test_a_count_is_above_zero(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="at least 1"):
        values.positive_number(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("15m", 900), ("2h", 7200), ("1d", 86400), ("1.5h", 5400), ("0.5s", 0.5)],
)
def test_a_time_is_taken(text: str, seconds: float) -> None:
    assert values.seconds(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "0", "8", "90", "0s", "-5", "1e3", "2 h", "2H", "08s", "1h30m", "nan", "inf", "h", "9" * 400]
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        values.seconds(text)


@pytest.mark.parametrize(("text", "number"), [("2.5", 2.5), ("-1", -1.0), ("1e3", 1000.0)])
def test_a_number_is_taken(text: str, number: float) -> None:
    assert values.real_number(text) == number


@pytest.mark.parametrize("text", ["", "true", "nan", "1e999", '"2"'])
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not a number"):
        values.real_number(text)


def test_a_text_comes_from_the_line_a_file_or_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "task.md").write_bytes(b"\xef\xbb\xbffrom the file\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"from stdin")))
    assert values.text_or_file("as typed") == "as typed"
    assert values.text_or_file(f"@{tmp_path / 'task.md'}") == "from the file\n"
    assert values.text_or_file("-") == "from stdin"
    assert values.text_or_file("@@mention") == "@mention"


def test_a_text_that_cannot_be_read_is_refused_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"one\ntw\xf6\n")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(values.MAX_TEXT_BYTES + 1)
    refused: list[tuple[str, str]] = [
        ("@", "name the file after @"),
        (f"@{tmp_path / 'gone'}", "cannot be read: no such file or directory"),
        (f"@{tmp_path}", "cannot be read: is a directory"),
        (f"@{tmp_path / 'latin'}", "is not UTF-8 text: line 2 holds the byte 0xf6"),
        (f"@{tmp_path / 'large'}", "holds more than 16 MiB"),
        ("bad \udcff argument", "the text is not UTF-8"),
    ]
    for text, reason in refused:
        with pytest.raises(typer.BadParameter) as caught:
            values.text_or_file(text)
        assert reason in caught.value.message


@pytest.mark.parametrize("parse", [values.json_object, values.json_value])
@pytest.mark.parametrize(
    "text", ["{", '{"a": 1, "a": 2}', '{"a": NaN}', '{"a": 1e999}', '{"a": "\\ud800"}', "[" * 100_000]
)
def test_json_that_cannot_be_used_is_refused(parse: Callable[[str], Any], text: str) -> None:
    with pytest.raises(typer.BadParameter, match="that can be used"):
        parse(text)


def test_arguments_are_an_object() -> None:
    assert values.json_object('{"n": 3}') == {"n": 3}
    with pytest.raises(typer.BadParameter, match="not a JSON object"):
        values.json_object("[1]")


def test_a_count_may_be_zero_and_an_amount_may_not() -> None:
    assert (values.count("0"), values.count("12")) == (0, 12)
    assert (values.amount("5"), values.amount("2.50")) == (5.0, 2.5)
    for parse, text, reason in (
        (values.count, "-1", "must be at least 0"),
        (values.count, "many", "not a whole number"),
        (values.amount, "0", "is no amount to stay within; write US dollars such as 5 or 2.50"),
        (values.amount, "-3", "is no amount to stay within"),
        (values.amount, "$5", "is not a number"),
        (values.amount, "inf", "is not a number"),
    ):
        with pytest.raises(typer.BadParameter) as caught:
            parse(text)
        assert reason in caught.value.message


def test_a_variable_is_given_by_its_name_alone() -> None:
    assert values.variable("ANTHROPIC_API_KEY") == "ANTHROPIC_API_KEY"
    with pytest.raises(typer.BadParameter) as caught:
        values.variable("KEY=hunter2")
    assert caught.value.message == "give the name of a variable alone; its value is taken from your environment"
    for text in ("", "1A", "A B", "Ä"):
        with pytest.raises(typer.BadParameter, match="cannot name an environment variable"):
            values.variable(text)


def test_there_is_one_kind_of_isolation() -> None:
    assert values.isolation("worktree") == "worktree"
    with pytest.raises(typer.BadParameter, match="there is worktree"):
        values.isolation("docker")
