"""What becomes of a run that this host claimed: it goes on, it is brought to its end, or it is held with the reason."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from loopwarden.custody import Custody
from loopwarden.failures import (
    Code,
    ConfinementUnavailable,
    Failure,
    InvalidRequest,
    LaunchFailed,
    StartRefused,
    WorkspaceBusy,
)
from loopwarden.journal.entries import Held
from loopwarden.journal.fold import RunState
from loopwarden.journal.moves import Stage
from loopwarden.live_run import LiveRun
from loopwarden.place import WORKTREES
from loopwarden.plan import Deployment, Plan
from loopwarden.resuming import handoff_of, limits_from, plan_from, workspace_of
from loopwarden.run_record import Ending, worktree_record
from loopwarden.store.appends import Append, AppendResult
from loopwarden.store.errors import StoreCorrupt
from loopwarden.store.runs import Claim
from loopwarden.tenure import Tenure
from loopwarden.winding_up import Remains, Unattended, wind_up
from loopwarden.worktree import resume_worktree


class HostClosed(InvalidRequest):
    """The host was closed: what it was about to begin is left to others."""


class Adoption:
    """One claimed run, until it is driven or done with."""

    def __init__(self, custody: Custody, claim: Claim, asked_at: float) -> None:
        self._custody = custody
        self._claim = claim
        self._asked_at = asked_at

    async def carry_out(
        self, deployment: Deployment, resume: Callable[[Plan[Any, Any], Tenure], Awaitable[LiveRun[Any]]]
    ) -> LiveRun[Any] | None:
        """Let the run go on by `resume`, unless that is not what it needs. Raises `StoreError`."""
        try:
            tenure = self._custody.tenure(self._claim, self._asked_at)
        except StoreCorrupt as damage:
            await self._hold_damaged(damage)
            return None
        state = tenure.recorded
        cancelled = self._claim.row.cancel_reason
        if state.stage is Stage.FINISHED or (state.stage is Stage.HELD and cancelled is None):
            # Claimed to be reopened, by a host that died before it came to that.
            await tenure.put_back()
            return None
        if state.stage is Stage.STOPPING or cancelled is not None:
            await self._bring_to_its_end(tenure, state, cancelled, deployment)
            return None
        try:
            plan = plan_from(state, self._custody.scripts, deployment)
            return await resume(plan, tenure)
        except (LaunchFailed, ConfinementUnavailable, WorkspaceBusy, HostClosed):
            # Of this machine: another host, or this one a little later, may not meet it.
            await tenure.give_back()
            raise
        except StartRefused as refusal:
            await tenure.hold(refusal.code, refusal.message)
            return None

    async def _bring_to_its_end(
        self, tenure: Tenure, state: RunState, cancelled: str | None, deployment: Deployment
    ) -> None:
        ending = None
        if cancelled is not None:
            message = f"the run was cancelled: {cancelled}"
            ending = Ending(stop_reason="cancelled", failure=Failure(code=Code.CANCELLED, message=message))
        # Checks may take longer than a lease.
        self._custody.keeper.keep(tenure, Unattended())
        try:
            await wind_up(tenure, ending, await self._remains(state, deployment))
        finally:
            self._custody.keeper.release(tenure.run_id)

    async def _remains(self, state: RunState, deployment: Deployment) -> Remains:
        """What this host knows of the run beside its journal; less, when its workspace is not here."""
        limits, handoff = limits_from(state.limits), handoff_of(state, self._custody.scripts)
        try:
            workspace = workspace_of(state, deployment)
            if workspace is None or state.created.isolation is None or deployment.state_folder is None:
                return Remains(limits=limits, workspace=workspace, last_handoff=handoff)
            place = deployment.state_folder / WORKTREES
            if not (place / state.run_id).exists():
                return Remains(limits=limits, last_handoff=handoff)
            worktree = await resume_worktree(workspace, place, state.run_id)
        except StartRefused:
            return Remains(limits=limits, last_handoff=handoff)
        return Remains(
            limits=limits, workspace=worktree.folder, worktree=worktree_record(worktree), last_handoff=handoff
        )

    async def _hold_damaged(self, damage: StoreCorrupt) -> None:
        """Chained to the head that the row names: what is damaged stays as it was found."""
        done: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
        entry = Held(at=time.time(), code=Code.STORE_CORRUPT.value, reason=damage.problem)
        row = self._claim.row
        self._custody.store.append(
            Append(run_id=row.run_id, epoch=row.epoch, entries=(entry,), done=done.set_result, change="held")
        )
        await done
