"""Retention: whole finished runs are removed; a tombstone keeps what budgets and chains are checked by."""

from loopwarden.store.errors import StoreError
from loopwarden.store.runs import Tombstone
from loopwarden.store.sql.rows import Damaged, hash_text, integer, object_from_json, real, text, text_or_none, to_json
from loopwarden.store.sql.transaction import Row, Transaction


def prune(tx: Transaction, finished_before: float, limit: int) -> list[str]:
    """Remove runs that finished before that moment, the oldest first. What they charged to scopes stays there."""
    found = tx.rows(
        "SELECT run_id, run_key, head_seq, head_hash, calls, calls + extra FROM runs WHERE status = 'finished' "
        f"AND finished_at < ? ORDER BY finished_at, number LIMIT ?{tx.dialect.lock_free}",
        (finished_before, max(0, limit)),
    )
    now = tx.now()
    for row in found:
        run_id = row[0]
        tx.execute(
            "INSERT INTO tombstones (run_id, run_key, head_seq, head_hash, calls, attempts, charges, pruned_at) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (*row, _charges(tx, run_id), now),
        )
        for table in ("entries", "blobs", "requests", "run_charges", "runs"):
            tx.execute(f"DELETE FROM {table} WHERE run_id = ?", (run_id,))
        tx.touched.add(run_id)
    return [str(row[0]) for row in found]


def list_tombstones(tx: Transaction) -> list[Tombstone]:
    """What is left of pruned runs, the first pruned first. Raises `StoreError`."""
    listed: list[Tombstone] = []
    for row in tx.rows(
        "SELECT run_id, run_key, head_seq, head_hash, calls, attempts, charges, pruned_at FROM tombstones "
        "ORDER BY pruned_at, run_id"
    ):
        try:
            listed.append(_tombstone(row))
        except Damaged as damage:
            raise StoreError(f"what is left of the pruned run {row[0]!r} is damaged: {damage}") from None
    return listed


def _charges(tx: Transaction, run_id: str) -> str:
    charges: dict[str, dict[str, int]] = {}
    for name, window, agents in tx.rows(
        "SELECT name, budget_window, agents FROM run_charges WHERE run_id = ?", (run_id,)
    ):
        charges.setdefault(name, {})[window] = agents
    return to_json(charges)


def _tombstone(row: Row) -> Tombstone:
    run_id, key, head_seq, head_hash, calls, attempts, charges, pruned_at = row
    found = object_from_json("charges", charges)
    for windows in found.values():
        if not isinstance(windows, dict) or not all(type(agents) is int for agents in windows.values()):
            raise Damaged("its charges are no counts")
    return Tombstone(
        run_id=text("run_id", run_id),
        key=text_or_none("run_key", key),
        head_seq=integer("head_seq", head_seq),
        head_hash=hash_text(head_hash),
        calls=integer("calls", calls),
        attempts=integer("attempts", attempts),
        charges=found,
        pruned_at=real("pruned_at", pruned_at),
    )
