"""What an expression comes to: which value it gives, and how often a loop over it goes round, as formulas over args.

An answer holds for the whole run, at every moment: a list that grows counts everything that is ever added to it. Where
several values are possible all are given, and whoever counts takes the largest.
"""

import ast
from collections.abc import Callable, Mapping
from typing import Any, Final

from .amounts import Alternative, Alternatives, AtMost, Env, Exact, Sized, retained
from .called import Called
from .flow import Flow
from .formula import Count, Formula, Unknown, unknown
from .growing import Counting, adds_to_list
from .measure import MAX_ALTERNATIVES
from .scopes import COMPREHENSIONS, Binding, Comprehension, Scope, Scopes, Variable
from .store import Growth, line_of
from .things import ARGS, Made

_ARITHMETIC: Final[Mapping[type[ast.operator], str]] = {
    ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply", ast.FloorDiv: "divide", ast.Mod: "modulo",
}  # fmt: skip


class Sizes(Called):
    """Values and lengths of one script."""

    def __init__(
        self,
        scopes: Scopes,
        flow: Flow,
        formula: Formula,
        counting: Callable[["Sizes", Mapping[ast.AST, Growth]], Counting],
        max_steps: int,
    ) -> None:
        super().__init__(scopes, flow, formula, max_steps)
        self._counting = counting
        self._main_is_called = False

    def counting(self, events: Mapping[ast.AST, Growth]) -> Counting:
        """What counts the items that these places add."""
        return self._counting(self, events)

    def main_is_called(self) -> None:
        """The script calls its main itself: its parameter is not always what the host gave."""
        self._main_is_called = True

    def alternatives(self, node: ast.expr, scope: Scope, env: Env) -> Alternatives:
        """All values that an expression can give."""
        self.step()
        compute = _EXPRESSIONS.get(type(node))
        if compute is None:
            return self._not_told(node)
        found: Alternatives = compute(self, node, scope, env)
        made = Made(node)
        if isinstance(found, Unknown) or not self._can_grow(node, made):
            return found
        growth = self._growth(made, env)
        if isinstance(growth, Unknown):
            return growth
        return self._sized([self.formula.sum([self._items(each), growth]) for each in found])

    def _name(self, node: ast.Name, scope: Scope, env: Env) -> Alternatives:
        variable = self.scopes.sole(node.id, scope)
        if variable is None:
            return self._not_told(node)
        return self._variable(variable, node, env)

    def _variable(self, variable: Variable, node: ast.expr, env: Env) -> Alternatives:
        if variable in self._under_way:
            return unknown(line_of(node), f"{variable.name} depends on what it was before")
        self._under_way.add(variable)
        try:
            known = retained(env, variable.scope)
            bindings = [binding for binding in variable.bindings if not adds_to_list(binding, variable)]
            if not bindings:
                return self._not_told(node)
            return self._any_of(self._bound(variable, binding, node, known) for binding in bindings)
        finally:
            self._under_way.discard(variable)

    def _bound(self, variable: Variable, binding: Binding, node: ast.expr, env: Env) -> Alternatives:
        if isinstance(binding.node, ast.arg):
            if variable in env:
                return env[variable]
            if ARGS in self.flow.held[variable] and self._is_of_main(variable) and not self._main_is_called:
                return self.arguments()
            return unknown(line_of(node), f"{variable.name} is a parameter of a function that is called elsewhere")
        if binding.value is None:
            return self._not_told(node)
        if binding.is_element:
            return self._element(binding.value, binding.scope, env)
        return self.alternatives(binding.value, binding.scope, env)

    def _is_of_main(self, variable: Variable) -> bool:
        function = variable.scope.node
        return (
            isinstance(function, ast.FunctionDef)
            and function.name == "main"
            and variable.scope.parent is self.scopes.module
        )

    def arguments(self) -> Alternatives:
        """What the host gives to main."""
        if self.flow.args_changed is not None:
            return unknown(self.flow.args_changed, "args may be changed here")
        return (Exact(self.formula.row("args")),)

    def _element(self, node: ast.expr, scope: Scope, env: Env) -> Alternatives:
        found, inner, known = self.unfolded(node, scope, env)
        if isinstance(found, ast.List | ast.Tuple) and not any(isinstance(part, ast.Starred) for part in found.elts):
            return self._any_of(self.alternatives(part, inner, known) for part in found.elts)
        if self._called_builtin(found) == "range":
            assert isinstance(found, ast.Call)
            if len(found.args) == 1 and not found.keywords:
                count = self.iterations(found, inner, known)
                return count if isinstance(count, Unknown) else (AtMost(count, is_natural=True),)
        return self._not_told(node)

    def unfolded(self, node: ast.expr, scope: Scope, env: Env) -> tuple[ast.expr, Scope, Env]:
        """The display or call that a name stands for, if it is bound once and what it holds is never changed."""
        for _ in range(MAX_ALTERNATIVES):
            if not isinstance(node, ast.Name):
                break
            variable = self.scopes.sole(node.id, scope)
            binding = variable.only if variable is not None else None
            if variable is None or binding is None or binding.value is None or binding.is_element:
                break
            made = Made(binding.value)
            if made in self.flow.touched or made in self.flow.elsewhere:
                break
            node, scope, env = binding.value, binding.scope, retained(env, variable.scope)
        return node, scope, env

    def _constant(self, node: ast.Constant, scope: Scope, env: Env) -> Alternatives:  # noqa: ARG002 -- one signature for all
        value = node.value
        if value is None or isinstance(value, bool | int | str):
            literal = self.formula.literal(value)
            if literal is None and isinstance(value, str):
                return (Sized(self.formula.count(len(value))),)
            return self._exact(literal, node)
        if isinstance(value, bytes):
            return (Sized(self.formula.count(len(value))),)
        return self._not_told(node)

    def _display(self, node: ast.List | ast.Tuple | ast.Set, scope: Scope, env: Env) -> Alternatives:
        parts = [
            self.iterations(part.value, scope, env) if isinstance(part, ast.Starred) else self.formula.one
            for part in node.elts
        ]
        return self._sized([self.formula.sum(parts)])

    def _dict(self, node: ast.Dict, scope: Scope, env: Env) -> Alternatives:
        parts = [
            self.iterations(value, scope, env) if key is None else self.formula.one
            for key, value in zip(node.keys, node.values, strict=True)
        ]
        return self._sized([self.formula.sum(parts)])

    def _comprehension(self, node: Comprehension, scope: Scope, env: Env) -> Alternatives:
        return self._sized([self.rounds(node, scope, env)])

    def rounds(self, node: Comprehension, scope: Scope, env: Env) -> Count:
        """How many items a comprehension makes at most."""
        inner = self.scopes.of[node]
        return self.formula.product(
            [
                self.iterations(generator.iter, inner if index else scope, env)
                for index, generator in enumerate(node.generators)
            ]
        )

    def _operation(self, node: ast.BinOp, scope: Scope, env: Env) -> Alternatives:
        operation = _ARITHMETIC.get(type(node.op))
        left, right = self.alternatives(node.left, scope, env), self.alternatives(node.right, scope, env)
        if operation is None or isinstance(left, Unknown) or isinstance(right, Unknown):
            missing = left if isinstance(left, Unknown) else right
            return missing if isinstance(missing, Unknown) else self._not_told(node)
        return self._any_of(self._operated(node, operation, first, second) for first in left for second in right)

    def _operated(self, node: ast.BinOp, operation: str, left: Alternative, right: Alternative) -> Alternatives:
        if isinstance(left, Exact) and isinstance(right, Exact):
            return self._exact(self.formula.arithmetic(operation, left.value, right.value), node)
        if isinstance(left, AtMost) or isinstance(right, AtMost):
            return self._computed(node, operation, left, right)
        if operation == "add":
            return self._sized([self.formula.sum([self._items(left), self._items(right)])])
        if operation == "multiply" and isinstance(left, Sized) and isinstance(right, Exact):
            return self._sized([self.formula.product([left.count, self._times(right.value)])])
        if operation == "multiply" and isinstance(right, Sized) and isinstance(left, Exact):
            return self._sized([self.formula.product([right.count, self._times(left.value)])])
        return self._not_told(node)

    def _computed(self, node: ast.BinOp, operation: str, left: Alternative, right: Alternative) -> Alternatives:
        """Arithmetic with a number of which only the most is known."""
        if isinstance(left, Sized) or isinstance(right, Sized):
            return self._not_told(node)
        constant = self.formula.number(right.value) if isinstance(right, Exact) else None
        is_natural = isinstance(left, AtMost) and left.is_natural
        found: Count | None = None
        if operation == "add":
            found = self.formula.sum([self.at_most(left), self.at_most(right)])
            is_natural = is_natural and (constant is not None and constant >= 0)
        elif operation == "subtract" and isinstance(right, AtMost):
            found, is_natural = (self.at_most(left) if right.is_natural else None), False
        elif operation == "subtract" and constant is not None:
            found, is_natural = self.less(self.at_most(left), constant), False
        elif operation == "multiply" and is_natural and constant is not None and constant >= 0:
            found = self.formula.product([self.at_most(left), self.formula.count(constant)])
        elif operation == "divide" and is_natural and constant is not None and constant > 0:
            assert isinstance(right, Exact)
            found = self.formula.parts(self.at_most(left), right.value)
        if found is None or isinstance(found, Unknown):
            return self._not_told(node)
        return (AtMost(found, is_natural=is_natural),)

    def _unary(self, node: ast.UnaryOp, scope: Scope, env: Env) -> Alternatives:
        inner = self.alternatives(node.operand, scope, env)
        if isinstance(inner, Unknown) or not isinstance(node.op, ast.USub):
            return inner if isinstance(inner, Unknown) else self._not_told(node)
        found: list[Alternatives] = []
        for each in inner:
            if not isinstance(each, Exact):
                return self._not_told(node)
            number = self.formula.number(each.value)
            value = self.formula.row("negate", each.value) if number is None else self.formula.literal(-number)
            found.append(self._exact(value, node))
        return self._any_of(found)

    def _either(self, node: ast.BoolOp, scope: Scope, env: Env) -> Alternatives:
        parts = [self.alternatives(value, scope, env) for value in node.values]
        values = [
            part[0].value
            for part in parts
            if not isinstance(part, Unknown) and len(part) == 1 and isinstance(part[0], Exact)
        ]
        if isinstance(node.op, ast.Or) and len(values) == len(parts):
            return (Exact(self.formula.row("or", *values)),)
        return self._any_of(parts)

    def _if_else(self, node: ast.IfExp, scope: Scope, env: Env) -> Alternatives:
        return self._any_of([self.alternatives(node.body, scope, env), self.alternatives(node.orelse, scope, env)])

    def _named(self, node: ast.NamedExpr, scope: Scope, env: Env) -> Alternatives:
        return self.alternatives(node.value, scope, env)

    def _subscript(self, node: ast.Subscript, scope: Scope, env: Env) -> Alternatives:
        if isinstance(node.slice, ast.Slice):
            return self._sliced(node, node.slice, scope, env)
        holders = self.alternatives(node.value, scope, env)
        keys = self.alternatives(node.slice, scope, env)
        if isinstance(holders, Unknown) or isinstance(keys, Unknown):
            return holders if isinstance(holders, Unknown) else self._not_told(node)
        found: list[Alternative] = []
        for holder in holders:
            for key in keys:
                constant = self._key(key)
                if not isinstance(holder, Exact) or constant is None:
                    return self._not_told(node)
                found.append(Exact(self.formula.row("item", holder.value, constant)))
        return self._distinct(found)

    def _sliced(self, node: ast.Subscript, part: ast.Slice, scope: Scope, env: Env) -> Alternatives:
        whole = self.iterations(node.value, scope, env)
        if isinstance(whole, Unknown) or part.lower is not None:
            width = self._width(part, scope, env)
            if isinstance(whole, Unknown):
                return whole if width is None else self._sized([width])
            if width is not None:
                is_constant = not isinstance(width, Unknown) and self.formula.constant(width) is not None
                return self._sized([width if is_constant else self.formula.min([whole, width])])
        if part.step is not None or (part.lower is not None and part.upper is not None):
            return (Sized(whole),)
        bound = part.lower if part.upper is None else part.upper
        if bound is None:
            return (Sized(whole),)
        ends = self.alternatives(bound, scope, env)
        if isinstance(ends, Unknown):
            return (Sized(whole),)
        operation = "rest" if part.upper is None else "first"
        return self._sized(
            [self.formula.row(operation, whole, end.value) if isinstance(end, Exact) else whole for end in ends]
        )

    def _width(self, part: ast.Slice, scope: Scope, env: Env) -> Count | None:
        """Of `x[:3]`, `x[:args["width"]]` and `x[i : i + 3]`, whatever x is; None when it cannot be told."""
        width = part.upper if part.lower is None else self._step_up(part, scope, env)
        if part.step is not None or width is None:
            return None
        ends = self.alternatives(width, scope, env)
        if isinstance(ends, Unknown):
            return None
        counts: list[Count] = []
        for end in ends:
            if not isinstance(end, Exact):
                return None
            number = self.formula.number(end.value)
            if number is not None and number < 0:
                return None
            counts.append(self.formula.row("cut", end.value) if number is None else self.formula.count(number))
        return self.formula.max(counts)

    def _step_up(self, part: ast.Slice, scope: Scope, env: Env) -> ast.expr | None:
        """The c of `x[i : i + c]` where i is an integer for certain: a loop over a range gives it, and nothing else.

        No more than c items lie between, also where i is negative; but c itself must not be.
        """
        match part:
            case ast.Slice(
                lower=ast.Name(id=name),
                upper=ast.BinOp(left=ast.Name(id=again), op=ast.Add(), right=width),
            ) if name == again:  # i is looked up twice, and nothing happens between
                variable = self.scopes.sole(name, scope)
                bindings = [] if variable is None else variable.bindings
                return width if bindings and all(self._is_from_range(each, env) for each in bindings) else None
            case _:
                return None

    def _is_from_range(self, binding: Binding, env: Env) -> bool:
        if binding.value is None or not binding.is_element:
            return False
        return self._called_builtin(self.unfolded(binding.value, binding.scope, env)[0]) == "range"


_Compute = Callable[[Sizes, Any, Scope, Env], Alternatives]
_EXPRESSIONS: Final[Mapping[type[ast.expr], _Compute]] = {
    ast.Name: Sizes._name,
    ast.Constant: Sizes._constant,
    **dict.fromkeys((ast.List, ast.Tuple, ast.Set), Sizes._display),
    ast.Dict: Sizes._dict,
    **dict.fromkeys(COMPREHENSIONS, Sizes._comprehension),
    ast.BinOp: Sizes._operation,
    ast.UnaryOp: Sizes._unary,
    ast.BoolOp: Sizes._either,
    ast.IfExp: Sizes._if_else,
    ast.NamedExpr: Sizes._named,
    ast.Subscript: Sizes._subscript,
    ast.Call: Sizes._call,
}
