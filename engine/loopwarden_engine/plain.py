"""Plain data: the only kind of value that may cross a boundary.

The rules are those of design section 6: null, booleans, integers within +-(2**53 - 1), finite floats, strings without
lone surrogates, lists (tuples are taken as lists) and dicts with string keys, nested at most 64 deep. Everything else
is refused together with the path at which it stands. Both sides of the wire use this file, so that one rule holds.
"""

import hashlib
import json
import math
import re
from typing import Any, Final, NoReturn, TypeAlias

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
JsonObject: TypeAlias = dict[str, "JsonValue"]

MAX_DEPTH: Final = 64
MAX_SAFE_INTEGER: Final = 2**53 - 1
DEFAULT_MAX_CHARS: Final = 1 << 20
"""No value whose compact JSON is longer than this (code points) fits into a frame, so a copy stops there."""
_MAX_PATH_CHARS: Final = 300


class PlainDataError(ValueError):
    """A value is not plain data. `path` says where (`result.items[3]`), `reason` says why."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class ValueTooLargeError(PlainDataError):
    """The value is plain so far, but longer than the cap."""


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
    """One copy in progress. `room` counts down the characters that the compact JSON may still take.

    Paths are made only when something is refused: made on the way down, one long key above many items would hold up
    the host for seconds.
    """

    __slots__ = ("max_chars", "room")

    def __init__(self, max_chars: int) -> None:
        self.max_chars = max_chars
        self.room = max_chars

    def take(self, chars: int) -> None:
        self.room -= chars
        if self.room < 0:
            raise _Unplain(f"the value is larger than {self.max_chars} characters of JSON", is_too_large=True)

    def copy(self, value: object, depth: int) -> JsonValue:
        kind = type(value)
        if value is None or kind is bool:
            self.take(4)
            return value  # type: ignore[return-value]
        if kind is str:
            self.take(len(value) + 2)  # type: ignore[arg-type]
            return _check_text(value)  # type: ignore[arg-type]
        if kind is int:
            self.take(1)
            if not -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER:  # type: ignore[operator]
                raise _Unplain("the integer is outside of +-(2**53 - 1); pass it as a string")
            return value  # type: ignore[return-value]
        if kind is float:
            self.take(1)
            if not math.isfinite(value):  # type: ignore[arg-type]
                raise _Unplain(f"{value} is not JSON data")
            return value  # type: ignore[return-value]
        if kind is list or kind is tuple:
            return self._copy_items(value, depth + 1)  # type: ignore[arg-type]
        if kind is dict:
            return self._copy_members(value, depth + 1)  # type: ignore[arg-type]
        raise _Unplain(f"{kind.__name__} is not JSON data")

    def _copy_items(self, items: "list[object] | tuple[object, ...]", depth: int) -> JsonValue:
        _check_depth(depth)
        self.take(len(items) + 2)
        copied: list[JsonValue] = []
        try:
            for item in items:
                copied.append(self.copy(item, depth))  # noqa: PERF401 -- its length says where it stopped
        except _Unplain as stopped:
            stopped.steps.append(f"[{len(copied)}]")
            raise
        return copied

    def _copy_members(self, members: "dict[object, object]", depth: int) -> JsonValue:
        _check_depth(depth)
        self.take(2 * len(members) + 2)
        copied: dict[str, JsonValue] = {}
        for key, item in members.items():
            if type(key) is not str:
                raise _Unplain(f"a key of type {type(key).__name__} is not a string")
            self.take(len(key) + 2)
            _check_text(key)
            try:
                copied[key] = self.copy(item, depth)
            except _Unplain as stopped:
                shown = key[:_MAX_PATH_CHARS]
                stopped.steps.append(f".{shown}" if shown.isidentifier() else f"[{shown!r}]")
                raise
        return copied


def _check_depth(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise _Unplain(f"nested more than {MAX_DEPTH} deep")


def _check_text(text: str) -> str:
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise _Unplain("the text holds a lone surrogate, which is not Unicode text") from None
    return text


def copy_plain(value: object, name: str = "value", *, max_chars: int = DEFAULT_MAX_CHARS) -> JsonValue:
    """Return a copy of `value` that shares nothing with it.

    `name` is the root of the path in errors. Raises `PlainDataError` (`ValueTooLargeError` above `max_chars`).
    """
    try:
        if type(value) is str and len(value) + 2 <= max_chars:
            return _check_text(value)
        return _Copy(max_chars).copy(value, 0)
    except _Unplain as stopped:
        raise stopped.placed(name) from None


def copy_object(value: object, name: str = "value", *, max_chars: int = DEFAULT_MAX_CHARS) -> JsonObject:
    """As `copy_plain`, for a value that has to be an object."""
    if type(value) is not dict:
        raise PlainDataError(name, f"{type(value).__name__} is not a JSON object")
    copied = copy_plain(value, name, max_chars=max_chars)
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


_decoder = json.JSONDecoder(
    object_pairs_hook=_members, parse_int=_integer, parse_float=_float, parse_constant=_constant, strict=True
)
# A call for each number of a megabyte holds up the host for 0.2 s. Without many digits or an exponent none can be bad;
# but looking for them takes longer than the calls do where numbers are few.
_decoder_of_small_numbers = json.JSONDecoder(object_pairs_hook=_members, parse_constant=_constant, strict=True)
_LARGE_NUMBER: Final = re.compile(r"[0-9]{16}|[0-9][eE]")
_FEW_COMMAS: Final = 10_000


def decode_json(data: bytes | str, *, max_depth: int = MAX_DEPTH) -> JsonValue:
    """Decode one JSON text into plain data, strictly.

    Refuses what `json.loads` lets through: duplicate keys, non-finite and unsafe numbers, lone surrogates, nesting
    beyond `max_depth`, a byte order mark. Raises `PlainDataError`, never anything else.
    """
    try:
        text = data.decode("utf-8") if isinstance(data, bytes) else data
        is_strict = text.count(",") <= _FEW_COMMAS or _LARGE_NUMBER.search(text) is not None
        decoder = _decoder if is_strict else _decoder_of_small_numbers
        value = _decode_with(decoder, text)
    except PlainDataError:
        raise
    except UnicodeDecodeError as error:
        raise PlainDataError("JSON", f"not UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise PlainDataError("JSON", f"nested more than {max_depth} deep") from None
    except ValueError as error:
        raise PlainDataError("JSON", str(error)) from None
    # Only an escape brings in a lone surrogate through UTF-8, and only brackets nest: most texts skip the checks.
    if text.count("[") + text.count("{") > max_depth and _is_too_deep(value, max_depth):
        raise PlainDataError("JSON", f"nested more than {max_depth} deep")
    if "\\u" in text or not isinstance(data, bytes):
        try:
            _compact.encode(value).encode("utf-8")
        except UnicodeEncodeError:
            raise PlainDataError("JSON", "a text holds a lone surrogate, which is not Unicode text") from None
    return value


def _decode_with(decoder: Any, text: str) -> JsonValue:
    # As `decoder.decode`, without its two searches for white space: a message of a few words has none.
    try:
        value, end = decoder.scan_once(text, 0)
    except StopIteration:
        value, end = None, -1
    whole: JsonValue = value if end == len(text) else decoder.decode(text)
    return whole


def _is_too_deep(value: JsonValue, max_depth: int) -> bool:
    # Level by level and containers only: a walk with a path would hold up the host for 0.2 s on a hostile megabyte.
    level: list[list[JsonValue] | JsonObject] = [value] if isinstance(value, list | dict) else []
    for _ in range(max_depth):
        level = [
            inner
            for outer in level
            for inner in (outer if type(outer) is list else outer.values())  # type: ignore[union-attr]
            if type(inner) is list or type(inner) is dict
        ]
        if not level:
            return False
    return True


def decode_object(data: bytes | str, *, max_depth: int = MAX_DEPTH) -> JsonObject:
    """As `decode_json`, for a text that has to hold an object."""
    value = decode_json(data, max_depth=max_depth)
    if not isinstance(value, dict):
        raise PlainDataError("JSON", "the text is not a JSON object")
    return value
