"""How many agents a script can start at most: a formula over its args, derived by a worker and evaluated here.

The formula comes from a worker that has run nothing of the script, and is checked like everything a worker says. A
bound that is known is never too small for a script that was vetted as it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from loopwarden.bound_text import bound_words
from loopwarden.bound_value import evaluated
from loopwarden_engine.plain import JsonObject, JsonValue

BoundNode = tuple[str | int | float | bool | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundReason:
    """What makes a script unbounded, in one sentence, and the line that says so."""

    line: int
    message: str


@dataclass(frozen=True, slots=True)
class AgentBound:
    """The bound of one script: nodes as in `loopwarden_engine.bound_form`, or the reasons why there is none.

    `nodes` must have been checked (`findings.decode_findings`).
    """

    nodes: tuple[BoundNode, ...]
    reasons: tuple[BoundReason, ...]

    @property
    def is_known(self) -> bool:
        """Whether there is a formula."""
        return bool(self.nodes)

    @property
    def text(self) -> str:
        """The formula (`agents <= 3 * len(args.files) + 1`), or the first reason (`unknown: line 12: …`).

        In the formula numbers have the signs that the arguments give them, and a term that is added and comes out
        negative counts as 0. Where a part of a list is taken, it says which argument must not be negative.
        """
        if self.nodes:
            return f"agents <= {bound_words(self.nodes)}"
        return f"unknown: line {self.reasons[0].line}: {self.reasons[0].message}"

    def evaluate(self, args: JsonObject) -> int | None:
        """The number, for what `main(args)` gets (`Contract.script_args`).

        None when the bound is unknown or cannot be said with these args: they are of another kind than the script
        computes with. Args with which the script raises before it gets to a loop count nothing for that loop.
        """
        return evaluated(self.nodes, args) if self.nodes else None

    def to_json(self) -> JsonObject:
        """`text`, `isKnown` and `reasons` (`line`, `message`)."""
        reasons: list[JsonValue] = [{"line": reason.line, "message": reason.message} for reason in self.reasons]
        return {"text": self.text, "isKnown": self.is_known, "reasons": reasons}


def unknown_bound(reasons: Sequence[BoundReason]) -> AgentBound:
    """A bound that nobody knows, for at least one reason."""
    if not reasons:
        raise ValueError("an unknown bound needs a reason")
    return AgentBound(nodes=(), reasons=tuple(reasons))
