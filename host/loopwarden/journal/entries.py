"""The entries of a journal: a closed set, with their strict JSON form. Written by the owner of a run alone.

What happened is said once, here; status, counters, receipts, results and events are folds of these entries. A field
that is added later has a default, so that old journals stay readable; a field is never given another meaning.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

from loopwarden.receipt import CheckRecord, FailureRecord, StopReason, UsageRecord, WorktreeRecord

FORMAT: Final = 1
"""Of journals. A store of a newer format is left alone."""

AskKind: TypeAlias = Literal["first", "redo", "retry", "wait", "fallback"]
"""Why a provider is asked: the call itself, once more after an interruption, or which grant of a policy."""


class EntryError(ValueError):
    """Bytes that claim to be an entry are none. The message names the field."""


class _Record(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, strict=True, allow_inf_nan=False
    )


class _Entry(_Record):
    at: float
    """Unix time in seconds by the clock of the host that wrote it; for readers, no rule depends on it."""


class ReplayVersion(_Record):
    """What a host must be to replay a run exactly."""

    python: str
    """Minor version, such as "3.11"."""
    restricted_python: str
    policy: str
    """Digest of the language policy and the runtime of workers, facades included."""


class CheckSpec(_Record):
    """One check that the host runs after a claimed completion."""

    argv: list[str]


class OpeningRecord(_Record):
    """What a continued run begins with."""

    run_id: str
    handoff: dict[str, Any] | None
    failed_checks: str | None


class Created(_Entry):
    """The first entry of every journal: all that a run needs, so that any host of the deployment can drive it."""

    entry: Literal["created"] = "created"
    format: int = FORMAT
    run_id: str
    script: str
    """The name under which hosts know its contract."""
    source: str
    source_digest: str
    contract_digest: str
    args: dict[str, Any]
    """The arguments as the contract shows them; its `decode_args` takes them back."""
    limits: dict[str, int | float | None]
    """Every limit of the run, by its Python name."""
    provider: str
    workspace: str | None = None
    """A path on this machine, or the name of a workspace that several hosts declare."""
    share_workspace: bool = False
    isolation: Literal["worktree"] | None = None
    checks: list[CheckSpec] = []
    opening: OpeningRecord | None = None
    settings_digest: str | None = None
    replay: ReplayVersion
    keep_prompts: bool = False
    scopes: list[str] = []
    """In byte order: budgets across runs that every ask is charged to."""
    queue: str | None = None
    """None: begun by `start`, without waiting in a queue."""
    key: str | None = None
    labels: dict[str, str] = {}
    priority: int = 0
    by: str = ""
    """Who asked for the run, as far as the host knows."""


class Claimed(_Entry):
    """A host became the owner. From here on only entries of this epoch follow."""

    entry: Literal["claimed"] = "claimed"
    epoch: int
    host: str


class Asked(_Entry):
    """A call is charged and its provider will be asked. Committed before the provider hears of it."""

    entry: Literal["asked"] = "asked"
    seq: int
    """Of the call, 1, 2, 3 … in the order of acceptance."""
    key: str
    """The structural identity of the call."""
    digest: str
    """SHA-256 over prompt and options as written."""
    attempt: int
    """1, 2, 3 … within the call."""
    ask: AskKind
    provider: str
    label: str
    phase: str | None = None
    line: int | None = None
    prompt: str | None = None
    """Only when prompts are kept."""
    windows: dict[str, str] = {}
    """By scope: the budget window that this ask is charged to. Filled in by the store, in its time."""


class AttemptEnded(_Entry):
    """An attempt ended and gave the script nothing: another one may follow, or the run ends."""

    entry: Literal["attemptEnded"] = "attemptEnded"
    seq: int
    attempt: int
    outcome: Literal["failed", "cancelled", "interrupted"]
    """cancelled: the run ended first. interrupted: the host died, or lost the run, while it was asked."""
    reason: str | None = None
    failure_class: str | None = None
    evidence: str | None = None
    usage: UsageRecord | None = None
    seconds: float | None = None
    is_last: bool = False
    """No attempt follows in this segment of the run: observers see the agent end here. The script got nothing, so a run
    that is reopened asks the call again."""


class Waiting(_Entry):
    """A policy lets a call wait before it is asked again."""

    entry: Literal["waiting"] = "waiting"
    seq: int
    until: float
    """Unix time in seconds."""
    ask: AskKind
    """What the next ask will be."""


class WaitCancelled(_Entry):
    """The run ended while a policy let a call wait: observers see its agent end here. A reopened run asks it again."""

    entry: Literal["waitCancelled"] = "waitCancelled"
    seq: int


class Ended(_Entry):
    """The one end of a call that its script gets, and of its last attempt. Never asked again."""

    entry: Literal["ended"] = "ended"
    seq: int
    attempt: int
    outcome: Literal["completed", "failed"]
    value: Any = None
    """What the script gets: text, object, or null when the call failed."""
    reason: str | None = None
    failure_class: str | None = None
    evidence: str | None = None
    notes: list[str] = []
    usage: UsageRecord | None = None
    seconds: float | None = None


class PhaseNamed(_Entry):
    """The script named what it does now."""

    entry: Literal["phase"] = "phase"
    title: str


class Logged(_Entry):
    """The script told its observers something."""

    entry: Literal["log"] = "log"
    message: str


class ItemFailed(_Entry):
    """An exception made one item of a combinator null."""

    entry: Literal["itemFailed"] = "itemFailed"
    combinator: str
    index: int
    line: int | None = None
    message: str


class ConclusionRecord(_Record):
    """What an accepted result says."""

    standing: str
    sentence: str
    body: str = ""


class Stopping(_Entry):
    """The first terminal event: from here on the status of this segment is fixed and nothing more is asked."""

    entry: Literal["stopping"] = "stopping"
    stop_reason: StopReason
    failure: FailureRecord | None = None
    result: Any = None
    conclusion: ConclusionRecord | None = None


class Finished(_Entry):
    """No process of the run is left, and its checks have run."""

    entry: Literal["finished"] = "finished"
    agents_started: int
    attempts: int
    verified: bool | None = None
    checks: list[CheckRecord] = []
    worktree: WorktreeRecord | None = None
    last_handoff: dict[str, Any] | None = None
    walls: dict[str, str] = {}
    problems: list[str] = []


class Reopened(_Entry):
    """An operator resumed a run that had ended, or that was held, in the same journal."""

    entry: Literal["reopened"] = "reopened"
    by: str
    why: str
    limits: dict[str, int | float | None] = {}
    """Limits that changed, by their Python names."""
    args: dict[str, Any] = {}
    """Arguments that rose with them, by the names of `Created.args`."""


class LimitsRaised(_Entry):
    """An operator raised limits of a live run."""

    entry: Literal["limitsRaised"] = "limitsRaised"
    by: str
    limits: dict[str, int | float | None]
    """By their Python names."""


class Held(_Entry):
    """The run cannot go on until a person looked at it. Nothing is lost; it can be resumed."""

    entry: Literal["held"] = "held"
    code: str
    """A failure code, such as REPLAY_DIVERGED."""
    reason: str


Entry: TypeAlias = (
    Created
    | Claimed
    | Asked
    | AttemptEnded
    | Waiting
    | WaitCancelled
    | Ended
    | PhaseNamed
    | Logged
    | ItemFailed
    | Stopping
    | Finished
    | Reopened
    | LimitsRaised
    | Held
)
Narration: TypeAlias = PhaseNamed | Logged | ItemFailed
NARRATION: Final = (PhaseNamed, Logged, ItemFailed)

_MAX_SHOWN_CHARS: Final = 200
_ADAPTER: Final[TypeAdapter[Entry]] = TypeAdapter(Annotated[Entry, Field(discriminator="entry")])


def entry_from_json(body: object) -> Entry:
    """An entry from its JSON form, which is hostile. Raises `EntryError`."""
    try:
        return _ADAPTER.validate_python(body)
    except ValidationError as error:
        first = error.errors()[0]
        # Both quote what stands there, however long it is.
        place = ".".join(str(part)[:_MAX_SHOWN_CHARS] for part in first["loc"])
        raise EntryError(f"{place or 'the entry'}: {first['msg'][:_MAX_SHOWN_CHARS]}") from None


@dataclass(frozen=True, slots=True)
class Chained:
    """An entry with its place in the chain."""

    seq: int
    """1, 2, 3 … within the journal."""
    entry: Entry
    hash: str
    """`sha256:…` over the hash before and the stored bytes of this entry."""
