"""A receipt in words, and as an exit code."""

import time
from pathlib import Path
from typing import Any

import pytest

from loopwarden.cli.exits import exit_code
from loopwarden.cli.receipt_view import agent_files, receipt_text, verdict
from loopwarden.receipt import (
    AgentRecord,
    AttemptRecord,
    CheckRecord,
    FailureRecord,
    Receipt,
    UsageRecord,
    WorktreeRecord,
)

PASSED = CheckRecord(argv=["make", "test it"], exit=0, problem=None, seconds=1.0, output_tail="fine")
FAILED = CheckRecord(argv=["make"], exit=2, problem=None, seconds=1.0, output_tail="1 failed\x1b[2J\n")
SLOW = CheckRecord(argv=["make"], exit=None, problem="it took longer than 600 s", seconds=600.0, output_tail="")
AGENT = AgentRecord(
    seq=1, label="round\u202e 1", phase=None, provider="p", outcome="failed", reason="exit 3\x1b[0m", seconds=2.0,
    attempts=1, notes=["note\x07"], folder="agents/0001", key="1", digest="sha256:0",
)  # fmt: skip


def a_receipt(**changes: Any) -> Receipt:
    given: dict[str, Any] = {
        "run_id": "r", "script": "ralph", "script_digest": "sha256:0", "workspace": "/w", "provider": "p",
        "args": {"objective": "do it\x1b", "maxRounds": 3}, "limits": {"maxTotalAgents": 3, "runDeadlineSeconds": 60.0},
        "walls": {"seccomp": "stands", "landlock": "old kernel"}, "settings_digest": None, "continues": None,
        "started_at": 1.0, "ended_at": 5.0, "stop_reason": "completed", "standing": "complete",
        "sentence": "agent reported completion after 1 round", "result": {"a": "\u202e"}, "failure": None,
        "verified": None, "checks": [], "agents_started": 1, "attempts": 1, "agents": [AGENT], "last_handoff": None,
        "decided_by": "the script", "problems": [],
    }  # fmt: skip
    return Receipt(**{**given, **changes})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "agent reported completion after 1 round; not verified (no check)"),
        (
            {"verified": True, "checks": [PASSED]},
            "agent reported completion after 1 round; verified by: make 'test it'",
        ),
        (
            {"verified": False, "checks": [PASSED, FAILED]},
            "agent reported completion after 1 round; not verified, the check failed: make (exit 2)",
        ),
        (
            {"verified": False, "checks": [SLOW]},
            "agent reported completion after 1 round; not verified, the check failed: make (it took longer than 600 s)",
        ),
        ({"checks": [PASSED]}, "agent reported completion after 1 round; not verified (the checks did not finish)"),
        ({"standing": "blocked", "sentence": "agent reported a blocker"}, "agent reported a blocker"),
        (
            {
                "standing": None,
                "stop_reason": "error",
                "failure": FailureRecord(code="SCRIPT_ERROR", message="bad\x1b", line=3),
            },
            "SCRIPT_ERROR: bad\\u001b (line 3 of the script)",
        ),
        ({"stop_reason": None, "ended_at": None}, "did not end: its host was killed"),
    ],
)
def test_the_verdict_claims_no_more_than_the_host_checked(changes: dict[str, Any], words: str) -> None:
    assert verdict(a_receipt(**changes)) == words


def test_the_text_shows_every_part_and_no_control_character(tmp_path: Path) -> None:
    text = receipt_text(a_receipt(verified=False, checks=[FAILED], problems=["disk full\x1b"]), tmp_path, paths=True)
    for part in (
        "objective: do it\\u001b", "maxRounds: 3", "60 s for the run", "1 agent started, at most 3", "seccomp stand",
        "landlock does not stand (old kernel)", "round\\u202e 1  failed after 2 s: exit 3\\u001b[0m", "note\\u0007",
        "1 failed\\u001b[2J", "disk full\\u001b", '"a": "\\u202e"', "the script", "took         4 s", str(tmp_path),
    ):  # fmt: skip
        assert part in text
    assert not set(text) & set("\x1b\x07\u202e")


def asked(number: int, **more: Any) -> AttemptRecord:
    given: dict[str, Any] = {
        "number": number, "provider": "p", "kind": "first", "paused_seconds": 0.0, "seconds": 2.0,
        "outcome": "completed", "failure_class": None, "reason": None, "evidence": None, "usage": None,
    }  # fmt: skip
    return AttemptRecord(**{**given, **more})


USED = UsageRecord(input_tokens=12345, cached_input_tokens=10000, output_tokens=1, cost_usd=0.0123)
FAILED_ASK = {"outcome": "failed", "failure_class": "overloaded", "reason": "it is busy", "evidence": "529\x1b"}


def test_every_attempt_of_an_agent_is_shown_with_class_evidence_and_usage() -> None:
    asks = [
        asked(1, **FAILED_ASK, usage=USED),
        asked(2, kind="retry", paused_seconds=30.0, **FAILED_ASK),
        asked(3, kind="fallback", provider="q\x1b"),
    ]
    text = receipt_text(a_receipt(agents=[AGENT.model_copy(update={"asks": asks, "attempts": 3})]), None)
    for line in (
        "       attempt 1, p, as the script asked: failed after 2 s (overloaded): it is busy",
        "         evidence: 529\\u001b",
        "         used 12,345 tokens read (10,000 of them from a cache), 1 token written, $0.0123",
        "       attempt 2, p, again by the policy after waiting 30 s: failed after 2 s (overloaded): it is busy",
        "       attempt 3, q\\u001b, in place of the other: completed after 2 s",
    ):
        assert line in text.splitlines()


def test_a_single_attempt_stands_in_the_line_of_its_agent() -> None:
    agent = AGENT.model_copy(update={"asks": [asked(1, **FAILED_ASK)], "failure_class": "overloaded"})
    text = receipt_text(a_receipt(agents=[agent]), None)
    assert "failed after 2 s (overloaded): exit 3" in text
    assert "evidence: 529" in text
    assert "attempt 1" not in text


def test_what_was_used_is_no_more_than_what_was_measured() -> None:
    assert "  used  " not in receipt_text(a_receipt(), None)
    part = UsageRecord(input_tokens=None, cached_input_tokens=None, output_tokens=None, cost_usd=2.5)
    text = receipt_text(a_receipt(usage=part, attempts_of_unknown_cost=2), None)
    assert "  used         $2.50; without the cost of 2 attempts, which is not known\n" in text
    assert "  used         $2.50\n" in receipt_text(a_receipt(usage=part), None)


def test_a_cap_on_money_and_a_worktree_are_shown() -> None:
    made = WorktreeRecord(
        path="/s/wt/r\x1b", branch="loopwarden/r", commit="0123456789abcdef", repository="/w", notes=["2 files"]
    )
    text = receipt_text(a_receipt(worktree=made, limits={"maxTotalAgents": 3, "maxCostUsd": 5.0}), None)
    assert "  worktree     /s/wt/r\\u001b\n" in text
    assert "  branch       loopwarden/r, from commit 0123456789ab of /w; both are kept\n" in text
    assert "  note         2 files\n" in text
    assert "  limits       $5.00 in all\n" in text
    assert "in all" not in receipt_text(a_receipt(limits={"maxTotalAgents": 3, "maxCostUsd": None}), None)


def test_the_last_good_handoff_is_shown_when_there_is_no_result() -> None:
    assert "last good handoff" in receipt_text(a_receipt(result=None, last_handoff={"summary": "half"}), None)


def test_a_receipt_with_an_impossible_time_is_still_shown() -> None:
    assert "at an impossible time" in receipt_text(a_receipt(started_at=1e300), None)


def test_files_of_an_agent_are_those_that_are_there_inside_of_the_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (folder / "agents/0001").mkdir(parents=True)
    (folder / "agents/0001/prompt.txt").touch()
    (tmp_path / "prompt.txt").touch()
    assert agent_files(folder, AGENT) == [folder / "agents/0001/prompt.txt"]
    for elsewhere in ("..", "/", str(tmp_path)):
        assert agent_files(folder, AGENT.model_copy(update={"folder": elsewhere})) == []


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, 0),
        ({"verified": True}, 0),
        ({"verified": False}, 6),
        ({"standing": "blocked"}, 3),
        ({"standing": "rounds-used"}, 4),
        ({"standing": "round-failed"}, 5),
        ({"standing": None, "failure": FailureRecord(code="SCRIPT_ERROR", message="x")}, 1),
        ({"standing": None, "failure": FailureRecord(code="DEADLINE", message="x")}, 124),
        ({"standing": None, "failure": FailureRecord(code="CANCELLED", message="x")}, 130),
        ({"standing": None, "stop_reason": None}, 1),
    ],
)
def test_the_exit_code_follows_the_ending(changes: dict[str, Any], code: int) -> None:
    assert exit_code(a_receipt(**changes)) == code


def test_checks_that_were_asked_for_and_did_not_end_are_not_a_success() -> None:
    assert exit_code(a_receipt(), checks_asked=True) == 6
    assert exit_code(a_receipt(verified=True), checks_asked=True) == 0


def test_a_run_takes_time_as_people_count_it() -> None:
    now = time.time()
    assert "took         2 min" in receipt_text(a_receipt(started_at=now, ended_at=now + 120), None)
