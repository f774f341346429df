"""When the budget of a scope refuses an ask, and which scopes can be. Pure rules; stores apply them in a transaction.

Agents are exact: an ask is refused when it would be one too many. What tokens and money an agent uses is known only
when it ended, so an ask is refused once the limit is reached: the agents that are in flight then may exceed it.
"""

import math
from typing import Final, Literal, TypeAlias, get_args

from loopwarden.store.appends import ScopeSpent
from loopwarden.store.names import check_name
from loopwarden.store.shared import Scope, ScopeUse
from loopwarden.store.windows import Per, zone_of

_Measure: TypeAlias = Literal["agents", "tokens", "cost"]

_MAX_WHOLE: Final = 2**53 - 1
"""What JSON carries exactly."""


def refusal(scope: Scope, use: ScopeUse) -> ScopeSpent | None:
    """Why one more ask is refused; None when the budget allows it. `use` is of the window that holds now."""
    if scope.max_agents is not None and use.agents + 1 > scope.max_agents:
        return _spent(scope, use, "agents", use.agents, scope.max_agents)
    if scope.max_tokens is not None and use.tokens >= scope.max_tokens:
        return _spent(scope, use, "tokens", use.tokens, scope.max_tokens)
    if scope.max_cost_usd is not None and use.cost_usd >= scope.max_cost_usd:
        return _spent(scope, use, "cost", use.cost_usd, scope.max_cost_usd)
    return None


def check_scope(scope: Scope) -> None:
    """Refuse a scope that cannot be. Raises ValueError, with a sentence."""
    check_name(scope.name, "a budget")
    for name, whole in (("max_agents", scope.max_agents), ("max_tokens", scope.max_tokens)):
        if whole is not None and (type(whole) is not int or not 0 <= whole <= _MAX_WHOLE):
            raise ValueError(f"{name} of the budget {scope.name} is a whole number from 0, or nothing for no limit")
    cost = scope.max_cost_usd
    if cost is not None and (type(cost) not in (int, float) or not math.isfinite(cost) or cost < 0):
        raise ValueError(f"max_cost_usd of the budget {scope.name} is an amount from 0, or nothing for no limit")
    if scope.per not in get_args(Per):
        raise ValueError(f"per of the budget {scope.name} is one of {', '.join(get_args(Per))}")
    if scope.on_budget not in ("end", "wait"):
        raise ValueError(f'on_budget of the budget {scope.name} is "end" or "wait"')
    zone_of(scope.zone)


def _spent(scope: Scope, use: ScopeUse, measure: _Measure, used: float, limit: float) -> ScopeSpent:
    return ScopeSpent(
        scope=scope.name,
        measure=measure,
        used=used,
        limit=limit,
        frees_at=use.frees_at,
        wait=scope.on_budget == "wait",
    )
