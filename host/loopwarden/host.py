"""The host: holds providers, limits and one launcher, and starts runs."""

import asyncio
import os
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar, Unpack

from loopwarden.adoption import Adoption, HostClosed
from loopwarden.approvals import Approvals
from loopwarden.breaker import BreakerBoard
from loopwarden.checks import Check
from loopwarden.clock import Clock, LoopClock
from loopwarden.creation import Booking
from loopwarden.custody import new_run_id
from loopwarden.departure import until_gone
from loopwarden.failures import InvalidRequest, ProviderUnfit
from loopwarden.jobs.engine import JobEngine
from loopwarden.jobs.request import AttachedScopes
from loopwarden.launching import Launcher, WorkerLimits
from loopwarden.lease_keeper import LeaseRules
from loopwarden.limits import LimitOverrides, Limits
from loopwarden.live_run import LiveRun
from loopwarden.outcome import Outcome
from loopwarden.place import hold_workspace, isolate
from loopwarden.plan import Deployment, Isolation, Plan, make_plan
from loopwarden.policy import Policy, check_policies
from loopwarden.provider import Provider, ReplyFunction, as_provider
from loopwarden.providers.supervisors import SUPERVISORS
from loopwarden.receipt import Receipt
from loopwarden.run import Run
from loopwarden.run_record import RunRecord
from loopwarden.script import Script
from loopwarden.slots import AgentSlots, ProviderPlaces
from loopwarden.store.api import Store
from loopwarden.store.appends import FencedOut
from loopwarden.store.runs import Claim
from loopwarden.tenure import Tenure
from loopwarden.wall_probe import log_missing_walls
from loopwarden.workspace import WorkspaceLock
from loopwarden.worktree import Worktree, discard_worktree

ArgsT = TypeVar("ArgsT")
ResultT = TypeVar("ResultT")

MAX_REMEMBERED_RUNS: Final = 256
"""Runs that ended and can still be found with `get` and `runs`; the oldest are forgotten first."""
MAX_REMEMBERED_AGENTS: Final = 10_000
"""Agents of remembered runs in all: each keeps its prompt, its value and its events. The last run is kept whatever."""

_CLOSED: Final = "this host was closed; make a new one"


class Host(JobEngine):
    """Runs vetted scripts. Belongs to the process and the event loop in which it was entered.

    `providers` maps names to providers or bare async functions. Without a `state_folder` nothing is kept on disk:
    receipts are then in `Outcome.receipt` alone. `policies` grants repeats and breakers, by name of the provider; a
    policy that asks again needs `limits.max_extra_attempts`. With a `store` every run has a journal in it, and goes on
    on another host when this one dies: for that, hosts name in `scripts` what they can drive, and in `workspaces` the
    folders that they have under the names of the deployment. Whoever opened the store closes it, after the host.
    Only what `approvals` takes runs, also of rows of the store; `require_bound`: only what is bounded by its cap.
    `attached_scopes` names the budgets that the settings attach to a run, by queue and loop; `keep_prompts` keeps
    prompts in journals, not their digests alone. `max_concurrent` bounds the live agents of a provider over all runs.
    Raises TypeError for what cannot be a provider, and ValueError for a policy that names one that does not exist.
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
        store: Store | None = None,
        scripts: Sequence[Script[Any, Any]] = (),
        workspaces: Mapping[str, Path | str] | None = None,
        leases: LeaseRules | None = None,
        attached_scopes: AttachedScopes | None = None,
        keep_prompts: bool = False,
        approvals: Approvals | None = None,
        require_bound: bool = False,
        max_concurrent: Mapping[str, int] | None = None,
        clock: Clock | None = None,
    ) -> None:
        deployment = Deployment(
            providers={name: as_provider(backend) for name, backend in providers.items()},
            policies=dict(policies or {}),
            default_provider=default_provider,
            limits=limits if limits is not None else Limits(),
            state_folder=None if state_folder is None else Path(state_folder),
            settings_digest=settings_digest,
            allow_weak_confinement=allow_weak_confinement,
            has_store=store is not None,
            workspaces={name: Path(path) for name, path in (workspaces or {}).items()},
            approvals=approvals,
            require_bound=require_bound,
        )
        super().__init__(
            deployment,
            store=store,
            scripts=scripts,
            leases=leases or LeaseRules(),
            attached_scopes=attached_scopes,
            keep_prompts=keep_prompts,
        )
        check_policies(self._deployment.policies, self._deployment.providers)
        self._clock: Clock = clock if clock is not None else LoopClock()
        rules = {name: policy.breaker for name, policy in self._deployment.policies.items() if policy.breaker}
        self._board = BreakerBoard(rules, self._deployment.state_folder, self._clock.wall)
        self._slots = AgentSlots(self._deployment.limits.max_live_agents)
        self._places = ProviderPlaces(max_concurrent or {})
        self._live: dict[str, LiveRun[Any]] = {}
        self._ended: OrderedDict[str, LiveRun[Any]] = OrderedDict()
        self._locks: dict[str, WorkspaceLock] = {}
        self._driven: set[str] = set()
        """Runs that were claimed: when the host is closed, they go back to the store."""
        self._left: set[LiveRun[Any]] = set()
        """Runs that were given back or lost, and are followed to their real end."""
        self._starting = 0
        self._beginning: dict[str, LiveRun[Any]] = {}
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

    async def close(self, *, drain_seconds: float = 0.0) -> None:
        """As leaving the context. Runs that were claimed from a store go back to it, and other hosts go on with them.

        Agents of such runs may finish for `drain_seconds`; what they bring is recorded.
        """
        self._check_home()
        self._is_closed = True
        self._stop_drivers()
        for run in list(self._beginning.values()):
            run.give_up(HostClosed(_CLOSED))
        for run in list(self._live.values()):
            if run.id in self._driven and self._own_store is None:
                run.leave(drain_seconds=drain_seconds)
            else:
                run.cancel("the host was closed")
        assert self._no_start is not None
        try:
            await self._close_drivers()
            for run in list(self._live.values()):
                await until_gone(run)
            # A start that is under way notices by itself; only then nobody asks for the launcher any more.
            await self._no_start.wait()
        finally:
            # Also when whoever closes the host is cancelled meanwhile: the launcher takes its workers along.
            if self._launcher is not None:
                await self._launcher.close()
            SUPERVISORS.close_when_idle()
            if self.custody is not None:
                await self.custody.keeper.close()
            for run in list(self._left):
                run.stop_following()
                await run.wait()
            await self._close_jobs()

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
        booking: Booking | None = None,
        **overrides: Unpack[LimitOverrides],
    ) -> Run[ResultT]:
        """Begin a run; returns once its worker has compiled the script. Raises a subclass of `StartRefused`.

        `args` are the contract's arguments: its own type, or plain JSON. `continues` is the receipt of an earlier run
        of the same loop, whose last valid handoff opens this one. Overrides may lower limits, never raise them.
        `share_workspace` lets the run begin where another one works; `isolation="worktree"` gives it a git worktree
        and a branch of its own, which are kept. `booking` says what the store keeps with the run: labels, scopes, key.
        """
        self._refuse_unusable()
        if booking is not None and not self._is_journaled:
            raise InvalidRequest("this host has no store, so there is nothing that could keep a booking")
        self._refuse_without_place()
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
            return await self._start(plan, self._booked(booking, script.name))
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
        booking: Booking | None = None,
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
            booking=booking,
            **overrides,
        )
        async with run:
            return await run.wait()

    def hurry(self) -> None:
        """Wait no longer for agents of runs that are given back: they are interrupted now."""
        for run in list(self._live.values()):
            if run.id in self._driven:
                run.leave()

    def get(self, run_id: str) -> Run[Any] | None:
        """The run with this id, live or remembered; None when this host does not know it."""
        return self._live.get(run_id) or self._ended.get(run_id)

    def runs(self) -> list[Run[Any]]:
        """All runs that this host knows: the remembered ones in order of their ends, then the live ones."""
        return [*self._ended.values(), *self._live.values()]

    @property
    def free_places(self) -> int:
        """How many runs this host could begin now (maxLiveRuns)."""
        return self._deployment.limits.max_live_runs - len(self._live) - self._starting

    @property
    def board(self) -> BreakerBoard:
        """The breakers of the providers."""
        return self._board

    # ---- inside

    def _live_run(self, run_id: str) -> LiveRun[Any] | None:
        return self._live.get(run_id)

    def _refuse_unusable(self) -> None:
        self._check_home()
        if self._is_closed:
            raise HostClosed(_CLOSED)

    async def _start(self, plan: Plan[Any, ResultT], booking: Booking) -> LiveRun[ResultT]:
        self._refuse_out_of_use(plan)
        await self._refuse_unbounded(plan)
        custody, run_id = self.custody if self._is_journaled else None, new_run_id()
        async with AsyncExitStack() as undo:
            worktree = await isolate(plan, run_id)
            if worktree is not None:
                undo.push_async_callback(discard_worktree, worktree)
            begin = None if custody is None else lambda: custody.create(plan, run_id, booking)
            run = await self._begin(plan, run_id, undo, worktree, begin)
            undo.pop_all()
        return run

    async def adopt(self, claim: Claim, asked_at: float) -> LiveRun[Any] | None:
        """Drive a run that was claimed. None when it ended without a worker, or could not go on: see its row.

        `asked_at`: see `Custody.claim`. Raises `StoreError`; then the claim ends with its lease.
        """
        assert self.custody is not None
        assert self._no_start is not None
        self._starting += 1
        self._no_start.clear()
        try:
            await self._let_go(claim.row.run_id)
            run = await Adoption(self.custody, claim, asked_at).carry_out(self._job_deployment, self._resume)
            if run is None:
                self.custody.keeper.release(claim.row.run_id)
            return run
        finally:
            self._starting -= 1
            if not self._starting:
                self._no_start.set()

    async def _let_go(self, run_id: str) -> None:
        """A run that this host claims while it drives it: its lease had ended in the store before anybody noticed."""
        live = self._live.get(run_id)
        if live is not None and live.tenure is not None:
            live.tenure.lost(FencedOut())
            await live.gone()

    async def _resume(self, plan: Plan[Any, Any], tenure: Tenure) -> LiveRun[Any]:
        async def begin() -> Tenure:
            return tenure

        await self._refuse_unbounded(plan)
        async with AsyncExitStack() as undo:
            worktree = await isolate(plan, tenure.run_id, again=True)
            self._driven.add(tenure.run_id)
            undo.callback(self._driven.discard, tenure.run_id)
            run = await self._begin(plan, tenure.run_id, undo, worktree, begin, is_claimed=True)
            undo.pop_all()
        return run

    async def _begin(
        self,
        plan: Plan[Any, Any],
        run_id: str,
        undo: AsyncExitStack,
        worktree: Worktree | None,
        begin: Callable[[], Awaitable[Tenure]] | None,
        *,
        is_claimed: bool = False,
    ) -> LiveRun[Any]:
        if worktree is not None:
            plan = replace(plan, workspace=worktree.folder)
        lock = hold_workspace(plan, run_id)
        if lock is not None:
            undo.callback(lock.release)
        launcher = await self._ready_launcher()
        limits = WorkerLimits(
            memory_bytes=plan.limits.memory_bytes, cpu_seconds=int(plan.limits.cpu_seconds_per_run) + 1
        )
        worker = await launcher.fork(limits)
        record = RunRecord(run_id=run_id, plan=plan, walls=worker.walls, started_at=time.time(), worktree=worktree)
        run: LiveRun[Any] = LiveRun(
            record,
            worker,
            slots=self._slots,
            board=self._board,
            places=self._places,
            clock=self._clock,
            on_end=self._ended_run,
        )
        await self._launch(run, begin, is_claimed=is_claimed)
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

    async def _launch(
        self, run: LiveRun[Any], begin: Callable[[], Awaitable[Tenure]] | None, *, is_claimed: bool
    ) -> None:
        self._beginning[run.id] = run
        if self._is_closed:
            run.give_up(HostClosed(_CLOSED))
        try:
            await run.launch(begin, is_claimed=is_claimed)
        finally:
            del self._beginning[run.id]
        self._live[run.id] = run
        if self.custody is not None and run.tenure is not None:
            self.custody.keeper.keep(run.tenure, run)

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
                log_missing_walls(self._launcher.walls)
            return self._launcher

    def _launcher_lost(self) -> None:
        for run in [*self._beginning.values(), *self._live.values()]:
            run.launcher_lost()

    def _ended_run(self, run: LiveRun[Any]) -> None:
        self._live.pop(run.id, None)
        self._driven.discard(run.id)
        if self.custody is not None:
            self.custody.keeper.release(run.id)
        if not run.is_over:
            self._left.add(run)
            run.when_over(self._left.discard)
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
