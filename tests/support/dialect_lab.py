"""What the tests of dialects share: asks, ends, and records that nobody should trust."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from loopwarden.providers.dialect import Answer, Ask, Dialect, ProgramEnd, ProgramOptions, Trouble
from support.odd_records import JUNK, odd_records

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
ENDED = ProgramEnd(exit=0, signal=None, is_cancelled=False, errors="", plain_output="")


def ask(**changes: Any) -> Ask:
    """An ask for text with nothing set, changed."""
    plain = Ask(
        prompt="Do it.",
        schema=None,
        schema_file=None,
        model=None,
        workspace=Path("/project"),
        home=Path("/private/home"),
        max_cost_usd=None,
        is_root=False,
        options=ProgramOptions(),
    )
    return replace(plain, **changes)


def ended(exit: int | None = 0, **changes: Any) -> ProgramEnd:  # noqa: A002 - as in ProgramEnd
    """An end by itself, changed. A signal means that there is no exit."""
    return replace(ENDED, exit=None if "signal" in changes else exit, **changes)


def read(dialect: Dialect, *records: dict[str, Any], end: ProgramEnd = ENDED, **of_ask: Any) -> Answer | Trouble:
    """What a fresh reading of `records` concludes."""
    reading = dialect.reading(ask(**of_ask))
    for record in records:
        reading.take(record)
    return reading.conclude(end)


def progress(dialect: Dialect, *records: dict[str, Any]) -> list[str | None]:
    """The words that each record gives."""
    reading = dialect.reading(ask())
    return [reading.take(record) for record in records]


def damaged(value: Any) -> Iterator[Any]:
    """`value` with each part of it, one at a time, missing or replaced by every kind of junk."""
    match value:
        case dict():
            for key, part in value.items():
                yield {other: kept for other, kept in value.items() if other != key}
                for junk in (*JUNK, *damaged(part)):
                    yield value | {key: junk}
        case list():
            for at, part in enumerate(value):
                for junk in (*JUNK, *damaged(part)):
                    yield [*value[:at], junk, *value[at + 1 :]]
        case _:
            pass


def survive_damage(dialect: Dialect, records: list[dict[str, Any]]) -> int:
    """Read every stream in which one record is damaged, to each kind of end. Returns how many were read."""
    ends = (ENDED, ended(1, errors="boom"), ended(signal=15), ended(signal=9), ended(is_cancelled=True))
    read_streams = 0
    for at, record in enumerate(records):
        for broken in damaged(record):
            reading = dialect.reading(ask())
            for one in (*records[:at], broken, *records[at + 1 :]):
                said = reading.take(one)
                assert said is None or (isinstance(said, str) and 0 < len(said) <= 160)
            assert reading.usage is None or isinstance(reading.usage.to_json(), dict)
            for end in ends:
                assert isinstance(reading.conclude(end), Answer | Trouble)
            read_streams += 1
    return read_streams


def survive_odd_records(dialect: Dialect, records: list[dict[str, Any]], schema: dict[str, Any] | None) -> None:
    """Read every record alone with each of its fields odd, to each kind of end."""
    ends = (ENDED, ended(1, errors="\ud800"), ended(signal=99))
    for record in records:
        for changed in odd_records(record):
            reading = dialect.reading(ask(schema=schema))
            words = reading.take(changed)
            assert words is None or (words.isprintable() and len(words) <= 120), words
            for end in ends:
                verdict = reading.conclude(end)
                assert isinstance(verdict, Trouble) or verdict.text.strip() or verdict.value is not None
            assert reading.usage is None or json.dumps(reading.usage.to_json(), allow_nan=False)
