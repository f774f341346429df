"""Live progress: lines for a pipe, and agent text that is never markup."""

import errno
import io
import sys
from typing import Any

import pytest

from loopwarden.cli.output import Output
from loopwarden.cli.progress import ProgressView
from loopwarden.contract import AgentOutcome
from loopwarden.events import (
    AgentEnded,
    AgentProgress,
    AgentStarted,
    Event,
    ItemFailed,
    Log,
    Phase,
    RunEnded,
    RunStarted,
)

COMMON: dict[str, Any] = {"number": 1, "run_id": "r", "at": 0.0}


def test_every_kind_of_event_is_a_line_or_silent(capsys: pytest.CaptureFixture[str]) -> None:
    events: list[Event] = [
        RunStarted(**COMMON, script="s", max_total_agents=3),
        Phase(**COMMON, title="Phase [bold]one[/bold]"),
        Log(**COMMON, message="said \x1b[2J :smile:"),
        ItemFailed(**COMMON, combinator="parallel", index=2, line=7, message="ValueError: \u202e"),
        AgentStarted(**COMMON, seq=1, label="round\n1", phase=None, provider="p"),
        AgentProgress(**COMMON, seq=1, message="thinking"),
        AgentEnded(**COMMON, seq=1, outcome=AgentOutcome.FAILED, reason="exit 3\r", seconds=2.0),
        RunEnded(**COMMON, stop_reason="completed", failure=None, agents_started=1),
    ]
    view = ProgressView(Output())
    with view.drawing():
        for event in events:
            view.show(event)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "== Phase [bold]one[/bold]",
        "   said \\u001b[2J :smile:",
        "   item 2 of parallel was lost at line 7: ValueError: \\u202e",
        "#1 round\\u000a1 started",
        "#1 round\\u000a1 failed after 2 s: exit 3\\u000d",
    ]


class _ClosedTerminal(io.StringIO):
    """A terminal that its person closes at some time."""

    is_closed = False

    def isatty(self) -> bool:
        return not self.is_closed

    def write(self, text: str) -> int:
        self.flush()
        return super().write(text)

    def flush(self) -> None:
        if self.is_closed:
            raise OSError(errno.EIO, "Input/output error")


def test_a_terminal_that_is_closed_ends_neither_the_view_nor_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _ClosedTerminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    view = ProgressView(Output())
    with view.drawing():
        view.show(AgentStarted(**COMMON, seq=1, label="round 1", phase=None, provider="p"))
        view.show(Log(**COMMON, message="seen"))
        terminal.is_closed = True
        view.show(AgentEnded(**COMMON, seq=1, outcome=AgentOutcome.COMPLETED, reason=None, seconds=2.0))
        view.show(Log(**COMMON, message="unseen"))
    assert "seen" in terminal.getvalue()
    assert "unseen" not in terminal.getvalue()
