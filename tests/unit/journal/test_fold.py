"""What a journal adds up to, and the sequences that no owner writes."""

from collections.abc import Callable

import pytest

from loopwarden.journal.entries import LimitsRaised, WaitCancelled
from loopwarden.journal.fold import JournalBroken, RunState, fold
from loopwarden.journal.moves import MOVES, Stage
from loopwarden.receipt import UsageRecord
from loopwarden.store.errors import StoreCorrupt
from loopwarden.usage import Usage
from support.journals import BEGAN, REPORT, RUN, USAGE, Journal, begun


def folded(journal: Journal) -> RunState:
    return fold(RUN, journal.chained)


def broken(journal: Journal) -> str:
    """Why the last entry is no owner's, after the state was seen to be as before."""
    *before, last = journal.chained
    state = fold(RUN, before)
    head = (state.seq, state.hash, state.stage, state.attempts, len(state.ends), state.limits, state.epoch)
    with pytest.raises(JournalBroken) as caught:
        state.apply(last)
    assert head == (state.seq, state.hash, state.stage, state.attempts, len(state.ends), state.limits, state.epoch)
    return caught.value.problem


# ---- what is written


def test_a_new_run_waits_for_a_claim() -> None:
    state = folded(Journal().created())
    assert (state.stage, state.seq, state.epoch, state.host) == (Stage.QUEUED, 1, 0, None)
    assert state.limits["max_total_agents"] == 10
    assert state.args == {"objective": "Make it work", "maxRounds": 10}


def test_a_claim_makes_a_run_live_and_names_its_owner() -> None:
    state = folded(Journal().created().claimed(3, "host-c").claimed(7, "host-d"))
    assert (state.stage, state.epoch, state.host) == (Stage.LIVE, 7, "host-d")
    assert [claim.host for claim in state.claims] == ["host-c", "host-d"]


def test_a_call_that_ended_is_kept_with_its_attempt() -> None:
    journal = begun().asked(1, line=7, phase="work", windows={"nightly": "2026-11-30"}).ended(1, REPORT)
    state = folded(journal)
    call = state.calls[1]
    assert (call.key, call.label, call.phase, call.line, call.is_open) == ("0.1", "round 1", "work", 7, False)
    [ask] = call.asks
    assert (ask.ask, ask.provider, ask.attempt, ask.at) == ("first", "claude", 1, BEGAN + 2)
    assert ask.windows == {"nightly": "2026-11-30"}
    assert ask.entry_seq == 3
    assert ask.end is call.ended is journal.entries[-1]
    assert state.ends == [journal.entries[-1]]
    assert (state.agents_started, state.attempts, state.extra) == (1, 1, 0)
    assert (state.seq, state.hash) == (4, journal.head)


def test_ends_and_narration_are_kept_in_the_order_in_which_they_were_recorded() -> None:
    journal = begun().asked(1).asked(2).phase("one").ended(2).log("two").ended(1)
    state = folded(journal)
    assert [end.seq for end in state.ends] == [2, 1]
    assert state.narration == [journal.entries[4], journal.entries[6]]


def test_every_ask_beyond_the_first_of_a_call_is_extra() -> None:
    journal = begun().asked(1).attempt_ended(1).waiting(1).asked(1, 2).attempt_ended(1, 2).asked(1, 3, ask="fallback")
    state = folded(journal.asked(2))
    assert (state.agents_started, state.attempts, state.extra) == (2, 4, 2)
    assert [ask.ask for ask in state.calls[1].asks] == ["first", "retry", "fallback"]


def test_usage_is_added_up_and_what_is_not_said_is_counted_as_unknown() -> None:
    partly = UsageRecord(input_tokens=5, cached_input_tokens=2, output_tokens=None, cost_usd=None)
    journal = begun().asked(1).attempt_ended(1, usage=partly).asked(1, 2).attempt_ended(1, 2).asked(1, 3)
    state = folded(journal.ended(1, attempt=3, usage=USAGE))
    assert state.usage == Usage(input_tokens=105, cached_input_tokens=2, output_tokens=20, cost_usd=0.25)
    assert state.attempts_of_unknown_cost == 2
    assert folded(begun()).usage is None


def test_a_call_waits_until_it_is_asked_again() -> None:
    journal = begun().asked(1).attempt_ended(1).waiting(1, seconds=60)
    assert folded(journal).waiting_until(1) == journal.at - 1 + 60
    assert folded(journal.claimed(2)).waiting_until(1) is not None
    assert folded(journal.asked(1, 2)).waiting_until(1) is None


def test_a_call_that_was_never_asked_may_wait_for_a_budget() -> None:
    journal = begun().waiting(1, seconds=60, ask="first")
    assert folded(journal).waiting_until(1) is not None
    assert folded(journal).calls == {}
    journal.add(WaitCancelled(at=journal.at, seq=1))
    assert folded(journal).waiting_until(1) is None


def test_an_interrupted_attempt_is_asked_again_by_the_next_host() -> None:
    journal = (
        begun().asked(1).claimed(2).attempt_ended(1, outcome="interrupted").asked(1, 2, ask="redo").ended(1, attempt=2)
    )
    state = folded(journal)
    assert [ask.end.outcome for ask in state.calls[1].asks if ask.end is not None] == ["interrupted", "completed"]
    assert state.extra == 1


def test_an_interrupted_call_may_end_without_another_ask() -> None:
    journal = begun().asked(1).claimed(2).ended(1, None, outcome="failed", failure_class="interrupted", usage=None)
    assert folded(journal).calls[1].is_closed


def test_a_call_that_is_given_up_between_two_attempts_counts_its_usage_once() -> None:
    journal = begun().asked(1).attempt_ended(1, usage=USAGE).ended(1, None, outcome="failed", usage=USAGE)
    state = folded(journal)
    assert state.usage == Usage(input_tokens=100, output_tokens=20, cost_usd=0.25)
    assert state.calls[1].asks[0].end is journal.entries[3]
    assert state.calls[1].ended is journal.entries[4]


def test_work_that_was_paid_for_is_kept_while_a_run_stops() -> None:
    state = folded(begun().asked(1).failed("AGENT_CAP").ended(1, REPORT).finished())
    assert [end.value for end in state.ends] == [REPORT]
    assert state.stage is Stage.FINISHED
    assert state.stopping is not None
    assert state.finished is not None


def test_a_reopened_run_asks_again_what_got_no_end_and_knows_its_new_limits() -> None:
    journal = begun().asked(1).ended(1).asked(2).asked(3).attempt_ended(3).waiting(3).failed("AGENT_CAP")
    journal.attempt_ended(2, outcome="cancelled", is_last=True)
    journal.add(WaitCancelled(at=journal.at, seq=3)).finished()
    state = folded(journal)
    assert [call.is_closed for call in state.calls.values()] == [True, True, True]
    journal.claimed(2).reopened(limits={"max_total_agents": 20}, args={"maxRounds": 20})
    state = folded(journal)
    assert (state.stage, state.segment, state.stopping, state.finished) == (Stage.LIVE, 2, None, None)
    assert (state.limits["max_total_agents"], state.limits["max_extra_attempts"]) == (20, 3)
    assert state.args == {"objective": "Make it work", "maxRounds": 20}
    assert [call.is_closed for call in state.calls.values()] == [True, False, False]
    state = folded(journal.asked(2, 2, ask="redo").asked(3, 2))
    assert state.calls[2].stopped is None
    assert (state.agents_started, state.extra) == (3, 2)
    assert state.created.limits["max_total_agents"] == 10


def test_a_held_run_is_reopened_or_cancelled() -> None:
    held = begun().asked(1).held()
    assert folded(held).stage is Stage.HELD
    assert folded(held).held is held.entries[-1]
    reopened = folded(begun().asked(1).held().claimed(2).reopened())
    assert (reopened.stage, reopened.held, reopened.calls[1].is_open) == (Stage.LIVE, None, True)
    cancelled = begun().asked(1).held().claimed(2).failed("CANCELLED")
    cancelled.attempt_ended(1, outcome="interrupted", is_last=True).finished()
    assert (folded(cancelled).stage, folded(cancelled).held) == (Stage.FINISHED, None)


def test_an_empty_journal_has_no_first_entry() -> None:
    with pytest.raises(JournalBroken, match="its journal is empty"):
        _ = fold(RUN, []).created


def test_a_broken_journal_is_damage_in_the_store() -> None:
    assert issubclass(JournalBroken, StoreCorrupt)
    with pytest.raises(JournalBroken) as caught:
        folded(Journal().claimed())
    assert str(caught.value) == (
        "what the store holds for run run-1 is damaged: entry 1, 'claimed', comes while the run has no entry yet"
    )


# ---- what no owner writes


def test_every_move_that_the_table_does_not_name_is_refused() -> None:
    every: dict[str, Callable[[Journal], Journal]] = {
        "Created": lambda it: it.created(),
        "Claimed": lambda it: it.claimed(9),
        "Asked": lambda it: it.asked(9),
        "AttemptEnded": lambda it: it.attempt_ended(1),
        "Waiting": lambda it: it.waiting(9),
        "WaitCancelled": lambda it: it.add(WaitCancelled(at=it.at, seq=9)),
        "Ended": lambda it: it.ended(1),
        "PhaseNamed": lambda it: it.phase("p"),
        "Logged": lambda it: it.log("l"),
        "Stopping": lambda it: it.completed(),
        "Finished": lambda it: it.finished(),
        "Reopened": lambda it: it.reopened(),
        "LimitsRaised": lambda it: it.add(LimitsRaised(at=it.at, by="ann", limits={"max_total_agents": 9})),
        "Held": lambda it: it.held(),
    }
    stages: dict[Stage, Callable[[], Journal]] = {
        Stage.NEW: Journal,
        Stage.QUEUED: lambda: Journal().created(),
        Stage.LIVE: lambda: begun().asked(1),
        Stage.STOPPING: lambda: begun().asked(1).completed(),
        Stage.FINISHED: lambda: begun().asked(1).ended(1).completed().finished(),
        Stage.HELD: lambda: begun().asked(1).held(),
    }
    assert stages.keys() == MOVES.keys() == set(Stage)
    refused = 0
    for stage, make in stages.items():
        legal = {kind.__name__ for kind in MOVES[stage]}
        for name, add in every.items():
            if name not in legal:
                assert broken(add(make())).endswith(f"comes while the run {stage.value}")
                refused += 1
    assert refused == 14 * 6 - sum(len(moves) for moves in MOVES.values()) + 1  # itemFailed


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: begun().claimed(1), "entry 3, 'claimed': epoch 1 does not rise above epoch 1"),
        (lambda: begun().ended(1), "entry 3, 'ended': call 1 was never asked"),
        (lambda: begun().attempt_ended(1), "entry 3, 'attemptEnded': call 1 was never asked"),
        (lambda: begun().asked(1).ended(1).ended(1), "entry 5, 'ended': call 1 ends twice"),
        (lambda: begun().asked(1).ended(1).attempt_ended(1), "entry 5, 'attemptEnded': call 1 ends twice"),
        (lambda: begun().asked(1).ended(1).asked(1, 2), "entry 5, 'asked': call 1 is asked after its end"),
        (lambda: begun().asked(1).asked(1, 2), "entry 4, 'asked': call 1 is asked while its attempt 1 has no end"),
        (
            lambda: begun().asked(1).attempt_ended(1, is_last=True).asked(1, 2),
            "entry 5, 'asked': call 1 is asked after its last attempt",
        ),
        (
            lambda: begun().asked(1).attempt_ended(1).attempt_ended(1),
            "entry 5, 'attemptEnded': call 1 has two ends of attempt 1",
        ),
        (
            lambda: begun().asked(1).attempt_ended(1, is_last=True).ended(1),
            "entry 5, 'ended': call 1 ends twice in one segment of the run",
        ),
        (lambda: begun().asked(1, 2), "entry 3, 'asked': call 1 has attempt 2 where 1 belongs"),
        (
            lambda: begun().asked(1).attempt_ended(1).asked(1, 3),
            "entry 5, 'asked': call 1 has attempt 3 where 2 belongs",
        ),
        (
            lambda: begun().asked(1).ended(1, attempt=2),
            "entry 4, 'ended': call 1 has an end of attempt 2, but 1 was asked last",
        ),
        (
            lambda: begun().asked(1).attempt_ended(1).asked(1, 2, key="0.9"),
            "entry 5, 'asked': call 1 is another call under the same number",
        ),
        (
            lambda: begun().asked(1).asked(2, key="0.1"),
            "entry 4, 'asked': call 2 has the key of an earlier call",
        ),
        (lambda: begun().asked(1).waiting(1), "entry 4, 'waiting': call 1 waits while it is asked"),
        (lambda: begun().asked(1).ended(1).waiting(1), "entry 5, 'waiting': call 1 waits after its end"),
        (
            lambda: begun().asked(1).completed().finished(),
            "entry 5, 'finished': attempt 1 of call 1 has no end",
        ),
        (
            lambda: begun().failed("NO_SUCH_CODE"),
            "entry 3, 'stopping': its failure code 'NO_SUCH_CODE' is not known; use the version that wrote it",
        ),
        (
            lambda: Journal().created(run_id="another"),
            "entry 1, 'created': it begins the run 'another'",
        ),
    ],
)
def test_what_no_owner_writes_is_refused(make: Callable[[], Journal], problem: str) -> None:
    assert broken(make()) == problem


def test_a_wait_is_cancelled_only_between_attempts() -> None:
    journal = begun().asked(1)
    assert broken(journal.add(WaitCancelled(at=journal.at, seq=1))) == "entry 4, 'waitCancelled': call 1 does not wait"


def test_a_status_needs_its_failure() -> None:
    journal = begun()
    ending = begun().failed("CANCELLED").entries[-1]
    assert broken(journal.add(ending.model_copy(update={"failure": None}))) == (
        "entry 3, 'stopping': a run that is 'cancelled' needs a failure"
    )
    journal = begun()
    assert broken(journal.add(ending.model_copy(update={"stop_reason": "completed"}))) == (
        "entry 3, 'stopping': a run that is 'completed' has no failure"
    )


def test_a_gap_is_refused() -> None:
    chained = begun().phase("one").chained
    with pytest.raises(JournalBroken, match="entry 3 follows on entry 1"):
        fold(RUN, [chained[0], chained[2]])


def test_limits_that_were_raised_are_in_force_from_then_on() -> None:
    """A live run is given more; nothing else changes."""
    journal = begun().asked(1)
    before = folded(journal)
    raised = folded(journal.add(LimitsRaised(at=journal.at, by="ann", limits={"max_total_agents": 77})))
    assert raised.limits == {**before.limits, "max_total_agents": 77}
    assert (raised.stage, raised.segment) == (Stage.LIVE, 1)
