"""The events that observers of a journal see: at most one per entry, with the number of the entry."""

import time
from collections.abc import Iterator

import pytest

from loopwarden import events
from loopwarden.contract import AgentOutcome
from loopwarden.events import Event
from loopwarden.failure_class import FailureClass
from loopwarden.failures import Code
from loopwarden.journal.entries import EntryError, ItemFailed, WaitCancelled
from loopwarden.journal.observed import Observed
from support.journals import RUN, Journal, begun


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def seen(journal: Journal) -> list[Event]:
    observed = Observed(run_id=RUN)
    found: list[Event] = []
    for chained in journal.chained:
        made = observed.events_of(chained)
        assert len(made) <= 1
        for event in made:
            assert (event.number, event.at, event.run_id) == (chained.seq, chained.entry.at, RUN)
        found += made
    return found


def messages(journal: Journal) -> list[str]:
    return [event.message for event in seen(journal) if isinstance(event, events.AgentProgress) and event.is_policy]


def kinds(journal: Journal) -> list[str]:
    return [event.kind for event in seen(journal)]


def test_a_run_from_its_start_to_its_end() -> None:
    journal = begun().phase("Round 1").log("hello").asked(1, phase="Round 1").ended(1).completed({"n": 1}).finished()
    start, phase, log, started, ended, over = seen(journal)
    assert isinstance(start, events.RunStarted)
    assert (start.number, start.script, start.max_total_agents) == (1, "ralph", 10)
    assert isinstance(phase, events.Phase)
    assert phase.title == "Round 1"
    assert isinstance(log, events.Log)
    assert log.message == "hello"
    assert isinstance(started, events.AgentStarted)
    assert (started.number, started.seq, started.label) == (5, 1, "round 1")
    assert (started.phase, started.provider) == ("Round 1", "claude")
    assert isinstance(ended, events.AgentEnded)
    assert (ended.seq, ended.outcome, ended.reason, ended.seconds) == (1, AgentOutcome.COMPLETED, None, 1.0)
    assert (ended.failure_class, ended.attempts) == (None, 1)
    assert isinstance(over, events.RunEnded)
    assert (over.number, over.stop_reason, over.failure, over.agents_started) == (8, "completed", None, 1)


def test_an_item_that_failed() -> None:
    journal = begun()
    journal.add(ItemFailed(at=journal.at, combinator="0.3", index=2, line=9, message="ValueError: no"))
    event = seen(journal)[-1]
    assert isinstance(event, events.ItemFailed)
    assert (event.combinator, event.index, event.line, event.message) == ("0.3", 2, 9, "ValueError: no")


def test_repeats_are_told_in_the_words_of_the_host() -> None:
    journal = begun().asked(1)
    journal.attempt_ended(1, reason="no answer", failure_class="unavailable").waiting(1, 5.0).asked(1, 2)
    journal.attempt_ended(1, 2, reason="too many requests", failure_class="rateLimited").waiting(1, 3600.0, "wait")
    journal.asked(1, 3, ask="wait").attempt_ended(1, 3).waiting(1, 0.0, "fallback")
    journal.asked(1, 4, ask="fallback", provider="codex")
    journal.ended(1, None, 4, outcome="failed", reason="no", failure_class="crashed")
    until = time.strftime("%H:%M", time.gmtime(journal.entries[7].at + 3600))
    assert messages(journal) == [
        "attempt 1 of claude failed (unavailable): no answer",
        "asking again in 5 s",
        "asking claude again",
        "attempt 2 of claude failed (rateLimited): too many requests",
        f"waiting until {until}, 1 h left",
        "the wait is over; asking claude again",
        "attempt 3 of claude failed",
        "asking codex instead",
    ]
    ended = seen(journal)[-1]
    assert isinstance(ended, events.AgentEnded)
    assert (ended.outcome, ended.reason, ended.failure_class) == (AgentOutcome.FAILED, "no", FailureClass.CRASHED)
    assert (ended.attempts, ended.seconds) == (4, 10.0)


def test_a_long_reason_and_hostile_words_are_bounded() -> None:
    [message] = messages(begun().asked(1).attempt_ended(1, reason="x" * 5000))
    assert message == f"attempt 1 of claude failed: {'x' * 499}…"


def test_a_takeover_and_a_redo() -> None:
    journal = begun().asked(1).claimed(2, "host-b").attempt_ended(1, outcome="interrupted").asked(1, 2, ask="redo")
    assert kinds(journal) == ["runStarted", "agentStarted", "runResumed", "agentProgress", "agentProgress"]
    resumed = seen(journal)[2]
    assert isinstance(resumed, events.RunResumed)
    assert (resumed.epoch, resumed.host, resumed.by, resumed.why) == (2, "host-b", None, None)
    assert messages(journal) == [
        "attempt 1 of claude was interrupted: its host stopped, died or lost the run",
        "asking claude once more, with the same idempotency key: the attempt before was interrupted",
    ]


def test_agents_that_the_end_of_the_run_stopped() -> None:
    journal = begun().asked(1).asked(2).asked(3).attempt_ended(3).waiting(3).failed("DEADLINE", "Too long.")
    journal.attempt_ended(1, outcome="cancelled", is_last=True)
    journal.attempt_ended(2, outcome="failed", is_last=True, reason="no such model", failure_class="crashed")
    journal.add(WaitCancelled(at=journal.at, seq=3)).finished()
    ends = [event for event in seen(journal) if isinstance(event, events.AgentEnded)]
    assert [(end.seq, end.outcome, end.reason) for end in ends] == [
        (1, AgentOutcome.CANCELLED, "the run ended"),
        (2, AgentOutcome.FAILED, "no such model"),
        (3, AgentOutcome.CANCELLED, "the run ended"),
    ]
    over = seen(journal)[-1]
    assert isinstance(over, events.RunEnded)
    assert over.failure is not None
    assert (over.stop_reason, over.failure.code, over.failure.message) == ("error", Code.DEADLINE, "Too long.")
    assert over.agents_started == 3


def test_a_run_that_is_reopened_goes_on_after_its_end() -> None:
    journal = begun().asked(1).failed("CANCELLED").attempt_ended(1, outcome="cancelled", is_last=True).finished()
    journal.claimed(2, "host-b").reopened().asked(1, 2, ask="redo").ended(1, attempt=2).completed().finished()
    assert kinds(journal) == [
        "runStarted", "agentStarted", "agentEnded", "runEnded",
        "runResumed", "agentStarted", "agentEnded", "runEnded",
    ]  # fmt: skip
    resumed = seen(journal)[4]
    assert isinstance(resumed, events.RunResumed)
    assert (resumed.number, resumed.epoch, resumed.host, resumed.by) == (8, 2, "host-b", "olga")
    assert seen(journal)[-1].to_json()["agentsStarted"] == 1


def test_a_run_that_is_held_says_why_and_goes_on_without_starting_its_agents_again() -> None:
    journal = begun().asked(1).held().claimed(2).reopened()
    journal.attempt_ended(1, outcome="interrupted").asked(1, 2, ask="redo")
    assert kinds(journal) == [
        "runStarted", "agentStarted", "runHeld", "runResumed", "agentProgress", "agentProgress",
    ]  # fmt: skip
    held = seen(journal)[2]
    assert isinstance(held, events.RunHeld)
    assert (held.code, held.reason) == ("REPLAY_DIVERGED", "Call 2 is another call now.")


def test_a_call_that_waits_for_its_first_ask_is_no_agent_yet() -> None:
    assert kinds(begun().waiting(1, ask="first")) == ["runStarted"]


def test_a_class_of_a_newer_version_is_unknown_and_a_code_is_refused() -> None:
    ended = seen(begun().asked(1).ended(1, None, outcome="failed", failure_class="newer"))[-1]
    assert isinstance(ended, events.AgentEnded)
    assert ended.failure_class is FailureClass.UNKNOWN
    with pytest.raises(EntryError, match="the failure code 'NEWER' is not known"):
        seen(begun().failed("NEWER").finished())


def test_an_agent_that_the_end_of_the_run_passed_over_starts_again_when_it_is_asked_again() -> None:
    journal = begun().asked(1).attempt_ended(1).failed("CANCELLED").finished().claimed(2).reopened().asked(1, 2)
    assert kinds(journal) == [
        "runStarted", "agentStarted", "agentProgress", "runEnded", "runResumed", "agentStarted",
    ]  # fmt: skip


def test_claims_of_a_run_that_is_over_are_not_told() -> None:
    journal = begun().completed().finished().claimed(2, "host-b").claimed(3, "host-c")
    assert kinds(journal) == ["runStarted", "runEnded"]
    journal.reopened()
    assert kinds(journal) == ["runStarted", "runEnded", "runResumed"]
    assert kinds(begun().held().claimed(2).claimed(3)) == ["runStarted", "runHeld"]
