"""Resuming a run that had ended, or that is held: what may rise is checked, then the run is claimed and reopened."""

import dataclasses
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from loopwarden.custody import Custody
from loopwarden.failures import Code, InvalidRequest, StartRefused
from loopwarden.following import Following
from loopwarden.journal.entries import Reopened
from loopwarden.journal.fold import RunState
from loopwarden.journal.moves import Stage
from loopwarden.limits import LimitOverrides, Limits
from loopwarden.plan import Deployment, Plan
from loopwarden.resuming import limits_from, plan_from, script_of
from loopwarden.store.api import MAX_PAGE
from loopwarden.store.errors import StoreError
from loopwarden.store.runs import Claim, Status, StoredEntry
from loopwarden_engine.plain import JsonObject, copy_object

RESUMABLE: Final = frozenset({Code.AGENT_CAP, Code.COST_CAP, Code.SCOPE_BUDGET, Code.DEADLINE, Code.CANCELLED})
"""Ends after which a run can go on: its script did nothing wrong."""
_MUST_RISE: Final[Mapping[str, str]] = {
    Code.AGENT_CAP.value: "max_total_agents",
    Code.COST_CAP.value: "max_cost_usd",
    Code.DEADLINE.value: "run_deadline_seconds",
}
"""A run that ended by one of these would end by it again."""


class Reopening:
    """Reopens runs of one store, for one deployment."""

    def __init__(
        self, custody: Custody, deployment: Deployment, refuse: Callable[[Plan[Any, Any]], Awaitable[None]]
    ) -> None:
        """`refuse` raises a subclass of `StartRefused` for a plan that this host does not begin."""
        self._custody = custody
        self._deployment = deployment
        self._refuse = refuse

    async def reopen(self, run_id: str, *, by: str, why: str, raised: LimitOverrides) -> tuple[Claim, float]:
        """Claim a run and reopen it. Raises a subclass of `StartRefused`, and `StoreError`."""
        following = Following(self._custody.store, run_id)
        await following.more()
        state = following.state
        is_repaired = await self._is_held_as_damaged(state)
        if is_repaired and raised:
            raise InvalidRequest(f"run {run_id} is not over, and limits rise only for a run that is; leave them out")
        if not is_repaired:
            self._refuse_unresumable(state)
        limits, args = self._risen(state, raised)
        await self._refuse_undrivable(state, limits, args)
        claim, asked_at = await self._custody.claim_one(run_id)
        tenure = self._custody.tenure(claim, asked_at)
        if is_repaired and tenure.recorded.stage is not Stage.HELD:
            return claim, asked_at
        if tenure.recorded.segment != state.segment or tenure.recorded.stage is not state.stage:
            await tenure.put_back()
            raise InvalidRequest(f"run {run_id} was changed by somebody else meanwhile; look at it, then try again")
        entry = Reopened(at=time.time(), by=by or "an operator", why=why, limits=limits, args=args)
        if await tenure.reopen(entry) is None:
            raise StoreError(f"run {run_id} could not be reopened: this host lost it to another one")
        return await self._again(claim), asked_at

    async def _is_held_as_damaged(self, state: RunState) -> bool:
        """True when its row alone holds the run: a claim found damage. Once that is repaired, it goes on unended."""
        row = await self._custody.store.get(state.run_id)
        return row is not None and row.status is Status.HELD and state.stage not in (Stage.HELD, Stage.FINISHED)

    async def _again(self, claim: Claim) -> Claim:
        """The claim with its journal as it stands now."""
        store, run_id = self._custody.store, claim.row.run_id
        rows: list[StoredEntry] = list(claim.rows)
        while more := await store.read(run_id, after=rows[-1].seq):
            rows += more
            if len(more) < MAX_PAGE:
                break
        row = await store.get(run_id)
        return Claim(row=claim.row if row is None else row, rows=rows, blobs=await store.blobs(run_id))

    def _refuse_unresumable(self, state: RunState) -> None:
        run_id = state.run_id
        if state.stage is Stage.HELD:
            return
        if state.stage is not Stage.FINISHED or state.stopping is None:
            raise InvalidRequest(f"run {run_id} is not over; there is nothing to resume")
        failure = state.stopping.failure
        if failure is None or failure.code not in RESUMABLE:
            how = "completed" if failure is None else f"ended with {failure.code}"
            raise InvalidRequest(
                f"run {run_id} {how}; only a run that ended by a cap, a budget, its deadline or a cancel, or that is "
                "held, can be resumed. Run it again with `loopwarden rerun`"
            )

    async def _refuse_undrivable(
        self, state: RunState, limits: Mapping[str, int | float | None], args: JsonObject
    ) -> None:
        """What keeps this host from driving the run is said before anything changes."""
        risen = dataclasses.replace(state, limits={**state.limits, **limits}, args={**state.args, **args})
        await self._refuse(plan_from(risen, self._custody.scripts, self._deployment))

    def _risen(self, state: RunState, raised: LimitOverrides) -> tuple[dict[str, int | float | None], JsonObject]:
        """The limits that change, and the arguments that rise with them."""
        now = limits_from(state.limits)
        ceiling = self._deployment.limits.resolved(has_store=True).lowered(raised)
        changes: dict[str, int | float | None] = {}
        for name, value in raised.items():
            before = getattr(now, name)
            if value is None or value == before:
                continue
            assert isinstance(value, int | float)
            if before is None or value < before:
                raise InvalidRequest(
                    f"{name} of run {state.run_id} is {'not limited' if before is None else before}; resuming a run "
                    f"raises limits, and {getattr(ceiling, name)} would lower it"
                )
            changes[name] = value
        self._refuse_too_little(state, changes)
        return changes, self._args(state, dataclasses.replace(now, **changes), changes)  # type: ignore[arg-type]

    def _refuse_too_little(self, state: RunState, changes: Mapping[str, int | float | None]) -> None:
        if state.stage is Stage.HELD or state.stopping is None or state.stopping.failure is None:
            return
        needed = _MUST_RISE.get(state.stopping.failure.code)
        if needed is not None and needed not in changes:
            raise InvalidRequest(
                f"run {state.run_id} ended with {state.stopping.failure.code}, and would end so again; give a "
                f"{needed} above {state.limits.get(needed)}"
            )

    def _args(self, state: RunState, limits: Limits, changes: Mapping[str, int | float | None]) -> JsonObject:
        contract = script_of(state, self._custody.scripts).contract
        if not changes:
            return {}
        try:
            args = contract.decode_args(state.args)
            risen = copy_object(contract.raised_args(args, changes), "args")
            fixed = contract.max_total_agents(contract.decode_args({**state.args, **risen}))
        except StartRefused:
            raise
        except Exception as error:
            raise InvalidRequest(
                f"the contract of the loop failed with {type(error).__name__} at the raised limits"
            ) from error
        if fixed is not None and fixed != limits.max_total_agents:
            raise InvalidRequest(
                f"the number of agents of this loop follows from its arguments, from which {fixed} follows; "
                f"max_total_agents cannot be {limits.max_total_agents}"
            )
        return risen
