"""`loopwarden continue`: a new run that begins where an earlier one ended.

What an agent said comes from the receipt; what is done with it (program, checks, limits) comes from the launch record
that the command line wrote beside it, or is given again. A receipt from elsewhere, or one whose launch record is lost,
brings no program and no checks; a note says so.
"""

import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from loopwarden.cli import values
from loopwarden.cli.dry_run import dry_run
from loopwarden.cli.loop_commands import as_command, in_words_of_options, shared_options
from loopwarden.cli.output import Output
from loopwarden.cli.preparation import Prepared, prepare
from loopwarden.cli.request import Request, Target
from loopwarden.cli.running import run_and_report
from loopwarden.cli.store_access import person
from loopwarden.cli.stored_runs import StoredRun, find_stored, is_lost, stored_run, with_existing_store
from loopwarden.display import shown_line
from loopwarden.failures import ArgsInvalid, InvalidRequest
from loopwarden.launch_record import LaunchRecord, LaunchRecordError, read_launch_record
from loopwarden.loops import find_loops
from loopwarden.receipt import Receipt, ReceiptError, read_receipt
from loopwarden.run_folder import RECEIPT, find_receipt, is_live, runs_folder
from loopwarden.settings import Settings, load_settings
from loopwarden.store.api import Store
from loopwarden.store.runs import Status

_ROUNDS = "max_rounds"
_MAX_NOTE_CHARS = 1000
_STANDS: Final = {
    Status.QUEUED: "waits in a queue",
    Status.RUNNING: "is still running",
    Status.HELD: "is held",
}
_NOTHING = LaunchRecord(
    loop=None, script_file=None, provider=None, program=[], checks=[],
    agent_timeout_seconds=None, deadline_seconds=None, max_total_agents=None,
)  # fmt: skip
"""Stands for a launch record that there is none of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Earlier:
    """The run that a person means."""

    receipt: Receipt
    path: Path
    """Where its receipt lies, or would lie."""
    is_open: bool = False
    """Its host was killed, and the store still has it as one that is to go on."""


def continue_command(program: Sequence[str], config: Path | None) -> Callable[..., int]:
    """The command. `program` is what stands after `--`."""

    def run(**given: Any) -> int:
        settings = load_settings(config)
        earlier = _earlier(given["run"], settings)
        request = _request(given, tuple(program), settings, earlier)
        prepared = _prepare(request, settings)
        output = Output(json=given["json"])
        if given["dry_run"]:
            return dry_run(prepared, output)
        if earlier.is_open:
            _close(earlier.receipt.run_id, settings)
        return run_and_report(prepared, output)

    run_argument = Annotated[
        str, typer.Argument(metavar="RUN|RECEIPT", help="The id of a run or its beginning, or a receipt.json.")
    ]
    rounds = Annotated[
        int | None,
        typer.Option(
            "--max-rounds", parser=values.whole_number, metavar="N", help="Rounds of the new run.", show_default=False
        ),
    ]
    own = {"run": (run_argument, ...), "max_rounds": (rounds, None)}
    return as_command(run, {**own, **shared_options()})


def _prepare(request: Request, settings: Settings) -> Prepared:
    try:
        return prepare(request, settings)
    except ArgsInvalid as error:
        model = request.target.script.contract.args_model
        fields = {} if model is None else model.model_fields
        raise in_words_of_options(error, {name: item.alias or name for name, item in fields.items()}) from None


def _request(given: dict[str, Any], program: tuple[str, ...], settings: Settings, earlier: _Earlier) -> Request:
    receipt, path = earlier.receipt, earlier.path
    refuse_what_cannot_go_on(receipt, path)
    record: LaunchRecord | None = None
    lost: str | None = None
    try:
        record = read_launch_record(settings.state_folder, path)
    except LaunchRecordError as error:
        lost = str(error)
    if record is None:
        _refuse_missing(given, program, settings, receipt, lost)
    target = _target(receipt, record, settings)
    args = dict(receipt.args)
    if given["max_rounds"] is not None:
        model = target.script.contract.args_model
        if model is None or _ROUNDS not in model.model_fields:
            raise InvalidRequest(f"the loop {target.name} has no rounds; leave --max-rounds out")
        args[model.model_fields[_ROUNDS].alias or _ROUNDS] = given["max_rounds"]
    workspace = given["workspace"]
    if workspace is None and receipt.workspace is not None and record is not None:
        workspace = Path(receipt.workspace)
    choices = record or _NOTHING
    return Request(
        target=target,
        args=args,
        workspace=workspace,
        checks=tuple(given["check"] or choices.checks),
        max_total_agents=choices.max_total_agents,
        **_caps(given, choices),
        **_agent(given, program, choices),
        share_workspace=given["share_workspace"] or choices.share_workspace,
        # Where the run before was isolated, its worktree is the workspace now, with what its agents left in it.
        isolation=given["isolation"] or (choices.isolation if given["workspace"] is not None else None),
        continues=receipt,
        protected=((path, "the receipt"),),
        notes=() if record is not None else _notes_without_record(given, receipt, lost),
    )


def _earlier(run: str, settings: Settings) -> _Earlier:
    """Find the run. Raises `InvalidRequest`, also for one that has not ended."""

    async def look(store: Store) -> tuple[StoredRun, bool] | None:
        row = await find_stored(store, run)
        if row is None:
            return None
        return await stored_run(store, row, settings), is_lost(row, await store.now(), settings)

    found = None if values.is_path(run) else with_existing_store(settings, look)
    if found is None:
        path = find_receipt(settings.state_folder, run)
        return _Earlier(receipt=read(path), path=path)
    stored, is_open = found
    row = stored.row
    if row.status is not Status.FINISHED and not is_open:
        raise InvalidRequest(
            f"run {row.run_id} {_STANDS[row.status]}; wait for its end, or stop it: `loopwarden cancel {row.run_id}`"
        )
    path = runs_folder(settings.state_folder) / row.run_id / RECEIPT
    if path.exists():
        receipt = read(path)
        if is_open or (receipt.journal is not None and receipt.journal.seq >= row.head_seq):
            return _Earlier(receipt=receipt, path=path, is_open=is_open)
    return _Earlier(receipt=stored.receipt, path=path, is_open=is_open)  # another host drove it last


def _close(run_id: str, settings: Settings) -> None:
    """Let no host go on with a run that a new one takes the place of: two would work in one workspace."""

    async def cancel(store: Store) -> None:
        await store.request(run_id, "cancel", {"reason": "a new run continues it"}, person())

    with_existing_store(settings, cancel)


def _caps(given: dict[str, Any], earlier: LaunchRecord) -> dict[str, Any]:
    """What was typed now, else what was typed for the run before."""
    caps = {
        "agent_timeout_seconds": given["agent_timeout"],
        "deadline_seconds": given["deadline"],
        "max_extra_attempts": given["max_extra_attempts"],
        "max_cost_usd": given["max_cost"],
    }
    taken_over = {name: getattr(earlier, name) for name, typed in caps.items() if typed is None}
    return {**caps, **taken_over, "taken_over": frozenset(taken_over)}


def _agent(given: dict[str, Any], program: tuple[str, ...], earlier: LaunchRecord) -> dict[str, Any]:
    """The agent that was typed now, else the one of the run before with the variables and the model that it got."""
    pass_env, model = tuple(given["pass_env"] or ()), given["model"]
    if not program and given["provider"] in (None, earlier.provider):
        pass_env = pass_env or tuple(earlier.pass_env)
        model = model or earlier.model
    return {
        "provider": given["provider"] or (None if program else earlier.provider),
        "program": program or (() if given["provider"] is not None else tuple(earlier.program)),
        "pass_env": pass_env,
        "model": model,
    }


def _notes_without_record(given: dict[str, Any], receipt: Receipt, lost: str | None) -> tuple[str, ...]:
    """What a person should know who continues without a launch record. `lost`: what became of it."""
    notes = [] if lost is None else [f"{lost}, so the run goes on with what is given here alone"]
    if receipt.checks and not given["check"]:
        commands = "; ".join(shlex.join(check.argv) for check in receipt.checks)
        notes.append(f"the run goes on without the checks that it had ({commands}); --check gives them again")
    return tuple(shown_line(note, _MAX_NOTE_CHARS) for note in notes)


def read(path: Path) -> Receipt:
    """Read a receipt. Raises `InvalidRequest` with a sentence."""
    try:
        return read_receipt(path)
    except ReceiptError as error:
        raise InvalidRequest(str(error)) from None


def refuse_what_cannot_go_on(receipt: Receipt, path: Path) -> None:
    """Refuse a run that still runs, or that reached its end. Raises `InvalidRequest`."""
    if receipt.stop_reason is None and is_live(path.resolve().parent):
        raise InvalidRequest(f"run {receipt.run_id} is still running; wait for its end, or stop it")
    if receipt.standing == "complete" and receipt.verified is not False:
        how = "and was verified" if receipt.verified else "and no check contradicts it"
        raise InvalidRequest(
            f"run {receipt.run_id} is complete {how}; there is nothing to continue. Start a new run for a new objective"
        )


def _refuse_missing(
    given: dict[str, Any], program: tuple[str, ...], settings: Settings, receipt: Receipt, lost: str | None
) -> None:
    missing = []
    if given["workspace"] is None and receipt.workspace is not None:
        missing.append("--workspace")
    if not program and given["provider"] is None and settings.default_provider is None:
        missing.append("the program after --, or --provider")
    if missing:
        why = lost or f"this receipt does not lie in a run folder of {settings.state_folder}"
        checks = ", and --check for the checks that it had" if receipt.checks and not given["check"] else ""
        raise InvalidRequest(f"{why}, so it does not say how to go on; give {' and '.join(missing)}{checks}")


def _target(receipt: Receipt, record: LaunchRecord | None, settings: Settings) -> Target:
    if record is not None and record.script_file is not None:
        raise InvalidRequest(
            f"run {receipt.run_id} was a run of a script of your own ({os.path.basename(record.script_file)}), "
            "which has no handoff to go on from; run it again"
        )
    # The name of a loop is the one it is installed under; a receipt knows only the one that its script has.
    found = find_loops(settings).loop(receipt.script if record is None or record.loop is None else record.loop)
    if not found.script.contract.continues:
        raise InvalidRequest(f"a run of {found.name} cannot be continued: the loop has no handoff; run it again")
    return Target(name=found.name, script=found.script, file=found.path)
