"""The messages of the wire: a closed union each way, as frozen records, with their strict JSON form.

A worker's bytes are hostile: `decode_from_worker` accepts exactly the keys and types below and nothing else. Field
names are camelCase on the wire (design section 2). Whether a message is legal at its moment is protocol.py's business.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, assert_never

from loopwarden_engine.plain import (
    MAX_DEPTH,
    MAX_OPTION_VALUES,
    MAX_VALUES,
    JsonObject,
    JsonValue,
    PlainDataError,
    compact_json,
    decode_object,
)
from loopwarden_engine.violation import Violation


class MessageError(ValueError):
    """The bytes of a frame are not one of the messages."""


# ---- worker to host


@dataclass(frozen=True, slots=True)
class Ready:
    """The script compiled. `summary` is the first line of its docstring.

    `findings`: what it does with its hooks (`analysis.analyse`), when the start asked for that and only then.
    """

    summary: str
    findings: JsonObject | None = None


@dataclass(frozen=True, slots=True)
class Rejected:
    """The script breaks the language policy; the list is never empty."""

    violations: tuple[Violation, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """One `agent()`. `id` counts 1, 2, 3 …; `key` is the structural identity; `options` as written, None left out."""

    id: int
    key: str
    line: int
    prompt: str
    options: JsonObject


@dataclass(frozen=True, slots=True)
class Phase:
    """The script named what it does now."""

    title: str


@dataclass(frozen=True, slots=True)
class Log:
    """The script told its observers something."""

    message: str


@dataclass(frozen=True, slots=True)
class ItemFailed:
    """An exception made item `index` of the combinator `key` None. `line` is the script's, 0 when there is none."""

    key: str
    index: int
    line: int
    message: str


@dataclass(frozen=True, slots=True)
class Idle:
    """Every branch waits; `consumed` replies were taken in all."""

    consumed: int


@dataclass(frozen=True, slots=True)
class Fatal:
    """A hook was used in a way that ends the run. The worker does nothing more after it."""

    code: "FatalCode"
    message: str
    line: int


@dataclass(frozen=True, slots=True)
class Result:
    """`main` returned this value."""

    value: JsonValue


@dataclass(frozen=True, slots=True)
class Failed:
    """The script itself failed. `lines` are its own line numbers, outermost first."""

    code: "FailedCode"
    message: str
    lines: tuple[int, ...]


FatalCode: TypeAlias = Literal["INVALID_ARGUMENT", "UNSUPPORTED_OPTION", "ITEM_CAP", "NARRATION_LIMIT", "SCRIPT_ERROR"]
FailedCode: TypeAlias = Literal["SCRIPT_ERROR", "MEMORY_LIMIT", "RESULT_INVALID"]
FATAL_CODES: Final = frozenset(
    {"INVALID_ARGUMENT", "UNSUPPORTED_OPTION", "ITEM_CAP", "NARRATION_LIMIT", "SCRIPT_ERROR"}
)
FAILED_CODES: Final = frozenset({"SCRIPT_ERROR", "MEMORY_LIMIT", "RESULT_INVALID"})

FromWorker: TypeAlias = Ready | Rejected | Call | Phase | Log | ItemFailed | Idle | Fatal | Result | Failed


# ---- host to worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What a worker needs for its one run."""

    source: str
    args: JsonObject
    max_items_per_call: int
    max_narration: int
    max_frame_bytes: int
    vet: bool = False
    """Look at the script as a person who vets it would, and tell what was found."""


@dataclass(frozen=True, slots=True)
class Go:
    """The run was announced: execute."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The end of call `id`. `value` is text, an object, or None when the child failed."""

    id: int
    value: JsonValue


FromHost: TypeAlias = Start | Go | Reply


# ---- limits of texts inside messages (code points)

MAX_NARRATION_CHARS: Final = 4096
MAX_MESSAGE_CHARS: Final = 8192
MAX_KEY_CHARS: Final = 1024
MAX_VIOLATIONS: Final = 200
MAX_LINES: Final = 64


_MAX_MESSAGE_DEPTH: Final = MAX_DEPTH + 1
"""A message is an object around values that may be `MAX_DEPTH` deep themselves."""
_FIELDS: Final = 8
"""No message has more fields than that beside the value that it carries."""
_LARGE_STARTS: Final = (b'{"type":"result",', b'{"type":"ready",')
"""How the messages begin that may carry as many values as there may be; in this one spelling."""
_IDLE_START: Final = b'{"type":"idle","consumed":'
_IDLE_DIGITS: Final = 12


def encode_from_worker(message: FromWorker) -> bytes:  # noqa: PLR0911 -- one arm per message type
    """The JSON form of a worker's message."""
    match message:
        case Call(id=number, key=key, line=line, prompt=prompt, options=options):
            # Written out, as `reply` below: an encoder for a whole object costs a tenth of a call's way there and back.
            text = f'{{"type":"call","id":{number},"key":{compact_json(key)},"line":{line}'
            text += f',"prompt":{compact_json(prompt)}'
            text += f',"options":{compact_json(options)}}}' if options else "}"
            return text.encode("utf-8")
        case Idle(consumed=consumed):
            return b'{"type":"idle","consumed":%d}' % consumed
        case Phase(title=title):
            return _encode({"type": "phase", "title": title})
        case Log(message=text):
            return _encode({"type": "log", "message": text})
        case ItemFailed(key=key, index=index, line=line, message=text):
            return _encode({"type": "itemFailed", "key": key, "index": index, "line": line, "message": text})
        case Ready(summary=summary, findings=findings):
            found = {} if findings is None else {"findings": findings}
            return _encode({"type": "ready", "summary": summary, **found})
        case Rejected(violations=violations):
            rows = [
                {"line": v.line, "column": v.column, "rule": v.rule, "message": v.message, "hint": v.hint}
                for v in violations
            ]
            return _encode({"type": "rejected", "violations": rows})
        case Fatal(code=code, message=text, line=line):
            return _encode({"type": "fatal", "code": code, "message": text, "line": line})
        case Result(value=value):
            return _encode({"type": "result", "value": value})
        case Failed(code=failed_code, message=text, lines=lines):
            return _encode({"type": "failed", "code": failed_code, "message": text, "lines": list(lines)})
        case _:
            assert_never(message)


def encode_from_host(message: FromHost) -> bytes:
    """The JSON form of a host's message."""
    match message:
        case Reply(id=number, value=value):
            return f'{{"type":"reply","id":{number},"value":{compact_json(value)}}}'.encode()
        case Go():
            return b'{"type":"go"}'
        case Start():
            return _encode(
                {
                    "type": "start",
                    "source": message.source,
                    "args": message.args,
                    "maxItemsPerCall": message.max_items_per_call,
                    "maxNarration": message.max_narration,
                    "maxFrameBytes": message.max_frame_bytes,
                    "vet": message.vet,
                }
            )
        case _:
            assert_never(message)


def _encode(body: dict[str, object]) -> bytes:
    return compact_json(body).encode("utf-8")


def decode_from_worker(data: bytes) -> FromWorker:
    """Decode one frame of a worker. Raises `MessageError` for everything that is not exactly a message."""
    # Half of all frames say idle, in this one spelling; any other spelling takes the long way.
    if data.startswith(_IDLE_START) and data[-1:] == b"}":
        digits = data[len(_IDLE_START) : -1]
        if digits.isdigit() and len(digits) <= _IDLE_DIGITS:
            return Idle(int(digits))
    max_values = MAX_VALUES if data.startswith(_LARGE_STARTS) else MAX_OPTION_VALUES
    body = _decode(data, max_values + _FIELDS)
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
