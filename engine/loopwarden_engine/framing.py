"""Frames on a byte stream: a four-byte big-endian length, then that many bytes. No I/O here.

The length is checked before a single byte of the payload is kept, so that a hostile peer cannot make us grow.
"""

import struct
from typing import Final

_HEADER: Final = struct.Struct(">I")
HEADER_BYTES: Final = _HEADER.size


class FrameError(ValueError):
    """The peer announced a frame that may not exist: empty or above the cap."""


def frame(payload: bytes) -> bytes:
    """Return the payload as one frame."""
    return _HEADER.pack(len(payload)) + payload


class FrameReader:
    """Cuts a stream into payloads. Holds at most one frame plus what one `feed` brought."""

    __slots__ = ("_buffer", "_max_bytes", "_start")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()
        self._start = 0

    def feed(self, data: bytes) -> None:
        """Add bytes as they came from the stream, split in any way."""
        if self._start:
            del self._buffer[: self._start]
            self._start = 0
        self._buffer += data

    def next_frame(self) -> bytes | None:
        """Return the next whole payload, or None when more bytes are needed. Raises `FrameError`."""
        buffer, start = self._buffer, self._start
        if len(buffer) - start < HEADER_BYTES:
            return None
        (size,) = _HEADER.unpack_from(buffer, start)
        if size == 0 or size > self._max_bytes:
            raise FrameError(f"a frame of {size} bytes was announced; 1 to {self._max_bytes} are allowed")
        begin = start + HEADER_BYTES
        end = begin + size
        if len(buffer) < end:
            return None
        self._start = end
        return bytes(buffer[begin:end])

    @property
    def is_empty(self) -> bool:
        """True when no part of a frame is waiting."""
        return len(self._buffer) == self._start
