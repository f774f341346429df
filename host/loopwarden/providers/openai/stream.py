"""The body of a successful response, byte by byte: a stream of events, or one JSON object where `stream` is ignored."""

import json
from typing import Final, Literal

from loopwarden.providers.openai.answer import Answer, AnswerBroken, AnswerTooLong, ErrorInAnswer
from loopwarden.providers.openai.server_sent_events import (
    BYTE_ORDER_MARK,
    EventReader,
    EventStreamBroken,
    ServerSentEvent,
)
from loopwarden_engine.plain import JsonObject

ENVELOPE_BYTES: Final = 64 * 1024
"""What one record needs beside the answer that it holds."""
WIRE_BYTES_PER_ANSWER_BYTE: Final = 64
"""Each token travels in a record of its own, and what the model thinks aloud is no part of the answer."""
DONE: Final = "[DONE]"
_BLANK: Final = b" \t\r\n"


class AnswerStream:
    """Reads one body. Gives the same answer however the bytes are cut, and keeps no more than the answer."""

    def __init__(self, *, max_answer_bytes: int) -> None:
        self._max_record_bytes = max_answer_bytes + ENVELOPE_BYTES
        self._wire_room_bytes = max_answer_bytes * WIRE_BYTES_PER_ANSWER_BYTE + ENVELOPE_BYTES
        self._events = EventReader(max_event_bytes=self._max_record_bytes)
        self._head = b""
        self._document = bytearray()
        self.form: Literal["unknown", "events", "document"] = "unknown"
        self.answer = Answer(max_bytes=max_answer_bytes)
        self.is_done = False
        """The endpoint said that nothing more comes."""
        self.is_cut_off = False
        """The body ended in the middle of a record."""

    def feed(self, data: bytes) -> bool:
        """Take bytes. Returns whether the model gave a sign of life.

        Comments and blank lines are none: proxies send them for a model that hangs. Raises `AnswerBroken`,
        `AnswerTooLong`, `ErrorInAnswer`.
        """
        self._wire_room_bytes -= len(data)
        if self._wire_room_bytes < 0:
            raise AnswerTooLong("sent far more bytes than an answer of the allowed length can take")
        if self.form == "unknown":
            data = self._recognise(data)
        if self.form == "document":
            return self._extend_document(data)
        return self._take_events(self._events, data) if self.form == "events" else False

    def end(self) -> None:
        """The body has ended, as far as HTTP can tell. Raises as `feed`."""
        if self.form == "document":
            self.answer.take(_record(bytes(self._document)), "message")
            self.is_done = True
        elif self.form == "events":
            try:
                self._take_events(self._events, None)
            except AnswerBroken:
                self.is_cut_off = True

    def _recognise(self, data: bytes) -> bytes:
        """Wait for the first byte that is not blank: only a JSON document begins with a brace."""
        head = self._head + data
        if len(head) < len(BYTE_ORDER_MARK) and BYTE_ORDER_MARK.startswith(head):
            self._head = head
            return b""
        head = head.removeprefix(BYTE_ORDER_MARK).lstrip(_BLANK)
        self._head = b""
        if head.startswith(b"<"):
            raise AnswerBroken("answered with a web page, not with a chat completion; check base_url")
        if head:
            self.form = "document" if head.startswith((b"{", b"[")) else "events"
        return head

    def _extend_document(self, data: bytes) -> bool:
        if len(self._document) + len(data) > self._max_record_bytes:
            raise AnswerTooLong(f"sent an answer of more than {self._max_record_bytes:,} bytes")
        self._document += data
        return bool(data.strip(_BLANK))

    def _take_events(self, reader: EventReader, data: bytes | None) -> bool:
        is_alive = False
        try:
            events = reader.end() if data is None else reader.feed(data)
        except EventStreamBroken as error:
            raise AnswerBroken(str(error)) from None
        for event in events:
            is_alive = self._take_event(event) or is_alive
        return is_alive

    def _take_event(self, event: ServerSentEvent) -> bool:
        if self.is_done or not event.data.strip():
            return False
        if event.data.strip() == DONE:
            self.is_done = True
            return True
        record = _record(event.data)
        if event.name == "error" and "error" not in record:
            raise ErrorInAnswer({"error": record})
        return self.answer.take(record, "delta")


def _record(data: bytes | str) -> JsonObject:
    """Not strict: the answer inside is what has to be plain, and it is checked by itself."""
    try:
        record = json.loads(data)
    except (ValueError, RecursionError):
        raise AnswerBroken("sent something that is not JSON where a piece of the answer is due") from None
    if isinstance(record, list) and len(record) == 1:
        record = record[0]
    if not isinstance(record, dict):
        raise AnswerBroken("sent something that is not a JSON object where a piece of the answer is due")
    return record
