"""Live progress: lines for a pipe, and agent text that is never markup."""

import errno
import io
import sys
from typing import Any

import pytest

from loopwarden.cli.output import Output
from loopwarden.cli.progress import QUIET_SECONDS, ProgressView
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
from loopwarden.failure_class import FailureClass

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


def at(moment: float, message: str, *, is_policy: bool = False) -> AgentProgress:
    return AgentProgress(number=1, run_id="r", at=moment, seq=1, message=message, is_policy=is_policy)


def test_a_log_gets_ordinary_progress_now_and_then_and_what_a_policy_does_at_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    view = ProgressView(Output())
    view.show(AgentStarted(**COMMON, seq=1, label="round 1", phase=None, provider="p"))
    for event in (
        at(1, "reads a.py"),
        at(QUIET_SECONDS - 1, "reads b.py"),
        at(QUIET_SECONDS, "reads c.py\x1b[2J"),
        at(QUIET_SECONDS + 1, "waiting until I know more"),
        at(QUIET_SECONDS + 2, "attempt 1 of p failed (rateLimited): too many", is_policy=True),
        at(QUIET_SECONDS + 2, "waiting until 14:27, 2 h 10 min left", is_policy=True),
        at(QUIET_SECONDS + 3, "reads e.py"),
        AgentProgress(number=1, run_id="r", at=9999.0, seq=7, message="nobody knows this agent"),
    ):
        view.show(event)
    assert capsys.readouterr().err.splitlines() == [
        "#1 round 1 started",
        "#1 round 1: reads c.py\\u001b[2J",
        "#1 round 1: attempt 1 of p failed (rateLimited): too many",
        "#1 round 1: waiting until 14:27, 2 h 10 min left",
    ]


def test_an_end_says_the_class_of_the_failure_and_how_often_was_asked(capsys: pytest.CaptureFixture[str]) -> None:
    view = ProgressView(Output())
    view.show(AgentStarted(**COMMON, seq=1, label="round 1", phase=None, provider="p"))
    view.show(
        AgentEnded(
            **COMMON, seq=1, outcome=AgentOutcome.FAILED, reason="too many", seconds=2.0,
            failure_class=FailureClass.RATE_LIMITED, attempts=3,
        )
    )  # fmt: skip
    wanted = "#1 round 1 failed after 2 s and 3 attempts (rateLimited): too many"
    assert capsys.readouterr().err.splitlines()[-1] == wanted


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


def test_a_terminal_keeps_the_line_of_a_failed_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _ClosedTerminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    view = ProgressView(Output())
    with view.drawing():
        view.show(AgentStarted(**COMMON, seq=1, label="round 1", phase=None, provider="p"))
        view.show(at(1, "attempt 1 of p failed (overloaded): busy", is_policy=True))
    # With a line end: what is drawn anew for a live line has none.
    assert "#1 round 1: attempt 1 of p failed (overloaded): busy\x1b[0m\n" in terminal.getvalue()
