"""The receipt that a journal makes: the same facts that the host of a live run writes down."""

from loopwarden.journal.entries import ConclusionRecord, OpeningRecord, WaitCancelled
from loopwarden.journal.fold import fold
from loopwarden.journal.receipt_fold import receipt_of
from loopwarden.receipt import CheckRecord, Receipt, UsageRecord, WorktreeRecord
from loopwarden_engine.json_decoding import decode_json
from loopwarden_engine.plain import compact_json
from support.journals import BEGAN, REPORT, RUN, USAGE, Journal, begun

RESULT = {"status": "complete", "roundsStarted": 1, "report": dict(REPORT)}
CONCLUSION = ConclusionRecord(standing="complete", sentence="Agent reported completion after 1 round.")


def receipt(journal: Journal) -> Receipt:
    made = receipt_of(fold(RUN, journal.chained))
    # What is read back from a disk is the same.
    assert Receipt.model_validate(decode_json(compact_json(made.to_json()))) == made
    return made


def test_a_run_that_completed() -> None:
    check = CheckRecord(argv=["make", "test"], exit=0, problem=None, seconds=2.0, output_tail="ok")
    worktree = WorktreeRecord(path="/tree", branch="b", commit="c", repository="/repo", notes=[])
    journal = begun(workspace="/repo", settings_digest="sha256:s").asked(1, phase="Round 1").ended(1, dict(REPORT))
    journal.completed(RESULT, CONCLUSION)
    journal.finished(
        verified=True, checks=[check], worktree=worktree, last_handoff=None, walls={"seccomp": "stands"},
        problems=["the disk was full"],
    )  # fmt: skip
    made = receipt(journal)
    assert (made.run_id, made.script, made.script_digest) == (RUN, "ralph", "sha256:" + "a" * 64)
    assert (made.workspace, made.provider, made.settings_digest) == ("/repo", "claude", "sha256:s")
    assert made.args == {"objective": "Make it work", "maxRounds": 10}
    assert made.limits == {"maxTotalAgents": 10, "maxExtraAttempts": 3, "runDeadlineSeconds": 86400.0}
    assert (made.started_at, made.ended_at) == (BEGAN + 1, BEGAN + 5)
    assert (made.stop_reason, made.standing, made.sentence) == ("completed", "complete", CONCLUSION.sentence)
    assert (made.result, made.failure, made.verified, made.checks) == (RESULT, None, True, [check])
    assert (made.agents_started, made.attempts, made.usage, made.attempts_of_unknown_cost) == (1, 1, USAGE, 0)
    assert (made.worktree, made.walls, made.last_handoff) == (worktree, {"seccomp": "stands"}, None)
    assert (made.decided_by, made.problems) == (
        "the script; its result was accepted by the contract",
        ["the disk was full"],
    )
    assert made.journal is not None
    assert (made.journal.seq, made.journal.head, made.journal.epoch) == (6, journal.head, 1)
    [agent] = made.agents
    assert (agent.seq, agent.key, agent.label, agent.phase) == (1, "0.1", "round 1", "Round 1")
    assert (agent.outcome, agent.reason, agent.seconds, agent.attempts) == ("completed", None, 1.0, 1)
    assert (agent.folder, agent.notes, agent.waiting_until) == (None, [], None)


def test_the_attempts_of_a_call_with_their_pauses() -> None:
    journal = begun().asked(1)
    journal.attempt_ended(1, reason="no", failure_class="overloaded", evidence="529", usage=USAGE, seconds=0.5)
    journal.waiting(1).asked(1, 2).attempt_ended(1, 2, outcome="interrupted").asked(1, 3, ask="redo")
    journal.ended(1, None, 3, outcome="failed", reason="no more", failure_class="crashed", notes=["given up"])
    [agent] = receipt(journal).agents
    first, second, third = agent.asks
    assert (first.number, first.kind, first.paused_seconds, first.seconds) == (1, "first", 0.0, 0.5)
    assert (first.outcome, first.failure_class, first.reason, first.evidence) == ("failed", "overloaded", "no", "529")
    assert first.usage == USAGE
    assert (second.kind, second.paused_seconds, second.seconds, second.outcome) == ("retry", 2.0, None, "interrupted")
    assert (third.kind, third.outcome) == ("redo", "failed")
    assert (agent.outcome, agent.reason, agent.failure_class, agent.notes) == (
        "failed",
        "no more",
        "crashed",
        ["given up"],
    )
    assert agent.seconds == 6.0


def test_a_live_run_has_no_end_and_says_who_waits() -> None:
    made = receipt(begun().asked(1).asked(2).attempt_ended(2).waiting(2, 60.0))
    assert (made.ended_at, made.stop_reason, made.decided_by, made.result) == (None, None, None, None)
    assert [agent.outcome for agent in made.agents] == [None, None]
    assert [agent.seconds for agent in made.agents] == [None, None]
    assert made.agents[0].asks[0].outcome is None
    assert made.agents[1].waiting_until == BEGAN + 5 + 60


def test_a_run_that_stops_has_a_result_before_it_has_an_end() -> None:
    made = receipt(begun().asked(1).ended(1).completed(RESULT, CONCLUSION))
    assert (made.stop_reason, made.ended_at) == (None, None)
    assert (made.result, made.standing, made.decided_by) == (
        RESULT,
        "complete",
        "the script; its result was accepted by the contract",
    )


def test_agents_that_the_end_of_the_run_stopped() -> None:
    journal = begun().asked(1).asked(2).asked(3).attempt_ended(3).waiting(3).asked(4).attempt_ended(4)
    journal.failed("CANCELLED").attempt_ended(1, outcome="cancelled", is_last=True)
    journal.attempt_ended(2, outcome="failed", is_last=True, reason="no such model")
    journal.add(WaitCancelled(at=journal.at, seq=3)).finished()
    made = receipt(journal)
    assert (made.stop_reason, made.decided_by) == ("cancelled", "the operator")
    assert made.failure is not None
    assert made.failure.code == "CANCELLED"
    assert [(agent.outcome, agent.reason) for agent in made.agents] == [
        ("cancelled", "the run ended"),
        ("failed", "no such model"),
        ("cancelled", "the run ended"),
        ("cancelled", "the run ended"),
    ]


def test_a_held_run_says_why_among_its_problems() -> None:
    made = receipt(begun().asked(1).held())
    assert made.problems == ["the run is held (REPLAY_DIVERGED): Call 2 is another call now."]
    assert made.ended_at is None


def test_a_reopened_run_is_live_again_with_its_new_limits() -> None:
    journal = begun().failed("AGENT_CAP").finished().claimed(2).reopened(limits={"max_total_agents": 20})
    made = receipt(journal)
    assert (made.stop_reason, made.ended_at, made.failure) == (None, None, None)
    assert made.limits["maxTotalAgents"] == 20
    assert made.journal is not None
    assert made.journal.epoch == 2


def test_a_continued_run_shows_the_handoff_that_it_began_with() -> None:
    made = receipt(begun(opening=OpeningRecord(run_id="run-0", handoff=dict(REPORT), failed_checks=None)))
    assert (made.continues, made.last_handoff) == ("run-0", dict(REPORT))


def test_what_providers_did_not_measure_stays_unknown() -> None:
    tokens = UsageRecord(input_tokens=7, cached_input_tokens=None, output_tokens=None, cost_usd=None)
    made = receipt(begun().asked(1).ended(1, usage=tokens))
    assert (made.usage, made.attempts_of_unknown_cost) == (tokens, 1)
