"""Entries as rows: chaining them behind a head, writing them, reading pages of them and the blobs beside them."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from loopwarden.journal.chain import chain_hash, encode_entry
from loopwarden.journal.codec import Codec
from loopwarden.journal.entries import Entry
from loopwarden.store.api import MAX_PAGE
from loopwarden.store.errors import StoreCorrupt
from loopwarden.store.runs import StoredEntry
from loopwarden.store.sql.rows import stored_entry
from loopwarden.store.sql.transaction import Transaction


@dataclass(slots=True)
class Written:
    """Rows that a transaction is going to insert, of any number of runs."""

    entries: list[tuple[str, int, bytes, str]] = field(default_factory=list)
    blobs: list[tuple[str, str, bytes]] = field(default_factory=list)

    def insert(self, tx: Transaction) -> None:
        """Insert all of them."""
        if self.entries:
            tx.execute_many("INSERT INTO entries (run_id, seq, body, hash) VALUES (?, ?, ?, ?)", self.entries)
            run_id, seq, _, head = self.entries[-1]
            tx.proof = (run_id, seq, head)
        if self.blobs:
            tx.execute_many(
                "INSERT INTO blobs (run_id, digest, content) VALUES (?, ?, ?) ON CONFLICT (run_id, digest) DO NOTHING",
                self.blobs,
            )


def chain(
    written: Written, run_id: str, head: tuple[int, str], entries: Sequence[Entry], codec: Codec
) -> tuple[int, str]:
    """Chain entries behind `head`, (seq, hash); returns the new head. Raises `StoreError`, with nothing written."""
    seq, digest = head
    rows: list[tuple[str, int, bytes, str]] = []
    blobs: list[tuple[str, str, bytes]] = []
    for entry in entries:
        seq += 1
        encoded = encode_entry(entry, seq, codec)
        digest = chain_hash(digest, encoded.body)
        rows.append((run_id, seq, encoded.body, digest))
        if encoded.blobs:
            blobs += [(run_id, name, content) for name, content in encoded.blobs.items()]
    written.entries += rows
    written.blobs += blobs
    return seq, digest


def read_entries(tx: Transaction, run_id: str, *, after: int = 0, limit: int | None = MAX_PAGE) -> list[StoredEntry]:
    """Rows of a journal above `after`, in order; None: all of them. Raises `StoreCorrupt`."""
    sql = "SELECT seq, body, hash FROM entries WHERE run_id = ? AND seq > ? ORDER BY seq"
    if limit is None:
        found = tx.rows(sql, (run_id, after))
    else:
        found = tx.rows(sql + " LIMIT ?", (run_id, after, max(0, min(limit, MAX_PAGE))))
    return [stored_entry(run_id, row) for row in found]


def read_blobs(tx: Transaction, run_id: str, digests: Collection[str] | None = None) -> dict[str, bytes]:
    """Blobs of a run by digest; None: all. Raises `StoreCorrupt`."""
    sql = "SELECT digest, content FROM blobs WHERE run_id = ?"
    if digests is None:
        found = tx.rows(sql, (run_id,))
    elif digests:
        marks = ", ".join("?" * len(digests))
        found = tx.rows(f"{sql} AND digest IN ({marks})", (run_id, *digests))
    else:
        found = []
    blobs: dict[str, bytes] = {}
    for digest, content in found:
        if type(digest) is not str or type(content) is not bytes:
            raise StoreCorrupt(run_id, "one of its blobs is not stored as bytes")
        blobs[digest] = content
    return blobs
