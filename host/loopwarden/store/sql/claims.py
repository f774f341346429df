"""Claims: which runs a host gets, what that makes of their rows, and how leases are kept alive."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from loopwarden.journal.codec import Codec
from loopwarden.journal.entries import Claimed, Entry, Held
from loopwarden.logs import run_logger
from loopwarden.store.errors import StoreCorrupt
from loopwarden.store.runs import (
    ANY_SCRIPT,
    MAX_IDLE_CLAIMS,
    Claim,
    Owner,
    RunRow,
    Status,
    StoredEntry,
    Wanted,
)
from loopwarden.store.sql.journal_rows import Written, chain, read_blobs, read_entries
from loopwarden.store.sql.queue_rows import free_places
from loopwarden.store.sql.requests import forget_requests
from loopwarden.store.sql.rows import RUN_COLUMNS, replay_text, run_row
from loopwarden.store.sql.run_rows import need_run
from loopwarden.store.sql.transaction import Row, Transaction
from loopwarden.store.sql.workspaces import HELD_BY_ANOTHER, is_named, lock_workspaces, take_workspace

_FITS: Final = "script = ? AND contract_digest = ?"
_FITS_ANY: Final = "contract_digest = ?"
_HELD_REASON: Final = (
    f"claimed {MAX_IDLE_CLAIMS} times in a row without progress; it may be killing its hosts. "
    "Look at it, then resume or cancel it"
)


@dataclass(slots=True)
class _Candidate:
    number: int
    priority: int
    is_exclusive: bool
    columns: Row


def claim_runs(tx: Transaction, owner: Owner, wanted: Wanted, limit: int, codec: Codec) -> list[Claim]:
    """Claim runs that are due and fit; see `Store.claim`. The caller has looked at the format of the store."""
    if limit <= 0 or not wanted.scripts or not wanted.providers:
        return []
    places = free_places(tx, wanted.queues)
    lock_workspaces(tx, {name for name in wanted.workspaces if is_named(name)})
    candidates = [
        candidate
        for queue, place in places.items()
        for candidate in _candidates(tx, wanted, queue, min(limit, place.of_host), place.of_queue)
    ]
    candidates.sort(key=_order)
    claims: list[Claim] = []
    taken: dict[str, bool] = {}
    for candidate in candidates:
        if len(claims) == limit:
            break
        claim = _claim_candidate(tx, owner, candidate, taken, codec)
        if claim is not None:
            claims.append(claim)
    return claims


def claim_one(tx: Transaction, owner: Owner, run_id: str, kill_grace_seconds: float, codec: Codec) -> Claim | RunRow:
    """Claim one run in any state but a live lease of somebody else; see `Store.claim_one`."""
    row = need_run(tx, run_id, for_change=True)
    now = tx.now()
    if row.status is Status.RUNNING and row.owner not in (None, owner.host_id):
        # Its agents may live until the kill grace is over.
        is_over = row.lease_until is None or row.lease_until + kill_grace_seconds < now
        if not is_over:
            return row
    exclusive = tx.rows("SELECT is_exclusive FROM runs WHERE run_id = ?", (run_id,))[0][0] != 0
    take_workspace(tx, run_id, row.workspace, is_exclusive=exclusive)
    if row.status is Status.FINISHED:
        # What was asked of the segment that is over is not asked of the next one.
        forget_requests(tx, run_id)
        tx.execute("UPDATE runs SET cancel_reason = NULL WHERE run_id = ?", (run_id,))
    return _take(tx, owner, row, now, codec, idle_claims=_idle(row))


def renew(tx: Transaction, owner: Owner, runs: Mapping[str, int]) -> set[str]:
    """Extend leases; returns the runs that are still the owner's.

    A lease that expired, without anybody having claimed the run since, is alive again: nobody else has done anything.
    """
    kept: set[str] = set()
    for run_id, epoch in sorted(runs.items()):
        found = tx.execute(
            "UPDATE runs SET lease_until = ? WHERE run_id = ? AND epoch = ? AND owner = ? AND status = 'running'",
            (tx.now() + owner.lease_seconds, run_id, epoch, owner.host_id),
        )
        if found:
            kept.add(run_id)
    return kept


def _idle(row: RunRow) -> int:
    return row.idle_claims + 1 if row.status in (Status.QUEUED, Status.RUNNING) else 1


def _candidates(tx: Transaction, wanted: Wanted, queue: str, most: int, most_new: int | None) -> list[_Candidate]:
    """Runs of one queue that are due and fit, the first of them, locked. `most_new`: of those that wait; None: any."""
    now = tx.now()
    fits, parameters = _fitting(tx, wanted)
    found: list[Row] = []
    # Two queries, since each has an index that gives its runs in this order.
    for is_due, moment, count in (
        ("status = 'queued' AND not_before <= ?", now, most if most_new is None else min(most, most_new)),
        ("status = 'running' AND (lease_until IS NULL OR lease_until < ?)", now - wanted.kill_grace_seconds, most),
    ):
        if count > 0:
            found += tx.rows(
                f"SELECT number, is_exclusive, {RUN_COLUMNS} FROM runs WHERE queue = ? AND {is_due} AND {fits} "
                f"ORDER BY priority DESC, number LIMIT ?{tx.dialect.lock_free}",
                (queue, moment, *parameters, count),
            )
    return sorted(map(_candidate, found), key=_order)[:most]


def _candidate(row: Row) -> _Candidate:
    number, is_exclusive, *columns = row
    priority = columns[7]
    return _Candidate(number, priority if type(priority) is int else 0, is_exclusive != 0, tuple(columns))


def _order(candidate: _Candidate) -> tuple[int, int]:
    return -candidate.priority, candidate.number


def _fitting(tx: Transaction, wanted: Wanted) -> tuple[str, list[object]]:
    """What a run must be for this host: a condition, and its parameters."""
    parameters: list[object] = [replay_text(wanted.replay)]
    conditions = [
        "replay = ?",
        f"provider IN ({_marks(wanted.providers)})",
        "(" + " OR ".join(_FITS_ANY if name == ANY_SCRIPT else _FITS for name in sorted(wanted.scripts)) + ")",
        f"NOT EXISTS ({HELD_BY_ANOTHER})",
    ]
    parameters += sorted(wanted.providers)
    for script, digest in sorted(wanted.scripts.items()):
        parameters += [digest] if script == ANY_SCRIPT else [script, digest]
    conditions.append(_workspace_fits(tx, wanted, parameters))
    if wanted.sources is not None:
        conditions.append(f"source_digest IN ({_marks(wanted.sources)})" if wanted.sources else "1 = 0")
        parameters += sorted(wanted.sources)
    return " AND ".join(conditions), parameters


def _workspace_fits(tx: Transaction, wanted: Wanted, parameters: list[object]) -> str:
    fits = ["workspace IS NULL"]
    if tx.dialect.is_one_machine:
        # A path means here what it meant to the host that took it.
        fits.append("REPLACE(workspace, '/', '') <> workspace")
    if wanted.workspaces:
        fits.append(f"workspace IN ({_marks(wanted.workspaces)})")
        parameters += sorted(wanted.workspaces)
    return "(" + " OR ".join(fits) + ")"


def _marks(values: Collection[str]) -> str:
    return ", ".join("?" * len(values))


def _claim_candidate(
    tx: Transaction, owner: Owner, candidate: _Candidate, taken: dict[str, bool], codec: Codec
) -> Claim | None:
    """Claim one candidate; None when it was held instead, or when this claim gave its workspace to another run.

    `taken`: named workspaces that this claim has given away, with True for exclusively.
    """
    try:
        row = run_row(candidate.columns)
        if row.workspace in taken and (taken[row.workspace] or candidate.is_exclusive):
            return None
        if row.idle_claims >= MAX_IDLE_CLAIMS:
            _hold_idle(tx, row, codec)
            return None
        claim = _take(tx, owner, row, tx.now(), codec, idle_claims=_idle(row))
    except StoreCorrupt as error:
        _hold_damaged(tx, candidate.number, error)
        return None
    if row.workspace is not None and is_named(row.workspace):
        taken[row.workspace] = candidate.is_exclusive
    return claim


def _take(tx: Transaction, owner: Owner, row: RunRow, now: float, codec: Codec, *, idle_claims: int) -> Claim:
    """Make `owner` the owner of a run that is locked. Raises `StoreCorrupt` and changes nothing then."""
    # Read first: what cannot be read is not claimed.
    before = read_entries(tx, row.run_id, limit=None)
    blobs = read_blobs(tx, row.run_id)
    _need_head(row, before, len(before))
    epoch = row.epoch + 1
    seq, head = _append(tx, row, Claimed(at=now, epoch=epoch, host=owner.host_id), codec)
    changed = tx.execute(
        "UPDATE runs SET status = 'running', epoch = ?, owner = ?, lease_until = ?, head_seq = ?, head_hash = ?, "
        "idle_claims = ? WHERE run_id = ? AND epoch = ?",
        (epoch, owner.host_id, now + owner.lease_seconds, seq, head, idle_claims, row.run_id, row.epoch),
    )
    assert changed == 1, "a row that this transaction has locked was changed by somebody else"
    tx.touched.add(row.run_id)
    claimed = read_entries(tx, row.run_id, after=row.head_seq)
    return Claim(row=need_run(tx, row.run_id), rows=[*before, *claimed], blobs=blobs)


def _need_head(row: RunRow, last: Sequence[StoredEntry], count: int) -> None:
    """See that a journal of `count` entries, of which `last` are the last ones, ends where its row says."""
    if count != row.head_seq or not last or (last[-1].seq, last[-1].hash) != (row.head_seq, row.head_hash):
        raise StoreCorrupt(row.run_id, f"its journal does not end with entry {row.head_seq}, as its row says")


def _hold_idle(tx: Transaction, row: RunRow, codec: Codec) -> None:
    count = tx.rows("SELECT COUNT(*) FROM entries WHERE run_id = ?", (row.run_id,))[0][0]
    _need_head(row, read_entries(tx, row.run_id, after=row.head_seq - 1), count)
    seq, head = _append(tx, row, Held(at=tx.now(), code="HOST_LOST", reason=_HELD_REASON), codec)
    tx.execute(
        "UPDATE runs SET status = 'held', owner = NULL, lease_until = NULL, head_seq = ?, head_hash = ?, "
        "idle_claims = 0, failure_code = 'HOST_LOST', reason = ? WHERE run_id = ? AND epoch = ?",
        (seq, head, _HELD_REASON, row.run_id, row.epoch),
    )
    tx.touched.add(row.run_id)


def _hold_damaged(tx: Transaction, number: int, error: StoreCorrupt) -> None:
    # Its journal may be what is damaged, so nothing is appended; the row says why nobody claims the run again.
    tx.execute(
        "UPDATE runs SET status = 'held', owner = NULL, lease_until = NULL, failure_code = 'STORE_CORRUPT', "
        "reason = ? WHERE number = ?",
        (error.problem, number),
    )
    tx.touched.add(error.run_id)
    run_logger(error.run_id).error("the run is held: what the store holds for it is damaged", problem=error.problem)


def _append(tx: Transaction, row: RunRow, entry: Entry, codec: Codec) -> tuple[int, str]:
    written = Written()
    head = chain(written, row.run_id, (row.head_seq, row.head_hash), [entry], codec)
    written.insert(tx)
    return head
