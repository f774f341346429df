"""Whether a call is accepted: its options, the agent cap, its provider, its contract. Before any charge."""

from collections.abc import Callable, Mapping

from loopwarden.agent import Agent
from loopwarden.call_options import CallRefused, DecodedCall, decode_call
from loopwarden.contract import ContractBroken
from loopwarden.failures import Code, Failure
from loopwarden.provider import Provider
from loopwarden_engine.messages import Call


def accept_call(
    call: Call,
    *,
    phase: str | None,
    accepted: int,
    max_total_agents: int,
    providers: Mapping[str, Provider],
    default_provider: str,
    check_call: Callable[[DecodedCall], None],
) -> Agent | Failure:
    """The agent of an accepted call, or the failure that ends the run. `accepted`: how many were before."""
    try:
        decoded = decode_call(call, phase)
    except CallRefused as refusal:
        return refusal.failure
    line = call.line or None
    if accepted >= max_total_agents:
        return Failure(
            code=Code.AGENT_CAP,
            message=f"the script asked for agent {max_total_agents + 1}; maxTotalAgents of this run is "
            f"{max_total_agents}",
            line=line,
            details={"maxTotalAgents": max_total_agents},
        )
    name = decoded.facts.provider or default_provider
    provider = providers.get(name)
    if provider is None:
        known = ", ".join(sorted(providers)) or "none"
        return Failure(
            code=Code.AGENT_START,
            message=f"the provider {name[:100]!r} does not exist; configured: {known}",
            line=line,
        )
    try:
        check_call(decoded)
    except ContractBroken as broken:
        return Failure(code=Code.CONTRACT, message=str(broken), line=line)
    return Agent(call=decoded, provider_name=name, provider=provider, line=call.line, seq=call.id)
