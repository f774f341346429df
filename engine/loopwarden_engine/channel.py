"""The worker's end of its one socket: blocking, one message at a time, nothing but `sendto` and `recvfrom`.

Made before confinement, since making a socket object asks the kernel about the descriptor.
"""

import os
import socket
from typing import Final, NoReturn

from loopwarden_engine.framing import FrameReader, frame
from loopwarden_engine.message_decoding import decode_from_host
from loopwarden_engine.messages import FromHost, FromWorker, encode_from_worker

_RECEIVE_BYTES: Final = 64 * 1024
_FLUSH_BYTES: Final = 64 * 1024
_MAX_HOST_FRAME_BYTES: Final = 256 * 1024 * 1024


class Channel:
    """Messages to and from the host. A closed channel ends the process: without a host there is nobody to work for."""

    __slots__ = ("_outgoing", "_reader", "_socket")

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=descriptor)
        self._socket.setblocking(True)
        # The host is trusted by the worker, so the cap only keeps a mistake of ours from looking like a hang.
        self._reader = FrameReader(_MAX_HOST_FRAME_BYTES)
        self._outgoing = bytearray()

    def put(self, message: FromWorker) -> None:
        """Queue a message. It leaves at the next `flush`, or when enough has gathered."""
        self.put_encoded(encode_from_worker(message))

    def put_encoded(self, payload: bytes) -> None:
        """As `put`, for a message that is encoded already."""
        self._outgoing += frame(payload)
        if len(self._outgoing) >= _FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Send what is queued."""
        if self._outgoing:
            data, self._outgoing = self._outgoing, bytearray()
            try:
                self._socket.sendall(data)
            except OSError:
                leave(0)

    def take_buffered(self) -> FromHost | None:
        """Return the next message that has arrived already, or None."""
        payload = self._reader.next_frame()
        return None if payload is None else decode_from_host(payload)

    def take(self) -> FromHost:
        """Return the next message, waiting for it."""
        while True:
            message = self.take_buffered()
            if message is not None:
                return message
            try:
                data = self._socket.recv(_RECEIVE_BYTES)
            except OSError:
                leave(0)
            if not data:
                leave(0)
            self._reader.feed(data)

    def wait_for_end(self) -> NoReturn:
        """Send what is queued and do nothing more until the host ends this process."""
        self.flush()
        while True:
            self.take()


def leave(status: int) -> NoReturn:
    """End the process at once: no finalizers, no flushing, no `atexit`."""
    os._exit(status)
