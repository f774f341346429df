"""What came over the wire, decoded into messages.

A worker's bytes are hostile: exactly the keys and types of messages.py are accepted, and nothing else.
"""

from collections.abc import Callable, Generator
from typing import Final

from loopwarden_engine.json_decoding import decode_object, decode_object_in_steps
from loopwarden_engine.messages import (
    FAILED_CODES,
    FATAL_CODES,
    MAX_KEY_CHARS,
    MAX_LINES,
    MAX_MESSAGE_CHARS,
    MAX_NARRATION_CHARS,
    MAX_VIOLATIONS,
    Call,
    Failed,
    Fatal,
    FromHost,
    FromWorker,
    Go,
    Idle,
    ItemFailed,
    Log,
    MessageError,
    Phase,
    Ready,
    Rejected,
    Reply,
    Result,
    Start,
)
from loopwarden_engine.plain import MAX_DEPTH, MAX_OPTION_VALUES, MAX_VALUES, JsonObject, JsonValue, PlainDataError
from loopwarden_engine.violation import Violation

_MAX_MESSAGE_DEPTH: Final = MAX_DEPTH + 1
"""A message is an object around values that may be `MAX_DEPTH` deep themselves."""
_FIELDS: Final = 8
"""No message has more fields than that beside the value that it carries."""
_LARGE_STARTS: Final = (b'{"type":"result",', b'{"type":"ready",')
"""How the messages begin that may carry as many values as there may be; in this one spelling."""
_IDLE_START: Final = b'{"type":"idle","consumed":'
_IDLE_DIGITS: Final = 12


def decode_from_worker(data: bytes) -> FromWorker:
    """Decode one frame of a worker. Raises `MessageError` for everything that is not exactly a message."""
    # Half of all frames say idle, in this one spelling; any other spelling takes the long way.
    if data.startswith(_IDLE_START) and data[-1:] == b"}":
        digits = data[len(_IDLE_START) : -1]
        if digits.isdigit() and len(digits) <= _IDLE_DIGITS:
            return Idle(int(digits))
    return _from_worker(_decode(data, _most_values(data)))


def decode_from_worker_in_steps(data: bytes) -> Generator[None, None, FromWorker]:
    """As `decode_from_worker`, for a large frame: yields after each step but the last, and returns the message."""
    try:
        body = yield from decode_object_in_steps(data, max_depth=_MAX_MESSAGE_DEPTH, max_values=_most_values(data))
    except PlainDataError as error:
        raise MessageError(str(error)) from None
    return _from_worker(body)


def _most_values(data: bytes) -> int:
    return (MAX_VALUES if data.startswith(_LARGE_STARTS) else MAX_OPTION_VALUES) + _FIELDS


def _from_worker(body: JsonObject) -> FromWorker:
    kind = body.pop("type", None)
    if not isinstance(kind, str):
        raise MessageError("the message type is missing, or no text")
    decoder = _WORKER_DECODERS.get(kind)
    if decoder is None:
        raise MessageError(f"unknown message type {kind[:40]!r}")
    return decoder(body)


def decode_from_host(data: bytes) -> FromHost:
    """Decode one frame of the host. The worker trusts the host; the checks find our own mistakes."""
    body = _decode(data, None)
    kind = body.pop("type", None)
    if kind == "reply":
        _exact(body, _REPLY_KEYS)
        return Reply(_count(body, "id"), body["value"])
    if kind == "go":
        _exact(body, set())
        return Go()
    if kind == "start":
        _exact(body, {"source", "args", "maxItemsPerCall", "maxNarration", "maxFrameBytes", "vet"})
        args, vet = body["args"], body["vet"]
        if not isinstance(args, dict):
            raise MessageError("args is not an object")
        if not isinstance(vet, bool):
            raise MessageError("vet is neither true nor false")
        return Start(
            source=_text(body, "source", None),
            args=args,
            max_items_per_call=_count(body, "maxItemsPerCall"),
            max_narration=_count(body, "maxNarration"),
            max_frame_bytes=_count(body, "maxFrameBytes"),
            vet=vet,
        )
    raise MessageError(f"unknown message type {str(kind)[:40]!r}")


def _decode(data: bytes, max_values: int | None) -> JsonObject:
    try:
        return decode_object(data, max_depth=_MAX_MESSAGE_DEPTH, max_values=max_values)
    except PlainDataError as error:
        raise MessageError(str(error)) from None


def _exact(body: JsonObject, keys: frozenset[str] | set[str]) -> None:
    if body.keys() != keys:
        wrong = min(body.keys() ^ keys)
        raise MessageError(f"the key {wrong[:40]!r} is {'missing' if wrong in keys else 'not part of the message'}")


def _count(body: JsonObject, key: str) -> int:
    value = body[key]
    if type(value) is not int or value < 0:
        raise MessageError(f"{key} is not a count")
    return value


def _text(body: JsonObject, key: str, max_chars: int | None) -> str:
    value = body[key]
    if not isinstance(value, str):
        raise MessageError(f"{key} is not a text")
    if max_chars is not None and len(value) > max_chars:
        raise MessageError(f"{key} is longer than {max_chars} characters")
    return value


_CALL_KEYS: Final = frozenset({"id", "key", "line", "prompt"})
_REPLY_KEYS: Final = frozenset({"id", "value"})


def _call(body: JsonObject) -> Call:
    options = body.pop("options") if "options" in body else {}
    _exact(body, _CALL_KEYS)
    if not isinstance(options, dict):
        raise MessageError("options is not an object")
    return Call(
        _count(body, "id"),
        _text(body, "key", MAX_KEY_CHARS),
        _count(body, "line"),
        _text(body, "prompt", None),
        options,
    )


def _phase(body: JsonObject) -> Phase:
    _exact(body, {"title"})
    return Phase(_text(body, "title", MAX_NARRATION_CHARS))


def _log(body: JsonObject) -> Log:
    _exact(body, {"message"})
    return Log(_text(body, "message", MAX_NARRATION_CHARS))


def _item_failed(body: JsonObject) -> ItemFailed:
    _exact(body, {"key", "index", "line", "message"})
    return ItemFailed(
        _text(body, "key", MAX_KEY_CHARS),
        _count(body, "index"),
        _count(body, "line"),
        _text(body, "message", MAX_NARRATION_CHARS),
    )


def _idle(body: JsonObject) -> Idle:
    _exact(body, {"consumed"})
    return Idle(_count(body, "consumed"))


def _ready(body: JsonObject) -> Ready:
    findings: JsonObject | None = None
    if "findings" in body:
        given = body.pop("findings")
        if not isinstance(given, dict):
            raise MessageError("findings is not an object")
        findings = given
    _exact(body, {"summary"})
    return Ready(_text(body, "summary", MAX_NARRATION_CHARS), findings)


def _rejected(body: JsonObject) -> Rejected:
    _exact(body, {"violations"})
    rows = body["violations"]
    if not isinstance(rows, list) or not 1 <= len(rows) <= MAX_VIOLATIONS:
        raise MessageError(f"violations is not a list of 1 to {MAX_VIOLATIONS}")
    return Rejected(tuple(_violation(row) for row in rows))


def _violation(row: JsonValue) -> Violation:
    if not isinstance(row, dict):
        raise MessageError("a violation is not an object")
    _exact(row, {"line", "column", "rule", "message", "hint"})
    return Violation(
        line=_count(row, "line"),
        column=_count(row, "column"),
        rule=_text(row, "rule", 100),
        message=_text(row, "message", 2000),
        hint=_text(row, "hint", 2000),
    )


def _fatal(body: JsonObject) -> Fatal:
    _exact(body, {"code", "message", "line"})
    code = body["code"]
    if not isinstance(code, str) or code not in FATAL_CODES:
        raise MessageError("code is not one that a worker may end a run with")
    return Fatal(code, _text(body, "message", MAX_MESSAGE_CHARS), _count(body, "line"))  # type: ignore[arg-type]


def _result(body: JsonObject) -> Result:
    _exact(body, {"value"})
    return Result(body["value"])


def _failed(body: JsonObject) -> Failed:
    _exact(body, {"code", "message", "lines"})
    code, lines = body["code"], body["lines"]
    if not isinstance(code, str) or code not in FAILED_CODES:
        raise MessageError("code is not one that a script may fail with")
    if not isinstance(lines, list) or len(lines) > MAX_LINES:
        raise MessageError(f"lines is not a list of at most {MAX_LINES}")
    numbers: list[int] = []
    for line in lines:
        if type(line) is not int or line < 0:
            raise MessageError("a line is not a count")
        numbers.append(line)
    return Failed(code, _text(body, "message", MAX_MESSAGE_CHARS), tuple(numbers))  # type: ignore[arg-type]


_WORKER_DECODERS: Final[dict[str, Callable[[JsonObject], FromWorker]]] = {
    "call": _call,
    "failed": _failed,
    "fatal": _fatal,
    "idle": _idle,
    "itemFailed": _item_failed,
    "log": _log,
    "phase": _phase,
    "ready": _ready,
    "rejected": _rejected,
    "result": _result,
}
