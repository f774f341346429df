"""One accepted call and what became of it, and what a broker needs from those around it."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from loopwarden.agent_reply import provider_words
from loopwarden.attempt import Attempt, AttemptKind
from loopwarden.call_options import DecodedCall
from loopwarden.clock import Timer
from loopwarden.contract import AgentOutcome
from loopwarden.failure_class import FailureClass
from loopwarden.failures import Failure
from loopwarden.policy import FRESH_TRAIL, Trail
from loopwarden.provider import Provider
from loopwarden_engine.plain import JsonValue

if TYPE_CHECKING:
    from loopwarden.broker import Broker


class Keeper(Protocol):
    """Where prompts and outputs of agents are kept for people. Must not raise."""

    def agent_folder(self, seq: int) -> Path | None:
        """A private folder for the agent, or None."""
        ...

    def keep_prompt(self, seq: int, prompt: str) -> None:
        """Keep what the agent was asked."""
        ...

    def keep_output(self, seq: int, output: str) -> None:
        """Keep what the agent answered, unless its provider kept more."""
        ...

    def write(self, broker: "Broker", *, now: bool) -> None:
        """Write the receipt; unless `now`, not too often."""
        ...


@dataclass(slots=True, eq=False)
class Agent:
    """One accepted call and what became of it."""

    call: DecodedCall
    provider_name: str
    """Of the next attempt: a fallback replaces the one that the call asked for."""
    provider: Provider
    line: int
    seq: int
    started_at: float | None = None
    seconds: float | None = None
    outcome: AgentOutcome | None = None
    reason: str | None = None
    failure_class: FailureClass | None = None
    notes: tuple[str, ...] = ()
    attempts: list[Attempt] = field(default_factory=list)
    trail: Trail = FRESH_TRAIL
    next_kind: AttemptKind = "first"
    paused_at: float | None = None
    """On the scale of the host's clock; None while no policy makes the call wait."""
    pause_timer: Timer | None = None
    has_slot: bool = False
    place: str | None = None
    """The provider at which it takes a place."""
    output_kept: bool = False
    digest: str | None = None
    """Of the call, once somebody asked for it: hashing every prompt again for every receipt would hold up the host."""
    task: "asyncio.Task[None] | None" = None
    is_asking: bool = False
    """Its next ask is on the way to the journal, and its provider has not heard of it."""
    is_ending: bool = False
    """Its end is on the way to the journal."""
    interrupted: Attempt | None = None
    """The attempt that was live when another host lost the run, while the journal does not say so yet."""
    abandon_timer: Timer | None = None
    redos_before: int = 0
    """Redos in segments of its run that have ended."""

    def chosen_asks(self) -> int:
        """How often the call was asked on purpose: an ask that repeats an interrupted one has its number."""
        return sum(attempt.kind != "redo" for attempt in self.attempts)

    def known_digest(self) -> str:
        """The digest of the call, computed once."""
        if self.digest is None:
            self.digest = self.call.digest
        return self.digest


def _nobody_cancels(reason: str) -> None:
    raise AssertionError(f"a run without a store was cancelled through one: {reason}")


@dataclass(slots=True, kw_only=True)
class BrokerPorts:
    """What a broker tells the run it works for."""

    emit: Callable[..., None]
    reply: Callable[[int, JsonValue], None]
    fail: Callable[[Failure], None]
    is_stuck: Callable[[], bool]
    check_call: Callable[[DecodedCall], None]
    cancel: Callable[[str], None] = _nobody_cancels
    """A request to cancel the run is committed in its store."""
    restore: "Callable[[Agent], bool] | None" = None
    """In a replay: take an accepted call from the journal. False when the journal does not know it."""
    refused: "Callable[[int, Failure], bool] | None" = None
    """In a replay: a call is not accepted. False when the journal does not know it either, so that the run ends."""


class Signs:
    """What one attempt shows of itself while it works. A provider may well call it from a thread of its own."""

    __slots__ = ("_agent", "_attempt", "_loop", "_sign", "_tell", "_thread")

    def __init__(
        self,
        agent: Agent,
        attempt: Attempt,
        *,
        tell: Callable[[Agent, Attempt, str], None],
        sign: Callable[[Attempt], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._agent = agent
        self._attempt = attempt
        self._tell = tell
        self._sign = sign
        self._loop = loop
        self._thread = threading.get_ident()

    def progress(self, message: str) -> None:
        """Tell observers what the agent does now. A sign of life."""
        self.alive()
        self.remark(message)

    def remark(self, message: str) -> None:
        """Tell observers something about the agent that is no sign of its life."""
        if threading.get_ident() == self._thread:
            self._tell(self._agent, self._attempt, message)
        else:
            self._from_thread(self._tell, self._agent, self._attempt, provider_words(message))

    def alive(self) -> None:
        """Something came from the agent."""
        if threading.get_ident() == self._thread:
            self._sign(self._attempt)
        else:
            self._from_thread(self._sign, self._attempt)

    def _from_thread(self, call: Callable[..., None], *values: object) -> None:
        # Without a loop nobody listens any more.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call, *values)
