"""Promise 4: plain data: what crosses a boundary, and the path of what does not."""

import datetime as dt
import math
from typing import Any

import pytest

from loopwarden_engine.json_decoding import decode_json
from loopwarden_engine.plain import (
    MAX_SAFE_INTEGER,
    PlainDataError,
    ValueTooLargeError,
    canonical_bytes,
    copy_plain,
)


def nested(levels: int) -> list[Any]:
    """A list `levels` deep."""
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        False,
        0,
        -1,
        MAX_SAFE_INTEGER,
        -MAX_SAFE_INTEGER,
        0.5,
        -0.0,
        1.0,
        1e308,
        "",
        "a",
        "\0",
        "😀",
        [],
        {},
        nested(64),
    ],
)
def test_plain_values_are_copied_as_they_are(value: Any) -> None:
    """The copy is equal, types included, and shares nothing."""
    copied = copy_plain(value)
    assert canonical_bytes(copied) == canonical_bytes(value)
    assert type(copied) is type(value)
    if isinstance(value, list | dict):
        assert copied is not value


def test_negative_zero_stays_a_float() -> None:
    """-0.0 keeps its sign."""
    assert math.copysign(1, copy_plain(-0.0)) == -1  # type: ignore[arg-type]


def test_tuples_are_taken_as_lists() -> None:
    """At every depth."""
    assert copy_plain((1, (2, {"a": (3,)}))) == [1, [2, {"a": [3]}]]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            {"items": [0, 1, 2, {"when": dt.datetime(2026, 1, 1)}]},
            "result.items[3].when: datetime is not JSON data",
        ),
        (MAX_SAFE_INTEGER + 1, "result: the integer is outside of +-(2**53 - 1); pass it as a string"),
        (-MAX_SAFE_INTEGER - 1, "result: the integer is outside of +-(2**53 - 1); pass it as a string"),
        (float("nan"), "result: nan is not JSON data"),
        ([float("inf")], "result[0]: inf is not JSON data"),
        ({"a b": {1, 2}}, "result['a b']: set is not JSON data"),
        ({1: 2}, "result: a key of type int is not a string"),
        ({(1, 2): 2}, "result: a key of type tuple is not a string"),
        ("\ud800", "result: the text holds a lone surrogate, which is not Unicode text"),
        ({"\udfff": 1}, "result: the text holds a lone surrogate, which is not Unicode text"),
        (b"x", "result: bytes is not JSON data"),
        (1j, "result: complex is not JSON data"),
        (nested(65), "result" + "[0]" * 64 + ": nested more than 64 deep"),
    ],
)
def test_everything_else_is_refused_with_its_path(value: Any, message: str) -> None:
    """The message names the place and the reason."""
    with pytest.raises(PlainDataError) as caught:
        copy_plain(value, "result")
    assert str(caught.value) == message


def test_subclasses_are_refused_since_they_can_lie() -> None:
    """A str subclass is no str."""

    class Liar(str):
        __slots__ = ()

    with pytest.raises(PlainDataError, match="Liar is not JSON data"):
        copy_plain(Liar("x"))


def test_a_cycle_ends_at_the_depth_cap() -> None:
    """A list in itself is too deep, not endless."""
    value: list[Any] = []
    value.append(value)
    with pytest.raises(PlainDataError, match="nested more than 64 deep"):
        copy_plain(value)


def test_shared_nesting_ends_at_the_size_cap() -> None:
    """2**60 leaves behind sixty lists are never walked."""
    value: Any = []
    for _ in range(60):
        value = [value, value]
    with pytest.raises(ValueTooLargeError):
        copy_plain(value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a":1,"a":2}', "the key 'a' stands twice in one object"),
        ("1e999", "the number 1e999 is too large"),
        ("NaN", "NaN is not JSON"),
        ("-Infinity", "-Infinity is not JSON"),
        ("9007199254740992", "the integer 9007199254740992 is outside of +-(2**53 - 1)"),
        ("1" * 5000, "an integer is outside of +-(2**53 - 1)"),
        ('"\\ud800"', "a text holds a lone surrogate, which is not Unicode text"),
        ('{"\\udc00":1}', "a text holds a lone surrogate, which is not Unicode text"),
        ("[" * 65 + "]" * 65, "nested more than 64 deep"),
        ("[" * 200_000, "nested more than 64 deep"),
        ('{"a":' * 65 + "1" + "}" * 65, "nested more than 64 deep"),
    ],
)
def test_decoding_refuses_what_json_loads_lets_through(text: str, reason: str) -> None:
    """Both as bytes and as text."""
    for data in (text, text.encode()):
        with pytest.raises(PlainDataError) as caught:
            decode_json(data)
        assert caught.value.reason == reason


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"\xef\xbb\xbf{}", b"{} {}", b"'a'", b"[1,]", b"\x00"])
def test_what_is_no_json_is_refused(data: bytes) -> None:
    """Never anything but a `PlainDataError`."""
    with pytest.raises(PlainDataError):
        decode_json(data)


def test_sixty_four_levels_and_escaped_pairs_are_fine() -> None:
    """The border itself, and a surrogate pair, which is one character."""
    assert decode_json("[" * 64 + "]" * 64) == nested(64)
    assert decode_json('"\\ud83d\\ude00"') == "😀"
    assert decode_json(("[" + "[]," * 100 + "[]]").encode()) == [[]] * 101


def test_canonical_bytes_tell_types_apart_and_ignore_key_order() -> None:
    """True, 1 and 1.0 are three values."""
    assert len({canonical_bytes(value) for value in (True, 1, 1.0, "1")}) == 4
    assert canonical_bytes({"b": 1, "a": [True]}) == canonical_bytes({"a": [True], "b": 1})
