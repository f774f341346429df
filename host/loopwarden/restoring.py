"""An accepted call as the journal of its run remembers it: attempts, policy, provider, and how it goes on."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from loopwarden.agent import Agent
from loopwarden.attempt import Answered, Attempt, Failed
from loopwarden.contract import AgentOutcome
from loopwarden.failure_class import FailureClass
from loopwarden.journal.calls import AskState, CallState
from loopwarden.journal.entries import AttemptEnded, Ended, Waiting
from loopwarden.journal.observed import class_of
from loopwarden.policy import FRESH_TRAIL
from loopwarden.provider import Provider

MAX_REDOS: Final = 2
"""Per call and segment of its run: what interrupts it again and again may be the call itself."""


@dataclass(frozen=True, slots=True)
class GoesOnWaiting:
    """A policy granted another ask, and its time has perhaps not come."""

    waiting: Waiting


GoesOn: TypeAlias = GoesOnWaiting | Literal["redo", "spent"]
"""How a call without an end goes on: it waits, it is asked again, or it was interrupted too often."""


def restore(agent: Agent, call: CallState, providers: Mapping[str, Provider], *, now: float, wall: float) -> None:
    """Give an agent the attempts and the policy state that the journal holds for its call.

    `now` is on the scale of the host's clock, `wall` is the same moment as Unix time.
    """
    agent.started_at = now - max(0.0, wall - call.asks[0].at)
    agent.redos_before = sum(ask.ask == "redo" for ask in call.asks[: call.reopened_at])
    for index, ask in enumerate(call.asks):
        if ask.ask == "fallback":
            agent.trail = replace(FRESH_TRAIL, is_fallback=True)
        elif ask.ask == "retry":
            agent.trail = replace(agent.trail, retries=agent.trail.retries + 1)
        agent.provider_name = ask.provider
        agent.provider = providers.get(ask.provider, agent.provider)
        attempt = _attempt(ask, agent.provider, now)
        attempt.paused_seconds = call.paused_seconds(index)
        agent.attempts.append(attempt)
    ended = call.ended
    if ended is not None:
        agent.outcome = AgentOutcome(ended.outcome)
        agent.reason = ended.reason
        agent.notes = tuple(ended.notes)
        agent.failure_class = class_of(ended.failure_class)
        agent.seconds = max(0.0, ended.at - call.asks[0].at)
    elif call.is_open:
        agent.interrupted = agent.attempts[-1]


def goes_on(call: CallState, waiting: Waiting | None) -> GoesOn:
    """How a call without an end goes on when its run is driven again."""
    if waiting is not None:
        return GoesOnWaiting(waiting)
    redos = sum(ask.ask == "redo" for ask in call.asks[call.reopened_at :])
    return "redo" if redos < MAX_REDOS else "spent"


def spent_failure(cap: int, *, by_call: bool) -> Failed:
    """The end of a call that was interrupted and may not be asked again."""
    why = (
        f"it was asked again {MAX_REDOS} times already"
        if by_call
        else f"maxExtraAttempts of this run, {cap}, is used up"
    )
    return Failed(
        failure_class=FailureClass.INTERRUPTED,
        reason=f"its host died or lost the run while it was at work, and it is not asked again: {why}",
    )


def _attempt(ask: AskState, provider: Provider, now: float) -> Attempt:
    attempt = Attempt(
        number=ask.attempt,
        provider_name=ask.provider,
        provider=provider,
        kind=ask.ask,
        paused_seconds=0.0,
        started_at=now,
        last_sign=now,
        windows=ask.windows,
        is_recorded=ask.end is not None,
    )
    end = ask.end
    if end is None:
        attempt.is_interrupted = True
        return attempt
    attempt.seconds = end.seconds
    attempt.usage = None if end.usage is None else end.usage.to_usage()
    if isinstance(end, Ended) and end.outcome == "completed":
        attempt.end = Answered(text="", value=end.value, notes=tuple(end.notes), usage=attempt.usage)
    elif isinstance(end, AttemptEnded) and end.outcome != "failed":
        attempt.is_cancelled, attempt.is_interrupted = end.outcome == "cancelled", end.outcome == "interrupted"
    else:
        attempt.end = Failed(
            failure_class=class_of(end.failure_class) or FailureClass.UNKNOWN,
            reason=end.reason or "no reason is recorded",
            evidence=end.evidence,
            usage=attempt.usage,
        )
    return attempt
