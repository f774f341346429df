"""`loopwarden submit` and `loopwarden rerun`: runs put into a queue, for whichever host drives it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from loopwarden.cli import values
from loopwarden.cli.caps import deployment_limits
from loopwarden.cli.deployment_host import deployment_host
from loopwarden.cli.dry_run import dry_run
from loopwarden.cli.loop_commands import RunOptions, as_command, shared_options
from loopwarden.cli.output import Output
from loopwarden.cli.preparation import Prepared, prepare
from loopwarden.cli.provider_choice import NO_PROVIDER
from loopwarden.cli.request import Request
from loopwarden.cli.running import announce
from loopwarden.cli.store_access import person, with_store
from loopwarden.cli.stored_runs import need_stored
from loopwarden.creation import DEFAULT_QUEUE
from loopwarden.display import shown_line
from loopwarden.failures import InvalidRequest
from loopwarden.settings import COMMAND_LINE_PROVIDER, Settings
from loopwarden.store.api import Store
from loopwarden.store.runs import RunRow


def _option(name: str, kind: Any, metavar: str, help_text: str, *, parser: Any = None) -> tuple[Any, Any]:
    option = typer.Option(name, parser=parser, metavar=metavar, help=help_text, show_default=False)
    return Annotated[kind | None, option], None


SUBMIT_OPTIONS: Final[dict[str, tuple[Any, Any]]] = {
    "queue": _option("--queue", str, "NAME", "The queue of the run; default."),
    "key": _option("--key", str, "TEXT", "The same key gives the same run, however often it is submitted."),
    "priority": _option("--priority", int, "N", "Higher ones go first; 0.", parser=values.whole_number),
    "not_before": _option(
        "--not-before", float, "TIME", "Not earlier: 2h from now, or a date and time.", parser=values.moment
    ),
    "label": _option(
        "--label", list[Any], "NAME=VALUE", "For your own searches; may be repeated.", parser=values.label
    ),
    "scope": _option("--scope", list[str], "NAME", "A budget to charge; may be repeated."),
}
"""What `submit` takes beside the options of `run`."""


def submit(request: Request, options: RunOptions, settings: Settings, config: Path | None) -> int:
    """Submit one run. Returns the exit code. Raises a subclass of `StartRefused`."""
    output = Output(json=options.json)
    _refuse_what_no_host_has(request, settings)
    named = None if request.workspace is None else str(request.workspace)
    declared = None if named is None else settings.workspaces.get(named)
    prepared = prepare(request if declared is None else replace(request, workspace=declared), settings)
    if options.dry_run:
        return dry_run(prepared, output)
    if prepared.workspace is None:
        raise InvalidRequest(
            "the script lies in the current folder, where agents could change it, so they cannot work there; give "
            "--workspace, a folder that the host has, too"
        )
    place = named if declared is not None else str(prepared.workspace)

    async def act(store: Store, _: Settings) -> tuple[RunRow | None, bool]:
        run_id = await _submit(prepared, place, options.more, store)
        return await store.get(run_id), await _is_known(store, options.more["queue"] or DEFAULT_QUEUE, settings)

    row, is_known = with_store(config, act)
    announce(prepared, output)
    return _show(row, output, is_known=is_known)


def _refuse_what_no_host_has(request: Request, settings: Settings) -> None:
    """Raises `InvalidRequest` for what belongs to this process alone."""
    for option, is_given in (
        ("a program after --", bool(request.program)),
        ("--model", request.model is not None),
        ("--pass-env", bool(request.pass_env)),
    ):
        if is_given:
            raise InvalidRequest(
                f"{option} belongs to `run`: a submitted run uses a provider as the settings of its host have it"
            )
    if request.provider is not None and request.provider not in (*settings.providers, settings.default_provider):
        known = ", ".join(sorted(settings.providers)) or "none"
        raise InvalidRequest(
            f"the provider {request.provider[:100]!r} is not in the settings, so no host has it; they have: {known}"
        )


async def _submit(prepared: Prepared, workspace: str | None, more: Any, store: Store) -> str:
    request, settings = prepared.request, prepared.settings
    async with deployment_host(settings, store, limits=deployment_limits(request, settings)) as host:
        return await host.submit(
            request.target.script,
            request.args,
            queue=more["queue"] or DEFAULT_QUEUE,
            key=more["key"],
            priority=more["priority"] or 0,
            not_before=more["not_before"],
            labels=dict(more["label"] or ()),
            scopes=sorted(set(more["scope"] or ())),
            workspace=workspace,
            share_workspace=request.share_workspace,
            isolation=request.isolation,
            provider=None if prepared.chosen.name == NO_PROVIDER else prepared.chosen.name,
            checks=prepared.checks,
            by=person(),
            **prepared.overrides,
        )


# ---- rerun


def rerun_command(config: Path | None) -> Callable[..., int]:
    """The command that submits a run again."""

    def run(**given: Any) -> int:
        output = Output(json=given["json"])

        async def act(store: Store, settings: Settings) -> tuple[RunRow | None, bool]:
            row = await need_stored(store, given["run"])
            if row.provider == COMMAND_LINE_PROVIDER:
                raise InvalidRequest(
                    f"the agent of run {row.run_id} was a program after --, which no host has; type the run again"
                )
            async with deployment_host(settings, store) as host:
                run_id = await host.rerun(row.run_id, by=person())
            again = await store.get(run_id)
            return again, await _is_known(store, row.queue or DEFAULT_QUEUE, settings)

        row, is_known = with_store(config, act)
        return _show(row, output, is_known=is_known)

    name = Annotated[str, typer.Argument(metavar="RUN", help="The id of a run or its beginning.")]
    return as_command(run, {"run": (name, ...), **shared_options("json", "config")})


async def _is_known(store: Store, name: str, settings: Settings) -> bool:
    """Whether somebody may drive the queue, as far as one can know: it is in the settings, or has other runs."""
    if name in settings.queues:
        return True
    found = next((queue for queue in await store.queues() if queue.name == name), None)
    return found is not None and (found.running > 0 or found.queued > 1)


def _show(row: RunRow | None, output: Output, *, is_known: bool) -> int:
    assert row is not None, "a run that was just submitted is in the store"
    queue = row.queue or DEFAULT_QUEUE
    if not is_known:
        output.say(
            f"note: the run waits in the queue {shown_line(queue)} for a host that drives it: `loopwarden host --queue "
            f"{shown_line(queue)}=4`, or drive = 4 under its [queues.NAME]"
        )
    output.show_object({"exit": 0, "runId": row.run_id, "status": row.status.value, "queue": queue, "key": row.key})
    output.show(row.run_id)
    return 0
