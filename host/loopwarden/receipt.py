"""The receipt: what a run leaves for its reader. Written by the host alone, read back as hostile data."""

from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from loopwarden.regular_file import open_regular_file
from loopwarden.usage import Usage
from loopwarden_engine.json_decoding import decode_json
from loopwarden_engine.plain import PlainDataError

FORMAT = 1
MAX_RECEIPT_BYTES = 64 * 1024 * 1024

StopReason: TypeAlias = Literal["completed", "error", "cancelled"]


class _Record(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, strict=True, allow_inf_nan=False
    )


class UsageRecord(_Record):
    """What was used, as far as providers measure it; null is unknown, not zero."""

    input_tokens: int | None
    cached_input_tokens: int | None
    output_tokens: int | None
    cost_usd: float | None

    @classmethod
    def of(cls, usage: Usage | None) -> "UsageRecord | None":
        """The record of a usage; None of one that is not known."""
        # Not checked again: it is the host's own value, and there is one for each attempt.
        return None if usage is None else cls.model_construct(**asdict(usage))

    def to_usage(self) -> Usage:
        """As a value that can be added up."""
        return Usage(**dict(self))


class AttemptRecord(_Record):
    """One ask of a provider."""

    number: int
    provider: str
    kind: Literal["first", "redo", "retry", "wait", "fallback"]
    """Why it was asked: the call itself, once more after an interruption, or which grant of the policy."""
    paused_seconds: float
    """How long the call waited before."""
    seconds: float | None
    outcome: Literal["completed", "failed", "cancelled", "interrupted"] | None
    """interrupted: the host died, stopped or lost the run while it was asked. None while it works."""
    failure_class: str | None
    reason: str | None
    evidence: str | None
    """The line that shows the failure, in the words of the backend."""
    usage: UsageRecord | None


class WorktreeRecord(_Record):
    """The git worktree in which the agents of the run worked. It is kept."""

    path: str
    branch: str
    commit: str
    """What it was made from."""
    repository: str
    notes: list[str]


class AgentRecord(_Record):
    """One agent of the run. Paths are relative to the run's folder; None when nothing was kept."""

    seq: int
    key: str
    """The structural identity of the call: the same script gives the same keys, whatever finished first."""
    digest: str
    """SHA-256 over prompt and options as written."""
    label: str
    phase: str | None
    provider: str
    outcome: Literal["completed", "failed", "cancelled"] | None
    """None while the agent runs."""
    reason: str | None
    seconds: float | None
    attempts: int
    notes: list[str]
    folder: str | None
    failure_class: str | None = None
    asks: list[AttemptRecord] = []
    """Every attempt, in order."""
    waiting_until: float | None = None
    """Unix time until which the call waits to be asked again; None when it does not."""


class CheckRecord(_Record):
    """One check that the host ran after a claimed completion."""

    argv: list[str]
    exit: int | None
    """None when it did not end by itself: see `problem`."""
    problem: str | None
    seconds: float
    output_tail: str

    @property
    def passed(self) -> bool:
        """True when it ended by itself, with exit 0."""
        return self.exit == 0 and self.problem is None


class FailureRecord(_Record):
    """Why the run did not end well."""

    code: str
    message: str
    line: int | None = None
    details: dict[str, Any] = {}


class JournalRecord(_Record):
    """The place in the run's journal that the receipt tells of: with this head, a journal that was cut off is found."""

    seq: int
    head: str
    """The hash of entry `seq`."""
    epoch: int
    """How often the run was claimed by a host."""


class Receipt(_Record):
    """Everything a person needs to judge a run: reason, counters, who decided."""

    format: Literal[1] = 1
    run_id: str
    script: str
    script_digest: str
    workspace: str | None
    provider: str
    args: dict[str, Any]
    """The arguments as the contract normalised them."""
    limits: dict[str, int | float | None]
    walls: dict[str, str]
    """Per wall: "stands", or why it does not."""
    settings_digest: str | None
    continues: str | None
    """The run that this one continues."""
    started_at: float
    ended_at: float | None
    stop_reason: StopReason | None
    """None while the run is live."""
    standing: str | None
    """What an accepted result says: complete, blocked, rounds-used, round-failed."""
    sentence: str | None
    """The ending in words."""
    result: Any
    failure: FailureRecord | None
    verified: bool | None
    checks: list[CheckRecord]
    agents_started: int
    attempts: int
    usage: UsageRecord | None = None
    """The sum over all attempts that said what they used."""
    attempts_of_unknown_cost: int = 0
    worktree: WorktreeRecord | None = None
    agents: list[AgentRecord]
    last_handoff: dict[str, Any] | None
    decided_by: str | None
    """Who decided how the run ended: the script, a limit, the operator, the host."""
    problems: list[str]
    """What went wrong beside the run, such as a full disk under the state folder."""
    journal: JournalRecord | None = None
    """None: the run had no store."""

    def to_json(self) -> dict[str, Any]:
        """The JSON form, camelCase."""
        return self.model_dump(by_alias=True, mode="json")


class ReceiptError(ValueError):
    """A receipt cannot be read. The message is a sentence for a person."""


def read_receipt(path: Path) -> Receipt:
    """Read a receipt back. Raises `ReceiptError`."""
    try:
        with open_regular_file(path) as file:
            data = file.read(MAX_RECEIPT_BYTES + 1)
    except OSError as error:
        raise ReceiptError(f"the receipt {path} cannot be read: {(error.strerror or 'input error').lower()}") from None
    if len(data) > MAX_RECEIPT_BYTES:
        raise ReceiptError(f"the receipt {path} is larger than {MAX_RECEIPT_BYTES // 1024 // 1024} MiB")
    try:
        return Receipt.model_validate(decode_json(data))
    except PlainDataError as error:
        raise ReceiptError(f"the receipt {path} is damaged: {error.reason}") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ReceiptError(f"the receipt {path} is damaged: {place}: {first['msg']}") from None
