"""Server-sent events out of bytes that arrive in any pieces (WHATWG HTML, "Server-sent events").

Lines end with LF, CR LF or CR, and are cut apart as bytes: none of these stands inside of a character, so UTF-8 is
decoded once a line is whole. Two things are stricter or more lenient than a browser: bytes that are not UTF-8 break the
stream, since a replaced character would be one that nobody wrote; and an event that the end of the stream cuts off is
given out, since many endpoints leave out the last line ends. Whoever reads it has to see whether it is whole.
"""

import re
from dataclasses import dataclass
from typing import Final

from loopwarden.failures import LoopwardenError

BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_LINE_END: Final = re.compile(rb"\r\n|\r|\n")


class EventStreamBroken(LoopwardenError):
    """The bytes are no event stream that can be read. The message continues "the endpoint …"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSentEvent:
    """One event. Comments, ids and delays of reconnection are none."""

    name: str
    """Empty when the stream names none."""
    data: str
    """Its data lines, joined by line feeds."""


class EventReader:
    """Reads one stream. Gives the same events however the bytes are cut."""

    def __init__(self, *, max_event_bytes: int) -> None:
        self._max_event_bytes = max_event_bytes
        self._line = bytearray()
        self._name = b""
        self._data = bytearray()
        """Each of its lines with a line feed. Not a list: one of short lines would take many times the memory."""
        self._is_first_line = True
        self._ended_with_cr = False

    def feed(self, data: bytes) -> list[ServerSentEvent]:
        """Take bytes, and return the events that are whole now. Raises `EventStreamBroken`."""
        if not data:
            return []
        if self._ended_with_cr and data.startswith(b"\n"):
            data = data[1:]
        self._ended_with_cr = data.endswith(b"\r")
        events: list[ServerSentEvent] = []
        *lines, rest = _LINE_END.split(data)
        for line in lines:
            self._extend_line(line)
            events += self._end_line()
        self._extend_line(rest)
        return events

    def end(self) -> list[ServerSentEvent]:
        """The stream has ended: return the event that it cut off, if any. Raises `EventStreamBroken`."""
        return [*self._end_line(), *self._end_event()]

    def _extend_line(self, part: bytes) -> None:
        if len(self._line) + len(part) + len(self._data) > self._max_event_bytes:
            raise EventStreamBroken(f"sent an event of more than {self._max_event_bytes:,} bytes")
        self._line += part

    def _end_line(self) -> list[ServerSentEvent]:
        line = bytes(self._line)
        self._line.clear()
        if self._is_first_line:
            self._is_first_line = False
            line = line.removeprefix(BYTE_ORDER_MARK)
        if not line:
            return self._end_event()
        field, _, value = line.partition(b":")  # A comment is a field without a name.
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data += value + b"\n"
        elif field == b"event":
            self._name = value
        return []

    def _end_event(self) -> list[ServerSentEvent]:
        name, data = self._name, bytes(self._data[:-1])
        has_data = bool(self._data)
        self._name = b""
        self._data.clear()
        if not has_data:
            return []
        try:
            return [ServerSentEvent(name=name.decode(), data=data.decode())]
        except UnicodeDecodeError:
            raise EventStreamBroken("sent an event that is not UTF-8") from None
