"""`loopwarden runs` and `loopwarden show`: what earlier runs left."""

import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from loopwarden.cli.continuing import read
from loopwarden.cli.loop_commands import as_command, shared_options
from loopwarden.cli.output import Output
from loopwarden.cli.receipt_view import agent_files, receipt_text, verdict
from loopwarden.display import cut, shown_line
from loopwarden.receipt import Receipt, ReceiptError, read_receipt
from loopwarden.run_folder import RECEIPT, find_receipt, is_live, list_runs
from loopwarden.settings import load_settings

_MOST_RUNS = 1000
_HEADINGS = ("run", "loop", "started", "agents", "ending")


def runs_command(config: Path | None) -> Callable[..., int]:
    """The command that lists runs."""

    def run(**given: Any) -> int:
        output = Output(json=given["json"])
        rows = [_row(folder) for folder in list_runs(load_settings(config).state_folder)[: given["limit"]]]
        output.show_object({"exit": 0, "runs": rows})
        if not output.json:
            _print_table(rows, output)
        return 0

    limit = Annotated[int, typer.Option("--limit", min=1, max=_MOST_RUNS, metavar="N", help="The newest N runs.")]
    return as_command(run, {"limit": (limit, 50), **shared_options("json", "config")})


def show_command(config: Path | None) -> Callable[..., int]:
    """The command that shows one run."""

    def run(**given: Any) -> int:
        output = Output(json=given["json"])
        state_folder = load_settings(config).state_folder
        path = find_receipt(state_folder, given["run"])
        receipt = read(path)
        continued_by = _continuations(state_folder, receipt.run_id)
        folder = path.resolve().parent
        files = {str(agent.seq): [str(file) for file in agent_files(folder, agent)] for agent in receipt.agents}
        output.show_object(
            {
                "exit": 0,
                "verdict": verdict(receipt, live=is_live(folder)),
                "folder": str(folder),
                "receipt": receipt.to_json(),
                "continuedBy": continued_by,
                "files": files,
            }
        )
        output.show(receipt_text(receipt, folder, paths=True))
        if continued_by:
            output.show(f"\n  continued by {', '.join(continued_by)}")
        return 0

    name = Annotated[
        str, typer.Argument(metavar="RUN", help="The id of a run or its beginning, or the path of a receipt.json.")
    ]
    return as_command(run, {"run": (name, ...), **shared_options("json", "config")})


def _continuations(state_folder: Path, run_id: str) -> list[str]:
    """The runs that went on from this one, the newest first: each names it in its own receipt."""
    found: list[str] = []
    for folder in list_runs(state_folder)[:_MOST_RUNS]:
        with suppress(ReceiptError):
            receipt = read_receipt(folder / RECEIPT)
            if receipt.continues == run_id:
                found.append(receipt.run_id)
    return found


def _row(folder: Path) -> dict[str, Any]:
    try:
        receipt = read_receipt(folder / RECEIPT)
    except ReceiptError as error:
        return {"runId": folder.name, "problem": str(error)}
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
    }


def _state(receipt: Receipt) -> str:
    if receipt.failure is not None:
        return receipt.failure.code
    return receipt.standing or receipt.stop_reason or "lost"


def _print_table(rows: list[dict[str, Any]], output: Output) -> None:
    if not rows:
        output.show("no runs yet; `loopwarden demo` makes two")
        return
    cells = [_HEADINGS, *(tuple(shown_line(cell) for cell in _cells(row)) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(_HEADINGS) - 1)]
    # What reads a pipe wants whole lines; a terminal wants one line a run.
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for *named, ending in cells:
        padded = [cell.ljust(width) for cell, width in zip(named, widths, strict=True)]
        output.show(cut("  ".join([*padded, ending]), room))


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    if "problem" in row:
        return row["runId"], "", "", "", row["problem"]
    try:
        started = datetime.fromtimestamp(row["startedAt"]).astimezone().strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):
        started = "?"
    return row["runId"], row["script"], started, str(row["agentsStarted"]), row["verdict"]
