"""`loopwarden resume`: a run of the store goes on here, in the foreground, from where its journal ends.

One that ended by a cap, a budget, its deadline or a cancel, or that is held, is reopened. One whose host was killed, or
that was given back, is taken over. Either way what was paid for is not paid again.
"""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from loopwarden.cli import values
from loopwarden.cli.deployment_host import approvals_of, contract_scripts, loop_names, make_host, store_for_runs
from loopwarden.cli.foreground import Ended, Foreground, interruptible
from loopwarden.cli.loop_commands import as_command, shared_options
from loopwarden.cli.output import Output
from loopwarden.cli.preparation import SCRATCH_PREFIX
from loopwarden.cli.provider_choice import NO_PROVIDER, Chosen, absent_provider, choose_providers
from loopwarden.cli.request import Request, Target
from loopwarden.cli.running import report, say_journal
from loopwarden.cli.signals import Interruption
from loopwarden.cli.store_access import person
from loopwarden.cli.stored_runs import is_lost, need_stored, state_of
from loopwarden.display import duration, plural, shown_line
from loopwarden.failures import InvalidRequest
from loopwarden.following import outcome_of
from loopwarden.host import Host
from loopwarden.jobs.refusals import refusing
from loopwarden.journal.entries import Created
from loopwarden.journal.fold import RunState
from loopwarden.launch_record import LaunchRecord, LaunchRecordError, read_launch_record, write_launch_record
from loopwarden.limits import LimitOverrides, Limits
from loopwarden.loops import Catalogue, find_loops
from loopwarden.outcome import Outcome
from loopwarden.resuming import script_of
from loopwarden.run import Run
from loopwarden.run_folder import RECEIPT, RunFolderError, make_private_folder, runs_folder
from loopwarden.script import Script
from loopwarden.settings import COMMAND_LINE_PROVIDER, Settings, load_settings
from loopwarden.store.api import Store
from loopwarden.store.runs import Claim, RunRow, Status

_LOOK_SECONDS: Final = 0.5
_OPTIONS_BY_LIMIT: Final = {
    "max_total_agents": "--max-total-agents",
    "max_extra_attempts": "--max-extra-attempts",
    "max_cost_usd": "--max-cost",
    "run_deadline_seconds": "--deadline",
}


def resume_command(program: Sequence[str], config: Path | None) -> Callable[..., int]:
    """The command. `program` is what stands after `--`."""

    def run(**given: Any) -> int:
        output = Output(json=given["json"])
        settings = load_settings(config)
        try:
            ended = asyncio.run(_resume(given, tuple(program), settings, output))
        except InvalidRequest as refused:
            raise _in_words_of_options(refused) from None
        return report(ended, output)

    name = Annotated[str, typer.Argument(metavar="RUN", help="The id of a run or its beginning.")]
    return as_command(run, {"run": (name, ...), **_LIMITS, **shared_options("pass_env", "json", "config")})


def _option(*names: str, kind: Any, parser: Any, metavar: str, help_text: str) -> tuple[Any, Any]:
    option = typer.Option(*names, parser=parser, metavar=metavar, help=help_text, show_default=False)
    return Annotated[kind | None, option], None


_LIMITS: Final[dict[str, tuple[Any, Any]]] = {
    "max_total_agents": _option(
        "--max-total-agents",
        kind=int,
        parser=values.positive_number,
        metavar="N",
        help_text="Agents in all, from now on.",
    ),
    "max_extra_attempts": _option(
        "--max-extra-attempts", kind=int, parser=values.count, metavar="N", help_text="Repeats in all, from now on."
    ),
    "max_cost": _option(
        "--max-cost",
        "--max-cost-usd",
        kind=float,
        parser=values.amount,
        metavar="USD",
        help_text="Money in all, from now on.",
    ),
    "deadline": _option(
        "--deadline",
        kind=float,
        parser=values.seconds,
        metavar="TIME",
        help_text="Time in all that hosts drive the run.",
    ),
    "why": _option("--why", kind=str, parser=str, metavar="TEXT", help_text="For the journal: why it goes on."),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Earlier:
    """The run as it was, and how a person started it."""

    row: RunRow
    created: Created
    record: LaunchRecord | None
    """None: it was submitted, or started on another machine, or its record is lost."""


async def _resume(given: Mapping[str, Any], program: tuple[str, ...], settings: Settings, output: Output) -> Ended:
    interruption = Interruption()
    raised = _raised(given)
    with interruption.watching():
        async with store_for_runs(settings) as store:
            if store is None:
                raise InvalidRequest('this deployment keeps no journals: the settings say url = "none" under [store]')
            with refusing():
                row = await need_stored(store, given["run"])
                state = await state_of(store, row.run_id)
            created = state.created
            earlier = _Earlier(row=row, created=created, record=_launch_record(settings, row.run_id))
            chosen = _choose(earlier, given, program, settings)
            catalogue = find_loops(settings)
            _refuse_unapproved(state, catalogue, settings)
            providers = interruptible(chosen.providers)
            output.say(_first_line(row))

            async def takes_over(host: Host) -> tuple[Claim, float]:
                return await _take_over(host, row.run_id, settings, output)

            foreground = Foreground(
                providers=providers,
                usual_provider=created.provider,
                checks_asked=bool(created.checks),
                host=lambda: make_host(
                    settings,
                    store,
                    providers=providers,
                    policies=chosen.policies,
                    default_provider=chosen.name,
                    limits=_ceiling(settings, raised),
                    scripts=contract_scripts(catalogue),
                    attach_to=loop_names(catalogue),
                ),
                begin=lambda host: _begin(host, row, raised, given["why"] or "", takes_over),
                began=lambda run: _began(run, earlier, program, store, output),
                over=lambda: _outcome(store, row.run_id),
            )
            with _scratch_again(created.workspace):
                return await foreground.drive(interruption, output)


# ---- what is resumed, and with what


def _refuse_unapproved(state: RunState, catalogue: Catalogue, settings: Settings) -> None:
    """Before the run is claimed: what waits for an approval goes on waiting. Raises a subclass of `StartRefused`."""
    approvals = approvals_of(settings)
    if approvals is not None:
        approvals.check(script_of(state, {script.name: script for script in contract_scripts(catalogue)}))


def _raised(given: Mapping[str, Any]) -> LimitOverrides:
    raised: LimitOverrides = {}
    if given["max_total_agents"] is not None:
        raised["max_total_agents"] = given["max_total_agents"]
    if given["max_extra_attempts"] is not None:
        raised["max_extra_attempts"] = given["max_extra_attempts"]
    if given["max_cost"] is not None:
        raised["max_cost_usd"] = given["max_cost"]
    if given["deadline"] is not None:
        raised["run_deadline_seconds"] = given["deadline"]
    return raised


def _ceiling(settings: Settings, raised: LimitOverrides) -> Limits:
    """As for `run`: who types at the command line decides about repeats, unless the settings name them."""
    extra = raised.get("max_extra_attempts")
    if extra is None or "max_extra_attempts" in settings.limits_given:
        return settings.limits
    return replace(settings.limits, max_extra_attempts=extra)


def _launch_record(settings: Settings, run_id: str) -> LaunchRecord | None:
    try:
        return read_launch_record(settings.state_folder, runs_folder(settings.state_folder) / run_id / RECEIPT)
    except LaunchRecordError:
        return None


def _choose(earlier: _Earlier, given: Mapping[str, Any], program: tuple[str, ...], settings: Settings) -> Chosen:
    """The providers of the run, as its journal and its launch record name them. Raises a subclass of `StartRefused`."""
    name, record = earlier.created.provider, earlier.record
    run_id = earlier.row.run_id
    if name == COMMAND_LINE_PROVIDER:
        program = program or (() if record is None else tuple(record.program))
        if not program:
            raise InvalidRequest(
                f"the agent of run {run_id} was a program after --, which is not known here any more; give it again: "
                f"loopwarden resume {run_id} -- PROGRAM ARG…"
            )
    elif program:
        raise InvalidRequest(
            f"run {run_id} goes on with its own provider, {shown_line(name, 100)}; leave the program after -- out"
        )
    if name == NO_PROVIDER:
        return Chosen(name=NO_PROVIDER, providers={NO_PROVIDER: absent_provider()}, policies={})
    request = Request(
        target=Target(name=earlier.created.script, script=Script.from_text(""), file=None),
        args={},
        workspace=None,
        provider=None if program else name,
        program=program,
        pass_env=tuple(given["pass_env"] or (() if record is None else record.pass_env)),
        model=None if program or record is None else record.model,
        max_extra_attempts=given["max_extra_attempts"],
    )
    return choose_providers(request, settings)


@contextmanager
def _scratch_again(workspace: str | None) -> Iterator[None]:
    """An empty folder that `run` made for agents, and took away when nothing was left in it, is there meanwhile."""
    path = None if workspace is None else Path(workspace)
    if path is None or not path.name.startswith(SCRATCH_PREFIX) or path.parent != Path(tempfile.gettempdir()).resolve():
        yield
        return
    make_private_folder(path)
    try:
        yield
    finally:
        with suppress(OSError):
            path.rmdir()


def _first_line(row: RunRow) -> str:
    agents = f"{row.calls} of at most {plural(row.max_calls, 'agent')} started so far"
    return f"{shown_line(row.script, 100)}: run {row.run_id} goes on, {agents}"


# ---- begin


async def _begin(
    host: Host,
    row: RunRow,
    raised: LimitOverrides,
    why: str,
    take_over: Callable[[Host], Awaitable[tuple[Claim, float]]],
) -> Run[Any] | None:
    if row.status in (Status.FINISHED, Status.HELD):
        return await host.resume(row.run_id, by=person(), why=why, **raised)
    if raised:
        limits = ", ".join(_OPTIONS_BY_LIMIT[name] for name in raised)
        raise InvalidRequest(
            f"run {row.run_id} is not over, and limits rise only for a run that is; resume it without {limits}"
        )
    with refusing():
        claim, asked_at = await take_over(host)
        return await host.adopt(claim, asked_at)


async def _take_over(host: Host, run_id: str, settings: Settings, output: Output) -> tuple[Claim, float]:
    """Claim a run that no host drives any more; the lease of a host that was killed is waited for."""
    custody = host.custody
    assert custody is not None
    store, has_said = custody.store, False
    while True:
        claimed = await custody.claim_unowned(run_id)
        if claimed is not None:
            return claimed
        row, now = await need_stored(store, run_id), await store.now()
        ends_at = row.lease_until or now
        if not is_lost(row, now, settings) and ends_at >= now:
            raise InvalidRequest(
                f"run {run_id} is still running, on {shown_line(row.owner or 'another host', 200)}; "
                f"`loopwarden events {run_id} --follow` shows it, and `loopwarden cancel {run_id}` ends it"
            )
        wait_seconds = max(0.0, ends_at + custody.rules.kill_grace_seconds - now)
        if not has_said:
            output.say(f"its host was killed; its lease ends and its agents are gone in {duration(wait_seconds)}")
            has_said = True
        await asyncio.sleep(min(_LOOK_SECONDS, wait_seconds + 0.01))


def _began(run: Run[Any], earlier: _Earlier, program: tuple[str, ...], store: Store, output: Output) -> None:
    if program and earlier.record is not None and run.folder is not None:
        try:
            write_launch_record(run.folder, earlier.record.model_copy(update={"program": list(program)}))
        except RunFolderError as error:
            output.say(f"note: {shown_line(str(error))}")
    say_journal(run, store, output)


async def _outcome(store: Store, run_id: str) -> Outcome[Any]:
    with refusing():
        return outcome_of(await state_of(store, run_id))


def _in_words_of_options(refused: InvalidRequest) -> InvalidRequest:
    message = refused.message
    for limit, option in _OPTIONS_BY_LIMIT.items():
        message = message.replace(limit, option)
    return InvalidRequest(message, line=refused.line, details=refused.details)
