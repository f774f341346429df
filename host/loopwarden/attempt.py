"""One ask of a provider, and in which way it ended."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from loopwarden.agent_reply import ReplyUnusable, check_reply, decode_reply, provider_notes, provider_words
from loopwarden.failure_class import FailureClass
from loopwarden.failures import Code
from loopwarden.pace import LARGE_PARTS, Pace, is_large
from loopwarden.provider import AgentFailed, AgentReply, AgentRequest, Provider, ProviderStartError
from loopwarden.schema import CompiledSchema, compile_plain
from loopwarden.usage import Usage
from loopwarden_engine.plain import JsonObject, JsonValue

AttemptKind: TypeAlias = Literal["first", "redo", "retry", "wait", "fallback"]
"""Why a provider was asked: the call itself, once more after an interruption, or which grant of the policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The attempt brought what the call asked for. Words of providers are bounded Unicode text here and below."""

    text: str
    """For people: what is kept on disk."""
    value: JsonValue
    """What the script gets."""
    notes: tuple[str, ...] = ()
    usage: Usage | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The attempt failed. A policy may grant another one."""

    failure_class: FailureClass
    reason: str
    text: str = ""
    notes: tuple[str, ...] = ()
    evidence: str | None = None
    resets_at: float | None = None
    retry_after_seconds: float | None = None
    usage: Usage | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Faulty:
    """The provider broke its promise, or could not start an agent at all. Ends the run."""

    code: Code
    reason: str
    usage: Usage | None = None


AttemptEnd: TypeAlias = Answered | Failed | Faulty


@dataclass(slots=True, eq=False, kw_only=True)
class Attempt:
    """One ask of a provider for one call."""

    number: int
    provider_name: str
    provider: Provider
    kind: AttemptKind
    paused_seconds: float
    """How long the call waited before this ask, by its policy."""
    started_at: float
    """On the scale of the host's clock."""
    last_sign: float
    last_words: str = ""
    """What the agent was last said to do."""
    seconds: float | None = None
    end: AttemptEnd | None = None
    is_cancelled: bool = False
    """The run ended before the attempt did."""
    is_interrupted: bool = False
    """Its host died, stopped or lost the run before the attempt ended."""
    stopped_because: str | None = None
    """Why the host stops it; None while it does not."""
    stopped_class: FailureClass = FailureClass.CANCELLED
    windows: Mapping[str, str] = field(default_factory=dict)
    """By scope: the budget window that this ask was charged to."""
    usage: Usage | None = None
    """What it used, once that is known."""
    lapses: int = 0
    """How often the lease of the run had lapsed when it began."""
    is_recorded: bool = False
    """Its end is in the journal, or on the way there."""

    @property
    def is_over(self) -> bool:
        """True once it has its end."""
        return self.end is not None or self.is_cancelled or self.is_interrupted

    def as_stopped(self, end: "AttemptEnd | None") -> Failed:
        """The end of an attempt that the host stopped. `end` is what its provider could still say.

        A program that was in the middle of repeating a refused request says why it did not come to an end: that is
        the class, and the time limit is how it showed.
        """
        assert self.stopped_because is not None
        last_heard = f"last heard: {provider_words(self.last_words)}" if self.last_words else None
        if not isinstance(end, Failed):
            return Failed(
                failure_class=self.stopped_class,
                reason=self.stopped_because,
                evidence=last_heard,
                usage=None if end is None else end.usage,
            )
        told = end.failure_class not in (FailureClass.UNKNOWN, FailureClass.CANCELLED)
        return Failed(
            failure_class=end.failure_class if told else self.stopped_class,
            reason=f"{self.stopped_because}; before that: {end.reason}" if told else self.stopped_because,
            text=end.text,
            notes=end.notes,
            evidence=end.evidence if told or last_heard is None else last_heard,
            resets_at=end.resets_at,
            retry_after_seconds=end.retry_after_seconds,
            usage=end.usage,
        )


def remembered(end: AttemptEnd) -> AttemptEnd:
    """The end without what the agent printed: that may be long, and who keeps it writes it to disk."""
    if isinstance(end, Faulty) or not end.text or (isinstance(end, Answered) and end.text is end.value):
        return end
    return replace(end, text="")


async def ask(
    provider: Provider, request: AgentRequest, schema: JsonObject | None, max_frame_bytes: int, pace: Pace
) -> AttemptEnd:
    """Ask a provider once. What it promises not to raise goes through, for the caller to name as its fault.

    `schema` is one that was accepted. What takes long (compiling a schema, decoding a reply, checking it, and what the
    caller does, encoding it for the worker) has a turn of the event loop of its own, each.
    """
    try:
        reply = await provider.reply(request)
    except AgentFailed as failed:
        return Failed(
            failure_class=_class(failed.failure_class),
            reason=provider_words(failed.reason),
            notes=provider_notes(failed.notes),
            evidence=None if failed.evidence is None else provider_words(failed.evidence),
            resets_at=_seconds(failed.resets_at),
            retry_after_seconds=_seconds(failed.retry_after_seconds),
            usage=_usage(failed.usage),
        )
    except ProviderStartError as error:
        return Faulty(code=Code.AGENT_START, reason=provider_words(error.reason))
    usage = _usage(reply.usage) if isinstance(reply, AgentReply) else None
    takes_long = is_large(reply) or is_large(schema)

    async def own_turn() -> None:
        if takes_long:
            await pace.own_turn()

    try:
        compiled: CompiledSchema | None = None
        if schema is not None:
            await own_turn()
            compiled = compile_plain(schema)
            takes_long = takes_long or compiled.takes_long(LARGE_PARTS)
        await own_turn()
        decoded = decode_reply(reply, is_structured=compiled is not None, max_frame_bytes=max_frame_bytes)
        if compiled is not None:
            await own_turn()
            check_reply(decoded, compiled)
    except ReplyUnusable as unusable:
        if unusable.is_provider_fault:
            return Faulty(code=Code.AGENT_RESULT, reason=provider_words(unusable), usage=usage)
        return Failed(
            failure_class=FailureClass.INVALID_OUTPUT,
            reason=provider_words(unusable),
            text=unusable.text,
            notes=provider_notes(unusable.notes),
            usage=usage,
        )
    await own_turn()
    return Answered(text=decoded.text, value=decoded.value, notes=provider_notes(decoded.notes), usage=usage)


def _class(said: object) -> FailureClass:
    """A provider is foreign code: what it calls a class may be none."""
    return said if isinstance(said, FailureClass) else FailureClass.UNKNOWN


def _seconds(said: object) -> float | None:
    """A time as a number that can be reckoned with, else None."""
    if isinstance(said, bool) or not isinstance(said, int | float) or not 0 <= said < 1e12:
        return None
    return float(said)


def _usage(said: object) -> Usage | None:
    """A usage whose numbers can be added up; what is no such number is unknown."""
    if not isinstance(said, Usage):
        return None
    tokens = [_count(said.input_tokens), _count(said.cached_input_tokens), _count(said.output_tokens)]
    cost = _seconds(said.cost_usd)
    return Usage(input_tokens=tokens[0], cached_input_tokens=tokens[1], output_tokens=tokens[2], cost_usd=cost)


def _count(said: object) -> int | None:
    return said if isinstance(said, int) and not isinstance(said, bool) and 0 <= said < 2**53 else None
