"""`loopwarden runs` and `loopwarden show`: runs of the store, and what runs without a journal left in their folders."""

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from loopwarden.cli import values
from loopwarden.cli.continuing import read
from loopwarden.cli.fitness import Fitness
from loopwarden.cli.going_on import how_to_go_on
from loopwarden.cli.loop_commands import as_command, shared_options
from loopwarden.cli.output import Output
from loopwarden.cli.receipt_view import agent_files, receipt_text, verdict
from loopwarden.cli.stored_runs import (
    StoredRun,
    find_stored,
    is_lost,
    receipt_in_folder,
    row_words,
    run_folder,
    stored_run,
    with_existing_store,
)
from loopwarden.cli.tables import show_table
from loopwarden.journal.observed import failure_of
from loopwarden.receipt import Receipt, ReceiptError, read_receipt
from loopwarden.run_folder import RECEIPT, find_receipt, is_live, list_runs
from loopwarden.settings import Settings, load_settings
from loopwarden.store.api import Store
from loopwarden.store.errors import StoreCorrupt
from loopwarden.store.runs import RunFilter, RunRow, Status

_MOST_RUNS: Final = 1000
_HEADINGS: Final = ("run", "loop", "queue", "started", "agents", "ending")


# ---- runs


def runs_command(config: Path | None) -> Callable[..., int]:
    """The command that lists runs."""

    def run(**given: Any) -> int:
        output = Output(json=given["json"])
        settings = load_settings(config)
        wanted = RunFilter(
            status=None if given["status"] is None else Status(given["status"]),
            queue=given["queue"],
            labels=dict(given["label"]) if given["label"] else None,
            limit=given["limit"],
        )
        fitness = Fitness.of(settings)

        async def look(store: Store) -> list[dict[str, Any]]:
            now = await store.now()
            rows = await store.find(wanted)
            return [await _stored_row(store, row, settings, fitness, now) for row in rows]

        rows = with_existing_store(settings, look) or []
        if wanted.status is None and wanted.queue is None and wanted.labels is None:
            rows = _with_folders(rows, settings, given["limit"])
        output.show_object({"exit": 0, "runs": rows})
        if not output.json:
            _print_table(rows, output)
        return 0

    return as_command(run, {**_FILTERS, **shared_options("json", "config")})


_FILTERS: Final[dict[str, tuple[Any, Any]]] = {
    "status": (
        Annotated[
            Any,
            typer.Option(
                "--status",
                parser=values.one_of(*Status),
                metavar="STATUS",
                help=f"Those of the store that are {', '.join(Status)}.",
                show_default=False,
            ),
        ],
        None,
    ),
    "queue": (
        Annotated[
            str | None,
            typer.Option("--queue", metavar="NAME", help="Those of this queue.", show_default=False),
        ],
        None,
    ),
    "label": (
        Annotated[
            list[Any] | None,
            typer.Option(
                "--label",
                parser=values.label,
                metavar="NAME=VALUE",
                help="Those with this label; may be repeated.",
                show_default=False,
            ),
        ],
        None,
    ),
    "limit": (
        Annotated[int, typer.Option("--limit", min=1, max=_MOST_RUNS, metavar="N", help="The newest N runs.")],
        50,
    ),
}


async def _stored_row(store: Store, row: RunRow, settings: Settings, fitness: Fitness, now: float) -> dict[str, Any]:
    receipt: Receipt | None = None
    if row.status is Status.FINISHED:
        receipt = receipt_in_folder(settings, row)
        if receipt is None:
            try:
                receipt = (await stored_run(store, row, settings)).receipt
            except StoreCorrupt as damage:
                return {"runId": row.run_id, "problem": str(damage), "at": row.submitted_at}
    lost = is_lost(row, now, settings)
    return {
        "runId": row.run_id,
        "script": row.script,
        "startedAt": row.submitted_at if receipt is None else receipt.started_at,
        "state": ("lost" if lost else row.status.value) if receipt is None else _state(receipt),
        "verified": None if receipt is None else receipt.verified,
        "agentsStarted": row.calls,
        "continues": None if receipt is None else receipt.continues,
        "verdict": row_words(row, now, is_lost=lost) if receipt is None else verdict(receipt),
        "inStore": True,
        "status": row.status.value,
        "queue": row.queue,
        "labels": dict(row.labels),
        "key": row.key,
        "priority": row.priority,
        "submittedAt": row.submitted_at,
        "cannotBeDrivenHere": fitness.problem_of(row),
        "at": row.submitted_at,
    }


def _with_folders(rows: list[dict[str, Any]], settings: Settings, limit: int) -> list[dict[str, Any]]:
    """The runs of the store, and those that are kept as folders alone, the newest first."""
    known = {row["runId"] for row in rows}
    # A folder of a run beyond the limit would come back as one without a journal.
    oldest = min((row["at"] for row in rows), default=0.0) if len(rows) == limit else 0.0
    alone = [
        _folder_row(folder)
        for folder in list_runs(settings.state_folder)[: limit + len(known)]
        if folder.name not in known
    ]
    together = [*rows, *(row for row in alone if row["at"] >= oldest)]
    return sorted(together, key=lambda row: -row["at"])[:limit]


def _folder_row(folder: Path) -> dict[str, Any]:
    try:
        receipt = read_receipt(folder / RECEIPT)
    except ReceiptError as error:
        return {"runId": folder.name, "problem": str(error), "at": _changed_at(folder)}
    live = is_live(folder)
    return {
        "runId": folder.name,
        "script": receipt.script,
        "startedAt": receipt.started_at,
        "state": "running" if live and receipt.stop_reason is None else _state(receipt),
        "verified": receipt.verified,
        "agentsStarted": receipt.agents_started,
        "continues": receipt.continues,
        "verdict": verdict(receipt, live=live),
        "inStore": False,
        "at": receipt.started_at,
    }


def _changed_at(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0


def _state(receipt: Receipt) -> str:
    if receipt.failure is not None:
        return receipt.failure.code
    return receipt.standing or receipt.stop_reason or "lost"


def _print_table(rows: list[dict[str, Any]], output: Output) -> None:
    if not rows:
        output.show("no runs yet; `loopwarden demo` makes two")
        return
    show_table(_HEADINGS, [_cells(row) for row in rows], output)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    if "problem" in row:
        return row["runId"], "", "", "", "", row["problem"]
    try:
        started = datetime.fromtimestamp(row["startedAt"]).astimezone().strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):
        started = "?"
    labels = " ".join(f"{name}={value}" for name, value in sorted(row.get("labels", {}).items()))
    problem = row.get("cannotBeDrivenHere")
    ending = row["verdict"] + (f"  [{labels}]" if labels else "")
    ending += f"; no host that is started here takes it: {problem}" if problem else ""
    return row["runId"], row["script"], row.get("queue") or "", started, str(row["agentsStarted"]), ending


# ---- show


def show_command(config: Path | None) -> Callable[..., int]:
    """The command that shows one run."""

    def run(**given: Any) -> int:
        output = Output(json=given["json"])
        settings = load_settings(config)
        stored = None if values.is_path(given["run"]) else _stored(settings, given["run"])
        if stored is None:
            return _show_folder(settings, find_receipt(settings.state_folder, given["run"]), output)
        return _show_stored(settings, stored, output)

    name = Annotated[
        str, typer.Argument(metavar="RUN", help="The id of a run or its beginning, or the path of a receipt.json.")
    ]
    return as_command(run, {"run": (name, ...), **shared_options("json", "config")})


def _stored(settings: Settings, text: str) -> StoredRun | None:
    async def look(store: Store) -> StoredRun | None:
        row = await find_stored(store, text)
        return None if row is None else await stored_run(store, row, settings)

    return with_existing_store(settings, look)


def _show_stored(settings: Settings, stored: StoredRun, output: Output) -> int:
    row, receipt = stored.row, stored.receipt
    folder = run_folder(settings, row.run_id)
    problem = Fitness.of(settings).problem_of(row)
    go_on = how_to_go_on(row.run_id, None if receipt.failure is None else failure_of(receipt.failure))
    shown: dict[str, Any] = {
        "inStore": True,
        "status": row.status.value,
        "queue": row.queue,
        "labels": dict(row.labels),
        "key": row.key,
        "priority": row.priority,
        "cannotBeDrivenHere": problem,
        "goOn": go_on,
    }
    shown["continuedBy"] = _continuations(settings.state_folder, row.run_id)
    _show(receipt, folder, stored.standing, output, shown)
    for line in (go_on, None if problem is None else f"no host that is started here takes it: {problem}"):
        if line is not None:
            output.show(f"\n{line}")
    return 0


def _show_folder(settings: Settings, path: Path, output: Output) -> int:
    receipt = read(path)
    folder = path.resolve().parent
    continued_by = _continuations(settings.state_folder, receipt.run_id)
    more = {"inStore": False, "continuedBy": continued_by}
    _show(receipt, folder, verdict(receipt, live=is_live(folder)), output, more)
    return 0


def _show(receipt: Receipt, folder: Path | None, standing: str, output: Output, more: dict[str, Any]) -> None:
    continued_by = more["continuedBy"]
    files = {
        str(agent.seq): [] if folder is None else [str(file) for file in agent_files(folder, agent)]
        for agent in receipt.agents
    }
    output.show_object(
        {
            "exit": 0,
            "verdict": standing,
            "folder": None if folder is None else str(folder),
            "receipt": receipt.to_json(),
            "files": files,
            **more,
        }
    )
    output.show(receipt_text(receipt, folder, paths=True, standing=standing))
    if continued_by:
        output.show(f"\n  continued by {', '.join(continued_by)}")


def _continuations(state_folder: Path, run_id: str) -> list[str]:
    """The runs that went on from this one, the newest first: each names it in its own receipt."""
    found: list[str] = []
    for folder in list_runs(state_folder)[:_MOST_RUNS]:
        with suppress(ReceiptError):
            receipt = read_receipt(folder / RECEIPT)
            if receipt.continues == run_id:
                found.append(receipt.run_id)
    return found
