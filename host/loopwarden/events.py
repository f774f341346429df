"""What observers of a run see: typed, numbered, observe-only. Nothing that an observer does changes a run."""

from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeAlias

from loopwarden.contract import AgentOutcome
from loopwarden.failure_class import FailureClass
from loopwarden.failures import Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class EventBase:
    """`number` counts 1, 2, 3 … within the run; `at` is Unix time in seconds."""

    kind: ClassVar[str]

    number: int
    run_id: str
    at: float

    def to_json(self) -> dict[str, Any]:
        """The JSON form, camelCase, with `event` first."""
        shown: dict[str, Any] = {"event": self.kind}
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Failure):
                value = value.to_json()
            head, *rest = item.name.split("_")
            shown[head + "".join(part.capitalize() for part in rest)] = value
        return shown


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(EventBase):
    """The script compiled and the run is announced. Always the first event."""

    kind: ClassVar[str] = "runStarted"
    script: str
    max_total_agents: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase(EventBase):
    """The script named what it does now."""

    kind: ClassVar[str] = "phase"
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Log(EventBase):
    """The script told its observers something."""

    kind: ClassVar[str] = "log"
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemFailed(EventBase):
    """An exception made one item of a `parallel` or `pipeline` None. `line` is the script's own."""

    kind: ClassVar[str] = "itemFailed"
    combinator: str
    index: int
    line: int | None
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentStarted(EventBase):
    """An agent was charged and its provider is asked."""

    kind: ClassVar[str] = "agentStarted"
    seq: int
    label: str
    phase: str | None
    provider: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentProgress(EventBase):
    """What an agent does now, in words of its provider; or what the host does for it by a policy."""

    kind: ClassVar[str] = "agentProgress"
    seq: int
    message: str
    is_policy: bool = False
    """The words of the host: an attempt failed, and is made again or waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEnded(EventBase):
    """The one end of an agent. `reason` is given when it did not complete."""

    kind: ClassVar[str] = "agentEnded"
    seq: int
    outcome: AgentOutcome
    reason: str | None
    seconds: float
    failure_class: FailureClass | None = None
    """What kind of failure the last attempt was; None when it did not fail."""
    attempts: int = 1
    """How often providers were asked for this call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHeld(EventBase):
    """The run cannot go on until a person looked at it. Agents that were at work have no end yet."""

    kind: ClassVar[str] = "runHeld"
    code: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResumed(EventBase):
    """Another host took the run over, or an operator reopened it."""

    kind: ClassVar[str] = "runResumed"
    epoch: int
    host: str | None
    by: str | None = None
    """The operator who reopened it; None when a host took over by itself."""
    why: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWaiting(EventBase):
    """A budget that spans runs is used up, and the run waits for it. `until` is Unix time; None when nobody knows."""

    kind: ClassVar[str] = "runWaiting"
    message: str
    until: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded(EventBase):
    """Always the last event, exactly once; a run that is reopened goes on after it. Carries no value: `wait()` does."""

    kind: ClassVar[str] = "runEnded"
    stop_reason: str
    failure: Failure | None
    agents_started: int


Event: TypeAlias = (
    RunStarted
    | Phase
    | Log
    | ItemFailed
    | AgentStarted
    | AgentProgress
    | AgentEnded
    | RunHeld
    | RunResumed
    | RunWaiting
    | RunEnded
)
