"""One run from the command line: started, watched, interrupted when a person says so, and its receipt shown."""

import asyncio
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loopwarden.cli.caps import deployment_limits
from loopwarden.cli.exits import exit_code
from loopwarden.cli.output import Output
from loopwarden.cli.preparation import Prepared, scratch_workspace
from loopwarden.cli.progress import ProgressView
from loopwarden.cli.receipt_view import receipt_text, verdict
from loopwarden.cli.signals import Interruption
from loopwarden.display import shown_line
from loopwarden.host import Host
from loopwarden.launch_record import write_launch_record
from loopwarden.logs import bind_run
from loopwarden.outcome import Outcome
from loopwarden.provider import AgentReply, AgentRequest, Provider
from loopwarden.receipt import Receipt
from loopwarden.run import Run
from loopwarden.run_folder import RunFolderError
from loopwarden_engine.plain import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A run that is over, or, without a receipt, one that was interrupted before it began."""

    exit: int
    receipt: Receipt | None
    folder: Path | None
    body: str = ""

    def to_json(self) -> dict[str, Any]:
        """The form of `--json`."""
        receipt = self.receipt
        return {
            "exit": self.exit,
            "runId": None if receipt is None else receipt.run_id,
            "folder": None if self.folder is None else str(self.folder),
            "verdict": "interrupted before the run began" if receipt is None else verdict(receipt),
            "failure": None if receipt is None or receipt.failure is None else receipt.to_json()["failure"],
            "receipt": None if receipt is None else receipt.to_json(),
        }


def run_and_report(prepared: Prepared, output: Output) -> int:
    """Run to the end and print the receipt. Returns the exit code. Raises a subclass of `StartRefused`."""
    ended = asyncio.run(run_to_end(prepared, output))
    output.show_object(ended.to_json())
    if ended.receipt is None:
        output.say("loopwarden: interrupted before the run began; nothing was started")
    else:
        output.show(receipt_text(ended.receipt, ended.folder, body=ended.body))
    return ended.exit


async def run_to_end(prepared: Prepared, output: Output) -> Ended:
    """Run to the end, with progress on the error stream. Raises a subclass of `StartRefused`."""
    interruption = Interruption()
    hasty = {name: _Interruptible(provider) for name, provider in prepared.chosen.providers.items()}
    output.say(prepared.first_line)
    for note in prepared.notes:
        output.say(f"note: {note}")
    with interruption.watching(), ExitStack() as stack:
        workspace = prepared.workspace or stack.enter_context(scratch_workspace())
        main = asyncio.current_task()
        assert main is not None
        interruption.on_first = lambda _reason: main.cancel()
        try:
            async with _host(prepared, hasty) as host:
                run = await _start(host, prepared, workspace)
                interruption.on_first = lambda reason: _wind_down(run, reason, hasty, output)
                interruption.on_second = lambda: _hurry(run, hasty, output)
                if interruption.reason is not None:  # it came after the start, before this line
                    _wind_down(run, interruption.reason, hasty, output)
                outcome = await _watch(run, prepared, output)
        except asyncio.CancelledError:
            if interruption.exit_code is None:  # not ours
                raise
            return Ended(exit=interruption.exit_code, receipt=None, folder=None)
    code = interruption.exit_code
    return Ended(
        exit=exit_code(outcome.receipt, checks_asked=bool(prepared.checks)) if code is None else code,
        receipt=outcome.receipt,
        folder=run.folder,
        body=outcome.conclusion.body if outcome.conclusion is not None else "",
    )


def _host(prepared: Prepared, providers: "dict[str, _Interruptible]") -> Host:
    settings = prepared.settings
    return Host(
        providers=providers,
        policies=prepared.chosen.policies,
        limits=deployment_limits(prepared.request, settings),
        default_provider=prepared.chosen.name,
        state_folder=settings.state_folder,
        settings_digest=settings.digest,
        allow_weak_confinement=settings.allow_weak_confinement,
    )


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
        **prepared.overrides,
    )


async def _watch(run: Run[Any], prepared: Prepared, output: Output) -> Outcome[Any]:
    bind_run(run.id)
    folder = run.folder
    output.say(f"run {run.id}" + (f" in {shown_line(str(folder))}" if folder is not None else ""))
    if folder is not None:
        try:
            write_launch_record(folder, prepared.record)
        except RunFolderError as error:
            output.say(f"note: {shown_line(str(error))}")
    worktree = run.receipt().worktree
    if worktree is not None:
        output.say(shown_line(f"agents work in {worktree.path}, on the branch {worktree.branch}"))
        for note in worktree.notes:
            output.say(f"note: {shown_line(note)}")
    view = ProgressView(output, provider=prepared.chosen.name)
    with view.drawing():
        await view.follow(run.events())
        return await run.wait()


def _wind_down(run: Run[Any], reason: str, providers: "dict[str, _Interruptible]", output: Output) -> None:
    if _agents_work(providers):
        output.say(f"loopwarden: {reason}; ending the agents. Once more ends them without grace.")
    else:
        output.say(f"loopwarden: {reason}; ending the run")
    run.cancel(reason)


def _hurry(run: Run[Any], providers: "dict[str, _Interruptible]", output: Output) -> None:
    if _agents_work(providers):
        output.say("loopwarden: killing the agents")
    run.cancel("interrupted twice")
    for provider in providers.values():
        provider.interrupt()


def _agents_work(providers: "dict[str, _Interruptible]") -> bool:
    return any(provider.is_asked for provider in providers.values())


class _Interruptible:
    """A provider whose agents can be told a second time to end: a provider that winds one down then kills it."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self.capabilities = provider.capabilities
        self._asking: set[asyncio.Task[Any]] = set()

    async def reply(self, request: AgentRequest) -> AgentReply | str | JsonObject:
        task = asyncio.current_task()
        assert task is not None
        self._asking.add(task)
        try:
            return await self._provider.reply(request)
        finally:
            self._asking.discard(task)

    @property
    def is_asked(self) -> bool:
        """True while an agent is at work."""
        return bool(self._asking)

    def interrupt(self) -> None:
        for task in self._asking:
            task.cancel()
