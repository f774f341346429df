"""The host's end of a worker's socket on the event loop: bytes in, bytes out, never blocking."""

import asyncio
import socket
from collections.abc import Callable
from typing import Final

RECEIVE_BYTES: Final = 64 * 1024
"""What one turn of the event loop takes from one worker: a flood must not hold up the other runs."""


class WorkerChannel:
    """Reads and writes one socket. Every callback comes from the event loop, never from inside a method."""

    __slots__ = (
        "_backlog",
        "_closed",
        "_flushing",
        "_loop",
        "_on_closed",
        "_on_data",
        "_on_drained",
        "_paused",
        "_socket",
        "_stuck",
    )

    def __init__(
        self,
        sock: socket.socket,
        *,
        on_data: Callable[[bytes], None],
        on_closed: Callable[[], None],
        on_drained: Callable[[], None],
    ) -> None:
        self._socket = sock
        self._loop = asyncio.get_running_loop()
        self._on_data = on_data
        self._on_closed = on_closed
        self._on_drained = on_drained
        self._backlog = bytearray()
        self._flushing = False
        self._stuck = False
        self._closed = False
        self._paused = False
        self._loop.add_reader(sock.fileno(), self._readable)

    @property
    def is_stuck(self) -> bool:
        """True while the worker does not take what was written."""
        return self._stuck

    def write(self, data: bytes, *, more_may_follow: bool = False) -> None:
        """Send `data`. With `more_may_follow`, what gathers in one turn of the event loop leaves together."""
        if self._closed:
            return
        self._backlog += data
        if self._flushing:
            return
        if not more_may_follow:
            self._flushing = True
            self._flush()
        else:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def pause(self) -> None:
        """Read nothing until `resume`. What the peer sends meanwhile stays with the kernel."""
        if not self._paused and not self._closed:
            self._paused = True
            self._loop.remove_reader(self._socket.fileno())

    def resume(self) -> None:
        """Read again. Harmless without a pause."""
        if self._paused and not self._closed:
            self._paused = False
            self._loop.add_reader(self._socket.fileno(), self._readable)

    def close(self) -> None:
        """Stop reading and writing. The socket itself belongs to the worker process object."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._socket.fileno())
        if self._stuck:
            self._loop.remove_writer(self._socket.fileno())
        self._backlog.clear()

    def _readable(self) -> None:
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if data:
            self._on_data(data)
        else:
            self._loop.remove_reader(self._socket.fileno())
            self._on_closed()

    def _flush(self) -> None:
        if self._closed:
            return
        while self._backlog:
            try:
                sent = self._socket.send(self._backlog)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                # The worker is gone; its exit is reported elsewhere and decides the run.
                self._backlog.clear()
                break
            del self._backlog[:sent]
        if self._backlog and not self._stuck:
            self._stuck = True
            self._loop.add_writer(self._socket.fileno(), self._flush)
        elif not self._backlog:
            self._flushing = False
            if self._stuck:
                self._stuck = False
                self._loop.remove_writer(self._socket.fileno())
                self._on_drained()
