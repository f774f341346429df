"""The messages of the wire: a closed union each way, as frozen records, with their strict JSON form.

Field names are camelCase on the wire (design section 2). The way back is message_decoding.py; whether a message is
legal at its moment is protocol.py's business.
"""

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, assert_never

from loopwarden_engine.plain import (
    JsonObject,
    JsonValue,
    compact_json,
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
