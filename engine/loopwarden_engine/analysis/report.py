"""The findings as one JSON object, for `loopwarden.findings.decode_findings` to check."""

import ast
import json
import warnings
from typing import Any, Final

from loopwarden_engine.bound_form import MAX_REASONS
from loopwarden_engine.hook_rules import HOOK_NAMES
from loopwarden_engine.language.names import SPECIAL_METHODS
from loopwarden_engine.plain import JsonObject, JsonValue

from .costs import Costs
from .flow import Flow
from .formula import Count, Formula, Unknown, unknown
from .scopes import COMPREHENSIONS, Scopes
from .sizes import Sizes
from .store import TooLargeError, line_of
from .things import Function
from .usage import usage

MAX_BYTES: Final = 256 * 1024
_MAX_STEPS: Final = 200_000
"""Of each of the two walks. Compiling and both together have to end within cpuSecondsPerTurn."""


def analyse(source: str) -> JsonObject:
    """Analyse a script that the language policy took. Never raises; the result takes at most 256 KiB as JSON.

    `hooks` (lines by name), `calls` (each `agent()`: line, column, positionals, options, hasSchema, loops),
    `moreCalls`, and `bound` (nodes as in `bound_form`, or reasons). A script that is too large to be followed has no
    calls listed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source.removeprefix("\ufeff"))
        findings = _findings(tree)
    except (SyntaxError, ValueError, TooLargeError, RecursionError, MemoryError):
        return _nothing(unknown(1, "the script is too large for its calls to be counted"))
    calls: Any = findings["calls"]
    while len(json.dumps(findings)) > MAX_BYTES and calls:
        keep = len(calls) // 2
        findings["moreCalls"] += len(calls) - keep  # type: ignore[operator]
        findings["calls"] = calls = calls[:keep]
    return findings


def _nothing(why: Unknown) -> JsonObject:
    return {"hooks": {name: [] for name in HOOK_NAMES}, "calls": [], "moreCalls": 0, "bound": _unbounded(why)}


def _findings(tree: ast.Module) -> JsonObject:
    scopes = Scopes(tree)
    flow = Flow(tree, scopes, _MAX_STEPS)
    formula = Formula()
    sizes = Sizes(scopes, flow, formula, Costs, _MAX_STEPS)
    if _calls_main(tree, flow):
        sizes.main_is_called()
    costs = Costs(sizes)
    try:
        count = _special(tree) or costs.in_run()
    except (TooLargeError, RecursionError, MemoryError):
        count = unknown(1, "the script is too large for its calls to be counted")

    def has_bound(loop: ast.AST) -> bool:
        known = costs.rounds.get(loop)
        if known is not None or isinstance(loop, ast.While):
            return bool(known)
        iterables = [part.iter for part in loop.generators] if isinstance(loop, COMPREHENSIONS) else [loop.iter]  # type: ignore[attr-defined]
        try:
            return not any(isinstance(sizes.iterations(part, flow.scope_of[part], {}), Unknown) for part in iterables)
        except (TooLargeError, RecursionError, KeyError):
            return False

    used = usage(tree, flow, has_bound)
    return {"hooks": used.hooks, "calls": used.calls, "moreCalls": used.more_calls, "bound": _bound(formula, count)}


def _calls_main(tree: ast.Module, flow: Flow) -> bool:
    """Whether the script itself can call its main."""
    mains = {Function(node) for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "main"}
    return any(
        isinstance(node, ast.Name | ast.Attribute | ast.Subscript | ast.Call) and mains & flow.things_of(node)
        for node in ast.walk(tree)
    )


def _special(tree: ast.Module) -> Unknown | None:
    """Comparisons call methods of the script's own from everywhere: these are not followed."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name in SPECIAL_METHODS and node.name != "__init__":
            return unknown(line_of(node), f"{node.name} is called wherever values are compared, which is not followed")
    return None


def _bound(formula: Formula, count: Count) -> JsonObject:
    if isinstance(count, Unknown):
        return _unbounded(count)
    table = formula.table(count)
    if table is None:
        return _unbounded(unknown(1, "the formula for the number of agents is too long"))
    return {"nodes": table, "reasons": []}


def _unbounded(why: Unknown) -> JsonObject:
    reasons: list[JsonValue] = [{"line": line, "message": message} for line, message in why.reasons[:MAX_REASONS]]
    return {"nodes": [], "reasons": reasons}
