"""A bound as it is printed, read as docs/vetting.md says, is never below the number that is reckoned with."""

import ast
import itertools
import json
import math
from textwrap import indent
from types import SimpleNamespace
from typing import Any

import pytest

from loopwarden.findings import decode_findings
from loopwarden_engine.analysis import analyse

NUMBERS = range(-3, 4)
BODIES = [
    f"for i in range({stop}):\n    agent('p')"
    for stop in (
        "args['n']", "args['n'] + 1", "args['n'] - args['k']", "args['n'] * args['k']", "args['n'] * args['n']",
        "-args['n']", "2 - args['n']", "args['n'] // 2", "args['n'] % 3", "-args['n'] * args['k'] + 2",
        "args['n'], args['k']", "args['n'], args['k'], 2", "args['n'], args['k'], -1", "0, args['n'], args['k'] or 1",
        "min(args['n'], args['k'])", "max(args['n'], args['k'])", "args['n'] or args['k']",
        "len(args['x']) - args['n']",
    )
] + [
    f"for q in {over}:\n    agent('p')"
    for over in (
        "args['x'][:args['k']]", "args['x'][args['k']:]", "args['x'][:-args['k']]", "args['x'][-args['k']:]",
        "args['x'][:args['n'] - args['k']]", "args['x'][args['n'] - args['k']:]", "args['x'][-args['n'] - args['k']:]",
        "[q for i in range(0, 9, 2) for q in args['x'][i : i + args['k']]]",
        "[*args['x'][:args['k']], *args['x'][args['k']:]]", "zip(args['x'], range(args['k']))",
        "[1] * (args['n'] * args['k'])",
    )
] + [
    "for i in range(args['n']):\n    for j in range(args['k']):\n        agent('p')\nagent('q')",
    "for i in range(args['n']):\n    agent('p')\nfor j in range(args['k']):\n    agent('q')",
    "for i in range(args['n'] + args['k']):\n    for j in range(args['k'] + 2):\n        agent('p')",
    "m = args['k']\nif args['x']:\n    m = args['n']\nfor i in range(m):\n    [agent(q) for q in args['x'][:m]]",
]  # fmt: skip


def term(node: ast.expr, names: dict[str, Any]) -> Any:
    """A term that is added, or the sum before the last term: below 0 it counts as 0."""
    value = read(node, names)
    return value if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub) else max(0, value)


def read(node: ast.expr, names: dict[str, Any]) -> Any:
    """What a formula comes to; a sum by its terms, everything else as Python has it."""
    match node:
        case ast.BinOp(op=ast.Add()):
            return term(node.left, names) + term(node.right, names)
        case ast.BinOp(op=ast.Sub()):
            return term(node.left, names) - read(node.right, names)
        case ast.BinOp(op=operation):
            left, right = read(node.left, names), read(node.right, names)
            signs = {ast.Mult: lambda: left * right, ast.Div: lambda: left / right, ast.FloorDiv: lambda: left // right,
                     ast.Mod: lambda: left % right}  # fmt: skip
            return signs[type(operation)]()
        case ast.UnaryOp(op=ast.USub()):
            return -read(node.operand, names)
        case ast.Call(func=ast.Name(id=name)):
            return names[name](*(read(argument, names) for argument in node.args))
        case ast.BoolOp():
            parts = [read(value, names) for value in node.values]
            return next((part for part in parts if part), parts[-1])
        case _:
            return eval(compile(ast.Expression(node), "formula", "eval"), names)  # the words are ours


@pytest.mark.parametrize("body", BODIES)
def test_the_words_never_promise_less_than_the_number(body: str) -> None:
    source = f"def main(args):\n{indent(body, '    ')}\n"
    bound = decode_findings(json.loads(json.dumps(analyse(source)))).bound
    assert bound.is_known, bound.text
    text, _, condition = bound.text.removeprefix("agents <= ").partition(", where ")
    formula = ast.parse(text, mode="eval").body
    read_at_all = 0
    for n, k, length in itertools.product(NUMBERS, NUMBERS, range(4)):
        args = {"n": n, "k": k, "x": ["q"] * length}
        most = bound.evaluate(args)  # type: ignore[arg-type]
        names = {"args": SimpleNamespace(**args), "len": len, "range": range, "ceil": math.ceil, "min": min, "max": max}
        if most is None or (condition and not eval(condition, dict(names))):
            continue
        read_at_all += 1
        assert most <= max(0, read(formula, names)), f"{bound.text} with {args}"
    assert read_at_all >= len(NUMBERS)
