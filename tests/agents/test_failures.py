"""What the failures of a model look like through real agent programs, and what a policy makes of a rate limit."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import pytest

from agents.deployments import KEY
from agents.stage import OBJECTIVE, Stage
from agents.swift_clock import SwiftClock
from loopwarden import Host, Limits
from loopwarden.failure_class import FailureClass
from loopwarden.policy import Policy, Wait
from loopwarden.provider import AgentFailed, AgentReply, AgentRequest
from loopwarden_scripts import ralph
from support.model_server import Fail, FailInStream, ModelAnswer, Say, Stall
from support.model_server.messages import plan_limit

LIMIT_SECONDS: Final = 1200
LATER: Final = f"Rate limit reached for requests. Please try again in {LIMIT_SECONDS}s."


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimit:
    """How a program comes to know when a limit ends."""

    answer: Callable[[float], ModelAnswer]
    """What the model says at a Unix time."""
    seconds: float
    """Of waiting, as the program passes it on."""
    at: bool = False
    """True when it passes on the time itself."""
    login: Mapping[str, str] | None = None
    """The variables by which it logs in, when it is not the key of an API."""


def _refusal(message: str, **headers: str) -> Fail:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Fail(status=429, message=message, type="rate_limit_error", code="rate_limit_exceeded", headers=named)


LIMITS: Final[Mapping[str, RateLimit]] = {
    "claude": RateLimit(
        answer=lambda now: plan_limit(int(now) + LIMIT_SECONDS), seconds=LIMIT_SECONDS, at=True,
        login={"CLAUDE_CODE_OAUTH_TOKEN": "token-of-the-tests"},
    ),
    "codex": RateLimit(answer=lambda now: FailInStream(fail=_refusal(LATER)), seconds=LIMIT_SECONDS),
    # It waits by itself for as long as the header says, and passes it on when it gives up.
    "opencode": RateLimit(answer=lambda now: _refusal("too many requests", retry_after="1"), seconds=1),
    # It asks seven times in any case, and waits in between for as long as the header says.
    "qwen": RateLimit(answer=lambda now: _refusal(LATER, retry_after="1"), seconds=LIMIT_SECONDS),
    "gemini": RateLimit(answer=lambda now: _refusal("quota", retry_after=str(LIMIT_SECONDS)), seconds=LIMIT_SECONDS),
}  # fmt: skip


def test_a_rate_limit_is_told_with_its_end(stage: Stage) -> None:
    limit = LIMITS[stage.program]
    answer = limit.answer(time.time())
    stage.brain.before = lambda request: answer
    with pytest.raises(AgentFailed) as caught:
        asyncio.run(stage.ask(stage.provider(limit.login)))
    assert caught.value.failure_class is FailureClass.RATE_LIMITED
    if limit.at:
        assert caught.value.resets_at == pytest.approx(time.time() + limit.seconds, abs=60)
    else:
        assert caught.value.retry_after_seconds == limit.seconds


def test_a_policy_waits_for_the_end_of_a_rate_limit_within_the_same_call(stage: Stage) -> None:
    limit = LIMITS[stage.program]
    provider = stage.provider(limit.login)
    clock = SwiftClock(speed=600)
    began: list[float] = []
    answers: list[ModelAnswer] = []

    async def reply(request: AgentRequest) -> AgentReply:
        began.append(clock.wall())
        answers[:] = [limit.answer(clock.wall())] if len(began) == 1 else []
        return await provider.reply(request)

    async def main() -> None:
        limits = Limits(
            max_extra_attempts=1, agent_timeout_seconds=86_400, agent_idle_seconds=86_400, run_deadline_seconds=864_000
        )
        host = Host(providers={"default": reply}, policies={"default": Policy(wait=Wait())}, limits=limits, clock=clock)
        async with host:
            outcome = await host.run(ralph.script, ralph.Args(objective=OBJECTIVE), workspace=stage.workspace)
            assert outcome.stop_reason == "completed"
            assert outcome.value is not None
            assert outcome.value.status == "complete"
            [agent] = outcome.receipt.agents
            assert [(ask.kind, ask.failure_class) for ask in agent.asks] == [("first", "rateLimited"), ("wait", None)]
            assert began[1] - began[0] >= limit.seconds

    stage.brain.rounds = 1
    stage.brain.before = lambda request: next(iter(answers), None)
    asyncio.run(main())


def test_credentials_that_are_not_accepted_are_class_auth(stage: Stage) -> None:
    stage.brain.before = lambda request: Fail(
        status=401, message="invalid x-api-key", type="authentication_error", code="invalid_api_key"
    )
    with pytest.raises(AgentFailed) as caught:
        asyncio.run(stage.ask(stage.provider()))
    assert caught.value.failure_class is FailureClass.AUTH
    assert KEY not in f"{caught.value} {caught.value.evidence} {caught.value.notes}"


OF_STATUS_500: Final = {
    "claude": FailureClass.UNAVAILABLE,
    "codex": FailureClass.OVERLOADED,  # It says that demand is high.
    "opencode": FailureClass.TIMEOUT,  # It repeats the request on and on, without a word; so does qwen.
    "qwen": FailureClass.TIMEOUT,
    "gemini": FailureClass.UNAVAILABLE,  # It repeats as well, but says why.
}


def test_a_backend_that_fails_is_not_waited_for_beyond_the_time_of_an_agent(stage: Stage) -> None:
    stage.brain.before = lambda request: Fail(status=500, message="Internal server error")
    limits = Limits(agent_timeout_seconds=15, agent_grace_seconds=2)
    assert failure_of_round_1(stage, limits) == OF_STATUS_500[stage.program]


def test_a_model_that_falls_silent_is_noticed(stage: Stage) -> None:
    stage.brain.before = lambda request: Stall(said=Say(text="I begin with"), pieces=3)
    limits = Limits(agent_idle_seconds=10, agent_timeout_seconds=100, agent_grace_seconds=2)
    assert failure_of_round_1(stage, limits) == FailureClass.IDLE


def failure_of_round_1(stage: Stage, limits: Limits) -> str | None:
    """Run Ralph, whose first agent has to fail, and look that nothing of the program is left."""

    async def main() -> str | None:
        async with Host(providers={"default": stage.provider()}, limits=limits) as host:
            outcome = await host.run(ralph.script, ralph.Args(objective=OBJECTIVE), workspace=stage.workspace)
            assert not stage.processes
            assert outcome.value is not None
            assert outcome.value.status == "round-failed"
            [agent] = outcome.receipt.agents
            return agent.failure_class

    return asyncio.run(main())


def test_words_instead_of_a_report_are_class_invalid_output(stage: Stage) -> None:
    stage.brain.before = lambda request: Say(text="All is well, and I have nothing to report.")
    with pytest.raises(AgentFailed) as caught:
        asyncio.run(stage.ask(stage.provider()))
    assert caught.value.failure_class is FailureClass.INVALID_OUTPUT
