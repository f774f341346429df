"""A broker with a journal that is closed: by an end, by a host that leaves, by a loss of the run."""

import asyncio
from collections.abc import Callable

from loopwarden import Capabilities, FailureClass, Policy, Retry
from loopwarden.store.appends import ScopeSpent
from support.broker_lab import EPOCH
from support.journal_lab import JournalLab, Pen

RATE_LIMITED = {"failure_class": FailureClass.RATE_LIMITED, "resets_at": EPOCH + 7200}
PRICED = Capabilities(structured_output=True, fresh_context=True, cost_known=True)
RETRIES = Policy(retry=Retry(classes=frozenset({FailureClass.OVERLOADED}), times=3, first_seconds=10))


def quick() -> Pen:
    """A pen that commits at once."""
    return Pen(is_quick=True)


def spent(*, wait: bool, frees_in: float | None = 7200.0) -> ScopeSpent:
    """The refusal of a budget that is used up."""
    frees_at = None if frees_in is None else EPOCH + frees_in
    return ScopeSpent(scope="nightly", measure="agents", used=5, limit=5, frees_at=frees_at, wait=wait)


CLOSINGS: dict[str, Callable[[JournalLab], None]] = {
    "stop": lambda lab: lab.stop(),
    "drain": lambda lab: lab.stop(drain_seconds=50),
    "leave": lambda lab: lab.broker.leave(),
    "leave and drain": lambda lab: lab.broker.leave(drain_seconds=50),
    "abandon": lambda lab: (lab.journal.lose(), lab.broker.abandon())[0],
}
"""All ways in which a run is over for its broker."""


async def over(lab: JournalLab) -> None:
    """Let everything come to its end, as `Run` does it."""
    for _ in range(20):
        lab.pen.commit()
        await lab.settle()
    await asyncio.wait_for(lab.broker.ended(), 1)
