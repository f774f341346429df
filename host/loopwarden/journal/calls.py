"""One call of a run as its journal tells it: its asks in order, how each ended, and whether its script got an end."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from loopwarden.journal.entries import Asked, AskKind, AttemptEnded, Ended, WaitCancelled


@dataclass(slots=True, kw_only=True)
class AskState:
    """One attempt."""

    attempt: int
    ask: AskKind
    provider: str
    at: float
    """When it was asked, Unix time in seconds by the clock of its host."""
    windows: Mapping[str, str]
    """By scope: the budget window that it was charged to."""
    entry_seq: int
    """Of its `asked`, in the journal."""
    end: AttemptEnded | Ended | None = None
    """None: it is live, or its host died."""


@dataclass(slots=True, kw_only=True)
class CallState:
    """One call that was asked at least once."""

    seq: int
    key: str
    digest: str
    label: str
    phase: str | None
    line: int | None
    asks: list[AskState] = field(default_factory=list)
    ended: Ended | None = None
    """The end that its script gets."""
    stopped: AttemptEnded | WaitCancelled | None = None
    """How it ended for observers without an end for its script; None again once it is asked again."""
    reopened_at: int = 0
    """How many attempts there were when its run was last reopened."""
    is_closed: bool = False
    """No ask may follow in this segment of the run. A run that is reopened may ask it again, unless it has `ended`."""

    @property
    def is_open(self) -> bool:
        """True while its last attempt has no end."""
        return bool(self.asks) and self.asks[-1].end is None

    def paused_seconds(self, index: int) -> float:
        """How long a policy let the call wait before an ask. Two hosts have two clocks: never below zero."""
        ask, before = self.asks[index], self.asks[index - 1].end if index else None
        return 0.0 if before is None or ask.ask == "redo" else max(0.0, ask.at - before.at)

    def problem_of_ask(self, asked: Asked) -> str | None:
        """Why no owner writes this ask; None when it is in order."""
        if (asked.key, asked.digest) != (self.key, self.digest):
            return "is another call under the same number"
        if self.ended is not None:
            return "is asked after its end"
        if self.is_open:
            return f"is asked while its attempt {len(self.asks)} has no end"
        if self.is_closed:
            return "is asked after its last attempt"
        if asked.attempt != len(self.asks) + 1:
            return f"has attempt {asked.attempt} where {len(self.asks) + 1} belongs"
        return None

    def add(self, asked: Asked, entry_seq: int) -> None:
        """Take an ask that is in order."""
        self.stopped = None
        self.asks.append(
            AskState(
                attempt=asked.attempt,
                ask=asked.ask,
                provider=asked.provider,
                at=asked.at,
                windows=asked.windows,
                entry_seq=entry_seq,
            )
        )

    def problem_of_end(self, end: AttemptEnded | Ended) -> str | None:
        """Why no owner writes this end; None when it is in order."""
        if self.ended is not None:
            return "ends twice"
        if end.attempt != len(self.asks):
            return f"has an end of attempt {end.attempt}, but {len(self.asks)} was asked last"
        if self.is_open:
            return None
        if self.is_closed:
            return "ends twice in one segment of the run"
        # An attempt that failed, or was interrupted, ends once more when the call is given up before the next ask.
        gives_up = isinstance(end, Ended) or end.is_last
        return None if gives_up else f"has two ends of attempt {end.attempt}"

    def end(self, end: AttemptEnded | Ended) -> bool:
        """Take an end that is in order. True when it is the first of its attempt, so that its usage counts."""
        is_first = self.is_open
        if is_first:
            self.asks[-1].end = end
        if isinstance(end, Ended):
            self.ended, self.stopped = end, None
            self.is_closed = True
        elif end.is_last:
            self.stopped = end
            self.is_closed = True
        return is_first

    def cancel_wait(self, entry: WaitCancelled) -> None:
        """The run ended between two attempts."""
        self.stopped = entry
        self.is_closed = True

    def reopen(self) -> None:
        """The run goes on in a new segment."""
        self.is_closed = self.ended is not None
        self.reopened_at = len(self.asks)
