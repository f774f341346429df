"""What a deployment grants a provider beyond the one ask of each call. Off by default; every repeat is counted.

On a failed attempt the first of these that applies decides, in this order:

    wait       a rate limit whose reset is known and near enough: wait until then, and ask again
    retry      a class that the policy names: back off, and ask again, so often at most
    fallback   another provider for the same call, once; its own `wait` and `retry` apply there
    otherwise  the failure stands, and the script gets None

Each repeat is one of the run's `maxExtraAttempts`, reserved when it is decided. While it waits, a call holds no slot.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from loopwarden.failure_class import FailureClass

RESET_MARGIN_SECONDS: Final = 5.0
"""A little later than the reset: clocks differ."""
RESET_SPREAD_SECONDS: Final = 10.0
"""And not all at the same moment."""
NEVER_REPEATED: Final = frozenset({FailureClass.CANCELLED, FailureClass.INTERRUPTED})
"""Somebody wanted the end; and an interruption is repeated by the host alone, as a redo."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Ask the same provider again after a pause that grows. Raises ValueError for numbers that make no sense."""

    classes: frozenset[FailureClass]
    times: int = 3
    """Repeats of one call, at the most."""
    first_seconds: float = 5.0
    factor: float = 2.0
    max_seconds: float = 300.0
    """The longest pause that the back-off itself chooses."""
    max_server_delay_seconds: float = 600.0
    """The longest delay that is taken from a server. One that asks for more is not asked again: it would refuse."""

    def __post_init__(self) -> None:
        if NEVER_REPEATED & self.classes:
            names = " and ".join(sorted(NEVER_REPEATED & self.classes))
            raise ValueError(f"{names} cannot be retried: somebody wanted the end, or the host itself asks again")
        if not self.classes:
            raise ValueError("a retry needs at least one class of failures")
        if self.times < 1:
            raise ValueError("times must be at least 1")
        if not all(0 <= pause < math.inf for pause in (self.first_seconds, self.max_seconds)):
            raise ValueError("a pause cannot be negative or endless")
        if not self.max_server_delay_seconds >= 0:
            raise ValueError("max_server_delay_seconds cannot be negative")
        if not self.factor >= 1:
            raise ValueError("factor must be at least 1")

    def pause_seconds(self, repeat: int, server_delay_seconds: float | None, jitter: float) -> float | None:
        """The pause before repeat number `repeat` (from 1); `jitter` is in [0, 1). None: do not ask again."""
        if server_delay_seconds is not None and server_delay_seconds > self.max_server_delay_seconds:
            return None
        # Not 2.0 ** 10_000: that is an overflow, and beyond the cap the exponent does not matter.
        full = self.first_seconds
        for _ in range(min(repeat - 1, 64)):
            full = min(full * self.factor, self.max_seconds)
        pause = min(full, self.max_seconds) * (0.5 + 0.5 * jitter)
        return max(pause, server_delay_seconds or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """On a rate limit with a known reset: wait for it within the same call."""

    max_seconds: float = 21600.0

    def __post_init__(self) -> None:
        if not self.max_seconds > 0:  # nan included
            raise ValueError("max_seconds must be above zero")


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerRule:
    """When a provider is out of use: at once on `auth` and `billing`, else after failures of one class in a row."""

    failures: int = 5
    reopen_seconds: float = 900.0
    """After that long, one agent may try again."""

    def __post_init__(self) -> None:
        if self.failures < 1:
            raise ValueError("failures must be at least 1")
        if not 0 < self.reopen_seconds < math.inf:
            raise ValueError("reopen_seconds must be above zero, and not endless")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What one provider is granted."""

    retry: Retry | None = None
    wait: Wait | None = None
    fallback: str | None = None
    """The name of another provider."""
    breaker: BreakerRule | None = None

    @property
    def repeats(self) -> bool:
        """True when it grants more asks than calls: then `maxExtraAttempts` is needed."""
        return self.retry is not None or self.wait is not None or self.fallback is not None


NO_POLICY: Final = Policy()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trail:
    """What one call has used of its policy so far, at its present provider."""

    retries: int = 0
    is_fallback: bool = False
    """The present provider is the fallback of another: there is no second one."""


FRESH_TRAIL: Final = Trail()


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitStep:
    """Wait until `until` (Unix time), then ask the same provider."""

    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryStep:
    """Pause for `seconds`, then ask the same provider."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FallbackStep:
    """Ask another provider now."""

    provider: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """The failure stands."""


Step: TypeAlias = WaitStep | RetryStep | FallbackStep | GiveUp


def next_step(
    policy: Policy,
    trail: Trail,
    failure_class: FailureClass,
    *,
    resets_at: float | None,
    retry_after_seconds: float | None,
    now: float,
    left_seconds: float,
    jitter: float,
) -> Step:
    """What follows a failed attempt. Pure.

    `resets_at` and `now` are Unix times, `jitter` is in [0, 1). `left_seconds` is what the run still has: nothing is
    waited for that lies behind its deadline.
    """
    if failure_class in NEVER_REPEATED:
        return GiveUp()
    if policy.wait is not None and failure_class is FailureClass.RATE_LIMITED:
        reset = known_reset(resets_at, retry_after_seconds, now)
        if reset is not None and reset - now <= min(policy.wait.max_seconds, left_seconds):
            return WaitStep(until=max(reset, now) + RESET_MARGIN_SECONDS + RESET_SPREAD_SECONDS * jitter)
    retry = policy.retry
    if retry is not None and failure_class in retry.classes and trail.retries < retry.times:
        delay = retry_after_seconds
        if resets_at is not None:
            delay = max(delay or 0.0, resets_at - now)
        pause = retry.pause_seconds(trail.retries + 1, delay, jitter)
        if pause is not None and pause <= left_seconds:
            return RetryStep(seconds=pause)
    if policy.fallback is not None and not trail.is_fallback:
        return FallbackStep(provider=policy.fallback)
    return GiveUp()


def known_reset(resets_at: float | None, retry_after_seconds: float | None, now: float) -> float | None:
    """When a rate limit is over, as far as the backend has said: as a time, or as a delay."""
    if resets_at is not None or retry_after_seconds is None:
        return resets_at
    return now + retry_after_seconds


def check_policies(policies: Mapping[str, Policy], providers: Mapping[str, object]) -> None:
    """Raises ValueError when a policy names a provider that does not exist, or itself."""
    for name, policy in policies.items():
        if name not in providers:
            raise ValueError(f"there is a policy for the provider {name!r}, which does not exist")
        if policy.fallback is not None and policy.fallback not in providers:
            raise ValueError(f"the fallback {policy.fallback!r} of the provider {name!r} does not exist")
        if policy.fallback == name:
            raise ValueError(f"the provider {name!r} cannot be its own fallback")
