"""Appends: what goes into a journal in one transaction, and what can come of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from loopwarden.journal.entries import Entry
from loopwarden.store.errors import StoreError
from loopwarden.usage import Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """What an ask costs. Counted against the caps of the run and against every scope of it."""

    is_repeat: bool
    """False: the first ask of a call, counted as a call. True: counted as an extra attempt. Both count as one agent in
    every scope."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What an attempt used; added to the windows that its ask was charged to."""

    windows: Mapping[str, str]
    """As `Appended` gave them for the ask."""
    usage: Usage | None
    """None, or a part that is None: unknown, never zero."""


RowChange: TypeAlias = Literal["none", "stopping", "finished", "held", "queued"]
"""What an append makes of the run's row. finished, held and queued give the lease back."""


@dataclass(slots=True, kw_only=True)
class Append:
    """Entries that go into a journal together, in one transaction."""

    run_id: str
    epoch: int
    entries: Sequence[Entry]
    done: "Callable[[AppendResult], None]"
    """Called on the event loop, in the order of submission for one run. Must not raise."""
    charge: Charge | None = None
    """For an `Asked` among the entries."""
    spent: Spent | None = None
    change: RowChange = "none"
    generation: int = 0
    """Higher when entries are handed over again after `LeaseExpired`. Once one append of a run came back so, those of
    its generation that were behind it come back too: entries never overtake each other."""


@dataclass(frozen=True, slots=True)
class Appended:
    """The append is committed."""

    seq: int
    """Of the last entry."""
    hash: str
    """Of the last entry: the head now."""
    windows: Mapping[str, str]
    """By scope: the window that the ask was charged to."""


@dataclass(frozen=True, slots=True)
class FencedOut:
    """The run has another owner or epoch now. Nothing was appended, nothing ever will be."""


@dataclass(frozen=True, slots=True)
class LeaseExpired:
    """The lease expired, and nobody else has claimed the run. Nothing was appended; a renewal may be granted.

    Hand the append over again, in order and with a higher generation, once it was, and nothing is on its way any more.
    """


@dataclass(frozen=True, slots=True)
class CancelPending:
    """An ask was refused, because a request to cancel the run is committed."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeSpent:
    """An ask was refused, because the budget of a scope is used up. Nothing was charged."""

    scope: str
    measure: Literal["agents", "tokens", "cost"]
    used: float
    limit: float
    frees_at: float | None
    """Unix time at which the next window begins; None for a budget without windows."""
    wait: bool
    """`on_budget = "wait"`: ask again when it frees, or when the budget is raised."""


@dataclass(frozen=True, slots=True)
class CapReached:
    """An ask was refused, because the caps in the run's row are reached. The host counts too, so this is a fault."""

    which: Literal["calls", "extra"]


@dataclass(frozen=True, slots=True)
class AppendFailed:
    """The append could not be made, for a reason that is no conflict: damaged rows, or a store that was closed."""

    error: StoreError


AppendResult: TypeAlias = Appended | FencedOut | LeaseExpired | CancelPending | ScopeSpent | CapReached | AppendFailed
