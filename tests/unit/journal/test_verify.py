"""The second opinion on a journal: it finds what the chain and the promises do not allow, by entry."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from loopwarden.journal.chain import MAX_INLINE_BYTES
from loopwarden.journal.entries import OpeningRecord
from loopwarden.journal.fold import fold
from loopwarden.journal.moves import Stage
from loopwarden.journal.verify import NOTHING_TO_TRACE, Counts, Verdict, verify
from support.journals import REPORT, Journal, begun, rechained

RESULT: dict[str, Any] = {"status": "complete", "roundsStarted": 1, "report": dict(REPORT)}


def verdict(journal: Journal, head: str | None = None) -> Verdict:
    return verify(journal.rows, journal.blobs, head=head)


def findings(journal: Journal) -> tuple[str, ...]:
    return verdict(journal).findings


def whole() -> Journal:
    journal = begun().asked(1).attempt_ended(1).waiting(1).asked(1, 2).ended(1, dict(REPORT), 2)
    return journal.completed(RESULT).finished()


def test_a_whole_journal_is_sound() -> None:
    journal = whole()
    found = verdict(journal)
    assert found.is_sound
    assert found.run_id == "run-1"
    assert found.counts == Counts(entries=9, calls=1, attempts=2, extra=1, redos=0, ended=1, claims=1, segments=1)
    assert (found.head, found.known_head_at) == (journal.head, None)
    assert found.provenance == "the report in the result is what the agent of call 1 delivered (entry 7)"
    assert "rewritten as a whole" in found.not_proved
    assert json.loads(json.dumps(found.to_json()))["isSound"] is True


def test_an_empty_journal_proves_nothing() -> None:
    assert verify([], {}).findings == ("the journal is empty",)
    assert verify([], {}).counts == Counts()


def test_a_known_head_is_found_wherever_it_is() -> None:
    journal = whole()
    assert verdict(journal, journal.head).known_head_at == 9
    middle = verdict(journal, journal.rows[4].hash.removeprefix("sha256:"))
    assert (middle.known_head_at, middle.is_sound) == (5, True)


def test_a_journal_that_was_cut_off_is_found_against_a_known_head() -> None:
    journal = whole()
    cut_off = verify(journal.rows[:-2], {}, head=journal.head)
    assert cut_off.findings == (
        f"no entry has the hash {journal.head} that was noted before: the journal was cut off, or rewritten",
    )
    assert verify(journal.rows[:-2], {}).is_sound


def test_a_rewrite_is_found_against_a_known_head_and_only_then() -> None:
    journal = whole()
    rewritten = rechained(row.body.replace(b"All tests", b"No tests") for row in journal.rows)
    assert verify(rewritten, {}).is_sound
    assert not verify(rewritten, {}, head=journal.head).is_sound


def test_a_row_that_was_edited_is_found_and_the_rest_is_read_on() -> None:
    journal = whole()
    rows = list(journal.rows)
    rows[6] = replace(rows[6], body=rows[6].body.replace(b"All tests", b"No tests"))
    assert verify(rows, {}).findings == (
        "entry 7 does not fit its hash: it, or an entry before it, was changed",
        "entry 8 has a result whose report was given by no agent of the run",
    )


def test_rows_that_were_dropped_or_swapped_are_found() -> None:
    rows = whole().rows
    dropped = verify([*rows[:4], *rows[5:]], {}).findings
    assert dropped[:2] == (
        "entry 6 stands where entry 5 belongs",
        "entry 6 does not fit its hash: it, or an entry before it, was changed",
    )
    swapped = verify([*rows[:4], rows[5], rows[4], *rows[6:]], {}).findings
    assert "entry 6 stands where entry 5 belongs" in swapped


def test_rows_that_are_no_rows_are_found() -> None:
    rows: list[Any] = list(whole().rows)
    rows[4] = replace(rows[4], body="text")
    assert verify(rows, {}).findings[0] == "entry 5 is not stored as a number, bytes and a hash"


def test_a_blob_that_is_missing_or_changed_is_found() -> None:
    journal = begun().asked(1).ended(1, "x" * MAX_INLINE_BYTES)
    [where] = journal.blobs
    assert verify(journal.rows, {}).findings == ("entry 4 the blob of its field 'value' is missing",)
    assert verify(journal.rows, {where: b'"y"'}).findings == ("entry 4 the blob of its field 'value' was changed",)
    assert verdict(journal).is_sound


def test_very_many_findings_are_counted_not_listed() -> None:
    journal = begun()
    for seq in range(1, 151):
        journal.ended(seq)
    found = findings(journal)
    assert len(found) == 101
    assert found[-1] == "and 50 more findings"


@pytest.mark.parametrize(
    ("make", "finding"),
    [
        (
            lambda: begun(limits={"max_total_agents": 1, "max_extra_attempts": 0}).asked(1).asked(2),
            "entry 4 asks call 2, agent 2 of the run; maxTotalAgents was 1",
        ),
        (
            lambda: (
                begun(limits={"max_total_agents": 9, "max_extra_attempts": 0}).asked(1).attempt_ended(1).asked(1, 2)
            ),
            "entry 5 asks call 1 again, extra attempt 1 of the run; maxExtraAttempts was 0",
        ),
        (
            lambda: begun(limits={"max_total_agents": 9}).asked(1).attempt_ended(1).asked(1, 2),
            "entry 5 asks call 1 again, extra attempt 1 of the run; maxExtraAttempts was not set",
        ),
        (lambda: begun().asked(1).ended(1).ended(1), "entry 5 ends call 1 a second time"),
        (lambda: begun().ended(1), "entry 3 ends attempt 1 of call 1, which was not asked"),
        (lambda: begun().asked(1).ended(1).asked(1, 2), "entry 5 asks call 1 again, which had its end"),
        (lambda: begun().asked(1).asked(1, 3), "entry 4 asks call 1 as attempt 3; it is its ask number 2"),
        (lambda: begun().completed().asked(1), "entry 4 asks call 1 after the run had begun to end"),
        (lambda: begun().completed().finished().asked(1), "entry 5 asks call 1 after the run had begun to end"),
        (lambda: begun().held().asked(1), "entry 4 asks call 1 while the run was held"),
        (lambda: begun().completed().completed(), "entry 4 ends this segment of the run a second time"),
        (lambda: begun().claimed(1), "entry 3 claims the run with epoch 1, but epoch 1 was there before"),
        (lambda: Journal().created().asked(1), "entry 2 is 'asked', but no host had claimed the run"),
        (lambda: begun().created(), "entry 3 is 'created'; a journal begins with 'created', and has it once"),
        (
            lambda: begun().asked(1).ended(1).completed().finished(agents_started=3, attempts=3),
            "entry 6 says 3 agents and 3 attempts; the journal holds 1 and 1",
        ),
        (lambda: begun().asked(1).completed().finished(), "entry 5 ends the run while attempt 1 of call 1 has no end"),
        (lambda: begun(limits={}).asked(1), "entry 3 asks call 1, agent 1 of the run; maxTotalAgents was not set"),
        (
            lambda: begun(limits={"max_total_agents": 9.5}).asked(1),
            "entry 3 asks call 1, agent 1 of the run; maxTotalAgents was 9.5",
        ),
        (lambda: begun().reopened(), "entry 3 reopens the run, which had not ended and was not held"),
        (lambda: begun().completed().reopened(), "entry 4 reopens the run, which had not ended and was not held"),
        (lambda: begun().finished(), "entry 3 finishes a run that was not about to end"),
        (lambda: begun().completed().finished().finished(), "entry 5 finishes a run that was not about to end"),
        (
            lambda: begun().asked(1).attempt_ended(1).completed().finished().ended(1),
            "entry 7 ends attempt 1 of call 1 after the end of the run",
        ),
        (
            lambda: begun().asked(1).ended(1, dict(REPORT)).completed({**RESULT, "report": {**REPORT, "summary": "!"}}),
            "entry 5 has a result whose report was given by no agent of the run",
        ),
    ],
)
def test_a_promise_that_was_not_kept_is_found_though_the_chain_is_whole(
    make: Callable[[], Journal], finding: str
) -> None:
    assert findings(make()) == (finding,)


def test_a_run_that_was_held_while_it_ended_may_be_cancelled_instead_of_resumed() -> None:
    journal = begun().completed().claimed(2).held("HOST_LOST").claimed(3).failed("CANCELLED")
    assert findings(journal.finished()) == ()
    assert fold(journal.run_id, journal.chained).stage is Stage.FINISHED
    assert findings(begun().completed().held().claimed(2).asked(1)) == ("entry 6 asks call 1 while the run was held",)


def test_two_redos_of_a_call_are_allowed_and_a_third_is_not() -> None:
    journal = begun().asked(1)
    for attempt in (2, 3):
        journal.attempt_ended(1, attempt - 1, outcome="interrupted").asked(1, attempt, ask="redo")
    assert verdict(journal).counts.redos == 2
    assert findings(journal) == ()
    journal.attempt_ended(1, 3, outcome="interrupted").asked(1, 4, ask="redo")
    assert findings(journal) == ("entry 9 is redo number 3 of call 1; 2 are allowed",)


def test_an_operator_who_reopens_a_run_allows_two_redos_more() -> None:
    journal = begun().asked(1)
    for attempt in (2, 3):
        journal.attempt_ended(1, attempt - 1, outcome="interrupted").asked(1, attempt, ask="redo")
    journal.held().claimed(2).reopened()
    journal.attempt_ended(1, 3, outcome="interrupted").asked(1, 4, ask="redo")
    assert findings(journal) == ()


def test_the_limits_in_force_at_the_time_are_those_that_count() -> None:
    journal = begun(limits={"max_total_agents": 1, "max_extra_attempts": 0}).asked(1).ended(1).failed("AGENT_CAP")
    journal.finished().claimed(2).reopened(limits={"max_total_agents": 2}).asked(2).ended(2)
    assert findings(journal) == ()
    assert verdict(journal).counts.segments == 2
    assert findings(journal.asked(3)) == ("entry 11 asks call 3, agent 3 of the run; maxTotalAgents was 2",)


@pytest.mark.parametrize("value", [True, 1, 1.0, "1"])
def test_provenance_is_exact_to_the_byte(value: object) -> None:
    delivered = {"n": 1}
    sound = verdict(begun().asked(1).ended(1, delivered).completed({"report": {"n": value}})).is_sound
    assert sound is (value == 1 and type(value) is int)


def test_a_report_of_the_round_before_and_a_handoff_that_was_taken_over_can_be_traced() -> None:
    journal = begun().asked(1).ended(1, dict(REPORT)).asked(2).ended(2, None, outcome="failed")
    assert verdict(journal.completed({"status": "round-failed", "lastReport": dict(REPORT)})).provenance == (
        "the lastReport in the result is what the agent of call 1 delivered (entry 4)"
    )
    journal = begun(opening=OpeningRecord(run_id="run-0", handoff=dict(REPORT), failed_checks=None))
    assert verdict(journal.completed({"lastReport": dict(REPORT)})).provenance == (
        "the lastReport in the result is the handoff of run run-0"
    )


@pytest.mark.parametrize("result", [None, 7, "text", [REPORT], {"n": 1}, {"report": "text"}, {"lastReport": None}])
def test_a_result_without_a_report_has_nothing_to_trace(result: object) -> None:
    found = verdict(begun().completed(result))
    assert (found.is_sound, found.provenance) == (True, NOTHING_TO_TRACE)


def test_what_a_failed_call_brought_is_no_proof() -> None:
    journal = begun().asked(1).ended(1, dict(REPORT), outcome="failed").completed({"report": dict(REPORT)})
    assert findings(journal) == ("entry 5 has a result whose report was given by no agent of the run",)


def test_a_report_that_was_delivered_later_is_no_proof() -> None:
    journal = begun().asked(1).completed({"report": dict(REPORT)}).ended(1, dict(REPORT))
    assert findings(journal) == ("entry 4 has a result whose report was given by no agent of the run",)
