"""`loopwarden run`: one run from its start to its end, and its receipt shown."""

import asyncio
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from loopwarden.cli.caps import deployment_limits
from loopwarden.cli.deployment_host import make_host, store_for_runs
from loopwarden.cli.foreground import Ended, Foreground, interruptible
from loopwarden.cli.output import Output
from loopwarden.cli.preparation import Prepared, scratch_workspace
from loopwarden.cli.receipt_view import receipt_text
from loopwarden.cli.signals import Interruption
from loopwarden.cli.store_access import person
from loopwarden.creation import Booking
from loopwarden.display import plural, shown_line
from loopwarden.host import Host
from loopwarden.launch_record import write_launch_record
from loopwarden.run import Run
from loopwarden.run_folder import RunFolderError
from loopwarden.store.api import Store


def run_and_report(prepared: Prepared, output: Output) -> int:
    """Run to the end and print the receipt. Returns the exit code. Raises a subclass of `StartRefused`."""
    ended = asyncio.run(run_to_end(prepared, output))
    return report(ended, output)


def report(ended: Ended, output: Output) -> int:
    """Print how a run ended. Returns the exit code."""
    output.show_object(ended.to_json())
    if ended.receipt is None:
        output.say("loopwarden: interrupted before the run began; nothing was started")
    else:
        output.show(receipt_text(ended.receipt, ended.folder, body=ended.body))
        if ended.go_on is not None:
            output.show(f"\n{ended.go_on}")
    return ended.exit


async def run_to_end(prepared: Prepared, output: Output) -> Ended:
    """Run to the end, with progress on the error stream. Raises a subclass of `StartRefused`."""
    interruption = Interruption()
    providers = interruptible(prepared.chosen.providers)
    settings, target = prepared.settings, prepared.request.target
    with interruption.watching(), ExitStack() as stack:
        workspace = prepared.workspace or stack.enter_context(scratch_workspace())
        async with store_for_runs(settings) as store:
            foreground = Foreground(
                providers=providers,
                usual_provider=prepared.chosen.name,
                checks_asked=bool(prepared.checks),
                host=lambda: make_host(
                    settings,
                    store,
                    providers=providers,
                    policies=prepared.chosen.policies,
                    default_provider=prepared.chosen.name,
                    limits=deployment_limits(prepared.request, settings),
                    attach_to={target.script.name: target.name},
                ),
                begin=lambda host: _start(host, prepared, workspace),
                announce=lambda: announce(prepared, output),
                began=lambda run: _began(run, prepared, store, output),
            )
            return await foreground.drive(interruption, output)


async def _start(host: Host, prepared: Prepared, workspace: Path) -> Run[Any]:
    request = prepared.request
    return await host.start(
        request.target.script,
        request.args,
        workspace=workspace,
        checks=prepared.checks,
        continues=request.continues,
        share_workspace=request.share_workspace,
        isolation=request.isolation,
        booking=None if host.custody is None else Booking(by=person()),
        **prepared.overrides,
    )


def announce(prepared: Prepared, output: Output) -> None:
    """Say what a run may use at most, and what a person should know of it."""
    output.say(prepared.first_line)
    for note in prepared.notes:
        output.say(f"note: {note}")


def _began(run: Run[Any], prepared: Prepared, store: Store | None, output: Output) -> None:
    if run.folder is not None:
        try:
            write_launch_record(run.folder, prepared.record)
        except RunFolderError as error:
            output.say(f"note: {shown_line(str(error))}")
    if store is not None and store.durable:
        say_journal(run, store, output)


def say_journal(run: Run[Any], store: Store, output: Output) -> None:
    """Say where the journal of a live run is, and what to type when this process is killed."""
    redos = run.receipt().limits.get("maxExtraAttempts") or 0
    again = f", which asks at most {plural(int(redos), 'interrupted agent')} again" if redos else ""
    output.say(f"journal in {shown_line(store.name)}; if this is killed: loopwarden resume {run.id}{again}")
