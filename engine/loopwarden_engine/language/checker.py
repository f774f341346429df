"""The ground of the static wall: a walk that refuses by default and collects every violation."""

import ast
from typing import Any, Final, TypeVar

from RestrictedPython.transformer import RestrictingNodeTransformer

from .grammar import ALLOWED_NODES, LEAF_NODES, REFUSED_NODES, SEARCHED_WHEN_REFUSED
from .names import refused_name
from .violations import Violation

# More would only make the refusal unreadable, and a hostile source could make it very large.
MAX_VIOLATIONS: Final = 200
_SHOWN_CHARS: Final = 200
_GENERAL_HINT: Final = "write it with the constructs that scripts have"

_Node = TypeVar("_Node", bound=ast.AST)


class Checker(RestrictingNodeTransformer):
    """Visits a module in place. Afterwards `violations` holds what was refused; empty means the tree may be compiled.

    Two lists must agree before a node passes: our table (`grammar.ALLOWED_NODES`) and the `visit_` methods, where
    RestrictedPython's `generic_visit` refuses a kind that has none.
    """

    def __init__(self, bound_names: frozenset[str]) -> None:
        super().__init__()
        self.violations: list[Violation] = []
        self.bound_names = bound_names
        self.scopes: list[type[ast.AST]] = [ast.Module]

    def refuse(self, node: ast.AST, rule: str, message: str, hint: str) -> None:
        """Record a violation at `node`."""
        if len(self.violations) < MAX_VIOLATIONS:
            self.violations.append(
                Violation(
                    line=getattr(node, "lineno", 1),
                    column=getattr(node, "col_offset", 0) + 1,
                    rule=rule,
                    message=message if len(message) <= _SHOWN_CHARS else message[: _SHOWN_CHARS - 1] + "…",
                    hint=hint,
                )
            )

    def error(self, node: ast.AST, info: str) -> None:
        """What RestrictedPython's own rules report."""
        self.refuse(node, "syntax", info, _GENERAL_HINT)

    def warn(self, node: ast.AST, info: str) -> None:
        """RestrictedPython warns about print, which is refused here, and about nodes that it does not know."""

    def check_name(self, node: ast.AST, name: str | None, allow_magic_methods: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 -- its signature
        """Refuse a name that a script may not bind or read. Special methods are checked with their class."""
        if name is not None and (refusal := refused_name(name)) is not None:
            self.refuse(node, "name", *refusal)

    def visit(self, node: ast.AST) -> ast.AST:
        """Check one node and return what stands in its place (a list, for some statements)."""
        kind = type(node)
        if kind in LEAF_NODES:
            return node
        if kind not in ALLOWED_NODES:
            self._refuse_node(node)
            return node
        result: Any = getattr(self, "visit_" + kind.__name__, self.generic_visit)(node)
        return result  # type: ignore[no-any-return]

    def visited(self, node: ast.expr) -> ast.expr:
        """Visit an expression; what stands in its place is one too."""
        return self.visit(node)  # type: ignore[return-value]

    def node_contents_visit(self, node: _Node) -> _Node:
        """Visit what is inside a node.

        As `ast.NodeTransformer.generic_visit` does it, with fewer stack frames per level of nesting.
        """
        for field in node._fields:
            value = getattr(node, field, None)
            if isinstance(value, list):
                visited: list[object] = []
                for item in value:
                    result = self.visit(item) if isinstance(item, ast.AST) else item
                    if isinstance(result, list):
                        visited.extend(result)
                    else:
                        visited.append(result)
                setattr(node, field, visited)
            elif isinstance(value, ast.AST):
                setattr(node, field, self.visit(value))
        return node

    def _refuse_node(self, node: ast.AST) -> None:
        name = type(node).__name__
        if isinstance(node, ast.withitem):  # its statement is refused already
            self.node_contents_visit(node)
            return
        message, hint = REFUSED_NODES.get(name, (f"{name} is not part of the script language", _GENERAL_HINT))
        self.refuse(node, name, message, hint)
        if name in SEARCHED_WHEN_REFUSED:
            self.scopes.append(ast.FunctionDef if name == "AsyncFunctionDef" else self.scopes[-1])
            self.node_contents_visit(node)
            self.scopes.pop()
