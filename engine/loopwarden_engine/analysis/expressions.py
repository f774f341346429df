"""What expressions may give, and what evaluating them does to the things that they give."""

import ast
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from loopwarden_engine.hook_rules import HOOK_NAMES
from loopwarden_engine.language.namespace import BUILTINS

from .calls import UNSEEN, Calls, Given, shifted
from .scopes import COMPREHENSIONS, FunctionNode, Scope, Scopes, default_of
from .things import (
    ARGS,
    ELSEWHERE,
    NOTHING,
    PLAIN,
    SCALAR,
    Builtin,
    Class,
    Function,
    Hook,
    Instance,
    Made,
    Thing,
    Things,
)


class Expressions(Calls):
    """The walk over expressions and targets."""

    def __init__(self, scopes: Scopes, max_steps: int) -> None:
        super().__init__(scopes, max_steps)
        self._seen: dict[ast.AST, Things] = {}
        self.scope_of: dict[ast.AST, Scope] = {}
        self.blind: set[ast.Call] = set()
        """Calls of what nothing is known of. What is given to these is followed no longer."""
        self.bound_methods: set[FunctionNode] = set()
        """Methods that are taken from an object without being called: they are called later, with the object first."""

    def assign(self, target: ast.expr, things: Things, scope: Scope) -> None:
        """Put things into a target."""
        match target:
            case ast.Name(id=name):
                self.hold(self.scopes.owner(name, scope), things)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                for part in parts:
                    self.assign(part, self.inside(things), scope)
            case ast.Starred(value=inner):
                rest = Made(target)
                self.put(rest, things)
                self.assign(inner, frozenset({rest}), scope)
            case ast.Subscript(value=container, slice=key):
                holders = self.expr(container, scope)
                keys = self.expr(key, scope)
                added = things | self.hashable(keys)
                if self.may_be_slice(key, keys):
                    self.grow(holders, target, "unknown", added | self.inside(things))
                else:
                    lists = frozenset(thing for thing in holders if _is_list(thing))
                    self.touch(lists, target)
                    self.hold_in(lists, added, target)
                    self.grow(holders - lists, target, "one", added)
            case ast.Attribute(value=holder):
                self._store_attribute(self.expr(holder, scope), things, target)
            case _:
                raise TypeError(f"not a target: {type(target).__name__}")

    def _store_attribute(self, holders: Things, things: Things, at: ast.AST) -> None:
        for holder in holders:
            if isinstance(holder, Instance | Class | Made):
                self.put(holder, things)
            elif holder is ELSEWHERE:
                self.send_elsewhere(things, at)

    def expr(self, node: ast.expr, scope: Scope) -> Things:
        """What an expression may give."""
        self.step()
        things = _EXPRESSIONS[type(node)](self, node, scope)
        self._seen[node] = things
        self.scope_of[node] = scope
        return things

    def all(self, nodes: Iterable[ast.expr | None], scope: Scope) -> Things:
        """What any of these may give; items of those with a star."""
        found: set[Thing] = set()
        for node in nodes:
            if node is not None:
                found |= self.expr(node, scope)
        return frozenset(found)

    def read(self, name: str, scope: Scope) -> Things:
        """What a name may mean."""
        variables = self.scopes.resolve(name, scope)
        found: set[Thing] = set()
        for variable in variables:
            found |= self.held[variable]
        if not variables or isinstance(variables[0].scope.node, ast.Module | ast.ClassDef):
            if name in HOOK_NAMES:
                found.add(Hook(name))
            elif name in BUILTINS:
                found.add(Builtin(name))
        return frozenset(found)

    def _name(self, node: ast.Name, scope: Scope) -> Things:
        return self.read(node.id, scope)

    def _constant(self, node: ast.Constant, scope: Scope) -> Things:  # noqa: ARG002 -- one signature for all
        return PLAIN

    def _plain(self, node: ast.expr, scope: Scope) -> Things:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.expr(child, scope)
        return PLAIN

    def _made(self, node: ast.expr, things: Iterable[Thing]) -> Things:
        made = Made(node)
        self.put(made, things)
        return frozenset({made})

    def _display(self, node: ast.List | ast.Tuple | ast.Set, scope: Scope) -> Things:
        things = self.all(node.elts, scope)
        return self._made(node, self.hashable(things) if isinstance(node, ast.Set) else things)

    def _dict(self, node: ast.Dict, scope: Scope) -> Things:
        found = set(self.hashable(self.all(node.keys, scope)))
        for key, value in zip(node.keys, node.values, strict=True):
            things = self.expr(value, scope)
            found |= self.inside(things) if key is None else things
        return self._made(node, found)

    def _starred(self, node: ast.Starred, scope: Scope) -> Things:
        return self.inside(self.expr(node.value, scope))

    def _comprehension(self, node: Any, scope: Scope) -> Things:
        inner = self.scopes.of[node]
        for index, generator in enumerate(node.generators):
            items = self.inside(self.expr(generator.iter, inner if index else scope))
            self.assign(generator.target, items, inner)
            self.all(generator.ifs, inner)
        if isinstance(node, ast.DictComp):
            return self._made(node, self.hashable(self.expr(node.key, inner)) | self.expr(node.value, inner))
        things = self.expr(node.elt, inner)
        return self._made(node, self.hashable(things) if isinstance(node, ast.SetComp) else things)

    def _parameters(self, node: ast.FunctionDef | ast.Lambda, scope: Scope) -> None:
        variables = self.scopes.of[node].variables
        for name, default in default_of(node.args).items():
            self.hold(variables[name], self.expr(default, scope))

    def _lambda(self, node: ast.Lambda, scope: Scope) -> Things:
        self._parameters(node, scope)
        things = self.expr(node.body, self.scopes.of[node])
        self.give_back(node, things)
        if self.is_generator(node):
            self.send_elsewhere(things, node)
        return frozenset({Function(node)})

    def _either(self, node: ast.BoolOp, scope: Scope) -> Things:
        return self.all(node.values, scope)

    def _if_else(self, node: ast.IfExp, scope: Scope) -> Things:
        self.expr(node.test, scope)
        return self.all([node.body, node.orelse], scope)

    def _named(self, node: ast.NamedExpr, scope: Scope) -> Things:
        things = self.expr(node.value, scope)
        self.hold(self.scopes.owner(node.target.id, scope.function), things)
        return things

    def _operation(self, node: ast.BinOp, scope: Scope) -> Things:
        inner = self.inside(self.expr(node.left, scope) | self.expr(node.right, scope))
        return self._made(node, inner) | PLAIN

    def _subscript(self, node: ast.Subscript, scope: Scope) -> Things:
        holders = self.expr(node.value, scope)
        keys = self.expr(node.slice, scope)
        self.missing(keys, node)
        inner = self.inside(holders)
        if any(isinstance(holder, Builtin) for holder in holders):
            inner |= UNSEEN  # `list[int]` makes lists too
        if isinstance(node.slice, ast.Slice):
            return self._made(node, inner) | PLAIN
        return (self._made(node, inner) | inner | PLAIN) if self.may_be_slice(node.slice, keys) else inner

    def may_be_slice(self, key: ast.expr, keys: Things) -> bool:
        """Whether a key takes a part of a list, not one item."""
        return isinstance(key, ast.Slice) or ELSEWHERE in keys or not self.slices.isdisjoint(keys)

    def _attribute(self, node: ast.Attribute, scope: Scope) -> Things:
        """An attribute that is not called: a method of a list that is kept may be called anywhere."""
        holders = self.expr(node.value, scope)
        containers = [thing for thing in holders if isinstance(thing, Made) or thing in (ARGS, ELSEWHERE)]
        found = self.attribute(holders, node.attr)
        if containers:
            self.send_elsewhere(containers, node)
            found |= UNSEEN
        elif SCALAR in holders:
            found |= UNSEEN if node.attr == "maketrans" else PLAIN
        # A bound method: called later, it gets its object first.
        instances = [thing for thing in holders if isinstance(thing, Instance)]
        if instances:
            for function in found:
                if isinstance(function, Function):
                    self.bound_methods.add(function.node)
                    self.call(frozenset({function}), shifted(Given(), instances), node)
        return found

    def _yield(self, node: ast.Yield | ast.YieldFrom, scope: Scope) -> Things:
        function = scope.function.node
        assert isinstance(function, ast.FunctionDef | ast.Lambda)
        if node.value is not None:
            things = self.expr(node.value, scope)
            given = self.inside(things) if isinstance(node, ast.YieldFrom) else things
            self.put(Made(function, "generator"), given)
        return UNSEEN

    def _call(self, node: ast.Call, scope: Scope) -> Things:
        positional: list[Things] = []
        starred: Things = NOTHING
        for argument in node.args:
            things = self.expr(argument, scope)
            if isinstance(argument, ast.Starred):
                starred |= things
            elif not starred:
                positional.append(things)
            else:
                starred |= things
        keywords: list[tuple[str | None, Things]] = []
        for keyword in node.keywords:
            things = self.expr(keyword.value, scope)
            keywords.append((keyword.arg, things if keyword.arg is not None else self.inside(things)))
        given = Given(tuple(positional), tuple(keywords), starred)
        if isinstance(node.func, ast.Attribute):
            return self._call_attribute(node, node.func, given, scope)
        callees = self.expr(node.func, scope)
        if node in self.blind:
            callees |= UNSEEN
        self.callees[node] = callees
        return self.call(callees, given, node, is_direct=True)

    def _call_attribute(self, node: ast.Call, function: ast.Attribute, given: Given, scope: Scope) -> Things:
        receivers = self.expr(function.value, scope)
        callees = self.attribute(receivers, function.attr)
        if node in self.blind:
            callees |= UNSEEN
        self.callees[node] = self._seen[function] = callees
        result = self.call(callees, given, node, is_direct=True)
        instances = [thing for thing in receivers if isinstance(thing, Instance)]
        if instances:
            result |= self.call(callees, shifted(given, instances), node, is_direct=True)
        containers = frozenset(thing for thing in receivers if isinstance(thing, Made) or thing in (ARGS, SCALAR))
        if containers:
            result |= self.call_method(containers, function.attr, given, node)
        return result


def _is_list(thing: Thing) -> bool:
    """Whether this is a list for certain: setting an item of it does not make it longer."""
    if not isinstance(thing, Made) or thing.part:
        return False
    node = thing.node
    if isinstance(node, ast.BinOp):  # `[None] * n`
        return isinstance(node.left, ast.List) and isinstance(node.op, ast.Mult)
    return isinstance(node, ast.List | ast.ListComp)


_Walk = Callable[[Expressions, Any, Scope], Things]
_EXPRESSIONS: Final[Mapping[type[ast.expr], _Walk]] = {
    ast.Name: Expressions._name,
    ast.Constant: Expressions._constant,
    **dict.fromkeys((ast.JoinedStr, ast.FormattedValue, ast.Compare, ast.UnaryOp, ast.Slice), Expressions._plain),
    **dict.fromkeys((ast.List, ast.Tuple, ast.Set), Expressions._display),
    ast.Dict: Expressions._dict,
    ast.Starred: Expressions._starred,
    **dict.fromkeys(COMPREHENSIONS, Expressions._comprehension),
    ast.Lambda: Expressions._lambda,
    ast.BoolOp: Expressions._either,
    ast.IfExp: Expressions._if_else,
    ast.NamedExpr: Expressions._named,
    ast.BinOp: Expressions._operation,
    ast.Subscript: Expressions._subscript,
    ast.Attribute: Expressions._attribute,
    **dict.fromkeys((ast.Yield, ast.YieldFrom), Expressions._yield),
    ast.Call: Expressions._call,
}
