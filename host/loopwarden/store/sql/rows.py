"""Strict decoding of what a database gives back: hostile until then. A damaged row harms its run alone."""

import json
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from loopwarden.journal.entries import ReplayVersion
from loopwarden.store.errors import StoreCorrupt, StoreError
from loopwarden.store.runs import RunRow, Status, StoredEntry
from loopwarden.store.sql.transaction import Row

RUN_COLUMNS: Final = (
    "run_id, run_key, content_digest, script, provider, workspace, queue, priority, not_before, labels, scopes, "
    "source_digest, contract_digest, replay, status, stop_reason, failure_code, reason, epoch, owner, lease_until, "
    "head_seq, head_hash, max_calls, max_extra, calls, extra, idle_claims, cancel_reason, submitted_at, finished_at"
)
"""Of a `RunRow`, in the order that `run_row` reads."""

_STATUSES: Final = {status.value: status for status in Status}
_HASH_CHARS: Final = len("sha256:") + 64
LARGEST: Final = 2**53 - 1
"""Of whole numbers: what JSON carries exactly, and one more still fits a column."""


class Damaged(Exception):
    """A value is not what its column holds. The message names the column."""


def run_row(row: Row) -> RunRow:
    """A run from its `RUN_COLUMNS`. Raises `StoreCorrupt`."""
    try:
        return _run_row(row)
    except Damaged as damage:
        raise StoreCorrupt(shown_id(row[0]), str(damage)) from None


def stored_entry(run_id: str, row: Row) -> StoredEntry:
    """One row of a journal from (seq, body, hash). Raises `StoreCorrupt`."""
    try:
        seq = integer("seq", row[0])
        if type(row[1]) is not bytes:
            raise Damaged(f"entry {seq} is not stored as bytes")
        return StoredEntry(seq=seq, body=row[1], hash=hash_text(row[2]))
    except Damaged as damage:
        raise StoreCorrupt(run_id, str(damage)) from None


def shown_id(value: object) -> str:
    """The id of a run whose row is damaged, for a message."""
    return value if isinstance(value, str) and value.isprintable() else ascii(value)[:80]


def text(column: str, value: object) -> str:
    """Text that is Unicode. Raises `Damaged`."""
    if type(value) is not str:
        raise Damaged(f"its {column} is no text")
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise Damaged(f"its {column} is not in UTF-8") from None
    return value


def text_or_none(column: str, value: object) -> str | None:
    """Text, or nothing. Raises `Damaged`."""
    return None if value is None else text(column, value)


def hash_text(value: object) -> str:
    """The hash of an entry. Raises `Damaged`."""
    if type(value) is not str or len(value) != _HASH_CHARS or not value.isascii():
        raise Damaged("one of its hashes is none")
    return value


def integer(column: str, value: object, *, least: int = 0) -> int:
    """A whole number. Raises `Damaged`."""
    if type(value) is not int or not least <= value <= LARGEST:
        raise Damaged(f"its {column} is no number that can be")
    return value


def real(column: str, value: object) -> float:
    """A finite number. Raises `Damaged`."""
    if type(value) is not float or not math.isfinite(value):
        raise Damaged(f"its {column} is no number that can be")
    return value


def real_or_none(column: str, value: object) -> float | None:
    """A finite number, or nothing. Raises `Damaged`."""
    return None if value is None else real(column, value)


def to_json(value: object) -> str:
    """JSON for a text column: the same value always gives the same text, in ASCII, so that no database minds it."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def from_json(column: str, value: object) -> Any:
    """What a text column holds as JSON. Raises `Damaged`."""
    try:
        return json.loads(text(column, value))
    except (ValueError, RecursionError):
        raise Damaged(f"its {column} is no JSON") from None


def object_from_json(column: str, value: object) -> dict[str, Any]:
    """A JSON object. Raises `Damaged`."""
    found = from_json(column, value)
    if not isinstance(found, dict):
        raise Damaged(f"its {column} is no JSON object")
    return found


@lru_cache(maxsize=512)
def scope_names(value: str) -> tuple[str, ...]:
    """The column `scopes`, in byte order and each once. Raises `Damaged`."""
    found = from_json("scopes", value)
    if not isinstance(found, list) or not all(type(name) is str for name in found):
        raise Damaged("its scopes are no list of names")
    return tuple(sorted(set(found)))


def replay_text(version: ReplayVersion) -> str:
    """The column `replay`: equal texts mean that one host can replay what another one wrote."""
    return to_json(version.model_dump())


def storable(what: str, value: str) -> str:
    """A name that goes into a text column of any database. Raises `StoreError`, which says `what` it is."""
    if "\0" in value or not _is_unicode(value):
        raise StoreError(f"{what} {ascii(value)[:80]} holds characters that cannot be stored; choose another one")
    return value


def shown_text(value: str) -> str:
    """A sentence for a text column: characters that no database keeps are replaced."""
    return value.replace("\0", "�").encode("utf-8", "replace").decode("utf-8")


def _is_unicode(value: str) -> bool:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _labels(value: object) -> Mapping[str, str]:
    found = object_from_json("labels", value)
    if not all(type(label) is str for label in found.values()):
        raise Damaged("its labels are no texts")
    return found


@lru_cache(maxsize=64)
def _replay(value: str) -> ReplayVersion:
    try:
        return ReplayVersion.model_validate(object_from_json("replay", value))
    except ValueError:
        raise Damaged("its replay version cannot be read") from None


def status_of(value: object) -> Status:
    """Where a run stands. Raises `Damaged`."""
    found = _STATUSES.get(value) if type(value) is str else None
    if found is None:
        raise Damaged("its status is not known")
    return found


def _run_row(row: Row) -> RunRow:
    (
        run_id, key, content_digest, script, provider, workspace, queue, priority, not_before, labels, scopes,
        source_digest, contract_digest, replay, status, stop_reason, failure_code, reason, epoch, owner, lease_until,
        head_seq, head_hash, max_calls, max_extra, calls, extra, idle_claims, cancel_reason, submitted_at, finished_at,
    ) = row  # fmt: skip
    return RunRow(
        run_id=text("run_id", run_id),
        key=text_or_none("run_key", key),
        content_digest=text("content_digest", content_digest),
        script=text("script", script),
        provider=text("provider", provider),
        workspace=text_or_none("workspace", workspace),
        queue=text("queue", queue) or None,
        priority=integer("priority", priority, least=-LARGEST),
        not_before=real("not_before", not_before),
        labels=_labels(labels),
        scopes=scope_names(text("scopes", scopes)),
        source_digest=text("source_digest", source_digest),
        contract_digest=text("contract_digest", contract_digest),
        replay=_replay(text("replay", replay)),
        status=status_of(status),
        stop_reason=text_or_none("stop_reason", stop_reason),
        failure_code=text_or_none("failure_code", failure_code),
        reason=text_or_none("reason", reason),
        epoch=integer("epoch", epoch),
        owner=text_or_none("owner", owner),
        lease_until=real_or_none("lease_until", lease_until),
        head_seq=integer("head_seq", head_seq, least=1),
        head_hash=hash_text(head_hash),
        max_calls=integer("max_calls", max_calls),
        max_extra=integer("max_extra", max_extra),
        calls=integer("calls", calls),
        extra=integer("extra", extra),
        idle_claims=integer("idle_claims", idle_claims),
        cancel_reason=text_or_none("cancel_reason", cancel_reason),
        submitted_at=real("submitted_at", submitted_at),
        finished_at=real_or_none("finished_at", finished_at),
    )
