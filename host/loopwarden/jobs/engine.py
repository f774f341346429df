"""The job engine of a host: submit, drive, find, wait, follow, cancel, resume, run again, replay.

All of it goes through a store. A host without one opens a store in memory with its first job, and closes it itself.
`Host` has two kinds of look-up: `get` and `runs` know the runs of this host object, without a store; `find` and
`list_runs` ask the store, whoever drives the run.
"""

import asyncio
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Unpack

from loopwarden.bound_rule import refuse_unbounded
from loopwarden.breaker import BreakerBoard
from loopwarden.checks import Check
from loopwarden.creation import DEFAULT_QUEUE, Booking, new_run
from loopwarden.custody import Custody, new_run_id
from loopwarden.events import Event
from loopwarden.failures import InvalidRequest, StartRefused
from loopwarden.jobs.comparing import Verdict, compare
from loopwarden.jobs.driving import Driver, DriverPorts
from loopwarden.jobs.refusals import refuse_unknown_scopes, refusing
from loopwarden.jobs.reopening import Reopening
from loopwarden.jobs.repeating import plan_again
from loopwarden.jobs.request import AttachedScopes, JobRequest, no_scopes
from loopwarden.jobs.watching import events_of, outcome_of_job
from loopwarden.launching import Launcher
from loopwarden.lease_keeper import LeaseRules
from loopwarden.limits import LimitOverrides, Limits
from loopwarden.live_run import LiveRun
from loopwarden.outcome import Outcome
from loopwarden.plan import Deployment, Isolation, Plan, check_source
from loopwarden.policy import NO_POLICY
from loopwarden.receipt import Receipt
from loopwarden.run import Run
from loopwarden.script import Script
from loopwarden.store.api import Store
from loopwarden.store.runs import (
    Claim,
    NewRun,
    RunFilter,
    RunRow,
    Status,
)
from loopwarden.vetting import Vetted, Vetting


class JobEngine(ABC):
    """The part of a host that deals with jobs. `Host` is the only subclass."""

    def __init__(
        self,
        deployment: Deployment,
        *,
        store: Store | None,
        scripts: Sequence[Script[Any, Any]],
        leases: LeaseRules,
        attached_scopes: AttachedScopes | None,
        keep_prompts: bool,
    ) -> None:
        self._deployment = deployment
        self._job_deployment = dataclasses.replace(deployment, has_store=True)
        self._leases = leases
        self._scripts = tuple(scripts)
        self._attached = attached_scopes if attached_scopes is not None else no_scopes
        self._keep_prompts = keep_prompts
        self._is_journaled = store is not None
        """Runs that `start` begins have a journal, too."""
        self.custody = None if store is None else Custody(store, leases, scripts)
        """What the host does with its store; None without one, until the first job."""
        self._own_store: Store | None = None
        self._opening = asyncio.Lock()
        self._vetting = Vetting()
        self._drivers: set[Driver] = set()

    async def vet(self, script: Script[Any, Any]) -> Vetted:
        """Check a script without running it, in a confined worker; says what it does with its hooks.

        Raises `ScriptRejected` with all violations, `LaunchFailed`, `ConfinementUnavailable`. Needs no approval.
        """
        self._refuse_unusable()
        check_source(script, self._deployment.limits)
        return await self._vet(script, self._deployment.limits)

    # ---- submit

    async def submit(
        self,
        script: Script[Any, Any],
        args: object = None,
        *,
        queue: str = DEFAULT_QUEUE,
        key: str | None = None,
        priority: int = 0,
        not_before: float | datetime | None = None,
        labels: Mapping[str, str] | None = None,
        scopes: Sequence[str] = (),
        workspace: Path | str | None = None,
        share_workspace: bool = False,
        isolation: Isolation | None = None,
        provider: str | None = None,
        checks: Sequence[Check] = (),
        continues: Receipt | None = None,
        by: str = "",
        **overrides: Unpack[LimitOverrides],
    ) -> str:
        """Put a run into a queue, for a host that drives it. Returns its id once it is committed to the store.

        By then its contract took the arguments and a confined worker compiled the script. The same `key` gives the run
        that was submitted first under it; with other content it is refused. `not_before` is Unix time in seconds or a
        datetime with a zone. Raises a subclass of `StartRefused`.
        """
        request = JobRequest(
            script=script,
            args=args,
            queue=queue,
            key=key,
            priority=priority,
            not_before=not_before,
            labels=labels,
            scopes=scopes,
            workspace=workspace,
            share_workspace=share_workspace,
            isolation=isolation,
            provider=provider,
            checks=checks,
            continues=continues,
            by=by,
            overrides=overrides,
        )
        [run_id] = await self.submit_many([request])
        return run_id

    async def submit_many(self, requests: Sequence[JobRequest]) -> list[str]:
        """Submit runs in one transaction: all of them, or none. Returns their ids, in order. Raises as `submit`."""
        custody = await self._jobs()
        return await self._create(custody, [await self._accepted(request) for request in requests])

    async def rerun(self, run_id: str, *, key: str | None = None, by: str = "") -> str:
        """Submit a run with the content of another one: script, arguments, limits, place. Returns its id.

        The contract of the loop and the limits are those of this deployment now. Raises a subclass of `StartRefused`.
        """
        custody = await self._jobs()
        with refusing():
            plan, booking = await plan_again(custody, run_id, self._job_deployment)
        booking = dataclasses.replace(self._booked(booking, plan.script.name), key=key, by=by)
        [created] = await self._create(custody, [await self._vetted(plan, booking)])
        return created

    async def _accepted(self, request: JobRequest) -> NewRun:
        """A run to be created: contract and policy took what is asked for. Raises a subclass of `StartRefused`."""
        booking = request.booking(self._attached, keep_prompts=self._keep_prompts)
        return await self._vetted(request.plan(self._job_deployment), booking)

    async def _vetted(self, plan: Plan[Any, Any], booking: Booking) -> NewRun:
        custody = await self._jobs()
        if custody.store.is_shared and plan.workspace is not None and plan.workspace_name is None:
            raise InvalidRequest(
                "hosts of other machines may drive this run, and a path means something else there; give the workspace "
                "a name under [workspaces] on each machine that has it, and name it here"
            )
        custody.learn(plan.script)
        with refusing():
            await refuse_unknown_scopes(custody, booking.scopes)
        await self._vet(plan.script, plan.limits)
        await self._refuse_unbounded(plan)
        return new_run(plan, new_run_id(), booking)

    async def _vet(self, script: Script[Any, Any], limits: Limits) -> Vetted:
        return await self._vetting.vet(script, limits, self._ready_launcher)

    async def _refuse_unbounded(self, plan: Plan[Any, Any]) -> None:
        """For what begins at once. Raises a subclass of `StartRefused`."""
        if self._deployment.require_bound:
            refuse_unbounded(plan, (await self._vet(plan.script, plan.limits)).findings.bound)

    async def _create(self, custody: Custody, runs: Sequence[NewRun]) -> list[str]:
        with refusing():
            return [row.run_id for row in await custody.store.create(runs)]

    # ---- drive

    def drive(self, queues: Mapping[str, int] | None = None) -> Driver:
        """Claim runs of queues and drive them, at most so many of each at a time.

        None: the queue `default`, with as many places as the host has. `await host.drive({"nightly": 4})` drives until
        it is cancelled or the host is closed; `async with host.drive(…):` drives meanwhile. Runs that are live when the
        driving ends go on until the host is closed; then they go back to the store.
        """
        ports = DriverPorts(
            custody=self._jobs,
            ready_launcher=self._ready_launcher,
            free_places=lambda: self.free_places,
            providers=self._providers_in_use,
            deployment=self._deployment,
            adopt=self.adopt,
            accept=self._accepted,
            begins=self._drivers.add,
            ends=self._drivers.discard,
        )
        return Driver(ports, queues if queues is not None else {DEFAULT_QUEUE: self._deployment.limits.max_live_runs})

    # ---- look

    async def find(self, run_id: str) -> RunRow | None:
        """A run as it stands in the store; None when there is none. Raises `StoreError`."""
        custody = await self._jobs()
        return await custody.store.get(run_id)

    async def list_runs(
        self,
        *,
        status: Status | str | None = None,
        queue: str | None = None,
        script: str | None = None,
        labels: Mapping[str, str] | None = None,
        before: str | None = None,
        limit: int = 100,
    ) -> list[RunRow]:
        """Runs of the store that fit all that is given, the newest first; `before`: older than that run.

        Raises `InvalidRequest` for a status that there is not, and `StoreError`.
        """
        custody = await self._jobs()
        try:
            wanted = None if status is None else Status(status)
        except ValueError:
            raise InvalidRequest(f"{status!r} is no status; there are: {', '.join(Status)}") from None
        return await custody.store.find(
            RunFilter(status=wanted, queue=queue, script=script, labels=labels, before=before, limit=limit)
        )

    async def wait_for(self, run_id: str) -> Outcome[Any]:
        """Wait for the end of any run of the store, or until it is held; whoever drives it.

        `value` is the result as plain JSON. Raises `InvalidRequest` when there is no such run, and `StoreError` when
        what the store holds is damaged.
        """
        local = self._unjournaled(run_id)
        if local is not None:
            return await local.wait()
        custody = await self._jobs()
        await self._need(custody, run_id)
        return await outcome_of_job(custody.store, run_id)

    async def events_of(self, run_id: str, after: int = 0) -> AsyncIterator[Event]:
        """Events of any run of the store with a number above `after`, as they are committed, until it ends or is held.

        Numbers are those of the journal, the same on every host: a reader goes on anywhere. Progress of agents is seen
        only for runs that this host drives. Raises as `wait_for`.
        """
        local = self._unjournaled(run_id)
        if local is not None:
            async for event in local.events(after):
                yield event
            return
        custody = await self._jobs()
        await self._need(custody, run_id)
        async for event in events_of(custody.store, run_id, after, self._live_run):
            yield event

    async def replay(self, run_id: str) -> Verdict:
        """Run the script of a journal again in a worker, answered from the journal, and compare. Only reads.

        Raises a subclass of `StartRefused` when this host cannot replay the run, and `StoreError`.
        """
        custody = await self._jobs()
        await self._need(custody, run_id)
        return await compare(custody, run_id, self._job_deployment, self._ready_launcher)

    # ---- change

    async def cancel(self, run_id: str, reason: str = "cancelled", by: str = "") -> RunRow | None:
        """Cancel a run, whoever drives it. No agent of it starts once this returns.

        A run that nobody drives is brought to its end here; the owner of any other does that. Nothing happens to a run
        that is over. Returns its row as it stands then, None for one without a journal. Raises a subclass of
        `StartRefused`.
        """
        local = self._live_run(run_id)
        if local is not None:
            local.cancel(reason if not by else f"{reason} (asked for by {by})")
            if not local.has_journal:
                return None
        custody = await self._jobs()
        with refusing():
            row = await self._need(custody, run_id)
            if local is not None or row.status is Status.FINISHED:
                return row
            row = await custody.store.request(run_id, "cancel", {"reason": reason}, by or "an operator")
            if row.owner != custody.owner.host_id or row.status is not Status.RUNNING:
                claimed = await custody.claim_unowned(run_id)
                if claimed is not None:
                    await self.adopt(*claimed)
            return await self._need(custody, run_id)

    async def resume(self, run_id: str, *, by: str, why: str = "", **raised: Unpack[LimitOverrides]) -> Run[Any]:
        """Let a run go on that ended by a cap, a budget, its deadline or a cancel, or that is held. Drives it here.

        `raised`: limits that rise, within the ceilings of the deployment. The run is replayed from its journal first:
        what it paid for is not paid again. Raises a subclass of `StartRefused`; nothing has changed then, unless the
        message says so.
        """
        self._refuse_without_place()
        custody = await self._jobs()
        with refusing():
            await self._need(custody, run_id)
            reopening = Reopening(custody, self._job_deployment, self._refuse_unbounded)
            claimed = await reopening.reopen(run_id, by=by, why=why, raised=raised)
            try:
                run = await self.adopt(*claimed)
            except StartRefused as refusal:
                message = f"{refusal.message}. Run {run_id} was reopened, and waits in its queue for a host"
                raise type(refusal)(message, details=refusal.details) from None
            if run is not None:
                return run
            row = await self._need(custody, run_id)
        raise InvalidRequest(
            f"run {run_id} was reopened and could not go on: it is {row.status} again"
            + (f", because {row.reason}" if row.reason else "")
        )

    async def raise_limits(self, run_id: str, *, by: str, **raised: Unpack[LimitOverrides]) -> RunRow:
        """Ask the host that drives a live run for higher caps: max_total_agents, max_extra_attempts, max_cost_usd.

        Its journal says when they are in force. What cannot be is a line in the receipt of the run. One that has ended
        is given more by `resume`. Raises a subclass of `StartRefused`.
        """
        custody = await self._jobs()
        with refusing():
            row = await self._need(custody, run_id)
            if row.status is not Status.RUNNING:
                raise InvalidRequest(f"run {run_id} is {row.status}; only a live run can be given more, see `resume`")
            asked = {name: value for name, value in raised.items() if value is not None}
            return await custody.store.request(run_id, "raise", asked, by or "an operator")

    # ---- what the host provides

    @abstractmethod
    def get(self, run_id: str) -> Run[Any] | None:
        """The run with this id, live or remembered; None when this host does not know it."""

    @abstractmethod
    async def adopt(self, claim: Claim, asked_at: float) -> LiveRun[Any] | None:
        """Drive a run that was claimed."""

    @property
    @abstractmethod
    def free_places(self) -> int:
        """How many runs this host could begin now (maxLiveRuns)."""

    @property
    @abstractmethod
    def board(self) -> BreakerBoard:
        """The breakers of the providers."""

    @abstractmethod
    def _refuse_unusable(self) -> None:
        """Raises RuntimeError outside of the host's process and loop, `InvalidRequest` once it is closed."""

    @abstractmethod
    def _live_run(self, run_id: str) -> LiveRun[Any] | None:
        """The run, while this host drives it."""

    @abstractmethod
    async def _ready_launcher(self) -> Launcher:
        """A launcher that lives. Raises `LaunchFailed`, `ConfinementUnavailable`."""

    # ---- inside

    async def _jobs(self) -> Custody:
        """The store of jobs; one in memory when the host was given none. Raises `InvalidRequest`, `StoreRefused`."""
        self._refuse_unusable()
        async with self._opening:
            if self.custody is None:
                with refusing():
                    from loopwarden.store.sqlite import open_memory  # noqa: PLC0415 -- only who has jobs needs a store

                    self._own_store = await open_memory()
                self.custody = Custody(self._own_store, self._leases, self._scripts)
            return self.custody

    def _booked(self, booking: Booking | None, loop: str) -> Booking:
        """A booking of `start`, with what the settings say."""
        booking = booking or Booking()
        return dataclasses.replace(
            booking,
            scopes=sorted({*booking.scopes, *self._attached(booking.queue, loop)}),
            keep_prompts=booking.keep_prompts or self._keep_prompts,
        )

    def _providers_in_use(self) -> list[str]:
        """Those whose breaker is closed, and those whose fallback can take over."""

        def can_be_asked(name: str | None) -> bool:
            return name is not None and self.board.out_of_use(name) is None

        policies = self._deployment.policies
        return [
            name
            for name in self._deployment.providers
            if can_be_asked(name) or can_be_asked(policies.get(name, NO_POLICY).fallback)
        ]

    async def _need(self, custody: Custody, run_id: str) -> RunRow:
        row = await custody.store.get(run_id)
        if row is None:
            raise InvalidRequest(f"the store {custody.store.name} holds no run {run_id[:200]!r}")
        return row

    def _unjournaled(self, run_id: str) -> Run[Any] | None:
        run = self.get(run_id)
        return run if run is not None and not run.has_journal else None

    def _refuse_without_place(self) -> None:
        if self.free_places <= 0:
            limit = self._deployment.limits.max_live_runs
            raise InvalidRequest(f"this host has {limit} live runs (maxLiveRuns); wait until one of them has ended")

    def _stop_drivers(self) -> None:
        """Claim nothing more, from now on."""
        for driver in self._drivers:
            driver.stop()

    async def _close_drivers(self) -> None:
        """Wait until no claim is under way."""
        for driver in list(self._drivers):
            await driver.close()

    async def _close_jobs(self) -> None:
        if self._own_store is not None:
            await self._own_store.close()
