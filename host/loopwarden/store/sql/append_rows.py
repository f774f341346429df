"""What appends read and write of the table `runs`: the hot path, so only the columns that they need."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from loopwarden.store.errors import StoreCorrupt
from loopwarden.store.runs import Status
from loopwarden.store.sql.rows import (
    LARGEST,
    Damaged,
    hash_text,
    integer,
    real_or_none,
    scope_names,
    shown_id,
    status_of,
    text,
    text_or_none,
)
from loopwarden.store.sql.transaction import Row, Transaction

_COLUMNS: Final = (
    "run_id, status, epoch, owner, lease_until, head_seq, head_hash, max_calls, max_extra, calls, extra, scopes, "
    "cancel_reason, stop_reason, failure_code, reason, queue, priority, not_before, finished_at"
)
_MOST_AT_ONCE: Final = 256
"""Runs that one query reads."""


@dataclass(slots=True)
class RunState:
    """A run while a transaction appends to it. Changed in place; `is_changed` makes it written."""

    run_id: str
    status: Status
    epoch: int
    owner: str | None
    lease_until: float | None
    head_seq: int
    head_hash: str
    max_calls: int
    max_extra: int
    calls: int
    extra: int
    scopes: tuple[str, ...]
    cancel_reason: str | None
    stop_reason: str | None
    failure_code: str | None
    reason: str | None
    queue: str
    priority: int
    not_before: float
    finished_at: float | None
    is_appended: bool = False
    is_changed: bool = False
    """More than the head and the counters changed."""

    def is_owned(self, epoch: int) -> bool:
        """The fence: True while the run belongs to the owner of `epoch`, and goes on."""
        return self.epoch == epoch and self.owner is not None and self.status == Status.RUNNING

    def is_leased(self, now: float) -> bool:
        """True while the owner may append without renewing first."""
        return self.lease_until is not None and self.lease_until > now


def load_states(tx: Transaction, run_ids: Iterable[str]) -> dict[str, RunState | StoreCorrupt]:
    """The runs with these ids, locked in byte order of their ids; those that do not exist are missing."""
    ordered = sorted(run_ids)
    states: dict[str, RunState | StoreCorrupt] = {}
    for start in range(0, len(ordered), _MOST_AT_ONCE):
        for row in _rows(tx, ordered[start : start + _MOST_AT_ONCE]):
            try:
                state = _state(row)
                states[state.run_id] = state
            except Damaged as damage:
                states[str(row[0])] = StoreCorrupt(shown_id(row[0]), str(damage))
    return states


def save_states(tx: Transaction, states: Collection[RunState]) -> None:
    """Write back what appends changed, by compare-and-swap on the epoch."""
    heads = [
        (state.head_seq, state.head_hash, state.calls, state.extra, state.run_id, state.epoch)
        for state in states
        if state.is_appended and not state.is_changed
    ]
    changed = [_all_columns(state) for state in states if state.is_changed]
    written = 0
    if heads:
        written += tx.execute_many(
            "UPDATE runs SET head_seq = ?, head_hash = ?, calls = ?, extra = ?, idle_claims = 0 "
            "WHERE run_id = ? AND epoch = ?",
            heads,
        )
    if changed:
        written += tx.execute_many(
            "UPDATE runs SET head_seq = ?, head_hash = ?, calls = ?, extra = ?, status = ?, owner = ?, "
            "lease_until = ?, max_calls = ?, max_extra = ?, stop_reason = ?, failure_code = ?, reason = ?, "
            "finished_at = ?, idle_claims = 0 WHERE run_id = ? AND epoch = ?",
            changed,
        )
    assert written == len(heads) + len(changed), "rows that this transaction has locked were changed by somebody else"


def _all_columns(state: RunState) -> tuple[object, ...]:
    return (
        state.head_seq, state.head_hash, state.calls, state.extra, state.status, state.owner, state.lease_until,
        state.max_calls, state.max_extra, state.stop_reason, state.failure_code, state.reason, state.finished_at,
        state.run_id, state.epoch,
    )  # fmt: skip


def _rows(tx: Transaction, run_ids: list[str]) -> list[Row]:
    # A few sizes of the list keep the number of prepared statements small; an id that stands there twice is found once.
    size = 1
    while size < len(run_ids):
        size *= 2
    padded = run_ids + [run_ids[-1]] * (size - len(run_ids))
    marks = ", ".join("?" * size)
    return tx.rows(f"SELECT {_COLUMNS} FROM runs WHERE run_id IN ({marks}) ORDER BY run_id{tx.dialect.lock}", padded)


def _state(row: Row) -> RunState:
    (
        run_id, status, epoch, owner, lease_until, head_seq, head_hash, max_calls, max_extra, calls, extra, scopes,
        cancel_reason, stop_reason, failure_code, reason, queue, priority, not_before, finished_at,
    ) = row  # fmt: skip
    return RunState(
        run_id,
        status_of(status),
        integer("epoch", epoch),
        text_or_none("owner", owner),
        real_or_none("lease_until", lease_until),
        integer("head_seq", head_seq, least=1),
        hash_text(head_hash),
        integer("max_calls", max_calls),
        integer("max_extra", max_extra),
        integer("calls", calls),
        integer("extra", extra),
        scope_names(text("scopes", scopes)),
        text_or_none("cancel_reason", cancel_reason),
        text_or_none("stop_reason", stop_reason),
        text_or_none("failure_code", failure_code),
        text_or_none("reason", reason),
        text("queue", queue),
        integer("priority", priority, least=-LARGEST),
        real_or_none("not_before", not_before) or 0.0,
        real_or_none("finished_at", finished_at),
    )
