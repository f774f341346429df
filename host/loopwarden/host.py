"""The host: holds providers, limits and one launcher, and starts runs."""

import asyncio
import os
import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar, Unpack

from loopwarden.breaker import BreakerBoard
from loopwarden.checks import Check
from loopwarden.clock import Clock, LoopClock
from loopwarden.failures import InvalidRequest, ProviderUnfit
from loopwarden.launching import Launcher, WorkerLimits
from loopwarden.limits import LimitOverrides, Limits
from loopwarden.outcome import Outcome
from loopwarden.plan import Deployment, Isolation, Plan, make_plan
from loopwarden.policy import Policy, check_policies
from loopwarden.provider import Provider, ReplyFunction, as_provider
from loopwarden.providers.supervisors import SUPERVISORS
from loopwarden.receipt import Receipt
from loopwarden.run import Run
from loopwarden.run_folder import RunFolderError
from loopwarden.run_record import RunRecord
from loopwarden.script import Script
from loopwarden.slots import AgentSlots
from loopwarden.workspace import WorkspaceLock, lock_folder
from loopwarden.worktree import Worktree, create_worktree, discard_worktree

ArgsT = TypeVar("ArgsT")
ResultT = TypeVar("ResultT")

MAX_REMEMBERED_RUNS: Final = 256
"""Runs that ended and can still be found with `get` and `runs`; the oldest are forgotten first."""
MAX_REMEMBERED_AGENTS: Final = 10_000
"""Agents of remembered runs in all: each keeps its prompt, its value and its events. The last run is kept whatever."""

WORKTREES: Final = "worktrees"
"""Below the state folder: one worktree per run that was isolated."""

_CLOSED: Final = "this host was closed; make a new one"


class Host:
    """Runs vetted scripts. Belongs to the process and the event loop in which it was entered.

    `providers` maps names to providers or bare async functions. Without a `state_folder` nothing is kept on disk:
    receipts are then in `Outcome.receipt` alone. `policies` grants repeats and breakers, by name of the provider; a
    policy that asks again needs `limits.max_extra_attempts`. Raises TypeError for what cannot be a provider, and
    ValueError for a policy that names one that does not exist.
    """

    def __init__(
        self,
        *,
        providers: Mapping[str, Provider | ReplyFunction],
        policies: Mapping[str, Policy] | None = None,
        limits: Limits | None = None,
        default_provider: str = "default",
        state_folder: Path | str | None = None,
        settings_digest: str | None = None,
        allow_weak_confinement: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._deployment = Deployment(
            providers={name: as_provider(backend) for name, backend in providers.items()},
            policies=dict(policies or {}),
            default_provider=default_provider,
            limits=limits if limits is not None else Limits(),
            state_folder=None if state_folder is None else Path(state_folder),
            settings_digest=settings_digest,
            allow_weak_confinement=allow_weak_confinement,
        )
        check_policies(self._deployment.policies, self._deployment.providers)
        self._clock: Clock = clock if clock is not None else LoopClock()
        rules = {name: policy.breaker for name, policy in self._deployment.policies.items() if policy.breaker}
        self._board = BreakerBoard(rules, self._deployment.state_folder, self._clock.wall)
        self._slots = AgentSlots(self._deployment.limits.max_live_agents)
        self._live: dict[str, Run[Any]] = {}
        self._ended: OrderedDict[str, Run[Any]] = OrderedDict()
        self._locks: dict[str, WorkspaceLock] = {}
        self._starting = 0
        self._beginning: dict[str, Run[Any]] = {}
        self._no_start: asyncio.Event | None = None
        self._launcher: Launcher | None = None
        self._launching: asyncio.Lock | None = None
        self._home: tuple[int, asyncio.AbstractEventLoop] | None = None
        self._is_closed = False

    async def __aenter__(self) -> Self:
        """Bind the host to this process and event loop. The launcher starts with the first run."""
        if self._home is not None or self._is_closed:
            raise RuntimeError("this Host was entered before; make a new one")
        self._home = (os.getpid(), asyncio.get_running_loop())
        self._launching = asyncio.Lock()
        self._no_start = asyncio.Event()
        self._no_start.set()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Cancel what is live, wait for it, end the launcher. No process of the host is left."""
        await self.close()

    async def close(self) -> None:
        """As leaving the context."""
        self._check_home()
        self._is_closed = True
        for run in list(self._beginning.values()):
            run.give_up(InvalidRequest(_CLOSED))
        for run in list(self._live.values()):
            run.cancel("the host was closed")
        assert self._no_start is not None
        try:
            for run in list(self._live.values()):
                await run.wait()
            # A start that is under way notices by itself; only then nobody asks for the launcher any more.
            await self._no_start.wait()
        finally:
            # Also when whoever closes the host is cancelled meanwhile: the launcher takes its workers along.
            if self._launcher is not None:
                await self._launcher.close()
            SUPERVISORS.close_when_idle()

    # ---- runs

    async def start(
        self,
        script: Script[ArgsT, ResultT],
        args: object = None,
        *,
        workspace: Path | str | None = None,
        share_workspace: bool = False,
        isolation: Isolation | None = None,
        provider: str | None = None,
        checks: Sequence[Check] = (),
        continues: Receipt | None = None,
        **overrides: Unpack[LimitOverrides],
    ) -> Run[ResultT]:
        """Begin a run; returns once its worker has compiled the script. Raises a subclass of `StartRefused`.

        `args` are the contract's arguments: its own type, or plain JSON. `continues` is the receipt of an earlier run
        of the same loop, whose last valid handoff opens this one. Overrides may lower limits, never raise them.
        `share_workspace` lets the run begin where another one works; `isolation="worktree"` gives it a git worktree
        and a branch of its own, which are kept.
        """
        self._check_home()
        if self._is_closed:
            raise InvalidRequest(_CLOSED)
        if len(self._live) + self._starting >= self._deployment.limits.max_live_runs:
            limit = self._deployment.limits.max_live_runs
            raise InvalidRequest(f"this host has {limit} live runs (maxLiveRuns); wait until one of them has ended")
        plan = make_plan(
            self._deployment,
            script,
            args,
            workspace=workspace,
            share_workspace=share_workspace,
            isolation=isolation,
            provider=provider,
            checks=checks,
            continues=continues,
            overrides=overrides,
        )
        assert self._no_start is not None
        self._starting += 1
        self._no_start.clear()
        try:
            return await self._start(plan)
        finally:
            self._starting -= 1
            if not self._starting:
                self._no_start.set()

    async def run(
        self,
        script: Script[ArgsT, ResultT],
        args: object = None,
        *,
        workspace: Path | str | None = None,
        share_workspace: bool = False,
        isolation: Isolation | None = None,
        provider: str | None = None,
        checks: Sequence[Check] = (),
        continues: Receipt | None = None,
        **overrides: Unpack[LimitOverrides],
    ) -> Outcome[ResultT]:
        """`start` and `wait`. Cancelling the caller cancels the run and waits for its end."""
        run = await self.start(
            script,
            args,
            workspace=workspace,
            share_workspace=share_workspace,
            isolation=isolation,
            provider=provider,
            checks=checks,
            continues=continues,
            **overrides,
        )
        async with run:
            return await run.wait()

    def get(self, run_id: str) -> Run[Any] | None:
        """The run with this id, live or remembered; None when this host does not know it."""
        return self._live.get(run_id) or self._ended.get(run_id)

    def runs(self) -> list[Run[Any]]:
        """All runs that this host knows: the remembered ones in order of their ends, then the live ones."""
        return [*self._ended.values(), *self._live.values()]

    # ---- inside

    async def _start(self, plan: Plan[Any, ResultT]) -> Run[ResultT]:
        self._refuse_out_of_use(plan)
        run_id = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(4)}"
        async with AsyncExitStack() as undo:
            worktree = await _isolate(plan, run_id)
            if worktree is not None:
                undo.push_async_callback(discard_worktree, worktree)
                plan = replace(plan, workspace=worktree.folder)
            lock = self._hold_workspace(plan, run_id)
            if lock is not None:
                undo.callback(lock.release)
            launcher = await self._ready_launcher()
            required: frozenset[str] | None = frozenset() if self._deployment.allow_weak_confinement else None
            limits = WorkerLimits(
                memory_bytes=plan.limits.memory_bytes, cpu_seconds=int(plan.limits.cpu_seconds_per_run) + 1
            )
            worker = await launcher.fork(limits, required)
            record = RunRecord(run_id=run_id, plan=plan, walls=worker.walls, started_at=time.time(), worktree=worktree)
            run: Run[ResultT] = Run(
                record, worker, slots=self._slots, board=self._board, clock=self._clock, on_end=self._ended_run
            )
            await self._launch(run)
            undo.pop_all()
        if lock is not None:
            self._locks[run_id] = lock
        return run

    def _refuse_out_of_use(self, plan: Plan[Any, Any]) -> None:
        """A breaker that is open is said before anything starts, unless a fallback can take over."""
        state = self._board.out_of_use(plan.provider)
        if state is None:
            return
        fallback = self._deployment.policies[plan.provider].fallback
        if fallback is None or self._board.out_of_use(fallback) is not None:
            raise ProviderUnfit(state.sentence(plan.provider, self._clock.wall()))

    async def _launch(self, run: Run[Any]) -> None:
        self._beginning[run.id] = run
        if self._is_closed:
            run.give_up(InvalidRequest(_CLOSED))
        try:
            await run.launch()
        finally:
            del self._beginning[run.id]
        self._live[run.id] = run

    def _hold_workspace(self, plan: Plan[Any, Any], run_id: str) -> WorkspaceLock | None:
        if plan.workspace is None:
            return None
        try:
            folder = lock_folder(self._deployment.state_folder)
            lock = WorkspaceLock.acquire(plan.workspace, folder, share=plan.share_workspace)
        except RunFolderError as error:
            raise InvalidRequest(str(error)) from None
        lock.name_holder(run_id)
        return lock

    async def _ready_launcher(self) -> Launcher:
        assert self._launching is not None
        async with self._launching:
            if self._launcher is not None and not self._launcher.alive:
                await self._launcher.close()
                self._launcher = None
            if self._launcher is None:
                self._launcher = await Launcher.start(
                    self._launcher_lost, allow_weak_confinement=self._deployment.allow_weak_confinement
                )
            return self._launcher

    def _launcher_lost(self) -> None:
        for run in [*self._beginning.values(), *self._live.values()]:
            run.launcher_lost()

    def _ended_run(self, run: Run[Any]) -> None:
        self._live.pop(run.id, None)
        lock = self._locks.pop(run.id, None)
        if lock is not None:
            lock.release()
        self._ended[run.id] = run
        agents = sum(ended.agents_started for ended in self._ended.values())
        while len(self._ended) > 1 and (len(self._ended) > MAX_REMEMBERED_RUNS or agents > MAX_REMEMBERED_AGENTS):
            agents -= self._ended.popitem(last=False)[1].agents_started

    def _check_home(self) -> None:
        if self._home is None:
            raise RuntimeError("enter the Host first: async with Host(…) as host")
        pid, loop = self._home
        if pid != os.getpid():
            raise RuntimeError("this Host was entered in another process; make a new Host after a fork")
        if loop is not asyncio.get_running_loop():
            raise RuntimeError("this Host was entered on another event loop; make a Host for each loop")


async def _isolate(plan: Plan[Any, Any], run_id: str) -> Worktree | None:
    if plan.isolation is None:
        return None
    assert plan.workspace is not None
    assert plan.deployment.state_folder is not None
    return await create_worktree(plan.workspace, plan.deployment.state_folder / WORKTREES, run_id)


def run_sync(
    script: Script[ArgsT, ResultT],
    args: object = None,
    *,
    providers: Mapping[str, Provider | ReplyFunction],
    limits: Limits | None = None,
    workspace: Path | str | None = None,
    provider: str | None = None,
    checks: Sequence[Check] = (),
    state_folder: Path | str | None = None,
    **overrides: Unpack[LimitOverrides],
) -> Outcome[ResultT]:
    """One run from start to end for code without an event loop. Raises a subclass of `StartRefused`.

    Each call starts a launcher of its own (about 80 ms); a service that runs many loops keeps a `Host`.
    """

    async def main() -> Outcome[ResultT]:
        async with Host(
            providers=providers,
            limits=limits,
            default_provider=provider or "default",
            state_folder=state_folder,
        ) as host:
            return await host.run(script, args, workspace=workspace, checks=checks, **overrides)

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(main())
    raise RuntimeError("run_sync() cannot be used where an event loop runs; use `await Host.run(…)` there")
