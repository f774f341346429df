"""Values as people type them: whole numbers, times, texts from files. Strict, because a guess here costs agents.

Every function raises `typer.BadParameter` with a sentence.
"""

import math
import re
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Final

import typer

from loopwarden.regular_file import open_regular_file
from loopwarden_engine.json_decoding import decode_json, decode_object
from loopwarden_engine.plain import JsonObject, JsonValue, PlainDataError

MAX_TEXT_BYTES: Final = 16 * 1024 * 1024
"""What is read of an @FILE or of standard input; what a loop takes of it, its contract says."""

_MOST_DIGITS: Final = 17
_WHOLE: Final = re.compile(r"[+-]?[0-9]+")
_TIME: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(s|m|h|d)?")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UNIT_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def whole_number(text: str) -> int:
    """`10`, `-1`. Not `08`, `1e3`, `1_000`, `+5` or digits of other scripts."""
    if re.fullmatch(r"-?(0|[1-9][0-9]{0,15})", text):
        return int(text)
    if _WHOLE.fullmatch(text):
        if len(text) > _MOST_DIGITS:
            raise typer.BadParameter(f"{text[:20]}… is too large")
        raise typer.BadParameter(f"{text!r} is not written as a number usually is; write {int(text)}")
    raise typer.BadParameter(f"{text[:80]!r} is not a whole number; write digits alone, such as 10")


def positive_number(text: str) -> int:
    """A whole number above zero."""
    number = whole_number(text)
    if number < 1:
        raise typer.BadParameter(f"{number} is too small; it must be at least 1")
    return number


def count(text: str) -> int:
    """A whole number, zero included."""
    number = whole_number(text)
    if number < 0:
        raise typer.BadParameter(f"{number} is too small; it must be at least 0")
    return number


def amount(text: str) -> float:
    """An amount of US dollars above zero: `5`, `2.50`."""
    number = real_number(text)
    if number <= 0:
        raise typer.BadParameter(f"{text[:80]!r} is no amount to stay within; write US dollars such as 5 or 2.50")
    return number


def variable(text: str) -> str:
    """The name of an environment variable. Its value is never typed: command lines are seen by others, and kept."""
    if "=" in text:
        raise typer.BadParameter("give the name of a variable alone; its value is taken from your environment")
    if _VARIABLE.fullmatch(text) is None:
        raise typer.BadParameter(f"{text[:80]!r} cannot name an environment variable")
    return text


def isolation(text: str) -> str:
    """`worktree`, the only one."""
    if text != "worktree":
        raise typer.BadParameter(f"{text[:80]!r} is no kind of isolation; there is worktree")
    return text


def one_of(*words: str) -> Callable[[str], str]:
    """A parser of words that stand for themselves."""

    def parse(text: str) -> str:
        if text not in words:
            raise typer.BadParameter(f"{text[:80]!r} cannot be; choose one of {', '.join(words)}")
        return text

    return parse


def label(text: str) -> tuple[str, str]:
    """`NAME=VALUE`."""
    name, is_pair, value = text.partition("=")
    if not name or not is_pair:
        raise typer.BadParameter(f"{text[:80]!r} is no label; write NAME=VALUE")
    return name, value


def is_path(text: str) -> bool:
    """True when what stands for a run is meant as a file, not as the id of one."""
    return "/" in text or text.endswith(".json")


def real_number(text: str) -> float:
    """A finite number in digits."""
    try:
        number = decode_json(text)
    except PlainDataError:
        number = None
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise typer.BadParameter(f"{text[:80]!r} is not a number; write one such as 2.5")
    return float(number)


def seconds(text: str) -> float:
    """A time with its unit: `90s`, `15m`, `2h`, `1d`. Without one, who means hours would get seconds."""
    match = _TIME.fullmatch(text)
    if match is None or (match[1].startswith("0") and not match[1].startswith("0.") and match[1] != "0"):
        raise typer.BadParameter(f"{text[:80]!r} is not a time; write 90s, 15m, 2h or 1d")
    if match[2] is None:
        raise typer.BadParameter(f"{text[:20]!r} has no unit; write a time such as 90s, 15m, 2h or 1d")
    value = float(match[1]) * _UNIT_SECONDS[match[2]]
    if not math.isfinite(value) or value > 2**53:
        raise typer.BadParameter(f"{text[:20]!r} is too long a time")
    if value == 0:
        raise typer.BadParameter("a time must be above zero; write 90s, 15m, 2h or 1d")
    return value


def patience(text: str) -> float:
    """A time with its unit, or seconds as digits alone; 0 is an answer, too."""
    return float(count(text)) if text.isdecimal() else seconds(text)


def moment(text: str) -> float:
    """Unix time: `2h` from now, or a date and time as ISO 8601 has them, in the zone of this machine without one."""
    if _TIME.fullmatch(text):
        return time.time() + seconds(text)
    try:
        return datetime.fromisoformat(text).astimezone().timestamp()
    except (ValueError, OverflowError, OSError):
        raise typer.BadParameter(
            f"{text[:80]!r} is no moment; write a time from now such as 2h, or one such as 2027-01-31T06:00+01:00"
        ) from None


def places(text: str) -> tuple[str, int]:
    """`NAME=N`: a queue, and how many of its runs at once."""
    name, is_pair, number = text.rpartition("=")
    if not name or not is_pair:
        raise typer.BadParameter(f"{text[:80]!r} does not say how many; write NAME=N, such as nightly=4")
    return name, positive_number(number)


def text_or_file(text: str) -> str:
    """The text itself; `@FILE` reads a file, `-` reads standard input, `@@…` is a text that begins with @."""
    if text == "-":
        return _decode(_read_stdin(), "standard input")
    if text.startswith("@@"):
        text = text[1:]
    elif text.startswith("@"):
        return _decode(_read_file(text[1:]), text[1:])
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise typer.BadParameter("the text is not UTF-8") from None
    return text


def json_object(text: str) -> JsonObject:
    """A JSON object, `@FILE` or `-`."""
    try:
        return decode_object(text_or_file(text))
    except PlainDataError as error:
        raise typer.BadParameter(f"this is not a JSON object that can be used: {error.reason}") from None


def json_value(text: str) -> JsonValue:
    """Any JSON value, `@FILE` or `-`."""
    try:
        return decode_json(text_or_file(text))
    except PlainDataError as error:
        raise typer.BadParameter(f"this is not JSON that can be used: {error.reason}") from None


def _read_stdin() -> bytes:
    if sys.stdin is None:
        raise typer.BadParameter("standard input is closed; give a text or @FILE")
    try:
        return sys.stdin.buffer.read(MAX_TEXT_BYTES + 1)
    except OSError as error:
        raise typer.BadParameter(
            f"standard input cannot be read: {(error.strerror or 'input error').lower()}"
        ) from None


def _read_file(name: str) -> bytes:
    if not name:
        raise typer.BadParameter("name the file after @, such as @task.md")
    try:
        with open_regular_file(Path(name)) as file:
            return file.read(MAX_TEXT_BYTES + 1)
    except OSError as error:
        reason = (error.strerror or "input error").lower()
        raise typer.BadParameter(f"the file {name} cannot be read: {reason}") from None
    except ValueError:
        raise typer.BadParameter("the name of the file holds a null character") from None


def _decode(data: bytes, name: str) -> str:
    if len(data) > MAX_TEXT_BYTES:
        raise typer.BadParameter(f"{name} holds more than {MAX_TEXT_BYTES // 1024 // 1024} MiB")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise typer.BadParameter(
            f"{name} is not UTF-8 text: line {line} holds the byte 0x{data[error.start]:02x}"
        ) from None
