"""HTTP on 127.0.0.1, with a thread per connection: finds the format, asks the brain, sends, records."""

import http.server
import json
import select
import socket
import socketserver
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self, assert_never
from urllib.parse import urlsplit

from support.model_server.exchange import (
    Brain,
    CutShort,
    Encoded,
    Fail,
    FailInStream,
    ModelAnswer,
    ModelRequest,
    Raw,
    Say,
    Stall,
    Structured,
    UseTool,
    WireFormat,
)
from support.model_server.formats import FORMATS

LOOK_SECONDS = 0.01
"""A thread that stalls looks so often whether it may go on."""
JSON = "application/json"


@dataclass(slots=True, eq=False)
class Exchange:
    """One ask of the model and what became of it."""

    request: ModelRequest
    answer: ModelAnswer
    state: Literal["answering", "stalled", "answered", "client left"] = "answering"


@dataclass(frozen=True, slots=True)
class Plan:
    """What goes over the wire: `pieces`, and what happens after `stall_after` of them, and at the end."""

    status: int
    headers: Mapping[str, str]
    pieces: Sequence[bytes]
    stall_after: int | None = None
    tidy: bool = True


class ModelServer:
    """Serves from `with` to its end. Leaving it ends every connection and thread.

    What goes wrong in a brain or a format fails the test that uses the server, when it leaves `with`.
    """

    def __init__(self, brain: Brain, *, formats: Sequence[WireFormat] = FORMATS) -> None:
        self.brain = brain
        self.formats = formats
        self.exchanges: list[Exchange] = []
        """Every ask of the model, in the order in which they came."""
        self.asides: list[str] = []
        """Every other request: `GET /v1/models`."""
        self.problems: list[BaseException] = []
        self._lock = threading.Lock()
        self._released = threading.Event()
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(LOOK_SECONDS,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self.hang_up()
        self._server.server_close()
        if error is None and self.problems:
            raise AssertionError("the model server met a problem") from self.problems[0]

    @property
    def url(self) -> str:
        """Such as `http://127.0.0.1:40123`, without a slash at its end."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def requests(self) -> list[ModelRequest]:
        """The asks of the model so far."""
        return [exchange.request for exchange in self.exchanges]

    @property
    def open_connections(self) -> int:
        """Connections that neither side has closed."""
        return len(self._server.connections)

    def release(self) -> None:
        """Let answers that stall go on, and those to come not stall any more."""
        self._released.set()

    def hang_up(self) -> None:
        """End every connection as it stands."""
        self.release()
        for connection in list(self._server.connections):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # The client was faster.

    def decide(
        self, wire: WireFormat, *, method: str, target: str, headers: Mapping[str, str], data: bytes
    ) -> tuple[Exchange, Plan]:
        """Record one ask and plan its answer."""
        parts = urlsplit(target)
        body = json.loads(data)
        with self._lock:  # Brains and numbers are the same whatever the threads do.
            request = ModelRequest(
                number=len(self.exchanges) + 1,
                format=wire.name,
                method=method,
                path=parts.path,
                query=parts.query,
                headers=headers,
                body=body,
                asked=wire.read(parts.path, parts.query, body),
            )
            exchange = Exchange(request, Fail(status=500, message="the brain gave no answer"))
            self.exchanges.append(exchange)
            exchange.answer = self.brain(request)
        return exchange, _plan(wire, request, exchange.answer)


def _plan(wire: WireFormat, request: ModelRequest, answer: ModelAnswer) -> Plan:
    match answer:
        case Say() | Structured() | UseTool():
            return _whole(wire.encode(request, answer))
        case Fail():
            body = json.dumps(wire.failure(answer)).encode()
            return Plan(answer.status, {"content-type": JSON, **answer.headers}, (body,))
        case FailInStream():
            before = wire.encode(request, answer.said).pieces[: answer.pieces] if answer.said else ()
            return Plan(200, {"content-type": "text/event-stream"}, (*before, wire.failure_piece(answer.fail)))
        case Stall(said=None):
            return Plan(0, {}, (), stall_after=0, tidy=False)
        case Stall(said=said):
            assert said is not None
            plan = _whole(wire.encode(request, said))
            return Plan(plan.status, plan.headers, plan.pieces, stall_after=answer.pieces)
        case CutShort():
            encoded = wire.encode(request, answer.said)
            pieces = encoded.pieces[: answer.pieces]
            return Plan(200, {"content-type": encoded.content_type}, pieces, tidy=answer.tidy)
        case Raw():
            stall_after = len(answer.pieces) if answer.stalls else None
            return Plan(answer.status, answer.headers, answer.pieces, stall_after, answer.tidy)
        case _:
            assert_never(answer)


def _whole(encoded: Encoded) -> Plan:
    return Plan(200, {"content-type": encoded.content_type}, encoded.pieces)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = False
    block_on_close = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, owner: ModelServer) -> None:
        self.owner = owner
        self.connections: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Handlers keep their own problems; here come only connections that broke."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.server.connections.add(self.connection)

    def finish(self) -> None:
        self.server.connections.discard(self.connection)
        super().finish()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- the name is the base class's
        """Tests look at the records."""

    def do_GET(self) -> None:
        self._serve()

    def do_HEAD(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def _serve(self) -> None:
        owner = self.server.owner
        data = self._body()
        path = urlsplit(self.path).path
        for wire in owner.formats:
            if wire.takes(self.command, path):
                self._answer(wire, data)
                return
        owner.asides.append(f"{self.command} {path}")
        answers = (wire.aside(self.command, path) for wire in owner.formats)
        found = next((answer for answer in answers if answer is not None), None)
        if found is None:
            self._send(Plan(404, {"content-type": JSON}, (b'{"error":{"message":"there is nothing here"}}',)), None)
        else:
            self._send(_whole(found), None)

    def _answer(self, wire: WireFormat, data: bytes) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        try:
            exchange, plan = self.server.owner.decide(
                wire, method=self.command, target=self.path, headers=headers, data=data
            )
        except BaseException as error:
            self.server.owner.problems.append(error)
            body = json.dumps(wire.failure(Fail(status=500, message=f"the model server: {error!r}"))).encode()
            self._send(Plan(500, {"content-type": JSON}, (body,)), None)
            return
        try:
            self._send(plan, exchange)
        except OSError:
            self._client_left(exchange)
        else:
            if exchange.state != "client left":
                exchange.state = "answered"

    def _send(self, plan: Plan, exchange: Exchange | None) -> None:
        if plan.status:
            self.send_response(plan.status)
            for name, value in plan.headers.items():
                self.send_header(name, value)
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
        for index, piece in enumerate(plan.pieces):
            if index == plan.stall_after and not self._stall(exchange):
                return
            if self.command != "HEAD" and piece:
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        if plan.stall_after is not None and plan.stall_after >= len(plan.pieces) and not self._stall(exchange):
            return
        if not plan.tidy:
            self.close_connection = True
        elif self.command != "HEAD":
            self.wfile.write(b"0\r\n\r\n")

    def _stall(self, exchange: Exchange | None) -> bool:
        """Be silent. False: the client has left."""
        assert exchange is not None
        exchange.state = "stalled"
        while not self.server.owner._released.is_set():
            readable, _, _ = select.select([self.connection], [], [], LOOK_SECONDS)
            if readable and not self._is_there():
                self._client_left(exchange)
                return False
        exchange.state = "answering"
        return True

    def _is_there(self) -> bool:
        try:
            return bool(self.connection.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    def _client_left(self, exchange: Exchange) -> None:
        exchange.state = "client left"
        self.close_connection = True

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("transfer-encoding", "").lower():
            return self.rfile.read(int(self.headers.get("content-length", 0)))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass  # Trailers say nothing that a test looks at.
        return body
