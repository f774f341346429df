"""What calls come to: built-ins, methods of lists and dicts, hooks, and functions of the script."""

import ast
from itertools import product
from typing import Final

from .amounts import Alternative, Alternatives, AtMost, Env, Exact, Sized
from .formula import Count, Unknown, unknown
from .growing import Growing
from .scopes import FunctionNode, Scope, own_nodes
from .store import line_of
from .things import ARGS, SCALAR, Function, Hook, Made

_COPYING: Final = frozenset({"list", "tuple", "set", "frozenset", "sorted", "reversed", "enumerate", "iter", "dict"})


class Called(Growing):
    """Measures calls."""

    def _call(self, node: ast.Call, scope: Scope, env: Env) -> Alternatives:
        name = self._called_builtin(node)
        if name is not None:
            return self._builtin(name, node, scope, env)
        callees = self.flow.callees_of(node)
        is_plain = not any(isinstance(part, ast.Starred) for part in node.args) and not self._is_method_too(node)
        if len(callees) == 1 and is_plain:
            (callee,) = callees
            if isinstance(callee, Hook) and callee.name in ("parallel", "pipeline") and node.args:
                return self._sized([self.iterations(node.args[0], scope, env)])
            if isinstance(callee, Function):
                return self._returned(node, callee.node, scope, env)
        if not callees and isinstance(node.func, ast.Attribute):
            return self._method(node, node.func, scope, env)
        return self._not_told(node)

    def _builtin(self, name: str, node: ast.Call, scope: Scope, env: Env) -> Alternatives:  # noqa: PLR0911 -- one for each kind
        arguments = node.args
        if any(keyword.arg is None for keyword in node.keywords):
            return self._not_told(node)
        if name == "range" and 1 <= len(arguments) <= 3 and not node.keywords:
            return self._range(arguments, scope, env)
        if name in ("len", "int") and len(arguments) == 1 and not node.keywords:
            return self._number(name, node, scope, env)
        if name in ("min", "max") and len(arguments) > 1 and not node.keywords:
            return self._extreme(name, node, scope, env)
        if name in _COPYING and self._copies(name, node):
            own = self.formula.count(len(node.keywords) if name == "dict" else 0)
            copied = [self.iterations(argument, scope, env) for argument in arguments[:1]]
            return self._sized([self.formula.sum([*copied, own])])
        if name in ("zip", "map") and len(arguments) > (name == "map"):
            together = arguments[name == "map" :]
            return self._sized([self.formula.min([self.iterations(part, scope, env) for part in together])])
        if name == "filter" and len(arguments) == 2:
            return self._sized([self.iterations(arguments[1], scope, env)])
        return self._not_told(node)

    def _copies(self, name: str, node: ast.Call) -> bool:
        """Whether the first argument is all that is copied, or nothing is."""
        if not node.args:
            return name == "dict" or not node.keywords
        return len(node.args) == 1 or (name == "enumerate" and len(node.args) == 2)

    def _range(self, arguments: list[ast.expr], scope: Scope, env: Env) -> Alternatives:
        given: list[tuple[Alternative, ...]] = []
        for argument in arguments:
            each = self.alternatives(argument, scope, env)
            if isinstance(each, Unknown):
                return each
            given.append(each)
        if len(given) == 1:
            (ends,) = given
            return self._sized([self._times(end.value) if isinstance(end, Exact) else self._up_to(end) for end in ends])
        counts: list[Count] = []
        for start, stop, step in product(*given, *([(Exact(self._literal(1)),)] * (3 - len(given)))):
            if isinstance(start, Exact) and isinstance(stop, Exact) and isinstance(step, Exact):
                counts.append(self.formula.range(start.value, stop.value, step.value))
            else:
                counts.append(self._range_up_to(start, stop, step, arguments[0]))
        return self._sized(counts)

    def _range_up_to(self, start: Alternative, stop: Alternative, step: Alternative, node: ast.expr) -> Count:
        """The length of `range(0, len(x), size)`, where only the most that x holds is known, and of `range(i, 5)`."""
        if isinstance(start, AtMost) and start.is_natural and isinstance(step, Exact):
            by = self.formula.number(step.value)
            if by is not None and by > 0:
                start = Exact(self._literal(0))
                if isinstance(stop, Exact):
                    return self.formula.range(start.value, stop.value, step.value)
        if isinstance(start, Exact) and isinstance(stop, AtMost) and isinstance(step, Exact):
            first, by = self.formula.number(start.value), self.formula.number(step.value)
            # With a step below 0 this goes round too, unless it begins at 0 and ends above.
            if first is not None and ((by is not None and by > 0) or (by is None and first == 0 and stop.is_natural)):
                span = self.less(stop.count, first)
                return self.formula.parts(span, step.value)
        return unknown(line_of(node), "where this range begins or ends cannot be told")

    def _up_to(self, end: Alternative) -> Count:
        """The length of a range up to something that is no exact number."""
        return end.count if isinstance(end, AtMost) else self.formula.zero

    def _number(self, name: str, node: ast.Call, scope: Scope, env: Env) -> Alternatives:
        given = self.alternatives(node.args[0], scope, env)
        if isinstance(given, Unknown):
            by_things = self._by_things(node.args[0]) if name == "len" else given
            return given if isinstance(by_things, Unknown) else (AtMost(by_things, is_natural=True),)
        found: list[Alternative] = []
        for each in given:
            if isinstance(each, Exact):
                operation = "length" if name == "len" else "int"
                if name == "len" and self.formula.operation(each.value) in ("add", "multiply"):
                    items = self._items_of_value(each.value)
                    if isinstance(items, Unknown):
                        return items
                    found.append(AtMost(items, is_natural=True))
                    continue
                found.append(Exact(self.formula.row(operation, each.value)))
            elif name == "len":
                found.append(AtMost(each.count, is_natural=True))
            else:
                return self._not_told(node)
        return self._distinct(found)

    def _extreme(self, name: str, node: ast.Call, scope: Scope, env: Env) -> Alternatives:
        parts = [self.alternatives(argument, scope, env) for argument in node.args]
        only: list[Exact | AtMost] = []
        for part in parts:
            if isinstance(part, Unknown):
                return self._least(name, parts) or part
            if len(part) == 1 and not isinstance(part[0], Sized):
                only.append(part[0])
        values = [each.value for each in only if isinstance(each, Exact)]
        if len(values) == len(parts):
            return (Exact(self.formula.row("smallest" if name == "min" else "largest", *values)),)
        if name == "min" and len(only) == len(parts):
            least = self.formula.min([self.at_most(each) for each in only])
            return least if isinstance(least, Unknown) else (AtMost(least),)
        return self._any_of(parts)  # it is one of them

    def _least(self, name: str, parts: list[Alternatives]) -> Alternatives | None:
        """`min(x, 5)` is at most 5, whatever number x is."""
        for part in parts:
            if name == "min" and not isinstance(part, Unknown) and len(part) == 1 and isinstance(part[0], Exact):
                number = self.formula.number(part[0].value)
                if number is not None:
                    return (AtMost(self.formula.count(max(0, number))),)
        return None

    def _method(self, node: ast.Call, function: ast.Attribute, scope: Scope, env: Env) -> Alternatives:
        if any(isinstance(part, ast.Starred) for part in node.args) or node.keywords:
            return self._not_told(node)
        if not self.flow.things_of(function.value) <= {ARGS, SCALAR} | {
            thing for thing in self.flow.things_of(function.value) if isinstance(thing, Made)
        }:
            return self._not_told(node)
        if function.attr in ("copy", "keys", "values", "items") and not node.args:
            return self._sized([self.iterations(function.value, scope, env)])
        if function.attr == "get" and 1 <= len(node.args) <= 2:
            return self._got(node, function, scope, env)
        return self._not_told(node)

    def _got(self, node: ast.Call, function: ast.Attribute, scope: Scope, env: Env) -> Alternatives:
        holders = self.alternatives(function.value, scope, env)
        keys = self.alternatives(node.args[0], scope, env)
        none = self.formula.literal(None)
        assert none is not None
        default: Alternatives = (Exact(none),) if len(node.args) == 1 else self.alternatives(node.args[1], scope, env)
        if isinstance(holders, Unknown) or isinstance(keys, Unknown) or isinstance(default, Unknown):
            return next(part for part in (holders, keys, default) if isinstance(part, Unknown))
        found: list[Alternative] = []
        for holder in holders:
            for key in keys:
                constant = self._key(key)
                if not isinstance(holder, Exact) or not isinstance(constant, str):
                    return self._not_told(node)
                for otherwise in default:
                    if isinstance(otherwise, Exact):
                        found.append(Exact(self.formula.row("get", holder.value, constant, otherwise.value)))
                    else:
                        found += [Exact(self.formula.row("item", holder.value, constant)), otherwise]
        return self._distinct(found)

    def _key(self, key: Alternative) -> str | int | None:
        if not isinstance(key, Exact) or self.formula.operation(key.value) != "literal":
            return None
        (value,) = self.formula.operands(key.value)
        return value if type(value) in (str, int) else None  # type: ignore[return-value]

    def _returned(self, node: ast.Call, function: FunctionNode, scope: Scope, env: Env) -> Alternatives:
        if self.flow.is_generator(function) or function in self._under_way:
            return self._not_told(node)
        inner = self.entered(node, function, scope, env)
        self._under_way.add(function)
        try:
            body = self.scopes.of[function]
            if isinstance(function, ast.Lambda):
                return self.alternatives(function.body, body, inner)
            found: list[Alternatives] = []
            gives_none = not isinstance(function.body[-1], ast.Return)
            for statement in own_nodes(function.body):
                if isinstance(statement, ast.Return):
                    if statement.value is None:
                        gives_none = True
                    else:
                        found.append(self.alternatives(statement.value, body, inner))
            if gives_none:
                found.append(self._exact(self.formula.literal(None), node))
            return self._any_of(found)
        finally:
            self._under_way.discard(function)
