"""What a model is asked and answers, apart from any wire format. Brains and formats speak of these alone."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """What an answer says that it used."""

    input: int = 1200
    """All that was read, `cached` included. A format that counts otherwise does the sum."""
    cached: int = 200
    output: int = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What stands in a request body, in words that all formats share."""

    model: str | None
    wants_stream: bool
    prompt: str
    """All texts of the user, joined by line feeds."""
    system: str = ""
    tools: tuple[str, ...] = ()
    """Names of the tools on offer."""
    forced_tool: str | None = None
    """The tool that the model has to call."""
    schema: Mapping[str, Any] | None = None
    """The schema of the response format; a schema that is offered as a tool stands in the body only."""
    tool_results: tuple[str, ...] = ()
    """What tools gave so far, in order. Empty: the first turn of a conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """One ask of the model."""

    number: int
    """From 1, over all formats."""
    format: str
    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    """Names in lower case."""
    body: Mapping[str, Any]
    asked: Asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Say:
    """A text."""

    text: str
    finish: Literal["stop", "length", "filtered"] = "stop"
    parts: int = 3
    """A streamed text comes in so many pieces."""
    thinking: str = ""
    """What the model thinks aloud first."""
    tokens: Tokens | None = field(default_factory=Tokens)
    """None: the answer does not say what it used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Structured:
    """A structured value, given in the way that the request asks for: as text, or as the arguments of a tool."""

    value: Mapping[str, Any]
    tool: str | None = None
    """A tool that takes the value, where nothing in the request says so."""
    tokens: Tokens | None = field(default_factory=Tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class UseTool:
    """A call of one of the caller's tools. The caller then asks again, with the result."""

    name: str
    arguments: Mapping[str, Any]
    text: str = ""
    """Said before the call."""
    tokens: Tokens | None = field(default_factory=Tokens)


Said: TypeAlias = Say | Structured | UseTool


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    """An error answer, with the error body of the format."""

    status: int
    message: str
    type: str | None = None
    """The kind of error; None: what the format says for such a status."""
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailInStream:
    """The first pieces of a streamed answer, then an error inside of the stream."""

    fail: Fail
    said: Said | None = None
    pieces: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """The first pieces of an answer, then silence until the client leaves or `ModelServer.release` is called.

    After a release the rest follows. Without `said`, nothing is sent at all, and a release hangs up.
    """

    said: Said | None = None
    pieces: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CutShort:
    """The first pieces of an answer, then the end of the connection."""

    said: Said
    pieces: int
    tidy: bool = False
    """True: HTTP itself ends well, so that only the format shows that the answer is not whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """Any bytes as the body, piece by piece."""

    pieces: Sequence[bytes]
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "text/event-stream"})
    tidy: bool = True
    """False: the connection ends in the middle of the body."""
    stalls: bool = False
    """True: silence after the last piece, as `Stall`."""


ModelAnswer: TypeAlias = Say | Structured | UseTool | Fail | FailInStream | Stall | CutShort | Raw
Brain: TypeAlias = Callable[[ModelRequest], ModelAnswer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """An answer on the wire. Each piece is sent, and flushed, by itself."""

    content_type: str
    pieces: tuple[bytes, ...]


class WireFormat(Protocol):
    """One way to ask a model over HTTP. Holds no state."""

    @property
    def name(self) -> str:
        """As in `ModelRequest.format`."""
        ...

    def takes(self, method: str, path: str) -> bool:
        """Say whether this is an ask of the model in this format. `path` is without the query."""
        ...

    def read(self, path: str, query: str, body: Mapping[str, Any]) -> Asked:
        """What is asked."""
        ...

    def encode(self, request: ModelRequest, said: Said) -> Encoded:
        """What the model says: server-sent events when the request wants a stream, else one JSON body."""
        ...

    def failure(self, fail: Fail) -> dict[str, Any]:
        """The body of an error answer."""
        ...

    def failure_piece(self, fail: Fail) -> bytes:
        """An error inside of a stream."""
        ...

    def aside(self, method: str, path: str) -> Encoded | None:
        """Answer what clients ask besides, such as a list of models; None: not of this format."""
        ...


def in_order(*answers: ModelAnswer) -> Brain:
    """A brain that gives the n-th answer to the n-th request. One more request is a problem of the test."""

    def brain(request: ModelRequest) -> ModelAnswer:
        assert request.number <= len(answers), f"request {request.number} came, and only {len(answers)} are expected"
        return answers[request.number - 1]

    return brain


def always(answer: ModelAnswer) -> Brain:
    """A brain that has one answer."""
    return lambda request: answer
