"""Runs as a store knows them: rows, claims, what hosts want, and what is asked of their owners."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Literal

from loopwarden.journal.entries import Created, ReplayVersion


class Status(StrEnum):
    """Where a run stands in a store. A projection of its journal, kept in the same transaction."""

    QUEUED = "queued"
    """Waits for a host: new, given back by one that stopped in order, or due later."""
    RUNNING = "running"
    """A host owns it, or owned it until its lease expired."""
    HELD = "held"
    """Needs a person: see the reason."""
    FINISHED = "finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One run as a store lists it."""

    run_id: str
    key: str | None
    content_digest: str
    """Over everything that was asked for; tells a repeated submission from another one under the same key."""
    script: str
    provider: str
    workspace: str | None
    queue: str | None
    priority: int
    not_before: float
    """Unix time in seconds; 0 for at once."""
    labels: Mapping[str, str]
    scopes: tuple[str, ...]
    source_digest: str
    contract_digest: str
    replay: ReplayVersion
    status: Status
    stop_reason: str | None
    """Of the last segment, once it finished."""
    failure_code: str | None
    """Of the last segment, or why the run is held."""
    reason: str | None
    """Why it is held or failed, as a sentence."""
    epoch: int
    owner: str | None
    lease_until: float | None
    """In the store's time."""
    head_seq: int
    head_hash: str
    max_calls: int
    """maxTotalAgents, in force now."""
    max_extra: int
    """maxExtraAttempts, in force now."""
    calls: int
    """Charged so far."""
    extra: int
    """Asks beyond the first of a call, charged so far."""
    idle_claims: int
    """Claims in a row after which nothing was appended."""
    cancel_reason: str | None
    """Set by a committed request to cancel; no ask commits after it."""
    submitted_at: float
    finished_at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """A run to be created. `created` is its first entry."""

    created: Created
    content_digest: str
    not_before: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The host that claims, renews and appends."""

    host_id: str
    """Unique per host object: host name, process id and a random part. For people and for the fence."""
    lease_seconds: float


ANY_SCRIPT: Final = "*"
"""In `Wanted.scripts`: under this contract, scripts of any name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a host can drive. A claim gives only runs that fit all of it."""

    queues: Mapping[str, int]
    """Free places of this host, by queue. A queue that is paused, or at its max_running over all hosts, gives none."""
    scripts: Mapping[str, str]
    """By name: digest of the contract that this host has for it. `ANY_SCRIPT`: the one that fits any name."""
    replay: ReplayVersion
    providers: Collection[str]
    """Those that may be asked now: an open breaker takes its provider out."""
    workspaces: Collection[str]
    """Names of workspaces that this host declares."""
    sources: Collection[str] | None = None
    """Digests of approved sources; None when the deployment requires no approval."""
    kill_grace_seconds: float
    """How long after its lease expired a run's agents may still live; only then it is claimed."""


MAX_IDLE_CLAIMS: Final = 5
"""Claims in a row without progress; then the run is held, since it may be killing its hosts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A run that the host now owns. The entry `claimed` is its head."""

    row: RunRow
    rows: "Sequence[StoredEntry]"
    """The whole journal, `claimed` included."""
    blobs: Mapping[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEntry:
    """One row of a journal, undecoded: exactly the bytes that were hashed."""

    seq: int
    body: bytes
    hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What somebody who does not own a run asks of its owner."""

    number: int
    run_id: str
    kind: Literal["cancel", "raise"]
    body: Mapping[str, Any]
    by: str
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Which runs to list. None: any."""

    status: Status | None = None
    queue: str | None = None
    script: str | None = None
    labels: Mapping[str, str] | None = None
    """All of these."""
    before: str | None = None
    """Only runs submitted before the run with this id: the next page."""
    limit: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Tombstone:
    """What is left of a run that was pruned, so that budgets stay sums."""

    run_id: str
    key: str | None
    head_seq: int
    head_hash: str
    calls: int
    attempts: int
    charges: Mapping[str, Mapping[str, int]]
    """Agents by scope and window."""
    pruned_at: float
