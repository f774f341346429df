"""Running a run again: the content of a journal as a new request, which this deployment checks like any other."""

import dataclasses
from typing import Any, cast

from loopwarden.checks import Check
from loopwarden.creation import DEFAULT_QUEUE, Booking
from loopwarden.custody import Custody
from loopwarden.failures import InvalidRequest
from loopwarden.following import Following
from loopwarden.journal.entries import Created
from loopwarden.limits import OVERRIDABLE, LimitOverrides, Limits
from loopwarden.plan import Deployment, Plan, make_plan
from loopwarden.resuming import opening_of, script_of
from loopwarden_engine.plain import copy_object


async def plan_again(custody: Custody, run_id: str, deployment: Deployment) -> tuple[Plan[Any, Any], Booking]:
    """The plan and the booking of a new run with the content of `run_id`. Raises `StartRefused`, `StoreError`."""
    following = Following(custody.store, run_id)
    await following.more()
    if not following.state.seq:
        raise InvalidRequest(f"the store {custody.store.name} holds no run {run_id[:200]!r}")
    state = following.state
    created = state.created
    plan = make_plan(
        deployment,
        script_of(state, custody.scripts, any_version=True),
        created.args,
        workspace=created.workspace,
        share_workspace=created.share_workspace,
        isolation=created.isolation,
        provider=created.provider,
        checks=[Check(argv=tuple(check.argv)) for check in created.checks],
        continues=None,
        overrides=_overrides(created, deployment.limits),
    )
    opening = opening_of(state)
    if opening is not None:
        script_args = copy_object(plan.script.contract.script_args(plan.args, opening), "args")
        plan = dataclasses.replace(plan, opening=opening, script_args=script_args)
    booking = Booking(
        queue=created.queue or DEFAULT_QUEUE,
        priority=created.priority,
        labels=created.labels,
        scopes=created.scopes,
        keep_prompts=created.keep_prompts,
    )
    return plan, booking


def _overrides(created: Created, ceiling: Limits) -> LimitOverrides:
    """The limits of the run, as far as they are not what the deployment gives anyway."""
    resolved = dataclasses.asdict(ceiling.resolved(has_store=True))
    overrides = {
        name: value
        for name, value in created.limits.items()
        if name in OVERRIDABLE and value is not None and value != resolved[name]
    }
    return cast(LimitOverrides, overrides)
