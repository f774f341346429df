"""Which entries may follow which: the journal of a run as a table. What depends on a single call is in calls.py.

    new -created-> queued -claimed-> live -stopping-> stopping -finished-> finished -reopened-> live
    queued, live, stopping -held-> held -reopened-> live
                                   held -stopping-> stopping

A claim changes the owner, not the stage, except that the first one makes the run live.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final

from loopwarden.journal.entries import (
    Asked,
    AttemptEnded,
    Claimed,
    Created,
    Ended,
    Entry,
    Finished,
    Held,
    ItemFailed,
    LimitsRaised,
    Logged,
    PhaseNamed,
    Reopened,
    Stopping,
    WaitCancelled,
    Waiting,
)


class Stage(Enum):
    """Where a run stands, by its journal alone."""

    NEW = "has no entry yet"
    QUEUED = "was never claimed"
    LIVE = "is live"
    STOPPING = "is about to end"
    FINISHED = "has ended"
    HELD = "is held"


MOVES: Final[Mapping[Stage, Mapping[type[Entry], Stage]]] = {
    Stage.NEW: {Created: Stage.QUEUED},
    Stage.QUEUED: {Claimed: Stage.LIVE, Held: Stage.HELD},
    Stage.LIVE: {
        Claimed: Stage.LIVE,  # the host before died, lost its lease or gave the run back
        Asked: Stage.LIVE,
        AttemptEnded: Stage.LIVE,
        Waiting: Stage.LIVE,
        WaitCancelled: Stage.LIVE,
        Ended: Stage.LIVE,
        PhaseNamed: Stage.LIVE,
        Logged: Stage.LIVE,
        ItemFailed: Stage.LIVE,
        LimitsRaised: Stage.LIVE,
        Stopping: Stage.STOPPING,
        Held: Stage.HELD,
    },
    Stage.STOPPING: {
        Claimed: Stage.STOPPING,  # the host before died before it could write 'finished'
        AttemptEnded: Stage.STOPPING,
        WaitCancelled: Stage.STOPPING,
        Ended: Stage.STOPPING,  # work that was paid for is kept
        Finished: Stage.FINISHED,
        Held: Stage.HELD,
    },
    Stage.FINISHED: {
        Claimed: Stage.FINISHED,  # who reopens a run claims it first
        Reopened: Stage.LIVE,
    },
    Stage.HELD: {
        Claimed: Stage.HELD,
        Reopened: Stage.LIVE,
        Stopping: Stage.STOPPING,  # cancelled instead of resumed
        Held: Stage.HELD,
    },
}
"""By stage: the entries that may come, and the stage after. Everything else is written by no owner."""
