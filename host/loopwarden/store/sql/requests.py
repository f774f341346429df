"""Requests: what those who do not own a run ask of its owner."""

from collections.abc import Mapping
from typing import Any, Literal

from loopwarden.logs import run_logger
from loopwarden.store.runs import Owner, Request, RunRow, Status
from loopwarden.store.sql.rows import Damaged, integer, object_from_json, real, shown_text, text, to_json
from loopwarden.store.sql.run_rows import need_run
from loopwarden.store.sql.transaction import Row, Transaction


def add_request(
    tx: Transaction, run_id: str, kind: Literal["cancel", "raise"], body: Mapping[str, Any], by: str
) -> RunRow:
    """Ask the owner of a run for something; a run that is over stays as it is. Raises `UnknownRun`."""
    row = need_run(tx, run_id, for_change=True)
    if row.status is Status.FINISHED:
        return row
    tx.execute(
        "INSERT INTO requests (run_id, kind, body, asked_by, asked_at, given_epoch) VALUES (?, ?, ?, ?, ?, 0)",
        (run_id, kind, to_json(dict(body)), shown_text(by), tx.now()),
    )
    if kind == "cancel" and row.cancel_reason is None:
        reason = body.get("reason")
        tx.execute(
            "UPDATE runs SET cancel_reason = ? WHERE run_id = ?",
            (shown_text(reason) if isinstance(reason, str) else "cancelled", run_id),
        )
    tx.touched.add(run_id)
    return need_run(tx, run_id)


def take_requests(tx: Transaction, owner: Owner) -> list[Request]:
    """Requests for runs that this owner holds, the oldest first, each given once in an epoch.

    They are kept until the run has ended: an owner may die between taking one and acting on it.
    """
    found = tx.rows(
        "SELECT number, run_id, kind, body, asked_by, asked_at FROM requests WHERE EXISTS (SELECT 1 FROM runs "
        "WHERE runs.run_id = requests.run_id AND owner = ? AND status = 'running' AND epoch > given_epoch) "
        f"ORDER BY number{tx.dialect.lock}",
        (owner.host_id,),
    )
    if found:
        tx.execute_many(
            "UPDATE requests SET given_epoch = (SELECT epoch FROM runs WHERE runs.run_id = requests.run_id) "
            "WHERE number = ?",
            [(row[0],) for row in found],
        )
    requests: list[Request] = []
    for row in found:
        try:
            requests.append(_request(row))
        except Damaged as damage:
            run_logger(str(row[1])).warning("a request is left out", problem=str(damage))
    return requests


def forget_requests(tx: Transaction, run_id: str) -> None:
    """Remove requests that nobody answers any more."""
    tx.execute("DELETE FROM requests WHERE run_id = ?", (run_id,))


def _request(row: Row) -> Request:
    number, run_id, kind, body, by, at = row
    if kind not in ("cancel", "raise"):
        raise Damaged("the kind of a request is none")
    return Request(
        number=integer("number", number),
        run_id=text("run_id", run_id),
        kind=kind,
        body=object_from_json("body", body),
        by=text("asked_by", by),
        at=real("asked_at", at),
    )
