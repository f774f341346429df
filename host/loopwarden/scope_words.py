"""A budget across runs that is used up, in words and as a failure."""

from typing import Final

from loopwarden.display import utc_moment
from loopwarden.failures import Code, Failure
from loopwarden.store.appends import ScopeSpent

_UNITS: Final = {"agents": "agents", "tokens": "tokens", "cost": "US dollars"}


def scope_sentence(spent: ScopeSpent) -> str:
    """What is used up, and when it frees."""
    # In UTC and with the date: the sentence stands in journals, which are read elsewhere and later.
    frees = "" if spent.frees_at is None else f"; it frees at {utc_moment(spent.frees_at)}"
    return f"the budget {spent.scope!r} is used up: {spent.used:g} of {spent.limit:g} {_UNITS[spent.measure]}{frees}"


def scope_failure(spent: ScopeSpent, line: int | None) -> Failure:
    """The failure of a run whose ask a budget refuses."""
    details = {
        "scope": spent.scope,
        "measure": spent.measure,
        "used": spent.used,
        "limit": spent.limit,
        "freesAt": spent.frees_at,
    }
    message = f"{scope_sentence(spent)}; raise it with `loopwarden budget set`, or resume the run when it frees"
    return Failure(code=Code.SCOPE_BUDGET, message=message, line=line, details=details)
