"""Vetting: a confined worker compiles a script and says what it does with its hooks. Nothing of the script runs.

A source that was taken once is taken again without a worker, by its digest. A refusal is not remembered: it is rare,
and its sentence names the script as the caller does.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from loopwarden.failures import Code, Failure, LaunchFailed, ScriptRejected, StartRefused
from loopwarden.findings import Findings, decode_findings
from loopwarden.launching import Launcher, WorkerLimits
from loopwarden.limits import Limits
from loopwarden.script import Script, rejection
from loopwarden.session import Session
from loopwarden_engine import messages

MAX_REMEMBERED: Final = 256
"""Sources that were taken."""
_LEAST_FRAME_BYTES: Final = 1024 * 1024
"""Findings take a quarter of it at most (`analysis.analyse`), whatever frames the run itself may send."""
_TIMEOUT_SECONDS: Final = 60.0
"""Compiling is bounded by processor time (cpuSecondsPerTurn); this is for a machine that gives it none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vetted:
    """A script that compiles. `summary`: the first line of its docstring."""

    summary: str
    findings: Findings


_Answer: TypeAlias = "asyncio.Future[Vetted | StartRefused]"


class Vetting:
    """What one host has vetted. For its event loop only."""

    def __init__(self) -> None:
        self._taken: OrderedDict[str, Vetted] = OrderedDict()
        self._under_way: dict[str, asyncio.Task[Vetted]] = {}

    async def vet(
        self,
        script: Script[Any, Any],
        limits: Limits,
        launcher: Callable[[], Awaitable[Launcher]],
    ) -> Vetted:
        """Make sure that a script compiles. Raises `ScriptRejected`, `LaunchFailed` or `ConfinementUnavailable`."""
        digest = script.digest
        if digest in self._taken:
            self._taken.move_to_end(digest)
            return self._taken[digest]
        task = self._under_way.get(digest)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._compile(script, limits, launcher))
            self._under_way[digest] = task
            task.add_done_callback(lambda done: self._done(digest, done))
        return await asyncio.shield(task)

    def _done(self, digest: str, task: "asyncio.Task[Vetted]") -> None:
        del self._under_way[digest]
        if task.cancelled() or task.exception() is not None:
            return
        self._taken[digest] = task.result()
        while len(self._taken) > MAX_REMEMBERED:
            self._taken.popitem(last=False)

    async def _compile(
        self,
        script: Script[Any, Any],
        limits: Limits,
        launcher: Callable[[], Awaitable[Launcher]],
    ) -> Vetted:
        limits = replace(limits, max_frame_bytes=max(limits.max_frame_bytes, _LEAST_FRAME_BYTES))
        worker_limits = WorkerLimits(memory_bytes=limits.memory_bytes, cpu_seconds=int(limits.cpu_seconds_per_run) + 1)
        worker = await (await launcher()).fork(worker_limits)
        answer: _Answer = asyncio.get_running_loop().create_future()

        def received(message: messages.FromWorker) -> None:
            if not answer.done():
                answer.set_result(_answer(script.name, message))

        def broken(failure: Failure) -> None:
            if not answer.done():
                refusal: StartRefused | None = worker.refusal() if worker.exited.done() else None
                if refusal is None and failure.code is Code.PROTOCOL:
                    refusal = LaunchFailed(failure.message)
                text = f"the script {script.name!r} could not be compiled: {failure.message}"
                answer.set_result(refusal or ScriptRejected(text))

        session = Session(worker, limits, on_message=received, on_broken=broken, on_drained=lambda: None)
        session.start(script.source, {}, vet=True)
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                outcome = await answer
        except TimeoutError:
            outcome = LaunchFailed(f"the script {script.name!r} was not compiled within {_TIMEOUT_SECONDS:g} s")
        finally:
            session.close()
            await session.gone()
        if isinstance(outcome, StartRefused):
            raise outcome
        return outcome


def _answer(name: str, message: messages.FromWorker) -> Vetted | StartRefused:
    """What a worker made of a script. It has run nothing of it, and still its words are decoded like any others."""
    match message:
        case messages.Ready(summary=summary, findings=findings) if findings is not None:
            try:
                return Vetted(summary=summary, findings=decode_findings(findings))
            except ValueError as error:
                return LaunchFailed(f"what the worker found in the script {name!r} cannot be read: {error}")
        case messages.Rejected(violations=violations):
            return rejection(name, violations)
        case _:
            return LaunchFailed("the worker said something else than what it made of the script")
