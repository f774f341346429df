"""The host-side meaning of a script: its arguments, its calls, its result.

A contract is trusted code; it runs in the host, never in a worker. It holds no state of a run: what the host counted
itself comes in as `Facts`. Raise `ContractBroken` or `ProvenanceBroken` to end the run.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeVar

from pydantic import BaseModel

from loopwarden.failures import ArgsInvalid, LoopwardenError
from loopwarden.provider import Capabilities
from loopwarden_engine.plain import JsonObject, JsonValue, PlainDataError, copy_object

ArgsT = TypeVar("ArgsT")
ResultT = TypeVar("ResultT")


class ContractBroken(LoopwardenError):
    """A call or a result breaks the contract (CONTRACT)."""


class ProvenanceBroken(LoopwardenError):
    """A result holds a report that no agent of this run returned (PROVENANCE)."""


class AgentOutcome(StrEnum):
    """How an agent ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFacts:
    """One call as the host received it. Options that were not given are None."""

    seq: int
    prompt: str
    label: str | None
    phase: str | None
    """The phase in force: the option, else the current title."""
    schema: JsonObject | None
    provider: str | None
    model: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """The end of one agent. `value` is what the host delivered to the script: text, object, or None."""

    seq: int
    outcome: AgentOutcome
    value: JsonValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What a continued run begins with."""

    run_id: str
    """The run that this one continues."""
    handoff: JsonObject | None
    """The last valid handoff of that run."""
    failed_checks: str | None
    """Output of the checks that failed after that run, if any."""


@dataclass(slots=True, kw_only=True)
class Facts:
    """What the host counted itself. Read-only for contracts."""

    opening: Opening | None = None
    calls: list[CallFacts] = field(default_factory=list)
    """Accepted calls, in order, without the one that is being checked."""
    deliveries: list[Delivery] = field(default_factory=list)
    """Ends of agents, in the order in which they were delivered."""
    agents_started: int = 0


class Standing(StrEnum):
    """What a result that was accepted says about the task."""

    COMPLETE = "complete"
    BLOCKED = "blocked"
    ROUNDS_USED = "rounds-used"
    ROUND_FAILED = "round-failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """A result in words. `sentence` makes no claim that the host did not check: "agent reported completion …"."""

    standing: Standing
    sentence: str
    body: str = ""
    """More text, such as the final report; agent text inside is not yet escaped for display."""


class Contract(ABC, Generic[ArgsT, ResultT]):
    """Subclass this for a loop of your own; `PlainContract` serves scripts without one."""

    requires: Capabilities = Capabilities()
    """What a provider must be able to do."""
    args_model: type[BaseModel] | None = None
    """The pydantic model of the arguments; the command line makes one option of each field."""

    @abstractmethod
    def decode_args(self, args: object) -> ArgsT:
        """Check and normalise the arguments of a request. Raises `ArgsInvalid` with a sentence."""

    @abstractmethod
    def script_args(self, args: ArgsT, opening: Opening | None) -> JsonObject:
        """What `main(args)` of the script gets."""

    def args_json(self, args: ArgsT) -> JsonObject:
        """The arguments as a receipt shows them; `decode_args` takes them back."""
        if isinstance(args, BaseModel):
            return args.model_dump(mode="json", by_alias=True)
        return copy_object(args, "args")

    def max_total_agents(self, args: ArgsT) -> int | None:
        """The exact agent cap that follows from the arguments; None when the request or the limits say."""
        return None

    def raised_args(self, args: ArgsT, limits: Mapping[str, int | float | None]) -> JsonObject:
        """The arguments that rise with limits when an operator resumes a run, by the names of `args_json`.

        `limits`: those that rise, by their Python names. The script is then replayed with the new arguments, so nothing
        that it did before may depend on them.
        """
        return {}

    def check_call(self, args: ArgsT, call: CallFacts, facts: Facts) -> None:
        """Check one call before it is charged. Raises `ContractBroken`."""

    @abstractmethod
    def decode_result(self, args: ArgsT, value: JsonValue, facts: Facts) -> ResultT:
        """Decode what the script returned. Raises `ContractBroken` or `ProvenanceBroken`."""

    def conclusion(self, args: ArgsT, result: ResultT) -> Conclusion:
        """Say what the result means."""
        return Conclusion(standing=Standing.COMPLETE, sentence="the script returned a result")

    def last_handoff(self, args: ArgsT, deliveries: Sequence[Delivery]) -> JsonObject | None:
        """The last valid handoff among the deliveries; what a continued run would begin with."""
        return None

    @property
    def continues(self) -> bool:
        """True when a run of this loop can be continued from a receipt."""
        return False


class PlainContract(Contract[JsonObject, JsonValue]):
    """Any JSON object in, any plain value out, no rule about calls."""

    def decode_args(self, args: object) -> JsonObject:
        """Copy the arguments. Raises `ArgsInvalid`."""
        try:
            return copy_object({} if args is None else args, "args")
        except PlainDataError as error:
            raise ArgsInvalid(f"{error}; args must be a JSON object") from None

    def script_args(self, args: JsonObject, opening: Opening | None) -> JsonObject:
        """The arguments as they are."""
        return args

    def decode_result(self, args: JsonObject, value: JsonValue, facts: Facts) -> JsonValue:
        """The value as it is."""
        return value
