"""Small pieces of syntax tree that the transformer puts in place of a script's, each with the place it stands for."""

import ast
from collections.abc import Sequence
from typing import Any


def constant(value: str | None, at: ast.AST) -> ast.expr:
    """A literal."""
    return ast.Constant(value=value, **place(at))


def load(name: str, at: ast.AST) -> ast.expr:
    """Reading a name; of ours, or one of the script that was checked."""
    return ast.Name(id=name, ctx=ast.Load(), **place(at))


def call(guard: str, arguments: Sequence[ast.expr], at: ast.AST) -> ast.expr:
    """A call of one of our guards."""
    return ast.Call(func=load(guard, at), args=list(arguments), keywords=[], **place(at))


def assign(name: str, value: ast.expr, at: ast.AST) -> ast.stmt:
    """Binding one name."""
    return ast.Assign(targets=[ast.Name(id=name, ctx=ast.Store(), **place(at))], value=value, **place(at))


def place(node: ast.AST) -> dict[str, Any]:
    """The position of a node, to make another one with."""
    return {
        "lineno": node.lineno,  # type: ignore[attr-defined]
        "col_offset": node.col_offset,  # type: ignore[attr-defined]
        "end_lineno": node.end_lineno,  # type: ignore[attr-defined]
        "end_col_offset": node.end_col_offset,  # type: ignore[attr-defined]
    }


def noticing(body: Sequence[ast.stmt], at: ast.stmt) -> list[ast.stmt]:
    """Statements of a generator, such that GeneratorExit marks the frame before it goes on to a handler."""
    leave = [
        ast.Expr(value=call("_mark_discarded_", [], at), **place(at)),
        ast.Raise(exc=None, cause=None, **place(at)),
    ]
    handler = ast.ExceptHandler(type=load("_GeneratorExit_", at), name=None, body=leave, **place(at))
    return [ast.Try(body=list(body), handlers=[handler], orelse=[], finalbody=[], **place(at))]
