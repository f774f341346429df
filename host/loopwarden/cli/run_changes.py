"""`loopwarden cancel` and `loopwarden prune`: runs of the store ended from outside, and removed when they are old."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from loopwarden.cli import values
from loopwarden.cli.deployment_host import quiet_host
from loopwarden.cli.loop_commands import as_command, shared_options
from loopwarden.cli.output import Output
from loopwarden.cli.store_access import person, with_store
from loopwarden.cli.stored_runs import is_lost, need_stored, row_words, run_folder
from loopwarden.display import plural, shown_line
from loopwarden.run_folder import is_live
from loopwarden.settings import Settings
from loopwarden.store.api import Store
from loopwarden.store.runs import RunFilter, RunRow, Status

_WAIT_SECONDS: Final = 15.0
"""So long the owner of a run may take to end it before the command goes without having seen that."""
_PAGE: Final = 500


def cancel_command(config: Path | None) -> Callable[..., int]:
    """The command that cancels one run."""

    def run(**given: Any) -> int:
        output = Output(json=given["json"])

        async def act(store: Store, settings: Settings) -> tuple[RunRow, bool, str]:
            row = await need_stored(store, given["run"])
            if row.status is Status.FINISHED:
                return row, True, "completed" if row.failure_code is None else f"{row.failure_code}"
            async with quiet_host(settings, store) as host:
                await host.cancel(row.run_id, given["reason"] or "cancelled", by=person())
            row = await _until_over(store, row.run_id)
            now = await store.now()
            return row, False, row_words(row, now, is_lost=is_lost(row, now, settings))

        row, was_over, words = with_store(config, act)
        is_over = row.status is Status.FINISHED
        output.show_object(
            {
                "exit": 0,
                "runId": row.run_id,
                "status": row.status.value,
                "wasOver": was_over,
                "failure": row.failure_code,
            }
        )
        if was_over:
            output.show(f"run {row.run_id} was over before: {words}")
        elif is_over:
            output.show(f"run {row.run_id} is cancelled")
        else:
            output.show(f"run {row.run_id} is to be cancelled, and starts no agent any more: {words}")
        return 0

    name = Annotated[str, typer.Argument(metavar="RUN", help="The id of a run or its beginning.")]
    reason = Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="Why, for its receipt.", show_default=False)
    ]
    return as_command(run, {"run": (name, ...), "reason": (reason, None), **shared_options("json", "config")})


async def _until_over(store: Store, run_id: str) -> RunRow:
    """The row of the run once its owner has ended it, or when that takes too long."""
    deadline = await store.now() + _WAIT_SECONDS
    while True:
        row = await need_stored(store, run_id)
        left = deadline - await store.now()
        if row.status is Status.FINISHED or left <= 0:
            return row
        await store.changed(run_id, after=row.head_seq, timeout_seconds=min(left, 1.0))


# ---- prune


def prune_command(config: Path | None) -> Callable[..., int]:
    """The command that removes old runs."""

    def run(**given: Any) -> int:
        output = Output(json=given["json"])

        async def act(store: Store, settings: Settings) -> tuple[list[str], list[str]]:
            before = await store.now() - given["older_than"]
            if given["dry_run"]:
                return await _finished_before(store, before), []
            run_ids: list[str] = []
            while page := await store.prune(finished_before=before, limit=_PAGE):
                run_ids += page
            return run_ids, [problem for run_id in run_ids if (problem := _remove_folder(settings, run_id))]

        run_ids, problems = with_store(config, act)
        code = 1 if problems else 0
        shown = {"runs": run_ids, "isDryRun": given["dry_run"], "problems": problems}
        output.show_object({"exit": code, **shown})
        for problem in problems:
            output.say(f"note: {problem}")
        for run_id in run_ids if given["dry_run"] else ():
            output.show(run_id)
        done = "would be removed" if given["dry_run"] else "removed"
        output.show(f"{plural(len(run_ids), 'run')} {done}; what they charged to budgets stays")
        return code

    older = Annotated[
        Any,
        typer.Option("--older-than", parser=values.seconds, metavar="TIME", help="Runs that ended so long ago: 30d."),
    ]
    dry = Annotated[bool, typer.Option("--dry-run", help="Print the ids alone; remove nothing.")]
    own = {"older_than": (older, ...), "dry_run": (dry, False)}
    return as_command(run, {**own, **shared_options("json", "config")})


async def _finished_before(store: Store, before: float) -> list[str]:
    found: list[str] = []
    last: str | None = None
    while True:
        page = await store.find(RunFilter(status=Status.FINISHED, before=last, limit=_PAGE))
        found += [row.run_id for row in page if row.finished_at is not None and row.finished_at < before]
        if len(page) < _PAGE:
            return found
        last = page[-1].run_id


def _remove_folder(settings: Settings, run_id: str) -> str | None:
    """Remove what the run left in its folder on this machine. Returns what went wrong, as a sentence."""
    folder = run_folder(settings, run_id)
    if folder is None or folder.is_symlink() or is_live(folder):
        return None
    try:
        shutil.rmtree(folder)
    except OSError as error:
        reason = (error.strerror or "input error").lower()
        return f"the folder {shown_line(str(folder))} of a run that was removed is left: {reason}"
    return None
