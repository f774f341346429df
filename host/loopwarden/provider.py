"""What a provider is: a backend that runs one agent for one call. One async method, nothing else.

    async def reply(request: AgentRequest) -> AgentReply | str | JsonObject

Raise `AgentFailed("why")` when the agent failed (the script gets None), `ProviderStartError("why")` when no agent could
be started at all (ends the run with AGENT_START). Any other exception, or returning None, is a fault of the provider
and ends the run with AGENT_RESULT. When the task is cancelled, wind the agent down within `request.grace_seconds`, kill
what is left, and let CancelledError through.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol, TypeAlias, runtime_checkable

from loopwarden.failure_class import FailureClass
from loopwarden.failures import LoopwardenError
from loopwarden.lease_view import LeaseView
from loopwarden.usage import Usage
from loopwarden_engine.plain import JsonObject


def _nothing() -> None:
    """What `AgentRequest.alive` does when nobody measures silence."""


def _no_remark(words: str) -> None:
    """What `AgentRequest.remark` does when nobody watches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a provider can do. A loop that needs more is refused before it starts (PROVIDER_UNFIT)."""

    structured_output: bool = False
    """A call with a schema gives a structured value."""
    native_schema: bool = False
    """The backend itself is held to the schema; otherwise it is asked by the prompt. The host checks in both cases."""
    fresh_context: bool = False
    """Each agent starts without the context of its caller and of other agents."""
    streams: bool = False
    """Progress is reported while the agent works, so that silence can be measured."""
    converses: bool = False
    """The agent can be spoken to while it works: it is asked to hand over `wrapUpSeconds` before its deadline."""
    tokens_known: bool = False
    """An attempt that ends by itself says how many tokens it used."""
    cost_known: bool = False
    """An attempt that ends by itself says what it cost, so that a cap on money can be kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRequest:
    """One ask of a provider."""

    run_id: str
    seq: int
    """The number of the call in its run, from 1."""
    attempt: int
    """1 for the first ask of this call, then 2, 3 … whichever provider is asked."""
    prompt: str
    label: str
    phase: str | None
    schema: JsonObject | None
    """JSON Schema that the structured value has to satisfy. The host checks it again, whatever the provider says."""
    model: str | None
    workspace: Path | None
    folder: Path | None
    """A private folder for this agent's streams; None when the host keeps nothing on disk."""
    timeout_seconds: float
    idle_seconds: float
    grace_seconds: float
    max_output_bytes: int
    idempotency_key: str
    """The same when this very ask is repeated because its host died; another one for a retry or a fallback. A backend
    that knows such keys answers a repeated one with what it has already. Agent programs know none."""
    progress: Callable[[str], None]
    """Call it with one line about what the agent does now; shown to observers, never decisive."""
    remark: Callable[[str], None] = _no_remark
    """Like `progress`, but not a sign of life: "silent for 2 min" must not end the silence that is measured."""
    alive: Callable[[], None] = _nothing
    """Call it at any sign of life that is worth no words. Resets the time of silence. On the event loop only."""
    wrap_up: asyncio.Event | None = None
    """Set `wrapUpSeconds` before the attempt's deadline, to ask the agent to hand over now. None unless the provider
    declares that its agents can be spoken to."""
    max_cost_usd: float | None = None
    """What the run may still spend; None when it has no cap on money."""
    lease: LeaseView | None = None
    """Until when this host may act for the run; None for a run without a store. What starts a program must see to it
    that nothing of it is left when the lease is over: those of Loopwarden do."""
    epoch: int = 0
    """The fencing token of this host's claim of the run: a higher one was given later. A backend that keeps the highest
    it has seen can refuse a host that lost the run and does not know it yet. Agent programs honour none. 0: no store.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentReply:
    """What an agent gave: text, a structured value, or both."""

    text: str = ""
    value: JsonObject | None = None
    notes: tuple[str, ...] = ()
    """Facts for the receipt, such as how the value was found in the output."""
    usage: Usage | None = None
    """What the attempt used; None when that is not known."""


@runtime_checkable
class Provider(Protocol):
    """A backend that runs agents."""

    @property
    def capabilities(self) -> Capabilities:
        """What this provider can do."""
        ...

    def reply(self, request: AgentRequest) -> Awaitable[AgentReply | str | JsonObject]:
        """Run one agent to its end. Write it as `async def`."""
        ...


ReplyFunction: TypeAlias = Callable[[AgentRequest], Awaitable[AgentReply | str | JsonObject]]


class AgentFailed(LoopwardenError):
    """The attempt failed. Unless a policy asks again, the script gets None.

    `reason` is one sentence for the receipt; `notes` add facts. `failure_class` says what kind of failure it is, and
    `evidence` is the line that shows it, in the words of the backend. A provider that was cancelled may raise this
    instead of letting CancelledError through when it has usage or evidence to give.
    """

    # For subclasses whose own `__init__` forgets ours.
    reason: str = "its provider gave no reason"
    notes: tuple[str, ...] = ()
    failure_class: FailureClass = FailureClass.UNKNOWN
    evidence: str | None = None
    resets_at: float | None = None
    retry_after_seconds: float | None = None
    usage: Usage | None = None

    def __init__(
        self,
        reason: str,
        *,
        notes: tuple[str, ...] = (),
        failure_class: FailureClass = FailureClass.UNKNOWN,
        evidence: str | None = None,
        resets_at: float | None = None,
        retry_after_seconds: float | None = None,
        usage: Usage | None = None,
    ) -> None:
        """`resets_at`: Unix time when a rate limit is over. `retry_after_seconds`: the delay that a server asks for."""
        super().__init__(reason)
        self.reason = reason
        self.notes = notes
        self.failure_class = failure_class
        self.evidence = evidence
        self.resets_at = resets_at
        self.retry_after_seconds = retry_after_seconds
        self.usage = usage


class ProviderStartError(LoopwardenError):
    """No agent could be started: the program does not exist, the backend is not configured. Ends the run."""

    reason: str = "its provider gave no reason"

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


FUNCTION_CAPABILITIES: Final = Capabilities(structured_output=True, fresh_context=True)


@dataclass(frozen=True, slots=True)
class FunctionProvider:
    """A bare async function as a provider."""

    function: ReplyFunction
    capabilities: Capabilities = field(default=FUNCTION_CAPABILITIES)

    async def reply(self, request: AgentRequest) -> AgentReply | str | JsonObject:
        """Call the function."""
        return await self.function(request)


def as_provider(backend: Provider | ReplyFunction) -> Provider:
    """Return `backend` as a provider. Raises TypeError when it is neither a provider nor an async function."""
    if isinstance(backend, Provider):
        return backend
    if callable(backend):
        return FunctionProvider(backend)
    raise TypeError(f"{type(backend).__name__} is neither a provider nor an async function")
