"""How requests for permission are answered: by the policy of the deployment, since nobody sits there to be asked.

The least that serves: an answer for this once goes before one for always. What was answered is counted and named.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final, Literal, Protocol, TypeAlias

PermissionPolicy: TypeAlias = Literal["allow", "deny"]
PERMISSION_POLICIES: Final[tuple[PermissionPolicy, ...]] = ("allow", "deny")
MAX_NAMED: Final = 10
"""Actions that notes name, of each kind of answer. Others are counted."""

_CHOSEN_KINDS: Final = {"allow": ("allow_once", "allow_always"), "deny": ("reject_once", "reject_always")}


class Option(Protocol):
    """One answer that the agent offers."""

    @property
    def option_id(self) -> str:
        """How the agent wants it named."""
        ...

    @property
    def kind(self) -> str:
        """`allow_once`, `allow_always`, `reject_once` or `reject_always`."""
        ...


class PermissionDesk:
    """Answers the requests of one agent and keeps the tally."""

    def __init__(self, policy: PermissionPolicy) -> None:
        self._policy = policy
        self._allowed: Counter[str] = Counter()
        self._denied: Counter[str] = Counter()
        self._withdrawn = 0

    @property
    def denied(self) -> int:
        """How many requests the policy did not allow."""
        return self._denied.total()

    def choose(self, options: Iterable[Option], action: str, *, is_ending: bool) -> str | None:
        """The option that the policy chooses for `action`; None is the answer "cancelled".

        With `is_ending` the turn was cancelled, and the protocol demands that answer. An agent that offers no
        option of the right kind gets it too: what is chosen is never the opposite of the policy.
        """
        if is_ending:
            self._withdrawn += 1
            return None
        by_kind = {option.kind: option.option_id for option in reversed(list(options))}
        chosen = next((by_kind[kind] for kind in _CHOSEN_KINDS[self._policy] if kind in by_kind), None)
        is_allowed = self._policy == "allow" and chosen is not None
        tally = self._allowed if is_allowed else self._denied
        tally[action if action in tally or len(tally) < MAX_NAMED else ""] += 1
        return chosen

    def notes(self) -> tuple[str, ...]:
        """What was asked for, and how it was answered."""
        found = []
        if self._allowed:
            found.append(f"{_requests(self._allowed.total())} for permission allowed: {_named(self._allowed)}")
        if self._denied:
            why = "denied" if self._policy == "deny" else "denied, since no option allowed it"
            found.append(f"{_requests(self._denied.total())} for permission {why}: {_named(self._denied)}")
        if self._withdrawn:
            found.append(
                f"{_requests(self._withdrawn)} for permission answered with cancelled, outside of a turn that goes on"
            )
        return tuple(found)


def _requests(count: int) -> str:
    return "1 request" if count == 1 else f"{count} requests"


def _named(tally: Counter[str]) -> str:
    parts = [words if count == 1 else f"{words} ({count} times)" for words, count in tally.items() if words]
    if tally[""]:
        parts.append(f"{tally['']} others")
    return ", ".join(parts)
