"""The host's end of the wire as a pure state machine: bytes in, messages out, bytes to send. No I/O.

Rules kept here: a worker says `ready` or `rejected` once, then waits for `go`; call ids count 1, 2, 3 …; a key is used
once; replies answer open calls only; `idle` never claims replies that were not sent, and a worker that said that it
waits with nothing to consume is silent until it gets a reply; narration is counted; after a terminal message nothing
more is read. Any breach raises `ProtocolBreach`, and the machine is dead from then on.
"""

from collections.abc import Generator
from enum import Enum
from typing import Final

from loopwarden_engine.framing import FrameError, FrameReader, frame
from loopwarden_engine.message_decoding import decode_from_worker, decode_from_worker_in_steps
from loopwarden_engine.messages import (
    Call,
    Failed,
    Fatal,
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
    encode_from_host,
)
from loopwarden_engine.plain import JsonValue

_LARGE_FRAME_BYTES: Final = 64 * 1024
"""What is longer is decoded in steps."""


class ProtocolBreach(Exception):
    """The worker broke the protocol. The message says how, without quoting more than a few characters of it."""


class State(Enum):
    """Where the conversation with a worker stands."""

    NEW = "new"
    COMPILING = "compiling"
    COMPILED = "compiled"
    RUNNING = "running"
    ENDED = "ended"
    BROKEN = "broken"


# What a worker may say in which state, and where that leads. Everything that is not listed is a breach.
LEGAL_MOVES: Final[dict[State, dict[type[FromWorker], State]]] = {
    State.NEW: {},
    State.COMPILING: {Ready: State.COMPILED, Rejected: State.ENDED},
    State.COMPILED: {},
    State.RUNNING: {
        Call: State.RUNNING,
        Phase: State.RUNNING,
        Log: State.RUNNING,
        ItemFailed: State.RUNNING,
        Idle: State.RUNNING,
        Fatal: State.ENDED,
        Result: State.ENDED,
        Failed: State.ENDED,
    },
    State.ENDED: {},
    State.BROKEN: {},
}


class HostProtocol:
    """One conversation, seen from the host.

    `receive(data)` adds what the socket brought; `next_message()` gives one message or None, which says that more
    bytes are needed, unless `is_decoding`: then the next call takes the next step of a large message. The `send_*`
    methods return the bytes to write. `ValueError` from a `send_*` method is our own mistake, not the worker's.
    """

    __slots__ = (
        "_calls",
        "_consumed",
        "_decoding",
        "_is_vetting",
        "_is_waiting",
        "_keys",
        "_max_narration",
        "_narration",
        "_open",
        "_reader",
        "_replies_sent",
        "state",
    )

    def __init__(self, *, max_frame_bytes: int, max_narration: int) -> None:
        self.state = State.NEW
        self._reader = FrameReader(max_frame_bytes)
        self._decoding: Generator[None, None, FromWorker] | None = None
        self._max_narration = max_narration
        self._narration = 0
        self._calls = 0
        self._keys: set[str] = set()
        self._open: set[int] = set()
        self._replies_sent = 0
        self._consumed = 0
        self._is_waiting = False
        self._is_vetting = False

    @property
    def all_replies_consumed(self) -> bool:
        """True when the worker said that it took every reply that was sent."""
        return self._consumed == self._replies_sent

    @property
    def is_decoding(self) -> bool:
        """True while a large message is decoded in part."""
        return self._decoding is not None

    def send_start(self, start: Start) -> bytes:
        """Bytes that hand the worker its script. Once, first."""
        self._expect(State.NEW)
        self.state = State.COMPILING
        self._is_vetting = start.vet
        return frame(encode_from_host(start))

    def send_go(self) -> bytes:
        """Bytes that let the script run."""
        self._expect(State.COMPILED)
        self.state = State.RUNNING
        return frame(encode_from_host(Go()))

    def send_reply(self, call_id: int, value: JsonValue) -> bytes:
        """Bytes that end call `call_id`."""
        self._expect(State.RUNNING)
        if call_id not in self._open:
            raise ValueError(f"call {call_id} is not open")
        data = frame(encode_from_host(Reply(call_id, value)))
        self._open.remove(call_id)
        self._replies_sent += 1
        self._is_waiting = False
        return data

    def forget(self) -> None:
        """Nothing more is read: keep no part of what came, which may be a mebibyte, for as long as the run is known."""
        self.state = State.ENDED
        self._reader = FrameReader(0)
        self._decoding = None
        self._keys.clear()

    def receive(self, data: bytes) -> None:
        """Add bytes from the worker, split in any way."""
        self._reader.feed(data)

    def next_message(self) -> FromWorker | None:
        """Return the next message, or None: see above. Raises `ProtocolBreach`."""
        if self.state is State.BROKEN:
            raise ProtocolBreach("the conversation is broken already")
        if self.state is State.ENDED:
            return None
        try:
            message = self._decoded()
            if message is not None:
                self._check(message)
        except (FrameError, MessageError) as error:
            self.state = State.BROKEN
            raise ProtocolBreach(str(error)) from None
        except ProtocolBreach:
            self.state = State.BROKEN
            raise
        return message

    def _decoded(self) -> FromWorker | None:
        if self._decoding is None:
            payload = self._reader.next_frame()
            if payload is None:
                return None
            if len(payload) <= _LARGE_FRAME_BYTES:
                return decode_from_worker(payload)
            self._decoding = decode_from_worker_in_steps(payload)
        try:
            next(self._decoding)
        except StopIteration as over:
            self._decoding = None
            message: FromWorker = over.value
            return message
        return None

    def _check(self, message: FromWorker) -> None:
        following = LEGAL_MOVES[self.state].get(type(message))
        if following is None:
            raise ProtocolBreach(f"a {type(message).__name__} message came in state {self.state.value}")
        if self._is_waiting:
            # Its processor time is not watched while it waits, so it must not do anything then.
            raise ProtocolBreach(f"a {type(message).__name__} message came from a worker that said it waits")
        match message:
            case Call(id=number, key=key):
                if number != self._calls + 1:
                    raise ProtocolBreach(f"call {number} came where call {self._calls + 1} was due")
                if not key or key in self._keys:
                    raise ProtocolBreach("a call's key is empty or was used before")
                self._calls = number
                self._keys.add(key)
                self._open.add(number)
            case Ready(findings=findings):
                if (findings is not None) is not self._is_vetting:
                    raise ProtocolBreach("findings came unasked, or did not come")
            case Idle(consumed=consumed):
                if not self._consumed <= consumed <= self._replies_sent:
                    raise ProtocolBreach(f"{consumed} replies are said to be consumed; {self._replies_sent} were sent")
                self._consumed = consumed
                self._is_waiting = consumed == self._replies_sent
            case Phase() | Log() | ItemFailed():
                self._narration += 1
                if self._narration > self._max_narration:
                    raise ProtocolBreach(f"more than {self._max_narration} narration messages came")
            case _:
                pass
        self.state = following

    def _expect(self, state: State) -> None:
        if self.state is not state:
            raise ValueError(f"this needs state {state.value}, but the state is {self.state.value}")
