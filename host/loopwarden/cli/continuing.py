"""`loopwarden continue`: a new run that begins where an earlier one ended.

What an agent said comes from the receipt; what is done with it (program, checks, limits) comes from the launch record
that the command line wrote beside it, or is given again. A receipt from elsewhere brings no program and no checks.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from loopwarden.cli import values
from loopwarden.cli.dry_run import dry_run
from loopwarden.cli.loop_commands import as_command, in_words_of_options, shared_options
from loopwarden.cli.output import Output
from loopwarden.cli.preparation import Prepared, Request, Target, prepare
from loopwarden.cli.running import run_and_report
from loopwarden.failures import ArgsInvalid, InvalidRequest
from loopwarden.launch_record import LaunchRecord, read_launch_record
from loopwarden.loops import find_loops
from loopwarden.receipt import Receipt, ReceiptError, read_receipt
from loopwarden.run_folder import find_receipt, is_live
from loopwarden.settings import Settings, load_settings

_ROUNDS = "max_rounds"


def continue_command(program: Sequence[str], config: Path | None) -> Callable[..., int]:
    """The command. `program` is what stands after `--`."""

    def run(**given: Any) -> int:
        settings = load_settings(config)
        request = _request(given, tuple(program), settings)
        prepared = _prepare(request, settings)
        output = Output(json=given["json"])
        return dry_run(prepared, output) if given["dry_run"] else run_and_report(prepared, output)

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
    shared = shared_options("workspace", "check", "agent_timeout", "deadline", "provider", "dry_run", "json", "config")
    return as_command(run, {**own, **shared})


def _prepare(request: Request, settings: Settings) -> Prepared:
    try:
        return prepare(request, settings)
    except ArgsInvalid as error:
        model = request.target.script.contract.args_model
        fields = {} if model is None else model.model_fields
        raise in_words_of_options(error, {name: item.alias or name for name, item in fields.items()}) from None


def _request(given: dict[str, Any], program: tuple[str, ...], settings: Settings) -> Request:
    path = find_receipt(settings.state_folder, given["run"])
    receipt = read(path)
    refuse_what_cannot_go_on(receipt, path)
    record = read_launch_record(settings.state_folder, path)
    if record is None:
        _refuse_missing(given, program, settings, receipt)
    target = _target(receipt, record, settings)
    args = dict(receipt.args)
    if given["max_rounds"] is not None:
        model = target.script.contract.args_model
        if model is None or _ROUNDS not in model.model_fields:
            raise InvalidRequest(f"the loop {receipt.script} has no rounds; leave --max-rounds out")
        args[model.model_fields[_ROUNDS].alias or _ROUNDS] = given["max_rounds"]
    workspace = given["workspace"]
    if workspace is None and receipt.workspace is not None and record is not None:
        workspace = Path(receipt.workspace)
    return Request(
        target=target,
        args=args,
        workspace=workspace,
        checks=tuple(given["check"] or (record.checks if record is not None else ())),
        agent_timeout_seconds=given["agent_timeout"] or (record.agent_timeout_seconds if record else None),
        deadline_seconds=given["deadline"] or (record.deadline_seconds if record else None),
        max_total_agents=record.max_total_agents if record else None,
        provider=given["provider"] or (record.provider if record is not None and not program else None),
        program=program or (tuple(record.program) if record is not None and given["provider"] is None else ()),
        continues=receipt,
        protected=((path, "the receipt"),),
    )


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


def _refuse_missing(given: dict[str, Any], program: tuple[str, ...], settings: Settings, receipt: Receipt) -> None:
    missing = []
    if given["workspace"] is None and receipt.workspace is not None:
        missing.append("--workspace")
    if not program and given["provider"] is None and settings.default_provider is None:
        missing.append("the program after --, or --provider")
    if missing:
        raise InvalidRequest(
            f"this receipt does not lie in a run folder of {settings.state_folder}, so it does not say how to go on; "
            f"give {' and '.join(missing)}"
        )


def _target(receipt: Receipt, record: LaunchRecord | None, settings: Settings) -> Target:
    if record is not None and record.script_file is not None:
        raise InvalidRequest(
            f"run {receipt.run_id} was a run of a script of your own ({os.path.basename(record.script_file)}), "
            "which has no handoff to go on from; run it again"
        )
    found = find_loops(settings).loop(receipt.script)
    if not found.script.contract.continues:
        raise InvalidRequest(f"a run of {receipt.script} cannot be continued: the loop has no handoff; run it again")
    return Target(name=found.name, script=found.script, file=found.path)
