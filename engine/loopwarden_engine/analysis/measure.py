"""What all that measures expressions shares: the script, the work that is left, and how answers are put together."""

import ast
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Final

from .amounts import Alternative, Alternatives, AtMost, Env, Exact, Sized
from .flow import Flow
from .formula import Count, Formula, Node, Unknown, unknown
from .scopes import Scope, Scopes
from .store import TooLargeError, line_of
from .things import SCALAR, Builtin, Class, Instance, Made, Module

MAX_ALTERNATIVES: Final = 8


class Measure(ABC):
    """One script that is measured."""

    def __init__(self, scopes: Scopes, flow: Flow, formula: Formula, max_steps: int) -> None:
        self.scopes, self.flow, self.formula = scopes, flow, formula
        self._steps_left = max_steps
        self._under_way: set[object] = set()

    @abstractmethod
    def alternatives(self, node: ast.expr, scope: Scope, env: Env) -> Alternatives:
        """All values that an expression can give."""

    def step(self) -> None:
        """Count the work. Raises `TooLargeError`."""
        self._steps_left -= 1
        if self._steps_left < 0:
            raise TooLargeError

    def iterations(self, node: ast.expr, scope: Scope, env: Env) -> Count:
        """How often a loop over an expression goes round at most."""
        found = self.alternatives(node, scope, env)
        if not isinstance(found, Unknown):
            return self.formula.max(self._items(alternative) for alternative in found)
        by_things = self._by_things(node)
        if not isinstance(by_things, Unknown):
            return by_things
        if self._is_reply(node):
            return unknown(line_of(node), "this goes over what an agent replied")
        return found

    def _items(self, alternative: Alternative) -> Count:
        if isinstance(alternative, Sized):
            return alternative.count
        if isinstance(alternative, AtMost):
            return self.formula.zero
        return self._items_of_value(alternative.value)

    def _items_of_value(self, value: Node) -> Count:
        self.step()
        formula = self.formula
        operation, operands = formula.operation(value), formula.operands(value)
        if operation == "add":  # of two lists or two texts; numbers have no items
            return formula.sum(self._items_of_value(Node(int(part))) for part in operands)  # type: ignore[arg-type]
        if operation == "multiply":
            left, right = (Node(int(part)) for part in operands)  # type: ignore[arg-type]
            return formula.sum(
                formula.product([self._items_of_value(items), self._times(times)])
                for items, times in ((left, right), (right, left))
            )
        return formula.items(value)

    def _times(self, value: Node) -> Node:
        zero, one = self._literal(0), self._literal(1)
        return self.formula.range(zero, value, one)

    def at_most(self, number: Exact | AtMost) -> Node:
        """The largest that a number can be, 0 where it is below."""
        if isinstance(number, AtMost):
            return number.count
        value = number.value
        if self.formula.number(value) is None:
            # Of arithmetic with a float nothing is said: `min(2.5, i)` may give i, though range() takes no float.
            value = self.formula.row("subtract", value, self._literal(0))
        return self._times(value)

    def less(self, count: Node, number: int) -> Node:
        """A count less a constant, and not below 0."""
        known = self.formula.constant(count)
        if known is not None:
            return self.formula.count(max(0, known - number))
        if number > 0:
            return self.formula.row("rest", count, self._literal(number))
        total = self.formula.sum([count, self.formula.count(-number)])
        assert not isinstance(total, Unknown)
        return total

    def _literal(self, number: int) -> Node:
        node = self.formula.literal(number)
        assert node is not None
        return node

    def _by_things(self, node: ast.expr) -> Count:
        """By what an expression may give, where its value says nothing: the lists in a list of lists."""
        line = line_of(node)
        found: list[Count] = []
        for thing in self.flow.things_of(node):
            if not isinstance(thing, Made) or thing.part or thing in self._under_way or thing.node is node:
                return unknown(line, "how often this goes round cannot be told")
            maker = thing.node
            if not isinstance(maker, ast.expr) or maker not in self.flow.scope_of:
                return unknown(line, "how often this goes round cannot be told")
            self._under_way.add(thing)
            try:
                found.append(self.iterations(maker, self.flow.scope_of[maker], {}))
            finally:
                self._under_way.discard(thing)
        return self.formula.max(found) if found else unknown(line, "how often this goes round cannot be told")

    def _is_reply(self, node: ast.expr) -> bool:
        """Whether an expression gives nothing but what agents replied."""
        held = [thing for thing in self.flow.things_of(node) if thing is not SCALAR]
        return bool(held) and all(isinstance(thing, Made) and thing.part == "reply" for thing in held)

    def _not_told(self, node: ast.expr) -> Unknown:
        things = self.flow.things_of(node)
        line = line_of(node)
        if self._is_reply(node):
            return unknown(line, "this comes from the reply of an agent")
        if any(isinstance(thing, Made) and thing.part == "generator" for thing in things):
            return unknown(line, "how much a generator yields is not counted")
        return unknown(line, "what this gives cannot be told before the run")

    def _sized(self, counts: Iterable[Count]) -> Alternatives:
        found: list[Alternative] = []
        for count in counts:
            if isinstance(count, Unknown):
                return count
            found.append(Sized(count))
        return self._distinct(found)

    def _distinct(self, found: Iterable[Alternative]) -> Alternatives:
        distinct = tuple(dict.fromkeys(found))
        return distinct if len(distinct) <= MAX_ALTERNATIVES else unknown(1, "too many values are possible")

    def _any_of(self, parts: Iterable[Alternatives]) -> Alternatives:
        found: list[Alternative] = []
        for part in parts:
            if isinstance(part, Unknown):
                return part
            found.extend(part)
        return self._distinct(found)

    def _exact(self, value: Node | None, node: ast.expr) -> Alternatives:
        return unknown(line_of(node), "this constant is too long") if value is None else (Exact(value),)

    def _is_method_too(self, node: ast.Call) -> bool:
        """Whether `x.name(…)` may also be a method of a built-in type, for some x."""
        return isinstance(node.func, ast.Attribute) and any(
            not isinstance(thing, Instance | Class | Module | Builtin) for thing in self.flow.things_of(node.func.value)
        )

    def _called_builtin(self, node: ast.expr) -> str | None:
        if isinstance(node, ast.Call) and not any(isinstance(part, ast.Starred) for part in node.args):
            if self._is_method_too(node):
                return None
            callees = self.flow.callees_of(node)
            if len(callees) == 1:
                (callee,) = callees
                if isinstance(callee, Builtin):
                    return callee.name
        return None
