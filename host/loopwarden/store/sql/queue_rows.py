"""Queues over all hosts: settings, and how many runs of each wait and run."""

from collections.abc import Mapping
from dataclasses import dataclass

from loopwarden.logs import run_logger
from loopwarden.store.errors import StoreError
from loopwarden.store.shared import Queue
from loopwarden.store.sql.rows import Damaged, integer, storable, text
from loopwarden.store.sql.transaction import Transaction


@dataclass(frozen=True, slots=True)
class Places:
    """How many runs of a queue may be claimed now."""

    of_host: int
    of_queue: int | None
    """Of those that wait, over all hosts; None: no bound."""


def set_queue(tx: Transaction, name: str, *, is_paused: bool | None, max_running: int | None) -> None:
    """Pause, resume or bound a queue; None leaves as it is, 0 running means no bound."""
    if not name:
        raise StoreError("a queue has a name")
    if max_running is not None and max_running < 0:
        raise StoreError(f"max_running of the queue {name} is a whole number from 0, where 0 means no bound")
    tx.execute(
        "INSERT INTO queues (name, is_paused, max_running) VALUES (?, 0, NULL) ON CONFLICT (name) DO NOTHING",
        (storable("the queue", name),),
    )
    if is_paused is not None:
        tx.execute("UPDATE queues SET is_paused = ? WHERE name = ?", (int(is_paused), name))
    if max_running is not None:
        tx.execute("UPDATE queues SET max_running = ? WHERE name = ?", (max_running or None, name))


def list_queues(tx: Transaction) -> list[Queue]:
    """All queues that have runs or settings, by name. One whose settings are damaged is shown as paused."""
    settings = _settings(tx)
    counts: dict[str, dict[str, int]] = {}
    for status in ("queued", "running"):
        # Not as a parameter: its index is for that status alone.
        for queue, count in tx.rows(
            f"SELECT queue, COUNT(*) FROM runs WHERE queue <> '' AND status = '{status}' GROUP BY queue"
        ):
            counts.setdefault(str(queue), {})[status] = int(count)
    for (queue,) in tx.rows("SELECT DISTINCT queue FROM runs WHERE queue <> ''"):
        counts.setdefault(str(queue), {})
    return [
        Queue(
            name=name,
            is_paused=settings.get(name, (False, None))[0],
            max_running=settings.get(name, (False, None))[1],
            queued=counts.get(name, {}).get("queued", 0),
            running=counts.get(name, {}).get("running", 0),
        )
        for name in sorted({*settings, *counts})
    ]


def free_places(tx: Transaction, wanted: Mapping[str, int]) -> dict[str, Places]:
    """The queues of which a host may claim runs now. Their settings are locked until the transaction is over."""
    asked = {name: count for name, count in sorted(wanted.items()) if count > 0}
    if not asked:
        return {}
    marks = ", ".join("?" * len(asked))
    if tx.dialect.lock:
        tx.rows(f"SELECT name FROM queues WHERE name IN ({marks}) ORDER BY name{tx.dialect.lock}", list(asked))
    settings = _settings(tx)
    places: dict[str, Places] = {}
    for name, count in asked.items():
        is_paused, max_running = settings.get(name, (False, None))
        if is_paused:
            continue
        free = None
        if max_running is not None:
            running = tx.rows("SELECT COUNT(*) FROM runs WHERE queue = ? AND status = 'running'", (name,))[0][0]
            free = max(0, max_running - running)
        places[name] = Places(count, free)
    return places


def _settings(tx: Transaction) -> dict[str, tuple[bool, int | None]]:
    """By queue: whether it is paused, and its bound. Damaged settings pause their queue, and no other one."""
    found: dict[str, tuple[bool, int | None]] = {}
    for name, is_paused, max_running in tx.rows("SELECT name, is_paused, max_running FROM queues"):
        try:
            bound = None if max_running is None else integer("max_running", max_running, least=1)
            found[text("name", name)] = (integer("is_paused", is_paused) != 0, bound)
        except Damaged as damage:
            found[str(name)] = (True, None)
            run_logger("").error(
                "a queue is paused: its settings are damaged; set them again", queue=str(name), problem=str(damage)
            )
    return found
