"""What a run may use at most: the limits of the settings, and what a person asks for within them.

Two numbers have no ceiling until somebody writes one: repeats and money. Where the settings file does not name them,
the person at the command line is the deployment, and what is typed decides; where it does, it is a ceiling.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from loopwarden.cli.request import Request
from loopwarden.display import dollars, duration, plural
from loopwarden.failures import InvalidRequest
from loopwarden.limits import LimitOverrides, Limits
from loopwarden.settings import Settings

USUAL_DEADLINE_SECONDS: Final = 8 * 3600.0
"""What a run from the command line may take unless the settings or `--deadline` say otherwise."""


def deployment_limits(request: Request, settings: Settings) -> Limits:
    """The limits of the host that the run is given to."""
    asked = request.max_extra_attempts
    if asked is None or "max_extra_attempts" in settings.limits_given:
        return settings.limits
    return replace(settings.limits, max_extra_attempts=asked)


def find_overrides(request: Request, settings: Settings) -> LimitOverrides:
    """What the run asks of these limits. Raises `InvalidRequest` when it is more than they allow."""
    limits = deployment_limits(request, settings)
    deadline = request.deadline_seconds
    if deadline is None and "run_deadline_seconds" not in settings.limits_given:
        deadline = min(USUAL_DEADLINE_SECONDS, limits.run_deadline_seconds)
    for option, name, ceiling, words in (
        ("--deadline", "deadline_seconds", limits.run_deadline_seconds, duration),
        ("--agent-timeout", "agent_timeout_seconds", limits.agent_timeout_seconds, duration),
        ("--max-total-agents", "max_total_agents", limits.max_total_agents, str),
        ("--max-extra-attempts", "max_extra_attempts", limits.max_extra_attempts, str),
        ("--max-cost", "max_cost_usd", limits.max_cost_usd, dollars),
    ):
        _refuse_above(option, request, name, ceiling, words)
    return LimitOverrides(
        max_total_agents=request.max_total_agents,
        max_extra_attempts=request.max_extra_attempts,
        max_cost_usd=request.max_cost_usd,
        agent_timeout_seconds=request.agent_timeout_seconds,
        run_deadline_seconds=deadline,
    )


def _refuse_above(option: str, request: Request, name: str, ceiling: float | None, words: Callable[[Any], str]) -> None:
    asked = getattr(request, name)
    if asked is None or ceiling is None or asked <= ceiling:
        return
    above = f"{words(asked)}, above the ceiling of this deployment, {words(ceiling)}"
    if name in request.taken_over:
        raise InvalidRequest(f"the run that is continued had {option} {above}; give {option} with at most that")
    raise InvalidRequest(f"{option} is {above}; ask for at most that")


def first_line(name: str, max_agents: int, limits: Limits) -> str:
    """What may happen at most, on one line."""
    repeats = f" (and {plural(limits.max_extra_attempts, 'repeat')})" if limits.max_extra_attempts else ""
    cost = "no cost cap" if limits.max_cost_usd is None else f"at most {dollars(limits.max_cost_usd)}"
    return f"{name}: at most {plural(max_agents, 'agent')}{repeats}, {duration(limits.run_deadline_seconds)}, {cost}"
