"""The rule of `require_bound`: a script begins only if it cannot start more agents than its run may."""

from typing import Any

from loopwarden.agent_bound import AgentBound
from loopwarden.display import plural
from loopwarden.failures import InvalidRequest, ScriptRejected
from loopwarden.plan import Plan
from loopwarden_engine.plain import MAX_SAFE_INTEGER


def refuse_unbounded(plan: Plan[Any, Any], bound: AgentBound) -> None:
    """Raises `ScriptRejected` for a script without a bound, `InvalidRequest` for arguments that ask for too many."""
    name = repr(plan.script.name)
    if not bound.is_known:
        first = bound.reasons[0] if bound.reasons else None
        more = len(bound.reasons) - 1
        reason = bound.text if first is None else f"line {first.line}: {first.message}"
        raise ScriptRejected(
            "this deployment runs only scripts whose number of agents is bounded (require_bound), and vetting finds no "
            f"bound for the script {name}: {reason}" + (f" (and {plural(more, 'more line')})" if more > 0 else ""),
            line=None if first is None else first.line,
            details={"bound": bound.to_json()},
        )
    cap = plan.limits.max_total_agents
    most = bound.evaluate(plan.script_args)
    if most is None:
        raise InvalidRequest(
            f"the script {name} is bounded by {bound.text}, and with these arguments that is no number; this "
            "deployment runs only what is bounded (require_bound): give the arguments that the bound names",
            details={"bound": bound.to_json(), "maxTotalAgents": cap},
        )
    if most > cap:
        raise InvalidRequest(
            f"with these arguments the script {name} could start {shown_most(most)} ({bound.text}), above the "
            f"{cap:,} that this run may (maxTotalAgents); ask for less work, or raise max_total_agents",
            details={"bound": bound.to_json(), "agents": min(most, MAX_SAFE_INTEGER), "maxTotalAgents": cap},
        )


def shown_most(most: int) -> str:
    """A number of agents for people; one that nobody can count is not written out."""
    return plural(most, "agent") if most <= MAX_SAFE_INTEGER else f"more than {MAX_SAFE_INTEGER:,} agents"
