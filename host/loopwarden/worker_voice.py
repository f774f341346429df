"""What a worker says, and what follows from it; in a replay, what it says is compared with the journal first."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, assert_never

from loopwarden import events
from loopwarden.agent import Agent
from loopwarden.broker import Broker
from loopwarden.clock import Clock
from loopwarden.event_log import EventLog
from loopwarden.events import EventBase
from loopwarden.failures import Code, Failure, StartRefused
from loopwarden.journal import entries
from loopwarden.replaying import Replay
from loopwarden.script import rejection
from loopwarden.tenure import Tenure
from loopwarden_engine import messages
from loopwarden_engine.plain import JsonValue


@dataclass(slots=True, kw_only=True, eq=False)
class WorkerVoice:
    """Hears the worker of one run."""

    script_name: str
    events: EventLog
    clock: Clock
    ready: Callable[[str], None]
    """The script compiled; with the first line of its docstring."""
    refuse: Callable[[StartRefused], None]
    result: Callable[[JsonValue], None]
    """`main` returned this value."""
    fail: Callable[[Failure], None]
    note: Callable[..., None]
    broker: Broker | None = None
    tenure: Tenure | None = None
    replay: Replay | None = None

    @property
    def is_replaying(self) -> bool:
        """True until the worker has gone through what is recorded."""
        return self.replay is not None and not self.replay.is_over

    @property
    def is_unplayed(self) -> bool:
        """True until recorded calls without an end go on: when the run ends before that, nobody here ends them."""
        return self.replay is not None and not self.replay.is_live

    def attach(self, broker: Broker, tenure: Tenure, diverged: Callable[[str], None]) -> None:
        """What is told is journaled from here on, and what is recorded is replayed first."""
        self.tenure = tenure
        recorded = tenure.recorded
        if recorded.calls or recorded.narration:
            broker.hold()
            self.replay = Replay(
                state=recorded,
                restore=broker.past.restore,
                deliver=broker.past.deliver_recorded,
                live=lambda: broker.past.go_live(broker.agents, recorded),
                diverged=diverged,
            )

    def restore(self, agent: Agent) -> bool:
        """Take an accepted call from the journal. False when it is new."""
        return self.replay is not None and self.replay.accepted(agent)

    def refused(self, seq: int, failure: Failure) -> bool:
        """A call is not accepted. False when it is new, too."""
        return self.replay is not None and self.replay.refused(seq, failure)

    def idle(self) -> None:
        """The worker waits, and consumed all that was sent to it."""
        if self.replay is not None:
            self.replay.idle()

    def hear(self, message: messages.FromWorker) -> None:
        """Take one message. Raises nothing but KeyboardInterrupt: a mistake of ours ends this run alone."""
        try:
            self._handle(message)
        except BaseException as error:
            # Also what is no Exception: a library in Rust that panics raises such a thing, and a contract may.
            self._failed_at(f"a {type(message).__name__} message", error)
            if isinstance(error, KeyboardInterrupt):
                raise

    def failed_at_entry(self, error: BaseException) -> None:
        """What follows from an entry of the journal failed. A mistake of ours ends this run alone."""
        self._failed_at("an entry of the journal", error)

    def _failed_at(self, place: str, error: BaseException) -> None:
        self.note("error", f"the host failed at {place}", exc_info=error)
        what = f"the host failed at {place} with {type(error).__name__}; please report this mistake of ours"
        self.fail(Failure(code=Code.PROTOCOL, message=what))

    def _handle(self, message: messages.FromWorker) -> None:
        assert self.broker is not None
        match message:
            case messages.Call():
                self.broker.accept(message)
            case messages.Phase(title=title):
                self.broker.phase = title
                self._tell(events.Phase, entries.PhaseNamed, title=title)
            case messages.Log(message=text):
                self._tell(events.Log, entries.Logged, message=text)
            case messages.ItemFailed():
                self._tell(
                    events.ItemFailed,
                    entries.ItemFailed,
                    combinator=message.key,
                    index=message.index,
                    line=message.line or None,
                    message=message.message,
                )
            case messages.Result() | messages.Fatal() | messages.Failed():
                if self.replay is None or self.replay.may_end():
                    self._script_ended(message)
            case messages.Ready(summary=summary):
                self.ready(summary)
            case messages.Rejected(violations=violations):
                self.refuse(rejection(self.script_name, violations))
            case messages.Idle():
                pass
            case _:
                assert_never(message)

    def _script_ended(self, message: messages.Result | messages.Fatal | messages.Failed) -> None:
        match message:
            case messages.Result(value=value):
                self.result(value)
            case messages.Fatal(code=code, message=text, line=line):
                self.fail(Failure(code=Code(code), message=text, line=line or None))
            case messages.Failed(code=failed_code, message=text, lines=lines):
                details = {"lines": list(lines)} if len(lines) > 1 else {}
                line_or_none = lines[-1] if lines else None
                self.fail(Failure(code=Code(failed_code), message=text, line=line_or_none, details=details))
            case _:
                assert_never(message)

    def _tell(self, kind: type[EventBase], entry: type[Any], **content: Any) -> None:
        if self.tenure is None:
            self.events.emit(kind, **content)
            return
        told = entry(at=self.clock.wall(), **content)
        if self.replay is None or not self.replay.narrated(told):
            self.tenure.journal.write(told)
