"""Carries out what a policy grants after a failed attempt: reserves the repeat, lets the call wait, says so."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, assert_never

from loopwarden.agent import Agent
from loopwarden.attempt import AttemptKind, Failed
from loopwarden.clock import Clock
from loopwarden.display import cut, duration, time_of_day
from loopwarden.failure_class import FailureClass
from loopwarden.policy import (
    NO_POLICY,
    FallbackStep,
    GiveUp,
    Policy,
    RetryStep,
    Step,
    WaitStep,
    known_reset,
    next_step,
)
from loopwarden.provider import Provider

LOOK_AGAIN_SECONDS: Final = 600.0
"""A long wait is looked at so often: the line that says how long it still takes stays true, and a machine that was
suspended meanwhile goes on at the time that was meant."""
_WORTH_A_LINE_SECONDS: Final = 60.0
_MAX_REASON_CHARS: Final = 500


@dataclass(slots=True, kw_only=True, eq=False)
class Repeats:
    """The repeats of one run. Exact: what is decided is reserved, and never given back."""

    max_extra_attempts: int
    policies: Mapping[str, Policy]
    providers: Mapping[str, Provider]
    clock: Clock
    remark: Callable[[Agent, str], None]
    resume: Callable[[Agent], None]
    jitter: Callable[[], float]
    is_told: Callable[[], bool] = lambda: False
    """True when observers learn of each step from the journal: then only the time that passes is told here."""
    ends_at: float = math.inf
    """The deadline of the run, on the scale of the host's clock."""
    _used: int = 0
    _paused: dict[Agent, float] = field(default_factory=dict)
    """Until when (Unix time) each waits."""

    def step_after(self, agent: Agent, failed: Failed) -> Step:
        """What the policy of the agent's provider says. Reserves nothing."""
        return next_step(
            self.policy_of(agent),
            agent.trail,
            failed.failure_class,
            resets_at=failed.resets_at,
            retry_after_seconds=failed.retry_after_seconds,
            now=self.clock.wall(),
            left_seconds=self._left_seconds,
            jitter=self.jitter(),
        )

    def why_not_waited(self, agent: Agent, failed: Failed) -> str:
        """Why a rate limit that is known to end is not waited for; empty when there is nothing to explain."""
        now, wait = self.clock.wall(), self.policy_of(agent).wait
        reset = known_reset(failed.resets_at, failed.retry_after_seconds, now)
        if failed.failure_class is not FailureClass.RATE_LIMITED or reset is None:
            return ""
        ends = f"the limit ends at {time_of_day(reset, now)}, in {_left(max(0.0, reset - now))}"
        if wait is None:
            return f"{ends}; a wait policy would wait for it"
        if reset - now > wait.max_seconds:
            return f"{ends}; max_seconds of the wait policy allows {duration(wait.max_seconds)}"
        return f"{ends}, and the run's deadline comes before" if reset - now > self._left_seconds else ""

    @property
    def _left_seconds(self) -> float:
        return self.ends_at - self.clock.now()

    def waiting_until(self, agent: Agent) -> float | None:
        """Unix time until which a call waits; None when it does not."""
        return self._paused.get(agent)

    def policy_of(self, agent: Agent) -> Policy:
        """The policy in force for the agent's next attempt."""
        return self.policies.get(agent.provider_name, NO_POLICY)

    def fallback_of(self, agent: Agent) -> str | None:
        """The provider that may still take over; None when there is none, or it was asked already."""
        return None if agent.trail.is_fallback else self.policy_of(agent).fallback

    def reserve(self) -> bool:
        """Reserve one repeat. False when none is left."""
        if self._used >= self.max_extra_attempts:
            return False
        self._used += 1
        return True

    def restore(self, used: int) -> None:
        """Take over what the journal says was reserved."""
        self._used = used

    def wait_on(self, agent: Agent, until: float, *, since: float) -> None:
        """Let a call go on waiting that waited when another host drove its run. Both are Unix times."""
        agent.paused_at = self.clock.now() - max(0.0, self.clock.wall() - since)
        self._wait(agent, until)

    def until(self, step: "WaitStep | RetryStep | FallbackStep") -> tuple[AttemptKind, float]:
        """What the next ask will be, and when (Unix time)."""
        match step:
            case WaitStep(until=until):
                return "wait", until
            case RetryStep(seconds=seconds):
                return "retry", self.clock.wall() + seconds
            case FallbackStep():
                return "fallback", self.clock.wall()
            case _:
                assert_never(step)

    def switch(self, agent: Agent, provider: str) -> None:
        """Let another provider take over the call."""
        agent.provider_name, agent.provider = provider, self.providers[provider]
        agent.trail = replace(agent.trail, retries=0, is_fallback=True)
        agent.next_kind = "fallback"

    def carry_out(self, agent: Agent, step: Step, failed: Failed) -> None:
        """Do what was decided and reserved. `resume` is called when the call is to be asked again."""
        number, name = len(agent.attempts), agent.provider_name
        # Cut, so that what the host does about it is not: a remark has its own bound.
        reason = cut(failed.reason, _MAX_REASON_CHARS)
        head = f"attempt {number} of {name} failed ({failed.failure_class.value}): {reason}"
        tell = _tell_nobody if self.is_told() else self.remark
        agent.paused_at = self.clock.now()
        match step:
            case WaitStep(until=until):
                agent.next_kind = "wait"
                tell(agent, head)
                self._wait(agent, until)
            case RetryStep(seconds=seconds):
                agent.next_kind = "retry"
                agent.trail = replace(agent.trail, retries=agent.trail.retries + 1)
                tell(agent, f"{head}; asking again in {duration(seconds)}")
                self._wait(agent, self.clock.wall() + seconds)
            case FallbackStep(provider=provider):
                self.switch(agent, provider)
                tell(agent, f"{head}; asking {provider} instead")
                self.resume(agent)
            case GiveUp():
                raise AssertionError("giving up is nothing to carry out")
            case _:
                assert_never(step)

    def stop(self, agent: Agent) -> None:
        """The call waits no longer: its run ended."""
        self._paused.pop(agent, None)
        if agent.pause_timer is not None:
            agent.pause_timer.cancel()
            agent.pause_timer = None

    def _wait(self, agent: Agent, until: float) -> None:
        self._paused[agent] = until
        self._look(agent, is_first=True)

    def _look(self, agent: Agent, *, is_first: bool = False) -> None:
        until = self._paused[agent]
        left = until - self.clock.wall()
        if left <= 0:
            self.stop(agent)
            self.resume(agent)
            return
        if left >= _WORTH_A_LINE_SECONDS and not (is_first and self.is_told()):
            self.remark(agent, f"waiting until {time_of_day(until, self.clock.wall())}, {_left(left)} left")
        agent.pause_timer = self.clock.call_later(min(left, LOOK_AGAIN_SECONDS), lambda: self._look(agent))


def _tell_nobody(agent: Agent, message: str) -> None:
    """Observers learn it from the journal."""


def _left(seconds: float) -> str:
    return duration(seconds if seconds < LOOK_AGAIN_SECONDS else round(seconds / 60) * 60)
