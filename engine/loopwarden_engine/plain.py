"""Plain data: the only kind of value that may cross a boundary.

The rules are those of design section 6: null, booleans, integers within +-(2**53 - 1), finite floats, strings without
lone surrogates, lists (tuples are taken as lists) and dicts with string keys, nested at most 64 deep. Everything else
is refused together with the path at which it stands. Both sides of the wire use this file, so that one rule holds.
"""

import hashlib
import json
import math
from typing import Final, TypeAlias

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
JsonObject: TypeAlias = dict[str, "JsonValue"]

MAX_DEPTH: Final = 64
MAX_SAFE_INTEGER: Final = 2**53 - 1
DEFAULT_MAX_CHARS: Final = 1 << 20
"""No value whose compact JSON is longer than this (code points) fits into a frame, so a copy stops there."""
MAX_VALUES: Final = 32_768
"""Items and members in one value, at all levels together, and one more for each empty list or object: 4,096 items
with eight members each, say.

What a value costs the host is a matter of their number, not of its length: a text of a megabyte is decoded in a few
milliseconds, a megabyte of empty lists would hold up every other run for a third of a second.
"""
MAX_OPTION_VALUES: Final = 8192
"""As `MAX_VALUES`, in the options of one call: a schema is looked at much more closely than a result."""
MAX_REPLY_VALUES: Final = 16_384
"""As `MAX_VALUES`, in the structured value of one agent: it is copied, checked against its schema and encoded again."""
_MAX_PATH_CHARS: Final = 300


class PlainDataError(ValueError):
    """A value is not plain data. `path` says where (`result.items[3]`), `reason` says why."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class ValueTooLargeError(PlainDataError):
    """The value is plain so far, but longer than the cap, or it holds too many items and members."""


class _Unplain(Exception):
    """Why a copy stopped. Each container around the place adds its step, innermost first."""

    def __init__(self, reason: str, *, is_too_large: bool = False) -> None:
        self.reason = reason
        self.is_too_large = is_too_large
        self.steps: list[str] = []

    def placed(self, name: str) -> PlainDataError:
        """The error with its path from the root."""
        path = name + "".join(reversed(self.steps))
        if len(path) > _MAX_PATH_CHARS:
            path = path[: _MAX_PATH_CHARS - 1] + "…"
        return (ValueTooLargeError if self.is_too_large else PlainDataError)(path, self.reason)


class _Copy:
    """One copy in progress. It counts down the characters that the compact JSON may still take, and the values.

    Paths are made only when something is refused: made on the way down, one long key above many items would hold up
    the host for seconds.
    """

    __slots__ = ("max_chars", "max_values", "room", "values_left")

    def __init__(self, max_chars: int, max_values: int) -> None:
        self.max_chars = max_chars
        self.max_values = max_values
        self.room = max_chars
        self.values_left = max_values

    def copy(self, value: object, depth: int) -> JsonValue:
        kind = type(value)
        if kind is str:
            self.room -= len(value) + 2  # type: ignore[arg-type]
            if not value.isascii():  # type: ignore[attr-defined]
                _check_text(value)  # type: ignore[arg-type]
        elif kind is list or kind is tuple:
            return self._copy_items(value, depth + 1)  # type: ignore[arg-type]
        elif kind is dict:
            return self._copy_members(value, depth + 1)  # type: ignore[arg-type]
        elif kind is int:
            self.room -= 1
            if not -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER:  # type: ignore[operator]
                raise _Unplain("the integer is outside of +-(2**53 - 1); pass it as a string")
        elif kind is float:
            self.room -= 1
            if not math.isfinite(value):  # type: ignore[arg-type]
                raise _Unplain(f"{value} is not JSON data")
        elif value is None or kind is bool:
            self.room -= 4
        else:
            raise _Unplain(f"{kind.__name__} is not JSON data")
        if self.room < 0:
            raise self._too_long()
        return value  # type: ignore[return-value]

    def _copy_items(self, items: "list[object] | tuple[object, ...]", depth: int) -> JsonValue:
        self._enter(depth, len(items), len(items) + 2)
        copied: list[JsonValue] = []
        try:
            for item in items:
                copied.append(self.copy(item, depth))  # noqa: PERF401 -- its length says where it stopped
        except _Unplain as stopped:
            stopped.steps.append(f"[{len(copied)}]")
            raise
        return copied

    def _copy_members(self, members: "dict[object, object]", depth: int) -> JsonValue:
        self._enter(depth, len(members), 2 * len(members) + 2)
        copied: dict[str, JsonValue] = {}
        for key, item in members.items():
            if type(key) is not str:
                raise _Unplain(f"a key of type {type(key).__name__} is not a string")
            self.room -= len(key) + 2
            if self.room < 0:
                raise self._too_long()
            if not key.isascii():
                _check_text(key)
            try:
                copied[key] = self.copy(item, depth)
            except _Unplain as stopped:
                shown = key[:_MAX_PATH_CHARS]
                stopped.steps.append(f".{shown}" if shown.isidentifier() else f"[{shown!r}]")
                raise
        return copied

    def _enter(self, depth: int, values: int, chars: int) -> None:
        if depth > MAX_DEPTH:
            raise _Unplain(f"nested more than {MAX_DEPTH} deep")
        self.room -= chars
        if self.room < 0:
            raise self._too_long()
        self.values_left -= values or 1
        if self.values_left < 0:
            raise _Unplain(f"the value holds more than {self.max_values:,} items and members", is_too_large=True)

    def _too_long(self) -> _Unplain:
        return _Unplain(f"the value is larger than {self.max_chars} characters of JSON", is_too_large=True)


def _check_text(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise _Unplain("the text holds a lone surrogate, which is not Unicode text") from None
    return text


def copy_plain(
    value: object, name: str = "value", *, max_chars: int = DEFAULT_MAX_CHARS, max_values: int = MAX_VALUES
) -> JsonValue:
    """Return a copy of `value` that shares nothing with it.

    `name` is the root of the path in errors. Raises `PlainDataError`, `ValueTooLargeError` above `max_chars` characters
    of compact JSON and above `max_values` items and members.
    """
    try:
        if type(value) is str and len(value) + 2 <= max_chars:
            return value if value.isascii() else _check_text(value)
        return _Copy(max_chars, max_values).copy(value, 0)
    except _Unplain as stopped:
        raise stopped.placed(name) from None


def copy_object(
    value: object, name: str = "value", *, max_chars: int = DEFAULT_MAX_CHARS, max_values: int = MAX_VALUES
) -> JsonObject:
    """As `copy_plain`, for a value that has to be an object."""
    if type(value) is not dict:
        raise PlainDataError(name, f"{type(value).__name__} is not a JSON object")
    copied = copy_plain(value, name, max_chars=max_chars, max_values=max_values)
    assert isinstance(copied, dict)
    return copied


_compact = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_canonical = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True)


def compact_json(value: object) -> str:
    """JSON without spaces, not ASCII-escaped: the text that lengths are measured on, in code points."""
    return _compact.encode(value)


def canonical_bytes(value: object) -> bytes:
    """The bytes that two values are compared by: compact JSON with sorted keys. `1`, `1.0` and `true` differ."""
    return _canonical.encode(value).encode("utf-8")


def digest(data: bytes) -> str:
    """SHA-256 in hexadecimal, with its name in front."""
    return "sha256:" + hashlib.sha256(data).hexdigest()
