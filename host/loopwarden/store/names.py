"""Names of budgets, queues, workspaces and schedules: one rule for all of them."""

import re
from typing import Final

MAX_CHARS: Final = 200
_NAME: Final = re.compile(r"[A-Za-z0-9:._/-]+")
_MAX_SHOWN_CHARS: Final = 100


def check_name(name: str, what: str) -> None:
    """Refuse a name that cannot be; `what` is such as "a budget". Raises ValueError, with a sentence."""
    if not name or len(name) > MAX_CHARS:
        raise ValueError(f"the name of {what} has 1 to {MAX_CHARS} characters")
    if _NAME.fullmatch(name) is None:
        shown = repr(name[:_MAX_SHOWN_CHARS])
        raise ValueError(f"{shown} cannot name {what}; use letters (a to z), digits and : . _ - /")
