"""One accepted call and what became of it, and what a broker needs from those around it."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from loopwarden.agent_reply import provider_words
from loopwarden.call_options import DecodedCall
from loopwarden.clock import Timer
from loopwarden.contract import AgentOutcome
from loopwarden.failures import Failure
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
    provider: Provider
    line: int
    seq: int
    started_at: float | None = None
    seconds: float | None = None
    outcome: AgentOutcome | None = None
    reason: str | None = None
    notes: tuple[str, ...] = ()
    attempts: int = 0
    output_kept: bool = False
    digest: str | None = None
    """Of the call, once somebody asked for it: hashing every prompt again for every receipt would hold up the host."""
    task: "asyncio.Task[None] | None" = None
    abandon_timer: Timer | None = None
    stopped_because: str | None = None
    last_sign: float = 0.0


@dataclass(slots=True, kw_only=True)
class BrokerPorts:
    """What a broker tells the run it works for."""

    emit: Callable[..., None]
    reply: Callable[[int, JsonValue], None]
    fail: Callable[[Failure], None]
    is_stuck: Callable[[], bool]
    check_call: Callable[[DecodedCall], None]


class Progress:
    """The `progress` of one request. A provider may well call it from a thread of its own."""

    __slots__ = ("_agent", "_loop", "_tell", "_thread")

    def __init__(self, agent: Agent, tell: Callable[[Agent, str], None], loop: asyncio.AbstractEventLoop) -> None:
        self._agent = agent
        self._tell = tell
        self._loop = loop
        self._thread = threading.get_ident()

    def __call__(self, message: str) -> None:
        """Tell observers what the agent does now."""
        if threading.get_ident() == self._thread:
            self._tell(self._agent, message)
            return
        # Without a loop nobody listens any more.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._tell, self._agent, provider_words(message))
