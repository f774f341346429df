"""A replay: a new worker runs the script of a journal, is answered from it in recorded order, and is compared with it.

Rules kept here: an end is delivered when all before it were, and its call must then be outstanding, at the latest when
the worker waits with everything consumed; a call is matched by its structural key and cross-checked by number and
digest; narration is compared and not told again. Any difference is a divergence: the run is held, nothing is lost.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from loopwarden.agent import Agent
from loopwarden.failures import Failure
from loopwarden.journal.calls import CallState
from loopwarden.journal.entries import Ended, ItemFailed, Logged, Narration, PhaseNamed
from loopwarden.journal.fold import RunState


@dataclass(slots=True, kw_only=True, eq=False)
class Replay:
    """The recorded part of a run, while a worker goes through it. Callbacks must not raise."""

    state: RunState
    restore: Callable[[Agent, CallState], None]
    """Give an accepted call its past."""
    deliver: Callable[[Agent, Ended], None]
    """Answer an accepted call with its recorded end."""
    live: Callable[[], None]
    """All that is recorded was replayed: the run goes on."""
    diverged: Callable[[str], None]
    """The worker does not do what is recorded; the sentence says where."""
    is_over: bool = False
    is_live: bool = False
    """It is over, and the run goes on: calls without an end are asked again. False when the run ended or diverged."""
    _accepted: dict[int, Agent] = field(default_factory=dict)
    _next_end: int = 0
    _next_narration: int = 0

    def accepted(self, agent: Agent) -> bool:
        """Take a call that was accepted. False when the journal does not know it: it is new."""
        if self.is_over:
            return False
        call = self.state.calls.get(agent.seq)
        if call is None:
            return False
        written = agent.call.written
        if call.key != written.key:
            self._differs(f"call {agent.seq} is {call.key!r} in the journal and {written.key!r} now")
            return True
        if call.digest != agent.known_digest():
            self._differs(f"call {agent.seq} ({call.label!r}) has another prompt or other options than in the journal")
            return True
        self._accepted[agent.seq] = agent
        self.restore(agent, call)
        self._deliver_what_is_due()
        return True

    def refused(self, seq: int, failure: Failure) -> bool:
        """A call was not accepted. True when it is recorded: it was accepted once. False when it is new."""
        if self.is_over or seq not in self.state.calls:
            return False
        self._differs(f"call {seq} was accepted, and is refused now: {failure.message}")
        return True

    def narrated(self, told: Narration) -> bool:
        """Compare narration. True when it is recorded, so that observers have seen it; False when it is new."""
        if self.is_over:
            return False
        narration = self.state.narration
        if self._next_narration >= len(narration):
            return False
        recorded = narration[self._next_narration]
        self._next_narration += 1
        if _told(recorded) != _told(told):
            self._differs(f"the script tells its observers {_told(told)!r}, and {_told(recorded)!r} is recorded")
        return True

    def idle(self) -> None:
        """The worker waits, and consumed all that was sent to it."""
        if self.is_over:
            return
        if self._next_end < len(self.state.ends):
            ended = self.state.ends[self._next_end]
            self._differs(f"the end of call {ended.seq} is recorded, and the script does not wait for it")
        elif self._is_complete():
            self.is_over = self.is_live = True
            self.live()

    def may_end(self) -> bool:
        """The script ends. True when all that is recorded was replayed; otherwise that is a divergence."""
        if not self.is_over and self._is_complete():
            self.is_over = True
        return self.is_over

    # ---- inside

    def _deliver_what_is_due(self) -> None:
        ends = self.state.ends
        while not self.is_over and self._next_end < len(ends):
            ended = ends[self._next_end]
            agent = self._accepted.get(ended.seq)
            if agent is None:
                return
            self._next_end += 1
            self.deliver(agent, ended)

    def _is_complete(self) -> bool:
        """Whether nothing recorded is left; what is left is a divergence."""
        ends, narration = self.state.ends, self.state.narration
        missing = next((seq for seq in self.state.calls if seq not in self._accepted), None)
        if self._next_end < len(ends):
            self._differs(f"the script ends, and the end of call {ends[self._next_end].seq} is recorded")
        elif missing is not None:
            self._differs(f"call {missing} is recorded, and the script does not make it")
        elif self._next_narration < len(narration):
            told = _told(narration[self._next_narration])
            self._differs(f"{told!r} is recorded as told to observers, and the script does not tell it")
        else:
            return True
        return False

    def _differs(self, where: str) -> None:
        if not self.is_over:
            self.is_over = True
            self.diverged(where)


def _told(told: Narration) -> tuple[str | int | None, ...]:
    match told:
        case PhaseNamed(title=title):
            return ("phase", title)
        case Logged(message=message):
            return ("log", message)
        case ItemFailed(combinator=combinator, index=index, line=line, message=message):
            return ("itemFailed", combinator, index, line, message)
