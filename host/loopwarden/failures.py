"""What can go wrong with a run: one closed set of codes, and one table that says what each means to whom.

    LoopwardenError
    +- StartRefused          nothing was started; one subclass per code
    |  +- ScriptRejected  ArgsInvalid  InvalidRequest  ProviderUnfit  ConfinementUnavailable
    |  +- LaunchFailed  WorkspaceBusy  SettingsInWorkspace  StoreRefused
    +- RunFailed             raised only by `Outcome.raise_for_failure()`
       +- RunCancelled

What happens inside a run is a value (`Outcome.failure`), never an exception of `wait()`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Final


class Code(StrEnum):
    """Every way in which a run does not begin, or does not end well (design section 11)."""

    SCRIPT_REJECTED = "SCRIPT_REJECTED"
    ARGS_INVALID = "ARGS_INVALID"
    INVALID_REQUEST = "INVALID_REQUEST"
    PROVIDER_UNFIT = "PROVIDER_UNFIT"
    CONFINEMENT_UNAVAILABLE = "CONFINEMENT_UNAVAILABLE"
    LAUNCH_FAILED = "LAUNCH_FAILED"
    WORKSPACE_BUSY = "WORKSPACE_BUSY"
    SETTINGS_IN_WORKSPACE = "SETTINGS_IN_WORKSPACE"
    STORE_UNAVAILABLE = "STORE_UNAVAILABLE"

    SCRIPT_ERROR = "SCRIPT_ERROR"
    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    UNSUPPORTED_OPTION = "UNSUPPORTED_OPTION"
    UNSUPPORTED_SCHEMA = "UNSUPPORTED_SCHEMA"
    AGENT_CAP = "AGENT_CAP"
    COST_CAP = "COST_CAP"
    ITEM_CAP = "ITEM_CAP"
    AGENT_START = "AGENT_START"
    AGENT_RESULT = "AGENT_RESULT"
    RESULT_INVALID = "RESULT_INVALID"
    CONTRACT = "CONTRACT"
    PROVENANCE = "PROVENANCE"
    CPU_LIMIT = "CPU_LIMIT"
    MEMORY_LIMIT = "MEMORY_LIMIT"
    NARRATION_LIMIT = "NARRATION_LIMIT"
    DEADLINE = "DEADLINE"
    PROTOCOL = "PROTOCOL"
    WORKER_LOST = "WORKER_LOST"
    CANCELLED = "CANCELLED"
    SCOPE_BUDGET = "SCOPE_BUDGET"

    REPLAY_DIVERGED = "REPLAY_DIVERGED"
    STORE_CORRUPT = "STORE_CORRUPT"
    HOST_LOST = "HOST_LOST"


HOLDING: Final = frozenset({Code.REPLAY_DIVERGED, Code.STORE_CORRUPT, Code.HOST_LOST})
"""These hold a run of a store instead of ending it: it can be resumed once the reason is mended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a run did not begin or did not end well: a sentence that says what happened and what to do."""

    code: Code
    message: str
    line: int | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The form of receipts, events and `--json`. `line` and `details` only when there are any."""
        shown: dict[str, Any] = {"code": self.code.value, "message": self.message}
        if self.line is not None:
            shown["line"] = self.line
        if self.details:
            shown["details"] = dict(self.details)
        return shown


class LoopwardenError(Exception):
    """The base of all exceptions that Loopwarden raises on purpose."""


class StartRefused(LoopwardenError):
    """Nothing was started, nothing was announced. `code`, `message` and `details` say why."""

    code: ClassVar[Code] = Code.INVALID_REQUEST

    def __init__(self, message: str, *, line: int | None = None, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.line = line
        self.details: Mapping[str, Any] = details or {}

    @property
    def failure(self) -> Failure:
        """The refusal as a value."""
        return Failure(code=self.code, message=self.message, line=self.line, details=self.details)


class ScriptRejected(StartRefused):
    """The script breaks the language policy or cannot be read. `details["violations"]` lists every violation."""

    code = Code.SCRIPT_REJECTED


class ArgsInvalid(StartRefused):
    """The contract refuses the arguments."""

    code = Code.ARGS_INVALID


class InvalidRequest(StartRefused):
    """A limit, workspace, provider name or other part of the request cannot be used."""

    code = Code.INVALID_REQUEST


class ProviderUnfit(StartRefused):
    """The provider lacks a capability that the loop needs."""

    code = Code.PROVIDER_UNFIT


class ConfinementUnavailable(StartRefused):
    """A wall does not stand on this machine, and the deployment did not opt in to run without it."""

    code = Code.CONFINEMENT_UNAVAILABLE


class LaunchFailed(StartRefused):
    """The launcher or a worker could not be started."""

    code = Code.LAUNCH_FAILED


class WorkspaceBusy(StartRefused):
    """Another run holds the workspace."""

    code = Code.WORKSPACE_BUSY


class SettingsInWorkspace(StartRefused):
    """Settings, scripts or state lie where an agent can write."""

    code = Code.SETTINGS_IN_WORKSPACE


class StoreRefused(StartRefused):
    """The store cannot take the run: it cannot be reached, its disk is full, or a newer version wrote it."""

    code = Code.STORE_UNAVAILABLE


class RunFailed(LoopwardenError):
    """A run ended with a failure; raised by `Outcome.raise_for_failure()`."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"{failure.code}: {failure.message}")
        self.failure = failure


class RunCancelled(RunFailed):
    """A run was cancelled; raised by `Outcome.raise_for_failure()`."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """One row of the table: the exception class, the exit of the command line, the status of the HTTP service."""

    exception: type[LoopwardenError]
    exit: int
    http_status: int


EXIT_COMPLETE: Final = 0
EXIT_FAILED: Final = 1
EXIT_NOT_STARTED: Final = 2
EXIT_BLOCKED: Final = 3
EXIT_ROUNDS_USED: Final = 4
EXIT_ROUND_FAILED: Final = 5
EXIT_CHECK_FAILED: Final = 6
EXIT_TRY_LATER: Final = 75
EXIT_DEADLINE: Final = 124
EXIT_INTERRUPTED: Final = 130
EXIT_TERMINATED: Final = 143

MEANINGS: Final[Mapping[Code, Meaning]] = {
    Code.SCRIPT_REJECTED: Meaning(ScriptRejected, EXIT_NOT_STARTED, 422),
    Code.ARGS_INVALID: Meaning(ArgsInvalid, EXIT_NOT_STARTED, 422),
    Code.INVALID_REQUEST: Meaning(InvalidRequest, EXIT_NOT_STARTED, 400),
    Code.PROVIDER_UNFIT: Meaning(ProviderUnfit, EXIT_NOT_STARTED, 422),
    Code.CONFINEMENT_UNAVAILABLE: Meaning(ConfinementUnavailable, EXIT_NOT_STARTED, 503),
    Code.LAUNCH_FAILED: Meaning(LaunchFailed, EXIT_NOT_STARTED, 503),
    Code.WORKSPACE_BUSY: Meaning(WorkspaceBusy, EXIT_TRY_LATER, 409),
    Code.SETTINGS_IN_WORKSPACE: Meaning(SettingsInWorkspace, EXIT_NOT_STARTED, 403),
    Code.STORE_UNAVAILABLE: Meaning(StoreRefused, EXIT_TRY_LATER, 503),
    Code.SCRIPT_ERROR: Meaning(RunFailed, EXIT_FAILED, 200),
    Code.INVALID_ARGUMENT: Meaning(RunFailed, EXIT_FAILED, 200),
    Code.UNSUPPORTED_OPTION: Meaning(RunFailed, EXIT_FAILED, 200),
    Code.UNSUPPORTED_SCHEMA: Meaning(RunFailed, EXIT_FAILED, 200),
    Code.AGENT_CAP: Meaning(RunFailed, EXIT_FAILED, 200),
    Code.COST_CAP: Meaning(RunFailed, EXIT_FAILED, 200),
    Code.ITEM_CAP: Meaning(RunFailed, EXIT_FAILED, 200),
    Code.AGENT_START: Meaning(RunFailed, EXIT_FAILED, 200),
    Code.AGENT_RESULT: Meaning(RunFailed, EXIT_FAILED, 200),
    Code.RESULT_INVALID: Meaning(RunFailed, EXIT_FAILED, 200),
    Code.CONTRACT: Meaning(RunFailed, EXIT_FAILED, 200),
    Code.PROVENANCE: Meaning(RunFailed, EXIT_FAILED, 200),
    Code.CPU_LIMIT: Meaning(RunFailed, EXIT_FAILED, 200),
    Code.MEMORY_LIMIT: Meaning(RunFailed, EXIT_FAILED, 200),
    Code.NARRATION_LIMIT: Meaning(RunFailed, EXIT_FAILED, 200),
    Code.DEADLINE: Meaning(RunFailed, EXIT_DEADLINE, 200),
    Code.PROTOCOL: Meaning(RunFailed, EXIT_FAILED, 200),
    Code.WORKER_LOST: Meaning(RunFailed, EXIT_FAILED, 200),
    Code.CANCELLED: Meaning(RunCancelled, EXIT_INTERRUPTED, 200),
    Code.SCOPE_BUDGET: Meaning(RunFailed, EXIT_TRY_LATER, 200),
    Code.REPLAY_DIVERGED: Meaning(RunFailed, EXIT_FAILED, 200),
    Code.STORE_CORRUPT: Meaning(RunFailed, EXIT_FAILED, 200),
    Code.HOST_LOST: Meaning(RunFailed, EXIT_FAILED, 200),
}
"""The one table of design section 11. A run that began answers HTTP 200: its failure is the content of the answer."""
