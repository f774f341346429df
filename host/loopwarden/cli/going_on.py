"""What a person types to go on with a run that did not come to its own end."""

from typing import Final

from loopwarden.cli.store_access import shown_time
from loopwarden.failures import HOLDING, Code, Failure

_WITH: Final = {
    Code.AGENT_CAP: " --max-total-agents N",
    Code.COST_CAP: " --max-cost USD",
    Code.DEADLINE: " --deadline TIME",
    Code.CANCELLED: "",
    Code.SCOPE_BUDGET: "",
}
"""What `resume` needs after each end from which a run can go on."""


def how_to_go_on(run_id: str, failure: Failure | None) -> str | None:
    """A sentence for a run with a journal that is over or held; None when it cannot go on."""
    if failure is None:
        return None
    command = f"loopwarden resume {run_id}"
    if failure.code in HOLDING:
        return f"nothing is lost; mend what it says, then go on: {command}"
    if failure.code not in _WITH:
        return None
    first = ""
    if failure.code is Code.SCOPE_BUDGET:
        frees_at = failure.details.get("freesAt")
        frees = f"at {shown_time(frees_at)}, when the budget frees, or " if isinstance(frees_at, int | float) else ""
        first = f"{frees}after `loopwarden budget set`: "
    return f"go on where it stopped: {first}{command}{_WITH[failure.code]}"
