"""The chain of a journal: how an entry becomes the bytes that are stored, and how rows become entries again.

    body   {"number":7,"entry":"ended","at":…,…} as compact JSON in UTF-8, through the codec
    blobs  a field whose own JSON is above 64 KiB rests beside the body; "blobs" names its digest by field
    hash   "sha256:" + hex(SHA-256(the hash before, as ASCII, + body as stored))

`number` is the place in the journal; `seq` in a body is that of a call. Fields at their default are left out, so a
default is never changed. Digests of blobs are part of the body, so the chain covers what they hold.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic_core import PydanticSerializationError

from loopwarden.journal.codec import PLAIN, Codec
from loopwarden.journal.entries import FORMAT, Chained, Created, Entry, EntryError, entry_from_json
from loopwarden.store.errors import StoreCorrupt, StoreError, StoreTooNew
from loopwarden.store.runs import StoredEntry
from loopwarden_engine.json_decoding import decode_json, decode_object
from loopwarden_engine.plain import MAX_DEPTH, JsonObject, PlainDataError, compact_json
from loopwarden_engine.plain import digest as digest_of

START: Final = "sha256:" + "0" * 64
"""What stands for the hash before the first entry."""
MAX_INLINE_BYTES: Final = 64 * 1024
"""A field whose compact JSON is longer rests as a blob."""
_MAX_DEPTH: Final = MAX_DEPTH + 4
"""Values stand at most that much deeper in a body than in the run."""
_NOT_WRITTEN: Final = {"entry"}
_BLOBS: Final = "blobs"
_NUMBER: Final = "number"


class Unstorable(StoreError):
    """An entry cannot be written: it holds something that is not plain data, or the codec failed."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """An entry as it is stored."""

    body: bytes
    blobs: dict[str, bytes] = field(default_factory=dict)
    """By digest."""


def encode_entry(entry: Entry, seq: int, codec: Codec = PLAIN) -> Encoded:
    """The stored form of the entry with number `seq`. Raises `Unstorable`.

    All values in the entry have to be plain data. Does no I/O, so stores call it inside of a transaction.
    """
    # The first entry says everything, so that a later format may have other defaults.
    is_first = type(entry) is Created
    try:
        shown = entry.__pydantic_serializer__.to_json(
            entry,
            by_alias=True,
            exclude=_NOT_WRITTEN if is_first else None,
            exclude_defaults=not is_first,
            warnings="error",
        )
    except PydanticSerializationError:
        # The words of the error quote values.
        raise Unstorable(f"an entry {entry.entry!r} holds something that is not plain data") from None
    head = b'{"number":%d,"entry":"%s",' % (seq, entry.entry.encode("ascii"))
    blobs: dict[str, bytes] = {}
    if len(shown) > MAX_INLINE_BYTES:
        shown = _without_large_fields(entry, codec, blobs, is_first=is_first)
    return Encoded(_encode_with(codec, head + shown[1:]), blobs)


def chain_hash(previous: str, body: bytes) -> str:
    """The hash of an entry: over the hash before and the body as it is stored."""
    return "sha256:" + hashlib.sha256(previous.encode("ascii") + body).hexdigest()


def decode_rows(
    run_id: str,
    rows: Iterable[StoredEntry],
    blobs: Mapping[str, bytes],
    codec: Codec = PLAIN,
    *,
    after_seq: int = 0,
    after_hash: str = START,
) -> list[Chained]:
    """The entries that rows hold, which are hostile, with those before `after_seq` read already.

    Raises `StoreCorrupt` for a gap, a hash that does not fit, a blob that is missing or changed, or a body that is no
    entry; `StoreTooNew` for a journal of a newer format.
    """
    chained: list[Chained] = []
    seq, previous = after_seq, after_hash
    for row in rows:
        seq += 1
        if row.seq != seq or type(row.body) is not bytes:
            raise StoreCorrupt(run_id, _where_it_breaks(row, seq))
        if chain_hash(previous, row.body) != row.hash:
            raise StoreCorrupt(run_id, f"entry {seq} does not fit its hash: it, or an entry before it, was changed")
        try:
            entry = decode_row(row, blobs, codec)
        except RowTooNew as newer:
            raise StoreTooNew(f"entry {seq} of run {run_id}: {newer}") from None
        except RowDamaged as damage:
            raise StoreCorrupt(run_id, f"entry {seq}: {damage}") from None
        if (type(entry) is Created) is not (seq == 1):
            raise StoreCorrupt(run_id, f"entry {seq} is {entry.entry!r}; a journal begins with 'created', once")
        previous = row.hash
        chained.append(Chained(seq, entry, previous))
    return chained


class RowDamaged(Exception):
    """What is wrong with one row, as a sentence without the number of its entry."""


class RowTooNew(RowDamaged):
    """A newer Loopwarden wrote it."""


def decode_row(row: StoredEntry, blobs: Mapping[str, bytes], codec: Codec = PLAIN) -> Entry:
    """The entry that a row holds, whatever stands around it. Raises `RowDamaged`."""
    try:
        body = decode_object(_decode_with(codec, row.body), max_depth=_MAX_DEPTH)
    except PlainDataError as error:
        raise RowDamaged(f"its body cannot be read: {error.reason}") from None
    number = body.pop(_NUMBER, None)
    if type(number) is not int or number != row.seq:
        raise RowDamaged(f"its body says that it is entry {compact_json(number)[:40]}")
    named = body.pop(_BLOBS, None)
    if named is not None:
        _fill_in(body, named, blobs, codec)
    format_ = body.get("format") if body.get("entry") == "created" else None
    if type(format_) is int and format_ > FORMAT:
        raise RowTooNew(
            f"it begins a journal of format {format_}; this Loopwarden reads up to {FORMAT}. "
            "Use the version that wrote it."
        )
    try:
        return entry_from_json(body)
    except EntryError as error:
        raise RowDamaged(str(error)) from None


def digests_in(body: bytes, codec: Codec = PLAIN) -> list[str]:
    """Digests of the blobs that a stored body names; none when it is damaged. For readers that fetch blobs by need."""
    try:
        named = decode_object(codec.decode(body), max_depth=_MAX_DEPTH).get(_BLOBS)
    except Exception:  # noqa: BLE001 -- a codec is foreign code; who decodes the row says what is wrong with it
        return []
    return [digest for digest in named.values() if isinstance(digest, str)] if isinstance(named, dict) else []


def _without_large_fields(entry: Entry, codec: Codec, blobs: dict[str, bytes], *, is_first: bool) -> bytes:
    members: dict[str, Any] = entry.model_dump(by_alias=True, exclude=_NOT_WRITTEN, exclude_defaults=not is_first)
    parts: list[bytes] = []
    named: dict[str, str] = {}
    for name, value in members.items():
        part = compact_json(value).encode("utf-8")
        if len(part) > MAX_INLINE_BYTES:
            stored = _encode_with(codec, part)
            named[name] = digest_of(stored)
            blobs[named[name]] = stored
        else:
            parts.append(b'"%s":%s' % (name.encode("ascii"), part))
    if named:
        parts.append(b'"blobs":' + compact_json(named).encode("ascii"))
    return b"{" + b",".join(parts) + b"}"


def _encode_with(codec: Codec, data: bytes) -> bytes:
    if codec is PLAIN:
        return data
    try:
        return codec.encode(data)
    # A codec is foreign code, called in a thread of the store's that must live on; its words may hold a secret.
    except BaseException as error:  # noqa: BLE001
        raise Unstorable(f"the codec {codec.name!r} of the store failed with {type(error).__name__}") from None


def _decode_with(codec: Codec, data: bytes) -> bytes:
    if codec is PLAIN:
        return data
    try:
        return codec.decode(data)
    except Exception as error:  # noqa: BLE001 -- a codec is foreign code; its words may hold a secret
        raise RowDamaged(
            f"the codec {codec.name!r} cannot read it ({type(error).__name__}); is its key right?"
        ) from None


def _where_it_breaks(row: StoredEntry, seq: int) -> str:
    if row.seq != seq:
        return f"entry {row.seq!r} stands where entry {seq} belongs"
    return f"entry {seq} is not stored as bytes"


def _fill_in(body: JsonObject, named: object, blobs: Mapping[str, bytes], codec: Codec) -> None:
    if not isinstance(named, dict):
        raise RowDamaged("its blobs are not named by an object")
    for name, digest in named.items():
        data = blobs.get(digest) if isinstance(digest, str) else None
        if data is None:
            raise RowDamaged(f"the blob of its field {name[:40]!r} is missing")
        if digest_of(data) != digest:
            raise RowDamaged(f"the blob of its field {name[:40]!r} was changed")
        if name in body:
            raise RowDamaged(f"its field {name[:40]!r} stands in the body and as a blob")
        try:
            body[name] = decode_json(_decode_with(codec, data), max_depth=MAX_DEPTH)
        except PlainDataError as error:
            raise RowDamaged(f"the blob of its field {name[:40]!r} cannot be read: {error.reason}") from None
