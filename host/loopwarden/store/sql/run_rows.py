"""Runs as rows: creating them, finding them, listing them."""

from collections.abc import Sequence
from typing import Final

from loopwarden.journal.chain import START
from loopwarden.journal.codec import Codec
from loopwarden.journal.entries import Claimed, Created
from loopwarden.logs import run_logger
from loopwarden.store.errors import KeyConflict, StoreCorrupt, StoreError, UnknownRun
from loopwarden.store.runs import (
    NewRun,
    Owner,
    RunFilter,
    RunRow,
    Status,
)
from loopwarden.store.sql.journal_rows import Written, chain
from loopwarden.store.sql.rows import RUN_COLUMNS, replay_text, run_row, storable, to_json
from loopwarden.store.sql.transaction import Transaction
from loopwarden.store.sql.workspaces import take_workspace

_MAX_LISTED: Final = 1000
_INSERT: Final = (
    "INSERT INTO runs (run_id, run_key, content_digest, script, provider, workspace, is_exclusive, queue, priority, "
    "not_before, labels, scopes, source_digest, contract_digest, replay, status, epoch, owner, lease_until, head_seq, "
    "head_hash, max_calls, max_extra, calls, extra, idle_claims, submitted_at) "
    f"VALUES ({', '.join('?' * 27)}) ON CONFLICT DO NOTHING"
)


def create_runs(tx: Transaction, runs: Sequence[NewRun], owner: Owner | None, codec: Codec) -> list[RunRow]:
    """Create runs, all or none; see `Store.create`."""
    return [create_run(tx, run, owner, codec) for run in runs]


def create_run(tx: Transaction, run: NewRun, owner: Owner | None, codec: Codec) -> RunRow:
    """Create one run, or give the row of the one that has its key and its content. Raises `KeyConflict`."""
    created = run.created
    _check_names(created)
    now = tx.now()
    written = Written()
    entries: list[Created | Claimed] = [created]
    if owner is not None:
        entries.append(Claimed(at=now, epoch=1, host=owner.host_id))
    seq, head = chain(written, created.run_id, (0, START), entries, codec)
    if tx.execute(_INSERT, _columns(run, owner, now, seq, head)) == 0:
        return _existing(tx, run)
    # Looked at after the insert, which has waited for whoever was pruning a run of that id or key.
    _refuse_pruned(tx, created)
    if owner is not None:
        take_workspace(tx, created.run_id, created.workspace, is_exclusive=not created.share_workspace)
    written.insert(tx)
    tx.touched.add(created.run_id)
    if owner is None and created.queue is not None:
        tx.run_waits(created.run_id, queue=created.queue, priority=created.priority, not_before=run.not_before)
    return need_run(tx, created.run_id)


def get_run(tx: Transaction, run_id: str, *, for_change: bool = False) -> RunRow | None:
    """One run; None when there is none. Raises `StoreCorrupt`."""
    lock = tx.dialect.lock if for_change else ""
    found = tx.rows(f"SELECT {RUN_COLUMNS} FROM runs WHERE run_id = ?{lock}", (run_id,))
    return run_row(found[0]) if found else None


def need_run(tx: Transaction, run_id: str, *, for_change: bool = False) -> RunRow:
    """One run. Raises `UnknownRun`."""
    row = get_run(tx, run_id, for_change=for_change)
    if row is None:
        raise UnknownRun(f"the store holds no run {run_id[:200]!r}")
    return row


def find_runs(tx: Transaction, wanted: RunFilter) -> list[RunRow]:
    """Runs that fit, the newest first. One that is damaged is left out, with a warning in the log."""
    conditions = ["1 = 1"]
    parameters: list[object] = []
    for column, value in (("status", wanted.status), ("queue", wanted.queue), ("script", wanted.script)):
        if value is not None:
            conditions.append(f"{column} = ?")
            parameters.append(str(value))
    if wanted.before is not None:
        conditions.append("number < (SELECT number FROM runs WHERE run_id = ?)")
        parameters.append(wanted.before)
    listed: list[RunRow] = []
    for name, value in (wanted.labels or {}).items():
        # Leaves out most of what does not fit; what is left is compared below.
        conditions.append("REPLACE(labels, ?, '') <> labels")
        parameters.append(to_json({name: value})[1:-1])
    limit = min(wanted.limit, _MAX_LISTED)
    below: object = None
    while len(listed) < limit:
        page = _page(tx, conditions, parameters, below, limit)
        for number, *columns in page:
            below = number
            row = _readable(columns)
            if row is not None and _has_labels(row, wanted) and len(listed) < limit:
                listed.append(row)
        if len(page) < limit:
            break
    return listed


def _page(
    tx: Transaction, conditions: list[str], parameters: list[object], below: object, limit: int
) -> list[tuple[object, ...]]:
    # What is damaged, and some labels, are told apart here, not in SQL: so the pages go on until enough was found.
    further = [] if below is None else ["number < ?"]
    return tx.rows(
        f"SELECT number, {RUN_COLUMNS} FROM runs WHERE {' AND '.join(conditions + further)} "
        "ORDER BY number DESC LIMIT ?",
        (*parameters, *([] if below is None else [below]), limit),
    )


def _readable(columns: Sequence[object]) -> RunRow | None:
    try:
        return run_row(tuple(columns))
    except StoreCorrupt as error:
        run_logger(error.run_id).warning("a run is left out of the list", problem=error.problem)
        return None


def _has_labels(row: RunRow, wanted: RunFilter) -> bool:
    return all(row.labels.get(name) == value for name, value in (wanted.labels or {}).items())


def _columns(run: NewRun, owner: Owner | None, now: float, seq: int, head: str) -> tuple[object, ...]:
    created = run.created
    return (
        created.run_id,
        created.key,
        run.content_digest,
        created.script,
        created.provider,
        created.workspace,
        0 if created.share_workspace else 1,
        created.queue or "",
        created.priority,
        float(run.not_before),
        to_json(created.labels),
        to_json(sorted(created.scopes)),
        created.source_digest,
        created.contract_digest,
        replay_text(created.replay),
        str(Status.QUEUED if owner is None else Status.RUNNING),
        0 if owner is None else 1,
        None if owner is None else owner.host_id,
        None if owner is None else now + owner.lease_seconds,
        seq,
        head,
        cap(created.limits, "max_total_agents"),
        cap(created.limits, "max_extra_attempts"),
        0,
        0,
        0 if owner is None else 1,
        now,
    )


def cap(limits: dict[str, int | float | None], name: str) -> int:
    """A cap on asks among limits by their Python names; one that is missing allows none."""
    value = limits.get(name)
    return value if type(value) is int else 0


def _check_names(created: Created) -> None:
    for what, value in (
        ("the run id", created.run_id),
        ("the key", created.key),
        ("the script", created.script),
        ("the provider", created.provider),
        ("the workspace", created.workspace),
        ("the queue", created.queue),
    ):
        if value is not None:
            storable(what, value)
    for scope in created.scopes:
        storable("the budget", scope)


def _refuse_pruned(tx: Transaction, created: Created) -> None:
    found = tx.rows(
        "SELECT run_id, run_key FROM tombstones WHERE run_id = ? OR run_key = ?", (created.run_id, created.key)
    )
    for run_id, key in found:
        if created.key is not None and key == created.key:
            raise KeyConflict(
                f"the key {created.key!r} belongs to run {run_id}, which was pruned; submit under another key"
            )
        raise StoreError(f"there was a run {created.run_id} before, which was pruned; choose another id")


def _existing(tx: Transaction, run: NewRun) -> RunRow:
    created = run.created
    if created.key is not None:
        found = tx.rows(f"SELECT {RUN_COLUMNS} FROM runs WHERE run_key = ?", (created.key,))
        if found:
            row = run_row(found[0])
            if row.content_digest == run.content_digest:
                return row
            raise KeyConflict(
                f"the key {created.key!r} belongs to run {row.run_id}, which was asked for with other content; "
                "submit under another key"
            )
    row = need_run(tx, created.run_id)
    if row.key == created.key and row.content_digest == run.content_digest:
        return row
    raise StoreError(f"there is a run {created.run_id} already; choose another id")
