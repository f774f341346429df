"""Which hooks a script names, and each `agent()` in its text with its options and the loops around it."""

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from loopwarden_engine.bound_form import MAX_CALLS, MAX_LINES, MAX_LOOPS, MAX_OPTION_CHARS, MAX_OPTIONS
from loopwarden_engine.hook_rules import HOOK_NAMES
from loopwarden_engine.plain import JsonObject, JsonValue

from .flow import Flow
from .scopes import COMPREHENSIONS
from .store import line_of
from .things import Hook

_LOOPS: Final = (ast.For, ast.While, *COMPREHENSIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """`more_calls`: how many calls there are beyond those in `calls`."""

    hooks: JsonObject
    calls: list[JsonValue]
    more_calls: int


def usage(tree: ast.Module, flow: Flow, has_bound: Callable[[ast.AST], bool]) -> Usage:
    """Look at everything in the text, also at what never runs."""
    hooks: dict[str, dict[int, None]] = {name: {} for name in HOOK_NAMES}
    calls: list[tuple[ast.Call, tuple[ast.AST, ...]]] = []
    pending: list[tuple[ast.AST, tuple[ast.AST, ...]]] = [(tree, ())]
    while pending:
        node, loops = pending.pop()
        if isinstance(node, ast.Name | ast.Attribute):
            for thing in flow.things_of(node):
                if isinstance(thing, Hook):
                    hooks[thing.name][line_of(node)] = None
        if isinstance(node, ast.Call) and Hook("agent") in flow.callees_of(node):
            calls.append((node, loops))
        inner = loops
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            inner = ()
        elif isinstance(node, _LOOPS):
            inner = (*loops, node)
        outside = _outside(node)
        pending.extend((child, loops if child in outside else inner) for child in ast.iter_child_nodes(node))
    calls.sort(key=lambda call: (call[0].lineno, call[0].col_offset))
    return Usage(
        hooks={name: list(sorted(lines)[:MAX_LINES]) for name, lines in hooks.items()},
        calls=[_call(node, loops, has_bound) for node, loops in calls[:MAX_CALLS]],
        more_calls=max(0, len(calls) - MAX_CALLS),
    )


def _outside(node: ast.AST) -> list[ast.AST]:
    """The children of a loop that run once."""
    if isinstance(node, ast.For):
        return [node.iter, *node.orelse]
    return list(node.orelse) if isinstance(node, ast.While) else []


def _call(node: ast.Call, loops: tuple[ast.AST, ...], has_bound: Callable[[ast.AST], bool]) -> JsonValue:
    options = ["**" if keyword.arg is None else keyword.arg[:MAX_OPTION_CHARS] for keyword in node.keywords]
    is_starred = any(isinstance(value, ast.Starred) for value in node.args)
    schemas = [keyword.value for keyword in node.keywords if keyword.arg == "schema"]
    return {
        "line": node.lineno,
        "column": node.col_offset + 1,
        "positionals": None if is_starred else len(node.args),
        "options": list(options[:MAX_OPTIONS]),
        "hasSchema": any(not (isinstance(value, ast.Constant) and value.value is None) for value in schemas),
        "loops": [{"line": line_of(loop), "hasBound": has_bound(loop)} for loop in loops[:MAX_LOOPS]],
    }
