"""Schedules as rows. Firing moves the schedule and creates its run in one transaction, so each time fires once."""

from typing import Final

from loopwarden.journal.codec import Codec
from loopwarden.logs import run_logger
from loopwarden.store.runs import NewRun, RunRow
from loopwarden.store.shared import Schedule
from loopwarden.store.sql.rows import Damaged, integer, object_from_json, real, storable, text, to_json
from loopwarden.store.sql.run_rows import create_run
from loopwarden.store.sql.transaction import Row, Transaction

_COLUMNS: Final = "name, cron, zone, overlap, is_paused, next_at, request"


def set_schedule(tx: Transaction, schedule: Schedule) -> None:
    """Make or replace a schedule."""
    tx.execute(
        f"INSERT INTO schedules ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET "
        "cron = excluded.cron, zone = excluded.zone, overlap = excluded.overlap, is_paused = excluded.is_paused, "
        "next_at = excluded.next_at, request = excluded.request",
        (
            storable("the schedule", schedule.name),
            storable("the cron line", schedule.cron),
            storable("the zone", schedule.zone),
            schedule.overlap,
            int(schedule.is_paused),
            float(schedule.next_at),
            to_json(dict(schedule.request)),
        ),
    )


def remove_schedule(tx: Transaction, name: str) -> bool:
    """Remove a schedule; False when there is none."""
    return tx.execute("DELETE FROM schedules WHERE name = ?", (name,)) > 0


def list_schedules(tx: Transaction) -> list[Schedule]:
    """All schedules, by name. A damaged one is left out, with an error in the log: the others go on."""
    listed: list[Schedule] = []
    for row in tx.rows(f"SELECT {_COLUMNS} FROM schedules ORDER BY name"):
        try:
            listed.append(_schedule(row))
        except Damaged as damage:
            run_logger("").error(
                "a schedule is left out: it is damaged; remove it and add it again",
                schedule=str(row[0]),
                problem=str(damage),
            )
    return listed


def fire(
    tx: Transaction, name: str, *, due_at: float, next_at: float, run: NewRun | None, codec: Codec
) -> RunRow | None:
    """Move a schedule and create its run; None when another host did it first, or when `run` is None."""
    moved = tx.execute(
        "UPDATE schedules SET next_at = ? WHERE name = ? AND next_at = ? AND is_paused = 0",
        (float(next_at), name, float(due_at)),
    )
    return create_run(tx, run, None, codec) if moved and run is not None else None


def _schedule(row: Row) -> Schedule:
    name, cron, zone, overlap, is_paused, next_at, request = row
    if overlap not in ("skip", "queue"):
        raise Damaged("its overlap is none")
    return Schedule(
        name=text("name", name),
        cron=text("cron", cron),
        zone=text("zone", zone),
        overlap=overlap,
        is_paused=integer("is_paused", is_paused) != 0,
        next_at=real("next_at", next_at),
        request=object_from_json("request", request),
    )
