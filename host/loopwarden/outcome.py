"""How a run ended, as a value."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from loopwarden.contract import Conclusion
from loopwarden.failures import Code, Failure, RunCancelled, RunFailed
from loopwarden.receipt import Receipt, StopReason

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(Generic[ResultT]):
    """The end of a run. `value` is decoded and believed only when `stop_reason` is "completed"."""

    run_id: str
    stop_reason: StopReason
    value: ResultT | None
    failure: Failure | None
    agents_started: int
    verified: bool | None
    """True or False when the host ran checks; None when no check ran: then the result is an agent's claim."""
    conclusion: Conclusion | None
    receipt_source: Callable[[], Receipt] = field(repr=False, compare=False)

    @property
    def receipt(self) -> Receipt:
        """The final receipt. Made when it is first asked for: it has a record for every agent."""
        return self.receipt_source()

    def raise_for_failure(self) -> "Outcome[ResultT]":
        """Return self when the run completed. Raises `RunCancelled` or `RunFailed` otherwise."""
        if self.failure is None:
            return self
        raise (RunCancelled if self.failure.code is Code.CANCELLED else RunFailed)(self.failure)
