"""How many items are added to a list or dict after it was made."""

import ast
from abc import abstractmethod
from collections.abc import Mapping
from typing import Final, Protocol

from .amounts import Env
from .entering import Entering
from .formula import Count, Unknown, unknown
from .scopes import Binding, FunctionNode, Variable, body_of, own_nodes
from .store import Growth, line_of
from .things import Builtin, Made

_ITERATORS: Final = frozenset({"range", "tuple", "frozenset", "enumerate", "zip", "reversed", "map", "filter", "iter"})
"""What these make cannot grow itself."""


class Counting(Protocol):
    """What costs.py gives: how often events happen."""

    def in_function(self, function: FunctionNode, env: Env) -> Count:
        """In one call of a function."""
        ...

    def in_run(self) -> Count:
        """In the whole run."""
        ...


class Growing(Entering):
    """Counts what is added, at any time of the run."""

    @abstractmethod
    def counting(self, events: Mapping[ast.AST, Growth]) -> Counting:
        """What counts the items that these places add."""

    def _can_grow(self, node: ast.expr, made: Made) -> bool:
        if made not in self.flow.growth and made not in self.flow.elsewhere:
            return False
        if isinstance(node, ast.Name | ast.Tuple | ast.GeneratorExp | ast.Constant | ast.BoolOp | ast.IfExp):
            return False
        if isinstance(node, ast.Call):
            callees = self.flow.callees_of(node)
            return not callees or not all(isinstance(each, Builtin) and each.name in _ITERATORS for each in callees)
        return True

    def _growth(self, made: Made, env: Env) -> Count:
        """How many items are ever added to one object that was made there."""
        if made in self.flow.elsewhere:
            return unknown(self.flow.elsewhere[made], "a list is handed on here to where nobody sees whether it grows")
        growths = self.flow.growth[made]
        for at, growth in growths.items():
            if growth == "unknown":
                return unknown(line_of(at), "by how much this makes a list or dict longer cannot be told")
        first = next(iter(growths))
        key = (made, "growth")
        if key in self._under_way:
            return unknown(line_of(first), "this makes a list longer, and how often depends on the list itself")
        self._under_way.add(key)
        try:
            counting = self.counting(growths)
            owner = self._owner(made, growths)
            count = counting.in_run() if owner is None else counting.in_function(owner, env)
            if isinstance(count, Unknown):
                here = unknown(line_of(first), "this makes a list or dict longer, nobody knows how often")
                return here.joined(count)
            return count
        finally:
            self._under_way.discard(key)

    def _owner(self, made: Made, growths: Mapping[ast.AST, Growth]) -> FunctionNode | None:
        """The function of which one call alone makes an object longer, and only under the name that it made it for."""
        scope = self.flow.scope_of.get(made.node)
        if scope is None or not isinstance(scope.node, ast.FunctionDef):
            return None
        mine = [
            each for each in scope.variables.values() if any(binding.value is made.node for binding in each.bindings)
        ]
        if len(mine) != 1 or not self._is_only(mine[0]):
            return None
        own = set(map(id, own_nodes(body_of(scope.node))))
        for at in growths:
            receiver = _receiver(at)
            if id(at) not in own or not isinstance(receiver, ast.Name) or receiver.id != mine[0].name:
                return None
            # A comprehension may bind the same name to another object.
            if self.scopes.sole(receiver.id, self.flow.scope_of.get(receiver, scope)) is not mine[0]:
                return None
        return scope.node

    def _is_only(self, variable: Variable) -> bool:
        """Whether a variable is bound once, to a list, apart from `+=`."""
        others = [binding for binding in variable.bindings if not adds_to_list(binding, variable)]
        return len(others) == 1


def _receiver(at: ast.AST) -> ast.expr | None:
    """What an event makes longer, as the text names it."""
    if isinstance(at, ast.Call) and isinstance(at.func, ast.Attribute):
        return at.func.value
    if isinstance(at, ast.Subscript):
        return at.value
    return at.target if isinstance(at, ast.AugAssign) else None


def adds_to_list(binding: Binding, variable: Variable) -> bool:
    """Whether this is `name += …` for a name that is only bound to lists made on the spot: it stays the same list."""
    if not isinstance(binding.node, ast.AugAssign) or not isinstance(binding.node.op, ast.Add):
        return False
    others = [each for each in variable.bindings if not isinstance(each.node, ast.AugAssign)]
    return bool(others) and all(
        isinstance(each.value, ast.List | ast.ListComp) and not each.is_element for each in others
    )
