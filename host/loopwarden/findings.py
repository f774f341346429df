"""What vetting found out about a script: hooks, calls, bound. A worker's words, decoded strictly.

The worker has run nothing of the script when it says this; but a hostile text may have crashed or tricked its compiler,
so nothing here is believed before it is checked. What it says can still be wrong, never dangerous: whatever the bound,
the budget is counted by the host.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from loopwarden.agent_bound import AgentBound, BoundNode, BoundReason
from loopwarden_engine import bound_form
from loopwarden_engine.hook_rules import HOOK_NAMES
from loopwarden_engine.plain import MAX_SAFE_INTEGER, JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class EnclosingLoop:
    """A loop or comprehension around a call, in the same function; `has_bound`: whether its rounds can be counted."""

    line: int
    has_bound: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCall:
    """One `agent()` in the text. `options` as written (`**` for options that are computed), `loops` outermost first.

    `positionals`: how many arguments have no name; None when they are computed (`*arguments`).
    `has_schema` says that `schema=` is written and is not None; what `**options` may hold is not known.
    """

    line: int
    column: int
    positionals: int | None
    options: tuple[str, ...]
    has_schema: bool
    loops: tuple[EnclosingLoop, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """`hooks`: the lines that name each hook. `more_calls`: how many calls there are beyond those listed."""

    hooks: Mapping[str, tuple[int, ...]]
    calls: tuple[AgentCall, ...]
    more_calls: int
    bound: AgentBound


def decode_findings(value: JsonObject) -> Findings:
    """Decode what a worker found. Raises ValueError for whatever is not exactly that."""
    body = _object(value, {"hooks", "calls", "moreCalls", "bound"}, "the findings")
    hooks = _object(body["hooks"], set(HOOK_NAMES), "hooks")
    return Findings(
        hooks={
            name: tuple(_count(line, "a line") for line in _list(hooks[name], bound_form.MAX_LINES, "lines of a hook"))
            for name in HOOK_NAMES
        },
        calls=tuple(_call(row) for row in _list(body["calls"], bound_form.MAX_CALLS, "calls")),
        more_calls=_count(body["moreCalls"], "moreCalls"),
        bound=_bound(body["bound"]),
    )


def _call(value: object) -> AgentCall:
    row = _object(value, {"line", "column", "positionals", "options", "hasSchema", "loops"}, "a call")
    options = _list(row["options"], bound_form.MAX_OPTIONS, "options")
    positionals = row["positionals"]
    return AgentCall(
        line=_count(row["line"], "a line"),
        column=_count(row["column"], "a column"),
        positionals=None if positionals is None else _count(positionals, "a number of arguments"),
        options=tuple(_text(option, bound_form.MAX_OPTION_CHARS, "an option") for option in options),
        has_schema=_flag(row["hasSchema"], "hasSchema"),
        loops=tuple(_loop(loop) for loop in _list(row["loops"], bound_form.MAX_LOOPS, "loops")),
    )


def _loop(value: object) -> EnclosingLoop:
    row = _object(value, {"line", "hasBound"}, "a loop")
    return EnclosingLoop(line=_count(row["line"], "a line"), has_bound=_flag(row["hasBound"], "hasBound"))


# ---- the bound


def _bound(value: object) -> AgentBound:
    body = _object(value, {"nodes", "reasons"}, "the bound")
    rows = _list(body["nodes"], bound_form.MAX_NODES, "nodes")
    reasons = tuple(_reason(row) for row in _list(body["reasons"], bound_form.MAX_REASONS, "reasons"))
    if bool(rows) == bool(reasons):
        raise ValueError("a bound has either nodes or reasons")
    operands_left = bound_form.MAX_OPERANDS
    nodes: list[BoundNode] = []
    gives: list[str] = []
    for row in rows:
        cells = _list(row, bound_form.MAX_NODES, "operands")
        operation = cells[0] if cells else None
        if not isinstance(operation, str) or operation not in bound_form.OPERATIONS:
            raise ValueError("a node has an operation that is not known")
        kind, wanted = bound_form.OPERATIONS[operation]
        operands = cells[1:]
        operands_left -= len(operands)
        if operands_left < 0:
            raise ValueError("the nodes have too many operands")
        if wanted.endswith("+"):
            wanted = wanted[0] * max(1, len(operands))
        if len(wanted) != len(operands):
            raise ValueError(f"a node of {operation!r} has {len(operands)} operands")
        for want, operand in zip(wanted, operands, strict=True):
            _check_operand(want, operand, gives)
        nodes.append(tuple(cells))
        gives.append(kind)
    if gives and gives[-1] != "c":
        raise ValueError("the last node is not a count")
    return AgentBound(nodes=tuple(nodes), reasons=reasons)


def _check_operand(want: str, operand: Any, gives: list[str]) -> None:
    if want in ("c", "v"):
        if type(operand) is int and 0 <= operand < len(gives) and gives[operand] == want:
            return
    elif want in ("n", "d"):
        if type(operand) is int:
            if want == "n" and 0 <= operand <= MAX_SAFE_INTEGER:
                return
        elif _is_digits(operand, signed=want == "d"):
            return
    elif want == "k":
        if type(operand) is int or _is_short_text(operand):
            return
    elif operand is None or type(operand) in (bool, int) or _is_short_text(operand) or _is_finite(operand):
        return
    raise ValueError("a node has an operand that does not fit")


def _is_digits(value: object, *, signed: bool) -> bool:
    if not isinstance(value, str) or len(value) > bound_form.MAX_DIGITS + 1:
        return False
    digits = value.removeprefix("-") if signed else value
    return digits.isascii() and digits.isdigit()


def _is_finite(value: object) -> bool:
    return isinstance(value, float) and math.isfinite(value)


def _is_short_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= bound_form.MAX_TEXT_CHARS


def _reason(value: object) -> BoundReason:
    row = _object(value, {"line", "message"}, "a reason")
    message = _text(row["message"], bound_form.MAX_REASON_CHARS, "a reason")
    return BoundReason(line=_count(row["line"], "a line"), message=message)


# ---- plain parts

_MAX_COUNT: Final = 2**31


def _object(value: object, keys: set[str], what: str) -> dict[str, Any]:
    if not isinstance(value, dict) or value.keys() != keys:
        raise ValueError(f"{what}: not an object with exactly {', '.join(sorted(keys))}")
    return value


def _list(value: object, most: int, what: str) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise ValueError(f"{what}: not a list of at most {most}")
    return value


def _count(value: object, what: str) -> int:
    if type(value) is not int or not 0 <= value <= _MAX_COUNT:
        raise ValueError(f"{what} is not a count")
    return value


def _text(value: object, max_chars: int, what: str) -> str:
    if not isinstance(value, str) or len(value) > max_chars:
        raise ValueError(f"{what} is not a text of at most {max_chars} characters")
    return value


def _flag(value: object, what: str) -> bool:
    if type(value) is not bool:
        raise ValueError(f"{what} is not true or false")
    return value
