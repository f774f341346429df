"""Vetting: a confined worker compiles the source of a run before the run is accepted. Nothing of the script runs.

A source that was taken once is taken again without a worker, by its digest. A refusal is not remembered: it is rare,
and its sentence names the script as the caller does.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Final

from loopwarden.failures import Code, Failure, LaunchFailed, ScriptRejected, StartRefused
from loopwarden.launching import Launcher, WorkerLimits
from loopwarden.limits import Limits
from loopwarden.plan import Deployment
from loopwarden.script import Script, rejection
from loopwarden.session import Session
from loopwarden_engine import messages

MAX_REMEMBERED: Final = 4096
"""Digests of sources that were taken."""
_TIMEOUT_SECONDS: Final = 60.0
"""Compiling is bounded by processor time (cpuSecondsPerTurn); this is for a machine that gives it none."""


class Vetting:
    """What one host has vetted. For its event loop only."""

    def __init__(self) -> None:
        self._taken: OrderedDict[str, None] = OrderedDict()
        self._under_way: dict[str, asyncio.Task[None]] = {}

    async def vet(
        self,
        script: Script[Any, Any],
        limits: Limits,
        launcher: Callable[[], Awaitable[Launcher]],
        deployment: Deployment,
    ) -> None:
        """Make sure that a script compiles. Raises `ScriptRejected`, `LaunchFailed` or `ConfinementUnavailable`."""
        digest = script.digest
        if digest in self._taken:
            self._taken.move_to_end(digest)
            return
        task = self._under_way.get(digest)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._compile(script, limits, launcher, deployment))
            self._under_way[digest] = task
            task.add_done_callback(lambda done: self._done(digest, done))
        await asyncio.shield(task)

    def _done(self, digest: str, task: "asyncio.Task[None]") -> None:
        del self._under_way[digest]
        if task.cancelled() or task.exception() is not None:
            return
        self._taken[digest] = None
        while len(self._taken) > MAX_REMEMBERED:
            self._taken.popitem(last=False)

    async def _compile(
        self,
        script: Script[Any, Any],
        limits: Limits,
        launcher: Callable[[], Awaitable[Launcher]],
        deployment: Deployment,
    ) -> None:
        worker_limits = WorkerLimits(memory_bytes=limits.memory_bytes, cpu_seconds=int(limits.cpu_seconds_per_run) + 1)
        required: frozenset[str] | None = frozenset() if deployment.allow_weak_confinement else None
        worker = await (await launcher()).fork(worker_limits, required)
        answer: asyncio.Future[StartRefused | None] = asyncio.get_running_loop().create_future()

        def received(message: messages.FromWorker) -> None:
            if answer.done():
                return
            match message:
                case messages.Ready():
                    answer.set_result(None)
                case messages.Rejected(violations=violations):
                    answer.set_result(rejection(script.name, violations))
                case _:
                    answer.set_result(LaunchFailed("the worker said something else than what it made of the script"))

        def broken(failure: Failure) -> None:
            if not answer.done():
                refusal: StartRefused | None = worker.refusal() if worker.exited.done() else None
                if refusal is None and failure.code is Code.PROTOCOL:
                    refusal = LaunchFailed(failure.message)
                text = f"the script {script.name!r} could not be compiled: {failure.message}"
                answer.set_result(refusal or ScriptRejected(text))

        session = Session(worker, limits, on_message=received, on_broken=broken, on_drained=lambda: None)
        session.start(script.source, {})
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                refusal = await answer
        except TimeoutError:
            refusal = LaunchFailed(f"the script {script.name!r} was not compiled within {_TIMEOUT_SECONDS:g} s")
        finally:
            session.close()
            await session.gone()
        if refusal is not None:
            raise refusal
