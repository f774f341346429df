"""Reading the records of a program: one JSON object a line, out of bytes that arrive in any pieces.

The outcome does not depend on how the stream is cut. Lines end with LF only and are decoded whole, so no character is
ever torn. What is no record is counted and never fatal: programs print warnings between their records.
"""

import json
from dataclasses import dataclass
from typing import Final, NoReturn

from loopwarden_engine.plain import JsonObject

MAX_LINE_BYTES: Final = 8 * 1024 * 1024
"""Half of what a program may print by default: a longer line is dropped as it arrives, and reading goes on after it."""
PLAIN_TAIL_BYTES: Final = 16 * 1024
BOM: Final = b"\xef\xbb\xbf"
_JSON_STARTS: Final = frozenset(b'["-0123456789tfn')


@dataclass(slots=True, kw_only=True)
class LineCounts:
    """What stood in the stream, by lines."""

    records: int = 0
    blank: int = 0
    plain: int = 0
    """Text that is no JSON."""
    broken: int = 0
    """Lines that begin like an object and are none: cut off, or nested too deep."""
    other_json: int = 0
    """JSON that is no object, nor a list of records."""
    long: int = 0
    not_utf8: int = 0
    """Also counted as what they are once their bad bytes are replaced."""
    boms: int = 0
    crlf: int = 0

    def notes(self) -> tuple[str, ...]:
        """What a reader of a receipt should know of: lines that were not read as they were meant, maybe."""
        found = (
            (self.plain, "of plain text"),
            (self.other_json, "of JSON that is no object"),
            (self.broken, "of JSON that is broken"),
            (self.long, f"longer than {MAX_LINE_BYTES} bytes, which were left out"),
            (self.not_utf8, "with bytes that are not UTF-8, which were replaced"),
        )
        return tuple(f"its output held {_lines(count)} {what}" for count, what in found if count)


def _lines(count: int) -> str:
    return "1 line" if count == 1 else f"{count} lines"


class RecordReader:
    """Takes bytes, gives records. `counts` says what else there was."""

    def __init__(self) -> None:
        self.counts = LineCounts()
        self._line = bytearray()
        self._drops_line = False
        self._plain = bytearray()

    @property
    def plain_output(self) -> str:
        """The end of what was no JSON object."""
        return self._plain[-PLAIN_TAIL_BYTES:].decode("utf-8", "replace")

    def feed(self, data: bytes) -> list[JsonObject]:
        """Take the next bytes. Return the records that are complete with them."""
        records: list[JsonObject] = []
        first, *others = data.split(b"\n")
        self._append(first)
        for piece in others:
            self._end_line(records)
            self._append(piece)
        return records

    def finish(self) -> list[JsonObject]:
        """The stream ended: take the last line, should it have no line feed."""
        records: list[JsonObject] = []
        if self._line or self._drops_line:
            self._end_line(records)
        return records

    def _append(self, piece: bytes) -> None:
        if self._drops_line:
            return
        self._line += piece
        if len(self._line) > MAX_LINE_BYTES:
            self._line.clear()
            self._drops_line = True

    def _end_line(self, records: list[JsonObject]) -> None:
        if self._drops_line:
            self.counts.long += 1
            self._drops_line = False
            return
        line = bytes(self._line)
        self._line.clear()
        if line.startswith(BOM):
            self.counts.boms += 1
            line = line[len(BOM) :]
        if line.endswith(b"\r"):
            self.counts.crlf += 1
        line = line.strip(b" \t\r")
        if not line:
            self.counts.blank += 1
            return
        found = self._records_in(line)
        self.counts.records += len(found)
        records += found

    def _records_in(self, line: bytes) -> list[JsonObject]:
        try:
            text = line.decode()
        except UnicodeDecodeError:
            self.counts.not_utf8 += 1
            text = line.decode("utf-8", "replace")
        if line[0] == ord("{"):
            try:
                value = _decoder.decode(text)
            except (ValueError, RecursionError):
                # Not kept as plain text: what the agent said in half a record must not be taken for an error message.
                self.counts.broken += 1
                return []
            assert isinstance(value, dict)
            return [value]
        if line[0] == ord("[") and (listed := _listed_records(text)):
            return listed
        if line[0] in _JSON_STARTS and _is_json(text):
            self.counts.other_json += 1
        else:
            self.counts.plain += 1
        self._plain += text[-PLAIN_TAIL_BYTES:].encode("utf-8", "replace") + b"\n"
        if len(self._plain) > 4 * PLAIN_TAIL_BYTES:
            del self._plain[:-PLAIN_TAIL_BYTES]
        return []


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _listed_records(text: str) -> list[JsonObject]:
    """The records of a program that prints all of them as one list; nothing when `text` is another list."""
    try:
        value = _decoder.decode(text)
    except (ValueError, RecursionError):
        return []
    is_records = all(isinstance(one, dict) and isinstance(one.get("type"), str) for one in value)
    return value if is_records else []


def _is_json(text: str) -> bool:
    try:
        _decoder.decode(text)
    except (ValueError, RecursionError):
        return False
    return True


_decoder: Final = json.JSONDecoder(parse_constant=_refuse)
