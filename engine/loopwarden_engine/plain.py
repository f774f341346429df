"""Plain data: the only kind of value that may cross a boundary.

The rules are those of design section 6: null, booleans, integers within +-(2**53 - 1), finite floats, strings without
lone surrogates, lists (tuples are taken as lists) and dicts with string keys, nested at most 64 deep. Everything else
is refused together with the path at which it stands. Both sides of the wire use this file, so that one rule holds.
"""

import hashlib
import json
import math
from typing import Final, NoReturn, TypeAlias

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
JsonObject: TypeAlias = dict[str, "JsonValue"]

MAX_DEPTH: Final = 64
MAX_SAFE_INTEGER: Final = 2**53 - 1
DEFAULT_MAX_CHARS: Final = 1 << 20
"""No value whose compact JSON is longer than this (code points) fits into a frame, so a copy stops there."""


class PlainDataError(ValueError):
    """A value is not plain data. `path` says where (`result.items[3]`), `reason` says why."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class ValueTooLargeError(PlainDataError):
    """The value is plain so far, but longer than the cap."""


class _Copy:
    """One copy in progress. `room` counts down the characters that the compact JSON may still take."""

    __slots__ = ("max_chars", "room")

    def __init__(self, max_chars: int) -> None:
        self.max_chars = max_chars
        self.room = max_chars

    def take(self, chars: int, path: str) -> None:
        self.room -= chars
        if self.room < 0:
            raise ValueTooLargeError(path, f"the value is larger than {self.max_chars} characters of JSON")

    def copy(self, value: object, path: str, depth: int) -> JsonValue:
        kind = type(value)
        if value is None or kind is bool:
            self.take(4, path)
            return value  # type: ignore[return-value]
        if kind is str:
            self.take(len(value) + 2, path)  # type: ignore[arg-type]
            return _check_text(value, path)  # type: ignore[arg-type]
        if kind is int:
            self.take(1, path)
            if not -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER:  # type: ignore[operator]
                raise PlainDataError(path, "the integer is outside of +-(2**53 - 1); pass it as a string")
            return value  # type: ignore[return-value]
        if kind is float:
            self.take(1, path)
            if not math.isfinite(value):  # type: ignore[arg-type]
                raise PlainDataError(path, f"{value} is not JSON data")
            return value  # type: ignore[return-value]
        if kind is list or kind is tuple:
            return self._copy_items(value, path, depth + 1)  # type: ignore[arg-type]
        if kind is dict:
            return self._copy_members(value, path, depth + 1)  # type: ignore[arg-type]
        raise PlainDataError(path, f"{kind.__name__} is not JSON data")

    def _copy_items(self, items: "list[object] | tuple[object, ...]", path: str, depth: int) -> JsonValue:
        _check_depth(depth, path)
        self.take(len(items) + 2, path)
        copy = self.copy
        return [copy(item, f"{path}[{index}]", depth) for index, item in enumerate(items)]

    def _copy_members(self, members: "dict[object, object]", path: str, depth: int) -> JsonValue:
        _check_depth(depth, path)
        self.take(2 * len(members) + 2, path)
        copied: dict[str, JsonValue] = {}
        for key, item in members.items():
            if type(key) is not str:
                raise PlainDataError(path, f"a key of type {type(key).__name__} is not a string")
            self.take(len(key) + 2, path)
            _check_text(key, path)
            copied[key] = self.copy(item, f"{path}.{key}" if key.isidentifier() else f"{path}[{key!r}]", depth)
        return copied


def _check_depth(depth: int, path: str) -> None:
    if depth > MAX_DEPTH:
        raise PlainDataError(path if len(path) < 200 else path[:200], f"nested more than {MAX_DEPTH} deep")


def _check_text(text: str, path: str) -> str:
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise PlainDataError(path, "the text holds a lone surrogate, which is not Unicode text") from None
    return text


def copy_plain(value: object, name: str = "value", *, max_chars: int = DEFAULT_MAX_CHARS) -> JsonValue:
    """Return a copy of `value` that shares nothing with it.

    `name` is the root of the path in errors. Raises `PlainDataError` (`ValueTooLargeError` above `max_chars`).
    """
    return _Copy(max_chars).copy(value, name, 0)


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


def decode_json(data: bytes | str) -> JsonValue:
    """Decode one JSON text into plain data, strictly.

    Refuses what `json.loads` lets through: duplicate keys, non-finite and unsafe numbers, lone surrogates, nesting
    beyond 64, a byte order mark. Raises `PlainDataError`, never anything else.
    """
    try:
        text = data.decode("utf-8") if isinstance(data, bytes) else data
        value: JsonValue = _decoder.decode(text)
    except PlainDataError:
        raise
    except UnicodeDecodeError as error:
        raise PlainDataError("JSON", f"not UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise PlainDataError("JSON", f"nested more than {MAX_DEPTH} deep") from None
    except ValueError as error:
        raise PlainDataError("JSON", str(error)) from None
    # Only an escape brings in a lone surrogate through UTF-8, and only brackets nest: most texts skip the checks.
    if text.count("[") + text.count("{") > MAX_DEPTH and _is_too_deep(value):
        raise PlainDataError("JSON", f"nested more than {MAX_DEPTH} deep")
    if "\\u" in text or not isinstance(data, bytes):
        try:
            _compact.encode(value).encode("utf-8")
        except UnicodeEncodeError:
            raise PlainDataError("JSON", "a text holds a lone surrogate, which is not Unicode text") from None
    return value


def _is_too_deep(value: JsonValue) -> bool:
    # Level by level and containers only: a walk with a path would hold up the host for 0.2 s on a hostile megabyte.
    level: list[list[JsonValue] | JsonObject] = [value] if isinstance(value, list | dict) else []
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer if type(outer) is list else outer.values())  # type: ignore[union-attr]
            if type(inner) is list or type(inner) is dict
        ]
        if not level:
            return False
    return True


def decode_object(data: bytes | str) -> JsonObject:
    """As `decode_json`, for a text that has to hold an object."""
    value = decode_json(data)
    if not isinstance(value, dict):
        raise PlainDataError("JSON", "the text is not a JSON object")
    return value
