r"""One file that holds a whole journal: what `loopwarden verify FILE` reads, without the store.

The file is UTF-8, one JSON object a line:

    {"format":"loopwarden-journal","version":1,"runId":…,"codec":"plain","head":{"seq":2,"hash":"sha256:…"}}
    {"seq":1,"hash":"sha256:…","text":"{\"number\":1,…}"}      one per row, in order
    {"blob":"sha256:…","base64":"…"}                            one per blob
    {"rows":2,"blobs":1}                                        the last line: without it, the file was cut off

Bytes stand as `text` where they are UTF-8, and as `base64` where they are not; the exact bytes come back. The head in a
file proves nothing by itself: who can edit the file can edit it too.
"""

import base64
import binascii
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

from loopwarden.failures import LoopwardenError
from loopwarden.regular_file import open_regular_file
from loopwarden.store.runs import StoredEntry
from loopwarden_engine.json_decoding import decode_object
from loopwarden_engine.plain import PlainDataError, compact_json

FORMAT: Final = "loopwarden-journal"
VERSION: Final = 1
MAX_LINE_BYTES: Final = 256 * 1024 * 1024
"""The largest value of a run, 64 MiB, fits, however it is escaped."""
MAX_FILE_BYTES: Final = 1024 * 1024 * 1024
_MAX_DEPTH: Final = 4
_FIRST_BYTES: Final = b'{"format":"loopwarden-journal"'


class ExportError(LoopwardenError):
    """A journal cannot be written to a file, or read from one. The message is a sentence for a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A journal as a file holds it. Nothing is verified but the shape of the file."""

    run_id: str
    codec: str
    """The name of the codec that the bodies and blobs went through."""
    head_seq: int
    """As the file says."""
    head_hash: str
    """As the file says."""
    rows: list[StoredEntry] = field(repr=False)
    blobs: dict[str, bytes] = field(repr=False)
    """By the digest that the file gives."""


class ExportWriter:
    """Writes a journal line by line, so that it never stands in memory as a whole. `close` writes the last line."""

    def __init__(self, file: BinaryIO, *, run_id: str, head_seq: int, head_hash: str, codec: str = "plain") -> None:
        self._file = file
        self._written = self._rows = self._blobs = 0
        self._line(
            {
                "format": FORMAT,
                "version": VERSION,
                "runId": run_id,
                "codec": codec,
                "head": {"seq": head_seq, "hash": head_hash},
            }
        )

    def row(self, row: StoredEntry) -> None:
        """Write one row. Raises `ExportError` when the file becomes too large."""
        self._line({"seq": row.seq, "hash": row.hash, **_shown(row.body)})
        self._rows += 1

    def blob(self, digest: str, data: bytes) -> None:
        """Write one blob."""
        self._line({"blob": digest, **_shown(data)})
        self._blobs += 1

    def close(self) -> None:
        """Write the last line. Leaves the file open."""
        self._line({"rows": self._rows, "blobs": self._blobs})
        self._file.flush()

    def _line(self, content: Mapping[str, Any]) -> None:
        line = compact_json(content).encode("utf-8") + b"\n"
        self._written += len(line)
        if len(line) > MAX_LINE_BYTES or self._written > MAX_FILE_BYTES:
            raise ExportError(
                f"the journal is too large for one file: {MAX_FILE_BYTES >> 20} MiB in all, "
                f"{MAX_LINE_BYTES >> 20} MiB for one entry or value"
            )
        self._file.write(line)


def write_export(
    target: Path | BinaryIO,
    *,
    run_id: str,
    rows: Iterable[StoredEntry],
    blobs: Mapping[str, bytes],
    head_seq: int,
    head_hash: str,
    codec: str = "plain",
) -> None:
    """Write a journal to a new file (mode 0600), or to a file that is open. Raises `ExportError`."""
    with exporting(target) as file:
        writer = ExportWriter(file, run_id=run_id, head_seq=head_seq, head_hash=head_hash, codec=codec)
        for row in rows:
            writer.row(row)
        for digest, data in blobs.items():
            writer.blob(digest, data)
        writer.close()


@contextmanager
def exporting(target: Path | BinaryIO) -> Iterator[BinaryIO]:
    """Open a new file to export to; one that could not be finished is removed. Raises `ExportError`."""
    if not isinstance(target, Path):
        yield target
        return
    try:
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise ExportError(f"{target} exists already; name a new file") from None
    except OSError as error:
        raise ExportError(f"{target} cannot be written: {_why(error)}") from None
    is_whole = False
    try:
        with os.fdopen(fd, "wb") as file:
            yield file
        is_whole = True
    except OSError as error:
        raise ExportError(f"{target} cannot be written: {_why(error)}") from None
    finally:
        if not is_whole:
            target.unlink(missing_ok=True)


def read_export(source: Path | BinaryIO) -> Exported:
    """Read a journal back from a file, which is hostile. Raises `ExportError`."""
    if not isinstance(source, Path):
        return _Reader(source, "the file").read()
    try:
        with open_regular_file(source) as file:
            return _Reader(file, str(source)).read()
    except OSError as error:
        raise ExportError(f"{source} cannot be read: {_why(error)}") from None


def _shown(data: bytes) -> dict[str, str]:
    try:
        return {"text": data.decode("utf-8")}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}


def _why(error: OSError) -> str:
    return (error.strerror or "input or output error").lower()


class _Reader:
    """Reads one export, line by line, within its caps."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file = file
        self._name = name
        self._number = 0
        self._read_bytes = 0
        self._rows: list[StoredEntry] = []
        self._blobs: dict[str, bytes] = {}

    def read(self) -> Exported:
        head = self._head()
        while (line := self._next()) is not None:
            if "blob" in line:
                self._blob(line)
            elif "seq" in line:
                self._row(line)
            else:
                self._check_last(line)
                return head
        raise ExportError(f"{self._name} was cut off: its last line is missing, after line {self._number}")

    def _head(self) -> Exported:
        line = self._next()
        if line is None or line.get("format") != FORMAT:
            raise self._no_journal()
        version = line.get("version")
        if type(version) is int and version > VERSION:
            raise ExportError(
                f"{self._name} was exported by a newer Loopwarden (version {version} of the file); "
                f"this one reads up to {VERSION}"
            )
        if version != VERSION or type(version) is not int:
            raise self._bad("has no version")
        self._keys(line, {"format", "version", "runId", "codec", "head"})
        head = line["head"]
        if not isinstance(head, dict) or head.keys() != {"seq", "hash"}:
            raise self._bad("has no head")
        return Exported(
            run_id=self._text(line, "runId"),
            codec=self._text(line, "codec"),
            head_seq=self._count(head, "seq"),
            head_hash=self._text(head, "hash"),
            rows=self._rows,
            blobs=self._blobs,
        )

    def _row(self, line: dict[str, Any]) -> None:
        data = self._data(line, {"seq", "hash"})
        self._rows.append(StoredEntry(seq=self._count(line, "seq"), body=data, hash=self._text(line, "hash")))

    def _blob(self, line: dict[str, Any]) -> None:
        data, digest = self._data(line, {"blob"}), self._text(line, "blob")
        if digest in self._blobs:
            raise self._bad("holds a blob that was there before")
        self._blobs[digest] = data

    def _check_last(self, line: dict[str, Any]) -> None:
        self._keys(line, {"rows", "blobs"})
        said = (self._count(line, "rows"), self._count(line, "blobs"))
        if said != (len(self._rows), len(self._blobs)):
            raise self._bad(
                f"says {said[0]} rows and {said[1]} blobs; the file holds {len(self._rows)} and {len(self._blobs)}"
            )
        if self._file.read(1):
            raise self._bad("is the last one, but more follows")

    def _next(self) -> dict[str, Any] | None:
        line = self._file.readline(MAX_LINE_BYTES + 1)
        if not line:
            return None
        self._number += 1
        self._read_bytes += len(line)
        if len(line) > MAX_LINE_BYTES:
            raise self._bad(f"is longer than {MAX_LINE_BYTES >> 20} MiB")
        if self._read_bytes > MAX_FILE_BYTES:
            raise ExportError(f"{self._name} is larger than {MAX_FILE_BYTES >> 20} MiB")
        if not line.endswith(b"\n"):
            if self._number == 1 and not line.startswith(_FIRST_BYTES):
                raise self._no_journal()
            raise ExportError(f"{self._name} was cut off in line {self._number}")
        try:
            return decode_object(line, max_depth=_MAX_DEPTH)
        except PlainDataError as error:
            if self._number == 1:
                raise self._no_journal() from None
            raise self._bad(f"cannot be read: {error.reason}") from None

    def _data(self, line: dict[str, Any], others: set[str]) -> bytes:
        name = "base64" if "base64" in line else "text"
        self._keys(line, {*others, name})
        text = self._text(line, name)
        if name == "text":
            return text.encode("utf-8")
        try:
            return base64.b64decode(text.encode("ascii", "replace"), validate=True)
        except binascii.Error:
            raise self._bad("holds no base64 where it says so") from None

    def _keys(self, line: dict[str, Any], keys: set[str]) -> None:
        if line.keys() != keys:
            raise self._bad(f"must have exactly the keys {', '.join(sorted(keys))}")

    def _text(self, line: dict[str, Any], key: str) -> str:
        value = line[key]
        if not isinstance(value, str):
            raise self._bad(f"has a {key} that is no text")
        return value

    def _count(self, line: dict[str, Any], key: str) -> int:
        value = line[key]
        if type(value) is not int or value < 0:
            raise self._bad(f"has a {key} that is no count")
        return value

    def _no_journal(self) -> ExportError:
        return ExportError(f"{self._name} is no journal of Loopwarden: `loopwarden export RUN` writes one")

    def _bad(self, what: str) -> ExportError:
        return ExportError(f"{self._name} is damaged: line {self._number} {what}")
