"""Decoding of JSON into plain data: strict, bounded before it begins, and in steps where it takes long.

What a hostile peer may send is a mebibyte. However it is made up, each step over it takes a few milliseconds, so that
an event loop can turn between any two.
"""

import gc
import json
import math
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any, Final, NoReturn

from loopwarden_engine.json_marks import count_marks
from loopwarden_engine.plain import (
    MAX_DEPTH,
    MAX_SAFE_INTEGER,
    JsonObject,
    JsonValue,
    PlainDataError,
    ValueTooLargeError,
    compact_json,
)


def _members(pairs: list[tuple[str, JsonValue]]) -> JsonObject:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise PlainDataError("JSON", f"the key {key[:100]!r} stands twice in one object")
            seen.add(key)
    return members


def _integer(text: str) -> int:
    if len(text) > 17:
        raise PlainDataError("JSON", "an integer is outside of +-(2**53 - 1)")
    number = int(text)
    if not -MAX_SAFE_INTEGER <= number <= MAX_SAFE_INTEGER:
        raise PlainDataError("JSON", f"the integer {number} is outside of +-(2**53 - 1)")
    return number


def _float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise PlainDataError("JSON", f"the number {text[:40]} is too large")
    return number


def _constant(text: str) -> NoReturn:
    raise PlainDataError("JSON", f"{text} is not JSON")


# A call for each object and number is cheap where there are few. Where there are many they are looked at all together.
_decoder = json.JSONDecoder(
    object_pairs_hook=_members, parse_int=_integer, parse_float=_float, parse_constant=_constant, strict=True
)
_decoder_of_many = json.JSONDecoder(parse_constant=_constant, strict=True)
_decoder_of_many_with_long_numbers = json.JSONDecoder(parse_int=_integer, parse_constant=_constant, strict=True)
_FEW_MARKS: Final = 1000
_LARGEST: Final = sys.float_info.max
_DIGITS_AS_ZERO: Final = bytes.maketrans(b"123456789E", b"000000000e")


def decode_json(data: bytes | str, *, max_depth: int = MAX_DEPTH, max_values: int | None = None) -> JsonValue:
    """Decode one JSON text into plain data, strictly.

    Refuses what `json.loads` lets through: duplicate keys, non-finite and unsafe numbers, lone surrogates, nesting
    beyond `max_depth`, a byte order mark; and more than `max_values` items and members, before any of them is made.
    Raises `PlainDataError`, never anything else.
    """
    try:
        text = data.decode("utf-8") if isinstance(data, bytes) else data
        brackets = text.count("[") + text.count("{")
        if text.count(",") + brackets > _FEW_MARKS:
            return _drained(_steps(text, max_depth, max_values))
        value = _decode_with(_decoder, text)
        # Only brackets nest, and only an escape brings in a lone surrogate through UTF-8: most texts skip the checks.
        if brackets > max_depth:
            _walk(value, max_depth)
        if "\\u" in text or not isinstance(data, bytes):
            compact_json(value).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise _refusal(error, max_depth) from None
    return value


def decode_object(data: bytes | str, *, max_depth: int = MAX_DEPTH, max_values: int | None = None) -> JsonObject:
    """As `decode_json`, for a text that has to hold an object."""
    return _object(decode_json(data, max_depth=max_depth, max_values=max_values))


def decode_object_in_steps(data: bytes, *, max_depth: int, max_values: int | None) -> Generator[None, None, JsonObject]:
    """As `decode_object`: yields after each step but the last, and returns the object."""
    try:
        return _object((yield from _steps(data.decode("utf-8"), max_depth, max_values)))
    except (ValueError, RecursionError) as error:
        raise _refusal(error, max_depth) from None


def _object(value: JsonValue) -> JsonObject:
    if not isinstance(value, dict):
        raise PlainDataError("JSON", "the text is not a JSON object")
    return value


def _refusal(error: ValueError | RecursionError, max_depth: int) -> PlainDataError:
    """Why a text is not decoded, in our own words where we have some."""
    match error:
        case PlainDataError():
            return error
        case UnicodeDecodeError():
            return PlainDataError("JSON", f"not UTF-8 at byte {error.start}")
        case UnicodeEncodeError():
            return PlainDataError("JSON", "a text holds a lone surrogate, which is not Unicode text")
        case RecursionError():
            return _too_deep(max_depth)
        case _:
            return PlainDataError("JSON", str(error))


def _drained(steps: Generator[None, None, JsonValue]) -> JsonValue:
    while True:
        try:
            next(steps)
        except StopIteration as over:
            value: JsonValue = over.value
            return value


def _steps(text: str, max_depth: int, max_values: int | None) -> Generator[None, None, JsonValue]:
    """Decode a text that may hold very many values, with a few looks at all of it instead of one at each of them."""
    data = text.encode("utf-8")
    if b"\\" in data:
        # In pairs, from the left: a backslash that then still stands begins an escape.
        data = data.replace(b"\\\\", b"__")
    marks = count_marks(data, max_values)
    if marks is None:
        raise ValueTooLargeError("JSON", f"it holds more than {max_values:,} items and members")
    yield
    zeros = data.translate(_DIGITS_AS_ZERO)
    # Without many digits or an exponent no number is too large, and only an escape brings in half a character.
    is_long = b"0" * 16 in zeros
    check_floats = is_long or b"0e" in zeros
    check_texts = b"\\ud" in data or b"\\uD" in data
    del data, zeros
    with _no_collecting():
        value = _decode_with(_decoder_of_many_with_long_numbers if is_long else _decoder_of_many, text)
    yield
    with _no_collecting():
        members = _walk(value, max_depth, check_floats=check_floats, check_texts=check_texts)
    if members != marks.members:
        raise PlainDataError("JSON", "a key stands twice in one object")
    return value


@contextmanager
def _no_collecting() -> Iterator[None]:
    """Collect no garbage meanwhile: JSON has no cycles.

    Each thousand new lists would count toward a look at all that the embedding program holds, however much that is.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _too_deep(max_depth: int) -> PlainDataError:
    return PlainDataError("JSON", f"nested more than {max_depth} deep")


def _decode_with(decoder: Any, text: str) -> JsonValue:
    # As `decoder.decode`, without its two searches for white space: a message of a few words has none.
    try:
        value, end = decoder.scan_once(text, 0)
    except StopIteration:
        value, end = None, -1
    whole: JsonValue = value if end == len(text) else decoder.decode(text)
    return whole


def _walk(value: JsonValue, max_depth: int, *, check_floats: bool = False, check_texts: bool = False) -> int:
    """Walk a decoded value; how many members all its objects have together.

    Raises `PlainDataError` for what is nested too deep and for an infinite number, `UnicodeEncodeError` for half a
    character.
    """
    # Level by level, and flattened in C: a walk with a path would hold up the host for 0.2 s on a hostile megabyte.
    members = 0
    level: list[Any] = [value]
    for _ in range(max_depth + 1):
        objects = [item for item in level if type(item) is dict]
        lists = [item for item in level if type(item) is list]
        if check_texts:
            "".join([item for item in level if type(item) is str]).encode()
            "".join(chain.from_iterable(objects)).encode()
        if check_floats and [item for item in level if type(item) is float and not -_LARGEST <= item <= _LARGEST]:
            raise PlainDataError("JSON", "a number is too large")
        if not lists and not objects:
            return members
        members += sum(map(len, objects))
        level = [*chain.from_iterable(lists), *chain.from_iterable(map(dict.values, objects))]
    raise _too_deep(max_depth)
