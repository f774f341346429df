"""A first walk over the tree, without recursion: how deep it is, which names it binds, and whether `main` fits."""

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

from .grammar import LEAF_NODES
from .violations import Violation

# A tree deeper than this would exhaust the stack of the transformer or of CPython's compiler.
MAX_SOURCE_DEPTH: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """`bound_names`: every name that the script binds anywhere. `too_deep`: the violation, if the tree is too deep."""

    bound_names: frozenset[str]
    too_deep: Violation | None


def survey(tree: ast.Module) -> Survey:
    """Walk the tree level by level."""
    bound: set[str] = set()
    level: list[ast.AST] = [tree]
    depth = 0
    while level:
        if depth > MAX_SOURCE_DEPTH:
            return Survey(bound_names=frozenset(bound), too_deep=_too_deep(level[0]))
        below: list[ast.AST] = []
        for node in level:
            name = _bound_by(node)
            if name is not None:
                bound.add(name)
            for field in node._fields:
                value = getattr(node, field, None)
                if isinstance(value, list):
                    below.extend(item for item in value if isinstance(item, ast.AST))
                elif isinstance(value, ast.AST) and type(value) not in LEAF_NODES:
                    below.append(value)
        level = below
        depth += 1
    return Survey(bound_names=frozenset(bound), too_deep=None)


def _bound_by_alias(node: ast.alias) -> str | None:
    return node.asname or node.name.partition(".")[0]


_BINDERS: Final[dict[type[ast.AST], Callable[[Any], str | None]]] = {
    ast.Name: lambda node: None if isinstance(node.ctx, ast.Load) else node.id,
    ast.arg: attrgetter("arg"),
    ast.FunctionDef: attrgetter("name"),
    ast.AsyncFunctionDef: attrgetter("name"),
    ast.ClassDef: attrgetter("name"),
    ast.alias: _bound_by_alias,
    ast.ExceptHandler: attrgetter("name"),
    ast.MatchAs: attrgetter("name"),
    ast.MatchStar: attrgetter("name"),
    ast.MatchMapping: attrgetter("rest"),
}


def _bound_by(node: ast.AST) -> str | None:
    """The name that this node itself binds, if any."""
    binder = _BINDERS.get(type(node))
    return None if binder is None else binder(node)


def _too_deep(node: ast.AST) -> Violation:
    return Violation(
        line=getattr(node, "lineno", 1),
        column=getattr(node, "col_offset", 0) + 1,
        rule="too-deep",
        message=f"the script is nested more than {MAX_SOURCE_DEPTH} levels deep here",
        hint="split the expression or the block into smaller functions or statements",
    )


def check_main(tree: ast.Module) -> Violation | None:
    """`main` is one plain function with exactly one parameter, in the module's own body, and stays what it is."""
    binding = [node for node in own_nodes(tree.body) if _bound_by(node) == "main"]
    if not binding:
        return _main_violation(1, 1, "the script has no function main at its top level")
    node = min(binding, key=_position)
    problem = _main_problem(node, tree)
    if problem is None and len(binding) > 1:
        node, problem = max(binding, key=_position), "main is bound a second time"
    return None if problem is None else _main_violation(node.lineno, node.col_offset + 1, problem)  # type: ignore[attr-defined]


def _position(node: ast.AST) -> tuple[int, int]:
    return node.lineno, node.col_offset  # type: ignore[attr-defined]


def _main_violation(line: int, column: int, message: str) -> Violation:
    return Violation(
        line=line,
        column=column,
        rule="main",
        message=message,
        hint="define it once, as a plain function: def main(args): … return the result",
    )


def _main_problem(node: ast.AST, tree: ast.Module) -> str | None:
    if isinstance(node, ast.AsyncFunctionDef):
        return None  # refused by the grammar already
    if not isinstance(node, ast.FunctionDef) or node not in tree.body:
        return "main is not a plain function of the top level"
    arguments = node.args
    others = bool(arguments.vararg or arguments.kwarg or arguments.kwonlyargs)
    if others or len(arguments.posonlyargs) + len(arguments.args) != 1:
        return "main must have exactly one plain parameter"
    if node.decorator_list:
        return "main must not have a decorator"
    if any(isinstance(inner, ast.Yield | ast.YieldFrom) for inner in own_nodes(node.body)):
        return "main must not be a generator, and it contains yield"
    return None


def own_nodes(body: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """The nodes of a body that run in its own scope: functions and classes are given, not entered."""
    pending = list(body)
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            pending.extend(ast.iter_child_nodes(node))
