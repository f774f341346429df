"""The policy: every syntax node a script may use, with the reason. A node that is not in this table is refused.

Grammar that a newer Python adds is therefore refused until somebody has thought about it here.
"""

import ast
from collections.abc import Mapping
from typing import Final

_PLAIN = "computes with values the script already has"
_FLOW = "plain control flow"
_NAMES = "binds or reads names; each name is checked"

ALLOWED_NODES: Final[Mapping[type[ast.AST], str]] = {
    ast.Module: "the script itself",
    ast.Expr: "an expression for its effect, also a docstring",
    ast.Pass: _FLOW,
    ast.If: _FLOW,
    ast.For: _FLOW,
    ast.While: _FLOW,
    ast.Break: _FLOW,
    ast.Continue: _FLOW,
    ast.Return: _FLOW,
    ast.Try: "handlers see ordinary exceptions only: a bare except is narrowed",
    ast.ExceptHandler: "its name is checked, its type can only be a class that scripts may see",
    ast.Raise: "a script can only raise exception classes it may see",
    ast.Assert: _FLOW,
    ast.Assign: "targets are checked; items and attributes are written through the write guard",
    ast.AugAssign: "names in place; items and attributes are rewritten to read once and write through the guard",
    ast.AnnAssign: "the annotation is checked and dropped, never evaluated",
    ast.NamedExpr: _NAMES,
    ast.Delete: "names, and items and attributes through the write guard",
    ast.Global: _NAMES,
    ast.Nonlocal: _NAMES,
    ast.Import: "rewritten to fetch a read-only facade; no import machinery runs",
    ast.ImportFrom: "rewritten to fetch one member of a read-only facade",
    ast.alias: _NAMES,
    ast.FunctionDef: "name, parameters and decorators are checked",
    ast.Lambda: "parameters are checked",
    ast.arguments: _NAMES,
    ast.arg: _NAMES,
    ast.ClassDef: "made by our metaclass: single inheritance, no special methods but the listed ones",
    ast.Match: "patterns compare plain values; none reads attributes",
    ast.match_case: _FLOW,
    ast.MatchValue: "constants only",
    ast.MatchSingleton: "None, True, False",
    ast.MatchSequence: "list, tuple and range only",
    ast.MatchMapping: "dict only, constant keys",
    ast.MatchStar: _NAMES,
    ast.MatchAs: _NAMES,
    ast.MatchOr: _FLOW,
    ast.Constant: _PLAIN,
    ast.JoinedStr: "each part is turned to text by our own renderer, which shows no address",
    ast.FormattedValue: "see JoinedStr",
    ast.Name: _NAMES,
    ast.Attribute: "reading goes through the attribute guard, writing through the write guard",
    ast.Subscript: "reading is plain: no script class defines item access; writing goes through the write guard",
    ast.Slice: _PLAIN,
    ast.Starred: _PLAIN,
    ast.List: _PLAIN,
    ast.Tuple: _PLAIN,
    ast.Dict: _PLAIN,
    ast.Set: "rewritten to a set that iterates in insertion order",
    ast.ListComp: _PLAIN,
    ast.DictComp: _PLAIN,
    ast.SetComp: "rewritten to a set that iterates in insertion order",
    ast.GeneratorExp: "generator attributes are refused, so its frame stays out of reach",
    ast.comprehension: "not asynchronous",
    ast.Yield: "see GeneratorExp",
    ast.YieldFrom: "see GeneratorExp",
    ast.Call: "what can be called is what the script can reach",
    ast.keyword: _NAMES,
    ast.BinOp: "`%` goes through a guard, because text formatting in C shows addresses",
    ast.UnaryOp: _PLAIN,
    ast.BoolOp: _PLAIN,
    ast.Compare: _PLAIN,
    ast.IfExp: _PLAIN,
}

# Nodes without fields: they carry nothing that could be checked.
LEAF_NODES: Final[frozenset[type[ast.AST]]] = frozenset({
    ast.Load, ast.Store, ast.Del,
    ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.MatMult,
    ast.LShift, ast.RShift, ast.BitOr, ast.BitXor, ast.BitAnd,
    ast.Invert, ast.Not, ast.UAdd, ast.USub, ast.And, ast.Or,
    ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Is, ast.IsNot, ast.In, ast.NotIn,
})  # fmt: skip

_NO_ASYNC = ("scripts are synchronous", "call hooks directly; run branches side by side with parallel() or pipeline()")

# By class name, because some of these exist only in newer Pythons.
REFUSED_NODES: Final[Mapping[str, tuple[str, str]]] = {
    "AsyncFunctionDef": ("async def is not allowed: " + _NO_ASYNC[0], "write a plain def and " + _NO_ASYNC[1]),
    "AsyncFor": ("async for is not allowed: " + _NO_ASYNC[0], "write a plain for and " + _NO_ASYNC[1]),
    "AsyncWith": ("async with is not allowed: " + _NO_ASYNC[0], _NO_ASYNC[1]),
    "Await": ("await is not allowed: " + _NO_ASYNC[0], _NO_ASYNC[1]),
    "With": ("with is not allowed: scripts own no resources", "use try/finally"),
    "TryStar": ("except* is not allowed", "use except with one exception class or a tuple of them"),
    "MatchClass": (
        "class patterns are not allowed in match: they read attributes unseen",
        "use a guard: case x if isinstance(x, str)",
    ),
    "TypeAlias": ("type aliases are not allowed", "assign the type to a name, or leave it out"),
    "TypeVar": ("type parameters are not allowed", "remove the square brackets after the name"),
    "ParamSpec": ("type parameters are not allowed", "remove the square brackets after the name"),
    "TypeVarTuple": ("type parameters are not allowed", "remove the square brackets after the name"),
    "TemplateStr": ("template strings are not allowed", "use an f-string"),
}

# Refused statements whose bodies are still searched, so that one refusal lists everything.
SEARCHED_WHEN_REFUSED: Final[frozenset[str]] = frozenset(
    {"AsyncFunctionDef", "AsyncFor", "AsyncWith", "With", "TryStar"}
)
