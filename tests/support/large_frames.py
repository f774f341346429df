"""Frames of the largest size that a worker may send, each made to cost its reader as much as one can."""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Final

from loopwarden_engine.plain import MAX_OPTION_VALUES, MAX_VALUES

FRAME_BYTES: Final = 1 << 20

_HEADS: Final = {
    "result": (b'{"type":"result","value":', b"}"),
    "options": (b'{"type":"call","id":1,"key":"1","line":1,"prompt":"p","options":{"label":', b"}}"),
    "schema": (
        b'{"type":"call","id":1,"key":"1","line":1,"prompt":"p","options":{"schema":{"type":"object","default":',
        b"}}}",
    ),
    "prompt": (b'{"type":"call","id":1,"key":"1","line":1,"prompt":', b"}"),
    "key": (b'{"type":"call","id":1,"line":1,"prompt":"p","key":', b"}"),
    "ready": (b'{"type":"ready","summary":"s","findings":', b"}"),
    "rejected": (b'{"type":"rejected","violations":', b"}"),
    "log": (b'{"type":"log","message":', b"}"),
    "phase": (b'{"type":"phase","title":', b"}"),
    "itemFailed": (b'{"type":"itemFailed","key":"1","index":0,"line":1,"message":', b"}"),
    "idle": (b'{"type":"idle","consumed":', b"}"),
    "fatal": (b'{"type":"fatal","code":"ITEM_CAP","line":1,"message":', b"}"),
    "failed": (b'{"type":"failed","code":"SCRIPT_ERROR","message":"m","lines":', b"}"),
    "type": (b'{"type":', b"}"),
    "fields": (b'{"type":"result","value":0,"more":', b"}"),
}
"""Where the large value stands in a message."""
KINDS: Final = tuple(_HEADS)

_VIOLATION: Final = b'{"line":1,"column":1,"rule":"r","message":"m","hint":"h"}'
_UNITS: Final = {
    "empty lists": b"[]",
    "empty objects": b"{}",
    "small objects": b'{"":0}',
    "integers": b"1",
    "long integers": b"1000000000000000",
    "floats": b"1.5",
    "exponents": b"1e308",
    "numbers of 4000 digits": b"0." + b"1" * 3998,
    "integers of 4000 digits": b"1" * 4000,
    "nulls": b"null",
    "short texts": b'""',
    "escaped texts": b'"\\u0000"',
    "texts with commas": b'","',
    "lists nested 60 deep": b"[" * 60 + b"]" * 60,
    "objects nested 60 deep": b'{"":' * 60 + b"1e1" + b"}" * 60,
    "lists nested 900 deep": b"[" * 900 + b"]" * 900,
    "violations": _VIOLATION,
}
_TEXTS: Final = {
    "one text": b"a",
    "commas in one text": b",",
    "brackets in one text": b"[",
    "control escapes": b"\\u0000",
    "escaped quotes": b'\\"',
    "escaped backslashes": b"\\\\",
    "escaped pairs": b"\\ud83d\\ude00",
    "line feeds": b"\\n",
    "spaces": b" ",
    "characters of four bytes": "\U0001f600".encode(),
}


def _list(unit: bytes, room: int) -> bytes:
    return b"[" + b",".join([unit] * ((room - 1) // (len(unit) + 1))) + b"]"


def _text(unit: bytes, room: int) -> bytes:
    return b'"' + unit * ((room - 2) // len(unit)) + b'"'


def _members(values: Iterator[bytes], room: int) -> bytes:
    parts, size = [], 2
    for part in values:
        size += len(part) + 1
        if size > room:
            break
        parts.append(part)
    return b"{" + b",".join(parts) + b"}"


def _with_padding(unit: bytes, room: int, most: int) -> bytes:
    """The most values that are decoded at all, and then a text that is looked at several times."""
    objects = b",".join([_UNITS["objects nested 60 deep"]] * ((most - 200) // 61))
    return b"[" + objects + b"," + _text(unit, room - len(objects) - 4) + b"]"


_MOST: Final[dict[str, Callable[[int, int], bytes]]] = {
    "as many values as are allowed, and escaped pairs": lambda room, most: _with_padding(b"\\ud83d\\ude00", room, most),
    "as many values as are allowed, and escaped quotes": lambda room, most: _with_padding(b'\\"', room, most),
    "as many members as are allowed": lambda room, most: _members((b'"%x":1e1' % n for n in range(most - 10)), room),
    "as many objects as are allowed": lambda room, most: b"[" + b",".join([b'{"a":1}'] * (most // 2 - 10)) + b"]",
    "as many exponents as are allowed": lambda room, most: b"[" + b",".join([b"1e308"] * (most - 10)) + b"]",
}
_OTHERS: Final[dict[str, Callable[[int], bytes]]] = {
    "members": lambda room: _members((b'"%x":1e1' % number for number in range(room)), room),
    "one key again and again": lambda room: _members((b'"a":0' for _ in range(room)), room),
    "one key again at the end": lambda room: (
        _members((b'"%x":0' % number for number in range(room)), room - 8)[:-1] + b',"0":0}'
    ),
    "an integer of a megabyte": lambda room: b"1" * room,
    "a float of a megabyte": lambda room: b"0." + b"1" * (room - 2),
    "white space": lambda room: b" " * (room - 1) + b"0",
    "lists that are not closed": lambda room: b"[" * room,
    "a list that is not closed": lambda room: _list(b"[]", room)[:-1],
    "half a character at the end": lambda room: _text(b"\\u00e9", room - 8)[:-1] + b'\\ud800"',
    "no text at the end": lambda room: _text(b"a", room - 2)[:-1] + b'\xff"',
    "quotes": lambda room: b'"' * room,
}
COSTLIEST: Final = tuple(_MOST)
"""The shapes that are just not too large, so that all of them is decoded."""
SHAPES: Final = (*_UNITS, *_TEXTS, *_MOST, *_OTHERS)


@lru_cache(maxsize=4)
def large_frame(kind: str, shape: str) -> bytes:
    """A payload of at most `FRAME_BYTES`: a message of this kind with a value of this shape."""
    head, tail = _HEADS[kind]
    room = FRAME_BYTES - len(head) - len(tail)
    if shape in _UNITS:
        value = _list(_UNITS[shape], room)
    elif shape in _TEXTS:
        value = _text(_TEXTS[shape], room)
    elif shape in _MOST:
        value = _MOST[shape](room, MAX_VALUES if kind in ("result", "ready") else MAX_OPTION_VALUES)
    else:
        value = _OTHERS[shape](room)
    assert len(value) <= room
    return head + value + tail
