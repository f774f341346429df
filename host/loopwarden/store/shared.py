"""What hosts of one store share beside runs: budgets, queues and schedules."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """A budget that spans runs. A measure that is None has no limit."""

    name: str
    max_agents: int | None = None
    max_tokens: int | None = None
    max_cost_usd: float | None = None
    per: Literal["forever", "day", "week", "month"] = "forever"
    zone: str = "UTC"
    """IANA name; days, weeks (from Monday) and months begin at midnight there."""
    on_budget: Literal["end", "wait"] = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeUse:
    """A scope and what its current window holds."""

    scope: Scope
    window: str
    """Such as "2026-11-30", or "forever"."""
    frees_at: float | None
    agents: int
    tokens: int
    cost_usd: float
    unknown_usage: int
    """Attempts that ended without saying what they used, or what the budget bounds of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeChange:
    """One line of a scope's log."""

    at: float
    by: str
    scope: Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A queue over all hosts."""

    name: str
    is_paused: bool
    max_running: int | None
    queued: int
    running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Runs that are submitted by the clock."""

    name: str
    cron: str
    zone: str
    overlap: Literal["skip", "queue"]
    is_paused: bool
    next_at: float
    """Unix time in seconds."""
    request: Mapping[str, Any]
    """What is submitted, as JSON: the arguments of `Host.submit`."""
