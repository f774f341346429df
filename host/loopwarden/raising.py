"""Limits of a live run that an operator raises: which may rise, and how far."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from loopwarden.failures import InvalidRequest
from loopwarden.limits import Limits
from loopwarden.plan import Plan

RAISABLE: Final = frozenset({"max_total_agents", "max_extra_attempts", "max_cost_usd"})
"""Those that are looked at before each ask. The others were handed to the worker or to agents already."""


def raised_limits(
    now: Limits, asked: Mapping[str, Any], plan: Plan[Any, Any]
) -> tuple[Limits, dict[str, int | float | None]]:
    """The limits as they will be, and what changes. Raises `InvalidRequest` with a sentence."""
    ceilings = plan.deployment.limits.resolved(has_store=True)
    changes: dict[str, int | float | None] = {}
    for name, value in asked.items():
        if name not in RAISABLE:
            raise InvalidRequest(f"{name[:100]} of a live run cannot change; resume the run when it has ended")
        before, ceiling = getattr(now, name), getattr(ceilings, name)
        if isinstance(value, bool) or not isinstance(value, int | float) or before is None or value <= before:
            raise InvalidRequest(f"{name} is {before}; a live run can only be given more")
        if ceiling is not None and value > ceiling:
            raise InvalidRequest(f"{name} {value} is above the ceiling of this deployment, {ceiling}")
        changes[name] = value
    if "max_total_agents" in changes and plan.script.contract.max_total_agents(plan.args) is not None:
        raise InvalidRequest("the arguments of this loop fix its agents; resume the run when it has ended")
    try:
        return dataclasses.replace(now, **changes), changes  # type: ignore[arg-type]
    except ValueError as error:
        raise InvalidRequest(str(error)) from None
