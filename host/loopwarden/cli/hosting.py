"""`loopwarden host`: drives queues of the store until it is told to end."""

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from loopwarden.cli import values
from loopwarden.cli.deployment_host import (
    DeploymentProviders,
    contract_scripts,
    deployment_providers,
    loop_names,
    make_host,
    store_for_runs,
)
from loopwarden.cli.foreground import Interruptible, interruptible
from loopwarden.cli.loop_commands import as_command, shared_options
from loopwarden.cli.output import Output
from loopwarden.cli.receipt_view import moment
from loopwarden.cli.signals import Interruption
from loopwarden.creation import DEFAULT_QUEUE
from loopwarden.display import duration, plural, shown_line
from loopwarden.failures import InvalidRequest, StoreRefused
from loopwarden.host import Host
from loopwarden.live_run import LiveRun
from loopwarden.loops import find_loops
from loopwarden.outcome import Outcome
from loopwarden.settings import Settings, load_settings
from loopwarden.store.api import Store
from loopwarden.store.declared import declare_queues
from loopwarden.store.errors import StoreError
from loopwarden.store.runs import Claim, Status

_GRACE_SECONDS: Final = 0.1
"""Between telling agents to end and ending them without grace, after a second signal."""


def host_command(config: Path | None) -> Callable[..., int]:
    """The command."""

    def run(**given: Any) -> int:
        output = Output(json=False)
        settings = load_settings(config)
        queues = _queues(dict(given["queue"] or ()), settings)
        return asyncio.run(_host(settings, queues, given["drain"] or 0.0, output))

    queue = Annotated[
        list[Any] | None,
        typer.Option(
            "--queue",
            parser=values.places,
            metavar="NAME=N",
            help="Drive N runs of this queue at once; may be repeated. Else what the settings say: drive = N.",
            show_default=False,
        ),
    ]
    drain = Annotated[
        float | None,
        typer.Option(
            "--drain",
            parser=values.patience,
            metavar="SECONDS",
            help="When it is told to end, agents may finish for so long; 0.",
            show_default=False,
        ),
    ]
    return as_command(run, {"queue": (queue, None), "drain": (drain, None), **shared_options("config")})


def _queues(given: dict[str, int], settings: Settings) -> dict[str, int]:
    """Places by queue. Raises `InvalidRequest` when there is nothing to drive."""
    queues = given or {name: queue.drive for name, queue in settings.queues.items() if queue.drive is not None}
    if queues:
        return queues
    if settings.queues:
        raise InvalidRequest(
            "there is nothing to drive: no queue of the settings says drive = N for this host; write that under its "
            "[queues.NAME], or give --queue NAME=N"
        )
    return {DEFAULT_QUEUE: settings.limits.max_live_runs}


async def _host(settings: Settings, queues: Mapping[str, int], drain_seconds: float, output: Output) -> int:
    """Drive until a signal comes. Returns the exit code. Raises a subclass of `StartRefused`."""
    interruption = Interruption()
    stop = asyncio.Event()

    def told_to_end(reason: str) -> None:
        patience = f"; agents may finish for {duration(drain_seconds)}" if drain_seconds else ""
        output.say(f"loopwarden: {reason}; runs go back to the store{patience}. Once more ends agents at once.")
        stop.set()

    interruption.on_first = told_to_end
    with interruption.watching():
        async with store_for_runs(settings) as store:
            if store is None or not store.durable:
                raise InvalidRequest(
                    f'the store of the settings is url = "{settings.store.kind}", in which no run waits for a host; '
                    "name another one under [store]"
                )
            try:
                await declare_queues(store, settings)
            except StoreError as error:
                raise StoreRefused(str(error)) from None
            found = deployment_providers(settings)
            providers = interruptible(found.providers)
            _say_start(found, queues, store, settings, output)
            host = _telling_host(settings, store, found, providers, output)
            async with host:
                driving = asyncio.ensure_future(_drive(host, queues))
                stopped = asyncio.ensure_future(stop.wait())
                await asyncio.wait({driving, stopped}, return_when=asyncio.FIRST_COMPLETED)
                interruption.on_second = lambda: _hurry(host, providers)
                stopped.cancel()
                driving.cancel()
                await asyncio.wait({driving})
                if not driving.cancelled():
                    driving.result()
                await host.close(drain_seconds=drain_seconds)
                await host.told()
    return 0


async def _drive(host: Host, queues: Mapping[str, int]) -> None:
    await host.drive(queues)


def _say_start(
    found: DeploymentProviders, queues: Mapping[str, int], store: Store, settings: Settings, output: Output
) -> None:
    shown = ", ".join(f"{shown_line(name)} ({places})" for name, places in sorted(queues.items()))
    output.say(f"driving {shown} of {shown_line(store.name)}, logs in {shown_line(str(settings.state_folder))}")
    for name, problem in found.problems.items():
        output.say(f"note: the provider {name} cannot be asked from here, so its runs are left alone: {problem}")


def _telling_host(
    settings: Settings,
    store: Store,
    found: DeploymentProviders,
    providers: Mapping[str, Interruptible],
    output: Output,
) -> "TellingHost":
    catalogue = find_loops(settings)
    host = make_host(
        settings,
        store,
        providers=providers,
        policies=found.policies,
        default_provider=found.default,
        scripts=contract_scripts(catalogue),
        attach_to=loop_names(catalogue),
        kind=TellingHost,
    )
    host.tell = lambda text: output.say(f"{moment(time.time())}  {text}")
    return host


def _hurry(host: Host, providers: Mapping[str, Interruptible]) -> None:
    host.hurry()
    for provider in providers.values():
        # Not in the same breath: the agents have to be told the first time before that can be cut short.
        asyncio.get_running_loop().call_later(_GRACE_SECONDS, provider.interrupt)


class TellingHost(Host):
    """A host that says what becomes of the runs that it claims."""

    tell: Callable[[str], None]
    """Given a line. Must not raise."""
    _tellings: "set[asyncio.Task[None]] | None" = None

    async def adopt(self, claim: Claim, asked_at: float) -> LiveRun[Any] | None:
        """As `Host` does, and tell."""
        row = claim.row
        again = f", claim {row.epoch}" if row.epoch > 1 else ""
        run = await super().adopt(claim, asked_at)
        name = f"run {row.run_id}"
        if run is None:
            assert self.custody is not None
            now = await self.custody.store.get(row.run_id)
            reason = "" if now is None or now.reason is None else f": {shown_line(now.reason, 500)}"
            self.tell(f"{name} {'is gone' if now is None else _STANDS.get(now.status, now.status.value)}{reason}")
            return None
        queue = shown_line(row.queue or DEFAULT_QUEUE)
        self.tell(f"{name} began: {shown_line(row.script, 100)}, queue {queue}{again}")
        if self._tellings is None:
            self._tellings = set()
        telling = asyncio.get_running_loop().create_task(self._tell_end(run))
        self._tellings.add(telling)
        telling.add_done_callback(self._tellings.discard)
        return run

    async def told(self) -> None:
        """Wait until everything is told. After `close`."""
        if self._tellings:
            await asyncio.wait(set(self._tellings))

    async def _tell_end(self, run: LiveRun[Any]) -> None:
        await run.gone()
        if not run.is_over:
            self.tell(f"run {run.id} left this host: it was given back, or another host has it")
            return
        self.tell(f"run {run.id} ended: {_ending(await run.wait())}")


def _ending(outcome: Outcome[Any]) -> str:
    agents = plural(outcome.agents_started, "agent")
    if outcome.failure is not None:
        return f"{outcome.failure.code}: {shown_line(outcome.failure.message, 500)} ({agents})"
    return f"{shown_line(outcome.conclusion.sentence, 500) if outcome.conclusion else 'completed'} ({agents})"


_STANDS: Final = {
    Status.FINISHED: "ended without being driven",
    Status.HELD: "is held",
    Status.QUEUED: "was given back",
}
