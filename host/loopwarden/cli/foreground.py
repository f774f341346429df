"""One run in the foreground: begun or resumed, watched, interrupted when a person says so, and how it ended."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from loopwarden.cli.exits import exit_code
from loopwarden.cli.going_on import how_to_go_on
from loopwarden.cli.output import Output
from loopwarden.cli.progress import ProgressView
from loopwarden.cli.receipt_view import verdict
from loopwarden.cli.signals import Interruption
from loopwarden.display import shown_line
from loopwarden.failures import MEANINGS
from loopwarden.host import Host
from loopwarden.logs import bind_run
from loopwarden.outcome import Outcome
from loopwarden.provider import AgentReply, AgentRequest, Provider
from loopwarden.receipt import Receipt
from loopwarden.run import Run
from loopwarden_engine.plain import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A run that is over, or, without a receipt, one that was interrupted before it began."""

    exit: int
    receipt: Receipt | None
    folder: Path | None
    body: str = ""
    go_on: str | None = None
    """A sentence that says how to go on with the same run; None when it cannot."""

    def to_json(self) -> dict[str, Any]:
        """The form of `--json`."""
        receipt = self.receipt
        return {
            "exit": self.exit,
            "runId": None if receipt is None else receipt.run_id,
            "folder": None if self.folder is None else str(self.folder),
            "verdict": "interrupted before the run began" if receipt is None else verdict(receipt),
            "failure": None if receipt is None or receipt.failure is None else receipt.to_json()["failure"],
            "goOn": self.go_on,
            "receipt": None if receipt is None else receipt.to_json(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreground:
    """What is driven in the foreground, and how."""

    providers: "Mapping[str, Interruptible]"
    usual_provider: str
    checks_asked: bool
    host: Callable[[], AbstractAsyncContextManager[Host]]
    begin: Callable[[Host], Awaitable[Run[Any] | None]]
    """None: it was brought to its end without being driven; see `over`."""
    began: Callable[[Run[Any]], None]
    """Called once the run is live and was named, before anything else of it is shown."""
    announce: Callable[[], None] = lambda: None
    """Called once the run is live, before it is named."""
    over: Callable[[], Awaitable[Outcome[Any]]] | None = None
    """How a run ended that was not driven."""

    async def drive(self, interruption: Interruption, output: Output) -> Ended:
        """Drive the run to its end. Raises a subclass of `StartRefused` when it cannot begin."""
        main = asyncio.current_task()
        assert main is not None
        interruption.on_first = lambda _reason: main.cancel()
        try:
            async with self.host() as host:
                run = await self.begin(host)
                if run is None:
                    assert self.over is not None
                    return self._ended(await self.over(), None, None)
                interruption.on_first = partial(self._wind_down, run, output)
                interruption.on_second = partial(self._hurry, run, output)
                if interruption.reason is not None:  # it came after the start, before this line
                    self._wind_down(run, output, interruption.reason)
                outcome = await self._watch(run, output)
        except asyncio.CancelledError:
            if interruption.exit_code is None:  # not ours
                raise
            return Ended(exit=interruption.exit_code, receipt=None, folder=None)
        return self._ended(outcome, run.folder, interruption.exit_code)

    def _ended(self, outcome: Outcome[Any], folder: Path | None, by_signal: int | None) -> Ended:
        receipt = outcome.receipt
        return Ended(
            exit=self._exit(outcome) if by_signal is None else by_signal,
            receipt=receipt,
            folder=folder,
            body=outcome.conclusion.body if outcome.conclusion is not None else "",
            go_on=None if receipt.journal is None else how_to_go_on(outcome.run_id, outcome.failure),
        )

    def _exit(self, outcome: Outcome[Any]) -> int:
        if outcome.failure is not None:
            return MEANINGS[outcome.failure.code].exit
        return exit_code(outcome.receipt, checks_asked=self.checks_asked)

    async def _watch(self, run: Run[Any], output: Output) -> Outcome[Any]:
        bind_run(run.id)
        self.announce()
        folder = run.folder
        output.say(f"run {run.id}" + (f" in {shown_line(str(folder))}" if folder is not None else ""))
        self.began(run)
        worktree = run.receipt().worktree
        if worktree is not None:
            output.say(shown_line(f"agents work in {worktree.path}, on the branch {worktree.branch}"))
            for note in worktree.notes:
                output.say(f"note: {shown_line(note)}")
        view = ProgressView(output, provider=self.usual_provider)
        with view.drawing():
            await view.follow(run.events())
            return await run.wait()

    def _wind_down(self, run: Run[Any], output: Output, reason: str) -> None:
        if self._agents_work():
            output.say(f"loopwarden: {reason}; ending the agents. Once more ends them without grace.")
        else:
            output.say(f"loopwarden: {reason}; ending the run")
        run.cancel(reason)

    def _hurry(self, run: Run[Any], output: Output) -> None:
        if self._agents_work():
            output.say("loopwarden: killing the agents")
        run.cancel("interrupted twice")
        for provider in self.providers.values():
            provider.interrupt()

    def _agents_work(self) -> bool:
        return any(provider.is_asked for provider in self.providers.values())


class Interruptible:
    """A provider whose agents can be told a second time to end: a provider that winds one down then kills it."""

    def __init__(self, provider: Provider) -> None:
        """`provider` is asked as it is."""
        self._provider = provider
        self.capabilities = provider.capabilities
        self._asking: set[asyncio.Task[Any]] = set()

    async def reply(self, request: AgentRequest) -> AgentReply | str | JsonObject:
        """As the provider does."""
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
        """End every agent that is at work a second time."""
        for task in self._asking:
            task.cancel()


def interruptible(providers: Mapping[str, Provider]) -> dict[str, Interruptible]:
    """All of them, each fit to be interrupted."""
    return {name: Interruptible(provider) for name, provider in providers.items()}
