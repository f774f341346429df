"""What is asked for when a run is submitted, and what a store keeps of it beside the plan."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeAlias

from loopwarden.checks import Check
from loopwarden.creation import DEFAULT_QUEUE, Booking
from loopwarden.failures import InvalidRequest
from loopwarden.limits import LimitOverrides
from loopwarden.plan import Deployment, Isolation, Plan, make_plan
from loopwarden.receipt import Receipt
from loopwarden.script import Script
from loopwarden.store.names import check_name
from loopwarden_engine.plain import MAX_SAFE_INTEGER

AttachedScopes: TypeAlias = Callable[[str, str], Sequence[str]]
"""Names of the budgets that the settings attach to a run, by queue and by name of the loop."""

MAX_KEY_CHARS: Final = 500
MAX_LABEL_CHARS: Final = 500
MAX_LABELS: Final = 100


def no_scopes(_queue: str, _loop: str) -> Sequence[str]:
    """Settings that attach no budget to any run."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """One run to be submitted: the arguments of `Host.submit`, as a value for `Host.submit_many`."""

    script: Script[Any, Any]
    args: object = None
    queue: str = DEFAULT_QUEUE
    key: str | None = None
    """The same key gives the same run."""
    priority: int = 0
    """Higher ones are claimed first."""
    not_before: float | datetime | None = None
    """Unix time in seconds, or a time with a zone; None for at once."""
    labels: Mapping[str, str] | None = None
    scopes: Sequence[str] = ()
    """Budgets across runs that every ask is charged to, beside those that the settings attach."""
    workspace: Path | str | None = None
    share_workspace: bool = False
    isolation: Isolation | None = None
    provider: str | None = None
    checks: Sequence[Check] = ()
    continues: Receipt | None = None
    by: str = ""
    """Who asks, for readers."""
    overrides: LimitOverrides = field(default_factory=LimitOverrides)
    """Limits that this run lowers."""

    def plan(self, deployment: Deployment) -> Plan[Any, Any]:
        """What the run will do. Raises a subclass of `StartRefused`."""
        return make_plan(
            deployment,
            self.script,
            self.args,
            workspace=self.workspace,
            share_workspace=self.share_workspace,
            isolation=self.isolation,
            provider=self.provider,
            checks=self.checks,
            continues=self.continues,
            overrides=self.overrides,
        )

    def booking(self, attached: AttachedScopes, *, keep_prompts: bool) -> Booking:
        """What the store keeps beside the plan. Raises `InvalidRequest`."""
        booking = Booking(
            queue=self.queue,
            key=self.key,
            priority=self.priority,
            not_before=_unix_seconds(self.not_before),
            labels=dict(self.labels or {}),
            scopes=sorted({*self.scopes, *attached(self.queue, self.script.name)}),
            by=self.by,
            keep_prompts=keep_prompts,
        )
        _check(booking)
        return booking


def _unix_seconds(moment: float | datetime | None) -> float:
    if moment is None:
        return 0.0
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise InvalidRequest("not_before has no time zone; give a datetime with one, or Unix time in seconds")
        return moment.timestamp()
    if isinstance(moment, bool) or not isinstance(moment, int | float) or not math.isfinite(moment) or moment < 0:
        raise InvalidRequest(f"not_before is Unix time in seconds, or a datetime with a zone, not {moment!r}")
    return float(moment)


def _check(booking: Booking) -> None:
    try:
        check_name(booking.queue, "a queue")
        for scope in booking.scopes:
            check_name(scope, "a budget")
    except ValueError as error:
        raise InvalidRequest(str(error)) from None
    key, priority = booking.key, booking.priority
    if key is not None and not (isinstance(key, str) and 1 <= len(key) <= MAX_KEY_CHARS and _is_plain(key)):
        raise InvalidRequest(f"a key has 1 to {MAX_KEY_CHARS} characters")
    if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) > MAX_SAFE_INTEGER:
        raise InvalidRequest(f"priority is a whole number, not {priority!r}")
    if len(booking.labels) > MAX_LABELS:
        raise InvalidRequest(f"a run has at most {MAX_LABELS} labels")
    for name, value in booking.labels.items():
        is_text = isinstance(name, str) and isinstance(value, str) and _is_plain(name) and _is_plain(value)
        if not is_text or not name or max(len(name), len(value)) > MAX_LABEL_CHARS:
            raise InvalidRequest(f"a label is a name and a text, both of at most {MAX_LABEL_CHARS} characters")


def _is_plain(text: str) -> bool:
    """Whether a store can keep it: no database takes a null character, and no journal a lone surrogate."""
    return "\0" not in text and not any("\ud800" <= char <= "\udfff" for char in text)
