"""A worker for tests that executes plain Python, to attack the operating-system wall alone.

Only a test's launch command names it; nothing in the packages can. Requests and answers are length-prefixed JSON
texts.
"""

import json
import socket
from typing import Any


class PlainPython:
    """Executes each text that arrives and answers with what it left in `out`."""

    def __init__(self, channel_fd: int) -> None:
        self._channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=channel_fd)

    def serve(self) -> None:
        """Serve until the host hangs up."""
        scope: dict[str, Any] = {"channel": self._channel}
        while True:
            header = self._read(4)
            if not header:
                return
            code = self._read(int.from_bytes(header, "big")).decode()
            scope["out"] = None
            try:
                exec(compile(code, "<plain>", "exec"), scope)
                answer = {"value": scope["out"]}
            except BaseException as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            payload = json.dumps(answer, default=repr).encode()
            self._channel.sendall(len(payload).to_bytes(4, "big") + payload)

    def _read(self, size: int) -> bytes:
        received = b""
        while len(received) < size:
            data = self._channel.recv(size - len(received))
            if not data:
                return b""
            received += data
        return received
