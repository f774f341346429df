"""Hostile workers as data: what one says, in which pieces, and how it leaves. Hypothesis makes them up.

An attack is played on a thread of its own, against the worker's end of a real channel: the event loop under test does
nothing but the host's work.
"""

import array
import contextlib
import json
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeAlias

from hypothesis import strategies as st

from loopwarden_engine.framing import FrameReader, frame
from loopwarden_engine.messages import (
    Call,
    Failed,
    Fatal,
    FromWorker,
    Idle,
    ItemFailed,
    Log,
    Phase,
    Ready,
    Rejected,
    Result,
    encode_from_worker,
)
from loopwarden_engine.violation import Violation
from support.large_frames import KINDS, SHAPES, large_frame

PATIENCE_SECONDS: Final = 10.0


class Manners(Enum):
    """How far a hostile worker behaves before it attacks."""

    NONE = "attacks at once"
    START = "takes its start"
    READY = "says that the script compiled"
    GO = "takes its go"


@dataclass(frozen=True, slots=True)
class Say:
    """Send bytes, in pieces of so many; 0: all at once."""

    data: bytes
    piece: int = 0


@dataclass(frozen=True, slots=True)
class SayLarge:
    """Send a frame of nearly a mebibyte: see `large_frames`."""

    kind: str
    shape: str


@dataclass(frozen=True, slots=True)
class Take:
    """Read one message of the host, so many bytes at a time."""

    piece: int = 65536


@dataclass(frozen=True, slots=True)
class Shut:
    """Close one direction: the host reads its end of file, or writes into nothing."""

    how: int


@dataclass(frozen=True, slots=True)
class Attach:
    """Send a byte with open descriptors."""

    count: int


@dataclass(frozen=True, slots=True)
class Urgent:
    """Send out-of-band data, where the kernel knows that for such a socket."""

    data: bytes


Step: TypeAlias = Say | SayLarge | Take | Shut | Attach | Urgent


@dataclass(frozen=True, slots=True)
class Attack:
    """One hostile worker."""

    manners: Manners
    steps: tuple[Step, ...]
    hangs_up: bool = True
    """At its end; else it is silent, and whoever started the run has to cancel it."""


# ---- attacks as data: tests/escape/frames.jsonl


def attack_of(case: Mapping[str, Any]) -> Attack:
    """The attack that a line of the corpus describes."""
    steps: list[Step] = []
    for row in case["steps"]:
        steps += _steps_of(row)
    return Attack(Manners[case["manners"].upper()], tuple(steps), case.get("hangsUp", True))


_SHUT: Final = {"read": socket.SHUT_RD, "write": socket.SHUT_WR}


def _steps_of(row: Mapping[str, Any]) -> Sequence[Step]:
    match row:
        case {"say": message}:
            data = frame(json.dumps(message, ensure_ascii=True).encode())
            return [Say(data * row.get("times", 1), row.get("piece", 0))]
        case {"text": text}:
            return [Say(frame(text.encode()))]
        case {"hex": digits}:
            return [Say(bytes.fromhex(digits))]
        case {"calls": count}:
            return [Say(b"".join(_encoded(Call(n, str(n), 1, "slow", {})) for n in range(1, count + 1)))]
        case {"large": [kind, shape]}:
            return [SayLarge(kind, shape)]
        case {"take": piece}:
            return [Take(piece)]
        case {"shut": how}:
            return [Shut(_SHUT[how])]
        case {"attach": count}:
            return [Attach(count)]
        case {"urgent": digits}:
            return [Urgent(bytes.fromhex(digits))]
    raise ValueError(f"no step: {row}")


# ---- playing an attack


def play(end: socket.socket, attack: Attack) -> None:
    """Be the worker at `end`. Returns when all is said, or when the host has hung up; closes the socket if it hangs up.

    Blocks: for a thread.
    """
    end.settimeout(PATIENCE_SECONDS)
    reader = FrameReader(64 * 1024 * 1024)
    with contextlib.suppress(ConnectionError, BrokenPipeError, _HungUp):
        _behave(end, reader, attack.manners)
        for step in attack.steps:
            _take_step(end, reader, step)
    if attack.hangs_up:
        end.close()


class _HungUp(Exception):
    """The host closed its end."""


def _behave(end: socket.socket, reader: FrameReader, manners: Manners) -> None:
    if manners is Manners.NONE:
        return
    _take_message(end, reader, 65536)
    if manners is Manners.START:
        return
    end.sendall(frame(encode_from_worker(Ready("hostile"))))
    if manners is Manners.GO:
        _take_message(end, reader, 65536)


def _take_message(end: socket.socket, reader: FrameReader, piece: int) -> None:
    while reader.next_frame() is None:
        data = end.recv(piece)
        if not data:
            raise _HungUp
        reader.feed(data)


def _take_step(end: socket.socket, reader: FrameReader, step: Step) -> None:
    match step:
        case Say(data=data, piece=piece):
            for begin in range(0, len(data), piece or max(len(data), 1)):
                end.sendall(data[begin : begin + (piece or len(data))])
        case SayLarge(kind=kind, shape=shape):
            end.sendall(frame(large_frame(kind, shape)))
        case Take(piece=piece):
            # What is awaited may never come: an attack may wait for a reply that is not due.
            end.settimeout(0.02)
            with contextlib.suppress(TimeoutError):
                _take_message(end, reader, piece)
            end.settimeout(PATIENCE_SECONDS)
        case Shut(how=how):
            with contextlib.suppress(OSError):
                end.shutdown(how)
        case Attach(count=count):
            given = [os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC) for _ in range(count)]
            try:
                end.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", given))])
            finally:
                for descriptor in given:
                    os.close(descriptor)
        case Urgent(data=data):
            with contextlib.suppress(OSError):
                end.send(data, socket.MSG_OOB)


# ---- making up attacks

_TEXT: Final = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_PROMPTS: Final = st.sampled_from(["work", "slow", "much", "", " ", "\u2028", "x" * 5000])
_KEYS: Final = st.sampled_from(["", "1", "2", "1.1", "k" * 1024, "\U0001f600"])
_OPTIONS: Final = st.fixed_dictionaries(
    {},
    optional={
        "label": st.sampled_from(["l", "", "x" * 201, 3, None]),
        "phase": st.sampled_from(["p", [], None]),
        "provider": st.sampled_from(["default", "other", "", 1]),
        "model": st.sampled_from(["m", {}, None]),
        "schema": st.sampled_from(
            [
                {"type": "object"},
                {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"$ref": "#/$defs/a"}}},
                {"type": "object", "patternProperties": {}},
                {"type": "object", "properties": {"a": {"type": "string", "pattern": "(a+)+$"}}},
                {},
                [],
                "object",
            ]
        ),
        "shcema": st.just(1),
    },
)
_VALUES: Final = st.recursive(
    st.sampled_from([None, True, 0, -1, 2**53, 1.0, -0.0, 1e308, "", "a", "\x00", "\ud800"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["", "a", "type"]), inner, max_size=3),
    max_leaves=6,
)
MESSAGES: Final[st.SearchStrategy[FromWorker]] = st.one_of(
    st.builds(Ready, _TEXT),
    st.builds(Ready, _TEXT, st.just({})),
    st.just(Rejected((Violation(line=1, column=0, rule="r", message="m", hint="h"),))),
    st.builds(Call, st.integers(0, 4), _KEYS, st.integers(0, 9), _PROMPTS, _OPTIONS),
    st.builds(Phase, _TEXT),
    st.builds(Log, _TEXT),
    st.builds(ItemFailed, _KEYS, st.integers(0, 3), st.integers(0, 3), _TEXT),
    st.builds(Idle, st.integers(0, 4)),
    st.sampled_from([Fatal("ITEM_CAP", "m", 3), Fatal("INVALID_ARGUMENT", "", 0)]),
    st.sampled_from([Result(None), Result({"a": [1.5]})]),
    st.sampled_from([Failed("SCRIPT_ERROR", "m", (1, 2)), Failed("MEMORY_LIMIT", "", ())]),
)
_MANNERS: Final = st.sampled_from([Manners.GO, Manners.GO, Manners.GO, Manners.READY, Manners.START, Manners.NONE])
_PIECES: Final = st.sampled_from([0, 0, 0, 1, 3, 7, 100])


def _encoded(message: FromWorker) -> bytes:
    return frame(encode_from_worker(message))


@st.composite
def _streams(draw: st.DrawFn) -> bytes:
    """Bytes that begin as frames and were damaged then."""
    data = bytearray(b"".join(map(_encoded, draw(st.lists(MESSAGES, min_size=1, max_size=4)))))
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, max(len(data) - 1, 0)))
        match draw(st.sampled_from(["flip", "cut", "double", "insert", "length"])):
            case "flip" if data:
                data[place] ^= 1 << draw(st.integers(0, 7))
            case "cut":
                del data[place : place + draw(st.integers(1, 40))]
            case "double":
                data[place:place] = data[place : place + 60]
            case "insert":
                data[place:place] = draw(st.binary(min_size=1, max_size=8))
            case _:
                data[0:4] = struct.pack(">I", draw(st.sampled_from([0, 1, 2**20, 2**20 + 1, 2**31, 2**32 - 1])))
    return bytes(data)


@st.composite
def _odd_objects(draw: st.DrawFn) -> bytes:
    """A frame whose object is nearly a message: a field that is wrong, missing, or one too many."""
    body: dict[str, Any] = json.loads(encode_from_worker(draw(MESSAGES)))
    name = draw(st.sampled_from([*body, "more"]))
    if draw(st.booleans()):
        body[name] = draw(_VALUES)
    else:
        body.pop(name, None)
    text = json.dumps(body, ensure_ascii=True)
    if draw(st.integers(0, 9)) == 0:
        text = text[:-1] + f',"{name}":0}}'
    return frame(text.encode())


@st.composite
def _conversations(draw: st.DrawFn) -> tuple[Step, ...]:
    """Well-formed messages of which most are legal at their moment, and replies that are taken, slowly, or never."""
    steps: list[Step] = []
    calls = consumed = 0
    for _ in range(draw(st.integers(1, 8))):
        match draw(st.sampled_from(["call", "call", "idle", "take", "any", "leave"])):
            case "call":
                calls += 1
                message: FromWorker = Call(calls, f"key {calls}", 1, draw(_PROMPTS), draw(_OPTIONS | st.just({})))
                steps.append(Say(_encoded(message)))
            case "idle":
                steps.append(Say(_encoded(Idle(consumed))))
                consumed += 1
            case "take":
                steps.append(Take(draw(st.sampled_from([1, 65536]))))
            case "any":
                steps.append(Say(_encoded(draw(MESSAGES)), draw(_PIECES)))
            case _:
                steps.append(draw(_DEPARTURES))
    return tuple(steps)


_DEPARTURES: Final[st.SearchStrategy[Step]] = st.one_of(
    st.builds(Shut, st.sampled_from([socket.SHUT_RD, socket.SHUT_WR, socket.SHUT_RDWR])),
    st.builds(Attach, st.integers(1, 5)),
    st.builds(Urgent, st.binary(min_size=1, max_size=3)),
)
_RAW: Final = st.builds(Say, st.binary(max_size=200), _PIECES)
_HEADED: Final = st.builds(lambda body, piece: Say(frame(body), piece), st.binary(min_size=1, max_size=60), _PIECES)
_LARGE: Final = st.builds(SayLarge, st.sampled_from(KINDS), st.sampled_from(SHAPES))
_STEPS: Final[st.SearchStrategy[Sequence[Step]]] = st.one_of(
    st.lists(_RAW | _HEADED, min_size=1, max_size=3),
    st.lists(st.builds(Say, _streams(), _PIECES), min_size=1, max_size=2),
    st.lists(st.builds(Say, _odd_objects(), _PIECES), min_size=1, max_size=3),
    _conversations(),
    _conversations(),
    st.lists(_LARGE | _DEPARTURES, min_size=1, max_size=2),
)
ATTACKS: Final = st.builds(
    lambda manners, steps, hangs_up: Attack(manners, tuple(steps), hangs_up),
    _MANNERS,
    _STEPS,
    st.sampled_from([True, True, True, False]),
)
