"""What a run is doing, on the error stream: plain lines, and on a terminal a live line for each agent at work."""

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from typing import IO, Final, TextIO, assert_never, cast

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from loopwarden.cli.output import Output
from loopwarden.contract import AgentOutcome
from loopwarden.display import duration, shown_line
from loopwarden.events import (
    AgentEnded,
    AgentProgress,
    AgentStarted,
    Event,
    ItemFailed,
    Log,
    Phase,
    RunEnded,
    RunHeld,
    RunResumed,
    RunStarted,
    RunWaiting,
)

_MAX_CHARS = 300
QUIET_SECONDS: Final = 300.0
"""A log gets what an agent does so often at most: enough to see in the morning that it was at work all night."""
_STYLES = {AgentOutcome.COMPLETED: "green", AgentOutcome.FAILED: "red", AgentOutcome.CANCELLED: "yellow"}


class _Screen:
    """A terminal that may be closed at any moment: what it no longer takes is lost, and the run goes on to its end.

    Whether it is a terminal is asked once, since one that was closed is none any more.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self.encoding = stream.encoding

    def isatty(self) -> bool:
        return self._is_terminal

    def fileno(self) -> int:
        return self._stream.fileno()

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()


class ProgressView:
    """Shows the events of one run. Agent text reaches the terminal only through `shown_line`, and never as markup."""

    def __init__(self, output: Output, *, provider: str | None = None) -> None:
        """Draws on the error stream of the moment. `provider` is the one that needs no mention."""
        self._output = output
        self._provider = provider
        screen = cast("IO[str]", _Screen(sys.stderr))
        self._console = Console(file=screen, markup=False, highlight=False, emoji=False, soft_wrap=True)
        self._bars = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
        )
        self._tasks: dict[int, TaskID] = {}
        self._labels: dict[int, str] = {}
        self._said_at: dict[int, float] = {}
        """Unix time of the last line about an agent, for a stream that is no terminal."""

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Draw while the block runs; a stream that is no terminal gets lines alone."""
        if not self._console.is_terminal:
            yield
            return
        with self._bars:
            yield

    async def follow(self, events: AsyncIterator[Event]) -> None:
        """Show every event until the run's end."""
        async for event in events:
            self.show(event)

    def show(self, event: Event) -> None:
        """Show one event."""
        match event:
            case RunStarted() | RunEnded():
                pass
            case Phase(title=title):
                self._line(f"== {shown_line(title, _MAX_CHARS)}", "bold")
            case Log(message=message):
                self._line(f"   {shown_line(message, _MAX_CHARS)}")
            case ItemFailed():
                place = f" at line {event.line}" if event.line is not None else ""
                message = shown_line(event.message, _MAX_CHARS)
                self._line(f"   item {event.index} of {event.combinator} was lost{place}: {message}", "red")
            case AgentStarted():
                self._started(event)
            case AgentProgress():
                self._progressed(event)
            case AgentEnded():
                self._ended(event)
            case RunHeld(reason=reason):
                self._line(f"== held: {shown_line(reason, _MAX_CHARS)}", "red")
            case RunWaiting(message=message):
                self._line(f"== waiting: {shown_line(message, _MAX_CHARS)}", "yellow")
            case RunResumed():
                self._resumed(event)
            case _:
                assert_never(event)

    def _started(self, event: AgentStarted) -> None:
        label = shown_line(event.label, _MAX_CHARS)
        self._labels[event.seq] = label
        if self._console.is_terminal:
            self._tasks[event.seq] = self._bars.add_task(f"#{event.seq} {label}", total=None)
        else:
            self._said_at[event.seq] = event.at
            by = f", by {event.provider}" if self._provider not in (None, event.provider) else ""
            self._line(f"#{event.seq} {label} started{by}")

    def _progressed(self, event: AgentProgress) -> None:
        label = self._labels.get(event.seq)
        if label is None:
            return
        if event.seq in self._tasks:
            text = f"#{event.seq} {label}: {shown_line(event.message, 100)}"
            self._bars.update(self._tasks[event.seq], description=text)
            if event.is_policy:  # it would be overwritten by what the agent does next
                self._line(f"#{event.seq} {label}: {shown_line(event.message, _MAX_CHARS)}", "yellow")
        elif event.is_policy or event.at - self._said_at[event.seq] >= QUIET_SECONDS:
            self._said_at[event.seq] = event.at
            self._line(f"#{event.seq} {label}: {shown_line(event.message, _MAX_CHARS)}")

    def _ended(self, event: AgentEnded) -> None:
        task = self._tasks.pop(event.seq, None)
        if task is not None:
            self._bars.remove_task(task)
            self._bars.refresh()
        reason = f": {shown_line(event.reason, _MAX_CHARS)}" if event.reason else ""
        label = self._labels.pop(event.seq, "")
        self._said_at.pop(event.seq, None)
        attempts = f" and {event.attempts} attempts" if event.attempts > 1 else ""
        kind = f" ({event.failure_class.value})" if event.failure_class is not None else ""
        self._line(
            f"#{event.seq} {label} {event.outcome.value} after {duration(event.seconds)}{attempts}{kind}{reason}",
            _STYLES[event.outcome],
        )

    def _resumed(self, event: RunResumed) -> None:
        host = shown_line(event.host or "a host", _MAX_CHARS)
        if event.by is None:
            self._line(f"== taken over by {host}", "bold")
        else:
            self._line(f"== reopened by {shown_line(event.by, _MAX_CHARS)}, at {host}", "bold")

    def _line(self, text: str, style: str = "") -> None:
        if not self._console.is_terminal:
            self._output.say(text)
            return
        self._console.print(Text(text, style=style))
