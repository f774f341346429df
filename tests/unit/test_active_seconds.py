"""How long a run was driven, by its journal: what counts against its deadline when it goes on."""

import pytest

from loopwarden.journal.entries import Claimed, Held
from loopwarden.tenure import active_seconds
from support.journals import Journal, begun

OFF = [-400 * 86400.0, -1.0, 0.0, 1.0, 400 * 86400.0]
"""How far the clock of the store is off, in seconds."""


def as_stored(journal: Journal, off: float) -> float:
    """The seconds of a journal whose store is off by so much: it tells the time of claims, and of this hold."""
    return active_seconds(
        [
            entry.model_copy(update={"at": entry.at + off}) if isinstance(entry, Claimed | Held) else entry
            for entry in journal.entries
        ]
    )


@pytest.mark.parametrize("off", OFF)
def test_each_segment_lasts_from_the_first_entry_of_its_host_to_the_last(off: float) -> None:
    journal = begun().asked(1).phase("a").ended(1).claimed(2).asked(2).ended(2).claimed(3)
    assert as_stored(journal, off) == 2.0 + 1.0


@pytest.mark.parametrize("off", OFF)
def test_a_run_that_is_held_was_driven_until_its_last_entry_before(off: float) -> None:
    journal = begun().asked(1).phase("a").held(code="HOST_LOST").claimed(2).reopened().asked(1, 2, ask="redo")
    assert as_stored(journal.claimed(3), off) == 1.0 + 1.0


def test_what_follows_on_the_end_of_a_run_is_not_counted_until_it_is_reopened() -> None:
    ended = begun().asked(1).failed("COST_CAP").claimed(2).attempt_ended(1, is_last=True).phase("late").finished()
    assert active_seconds(ended.entries) == 1.0
    assert active_seconds(ended.claimed(3).entries) == 1.0
    assert active_seconds(ended.reopened().phase("on").phase("and on").claimed(4).entries) == 1.0 + 2.0


def test_a_clock_of_a_host_that_went_back_takes_nothing_away() -> None:
    journal = begun().asked(1).phase("a").claimed(2).asked(1, 2, ask="redo").phase("b").claimed(3)
    entries = [
        entry.model_copy(update={"at": 0.0}) if entry is journal.entries[6] else entry for entry in journal.entries
    ]
    assert active_seconds(journal.entries) == 1.0 + 1.0
    assert active_seconds(entries) == 1.0


def test_a_run_that_nobody_drove_has_used_nothing() -> None:
    assert active_seconds(begun().entries) == 0.0
