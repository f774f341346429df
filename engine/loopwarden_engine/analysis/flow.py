"""Where things can get to: a walk over the whole script, again and again, until nothing new is found.

Order is not looked at: what a variable holds anywhere it may hold everywhere. So it makes no difference in which order
branches run, when a closure is called or when a generator goes on.
"""

import ast
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from loopwarden_engine.hook_rules import HOOK_NAMES
from loopwarden_engine.language.namespace import BUILTINS

from .calls import UNSEEN
from .expressions import Expressions
from .scopes import Scope, Scopes
from .store import TooLargeError
from .things import ARGS, NOTHING, PLAIN, SCALAR, Builtin, Class, Function, Hook, Made, Module, Things

_MAX_PASSES: Final = 60


class Flow(Expressions):
    """The walk. Afterwards `things_of` says what an expression may give, and `callees_of` what a call may call."""

    def __init__(self, tree: ast.Module, scopes: Scopes, max_steps: int) -> None:
        super().__init__(scopes, max_steps)
        for name, variable in scopes.module.variables.items():
            if name in HOOK_NAMES:
                self.held[variable].add(Hook(name))
            elif name in BUILTINS:
                self.held[variable].add(Builtin(name))
        for node, scope in scopes.of.items():
            if isinstance(node, ast.FunctionDef) and node.name == "main" and scope.parent is scopes.module:
                for variable in scope.variables.values():
                    if variable.bindings and isinstance(variable.bindings[0].node, ast.arg):
                        self.held[variable] |= {ARGS, SCALAR}
        for _ in range(_MAX_PASSES):
            self.has_changed = False
            self.block(tree.body, scopes.module)
            self.settle_elsewhere()
            if not self.has_changed and not self._find_blind():
                return
        raise TooLargeError

    def _find_blind(self) -> bool:
        """Calls of what nothing is known of: code that does not run, or something that is not followed."""
        found = {
            node for node in self.callees
            if not self._seen[node.func]
            and not (isinstance(node.func, ast.Attribute) and self._seen[node.func.value])
        } - self.blind  # fmt: skip
        self.blind |= found
        return bool(found)

    def things_of(self, node: ast.AST) -> Things:
        """What an expression may give."""
        return self._seen.get(node, NOTHING)

    def callees_of(self, node: ast.Call) -> Things:
        """What a call may call; methods of built-in types left out."""
        return self.callees.get(node, NOTHING)

    def block(self, body: Iterable[ast.stmt], scope: Scope) -> None:
        """Walk over statements."""
        for statement in body:
            self.step()
            _STATEMENTS[type(statement)](self, statement, scope)

    def _assign_statement(self, node: ast.Assign, scope: Scope) -> None:
        things = self.expr(node.value, scope)
        for target in node.targets:
            self.assign(target, things, scope)

    def _annotated(self, node: ast.AnnAssign, scope: Scope) -> None:
        if node.value is not None:
            self.assign(node.target, self.expr(node.value, scope), scope)

    def _augmented(self, node: ast.AugAssign, scope: Scope) -> None:
        value = self.expr(node.value, scope)
        target = node.target
        holders: Things = NOTHING
        keys: Things = NOTHING
        if isinstance(target, ast.Name):
            old = self.read(target.id, scope)
        elif isinstance(target, ast.Subscript):
            holders = self.expr(target.value, scope)
            keys = self.expr(target.slice, scope)
            self.missing(keys, node)
            old = self.inside(holders)
        else:
            holders = self.expr(target.value, scope)
            old = self.attribute(holders, target.attr)
        added = self.inside(value) | self.inside(self.inside(value))
        if isinstance(node.op, ast.Sub | ast.BitAnd):
            self.touch(old, node)
        else:
            self.grow(old, node, "unknown" if isinstance(node.op, ast.Mult) else "items", added)
        made = Made(node)
        self.put(made, self.inside(old) | self.inside(value))
        result: Things = frozenset({*old, made, SCALAR})
        if isinstance(target, ast.Name):
            self.hold(self.scopes.owner(target.id, scope), result)
        elif isinstance(target, ast.Subscript):
            if self.may_be_slice(target.slice, keys):
                self.grow(holders, target, "unknown", result | added)
            else:
                self.touch(holders, target)
                self.hold_in(holders, result, node)
        else:
            self._store_attribute(holders, result, node)

    def _if(self, node: ast.If | ast.While, scope: Scope) -> None:
        self.expr(node.test, scope)
        self.block(node.body, scope)
        self.block(node.orelse, scope)

    def _for(self, node: ast.For, scope: Scope) -> None:
        self.assign(node.target, self.inside(self.expr(node.iter, scope)), scope)
        self.block(node.body, scope)
        self.block(node.orelse, scope)

    def _return(self, node: ast.Return, scope: Scope) -> None:
        things = PLAIN if node.value is None else self.expr(node.value, scope)
        function = scope.function.node
        assert isinstance(function, ast.FunctionDef)
        self.give_back(function, things)
        if self.is_generator(function):
            self.send_elsewhere(things, node)  # StopIteration hands it out

    def _try(self, node: ast.Try, scope: Scope) -> None:
        self.block(node.body, scope)
        for handler in node.handlers:
            if handler.type is not None:
                self.expr(handler.type, scope)
            if handler.name is not None:
                self.hold(self.scopes.owner(handler.name, scope), UNSEEN)
            self.block(handler.body, scope)
        self.block(node.orelse, scope)
        self.block(node.finalbody, scope)

    def _raise(self, node: ast.Raise, scope: Scope) -> None:
        for part in (node.exc, node.cause):
            if part is not None:
                self.send_elsewhere(self.expr(part, scope), node)

    def _delete(self, node: ast.Delete, scope: Scope) -> None:
        for target in node.targets:
            if isinstance(target, ast.Subscript):
                self.missing(self.expr(target.slice, scope), node)
                self.touch(self.expr(target.value, scope), node)
            elif isinstance(target, ast.Attribute):
                self.expr(target.value, scope)
            elif isinstance(target, ast.Tuple | ast.List):
                self._delete(ast.Delete(targets=target.elts, lineno=node.lineno, col_offset=0), scope)

    def _expression(self, node: ast.Expr, scope: Scope) -> None:
        self.expr(node.value, scope)

    def _assert(self, node: ast.Assert, scope: Scope) -> None:
        self.expr(node.test, scope)
        if node.msg is not None:
            self.send_elsewhere(self.expr(node.msg, scope), node)  # AssertionError holds it

    def _nothing(self, node: ast.stmt, scope: Scope) -> None:
        """Has no things."""

    def _import(self, node: ast.Import, scope: Scope) -> None:
        for alias in node.names:
            self.hold(self.scopes.owner(alias.asname or alias.name, scope), frozenset({Module(alias.name)}))

    def _import_from(self, node: ast.ImportFrom, scope: Scope) -> None:
        for alias in node.names:
            found = self.attribute(frozenset({Module(node.module or "")}), alias.name)
            self.hold(self.scopes.owner(alias.asname or alias.name, scope), found)

    def _function(self, node: ast.FunctionDef, scope: Scope) -> None:
        made: Things = frozenset({Function(node)})
        self._parameters(node, scope)
        self.block(node.body, self.scopes.of[node])
        self.give_back(node, PLAIN)
        self.hold(self.scopes.owner(node.name, scope), self._decorated(node, made, scope))

    def _decorated(self, node: ast.FunctionDef | ast.ClassDef, made: Things, scope: Scope) -> Things:
        for decorator in node.decorator_list:
            self.send_elsewhere(self.expr(decorator, scope), decorator)
        if not node.decorator_list:
            return made
        self.send_elsewhere(made, node.decorator_list[0])
        return UNSEEN

    def _class(self, node: ast.ClassDef, scope: Scope) -> None:
        for base in node.bases:
            self.put(Made(node, "bases"), self.expr(base, scope))
        self.block(node.body, self.scopes.of[node])
        self.hold(self.scopes.owner(node.name, scope), self._decorated(node, frozenset({Class(node)}), scope))

    def _match(self, node: ast.Match, scope: Scope) -> None:
        subject = self.reach(self.expr(node.subject, scope))
        for case in node.cases:
            for pattern in ast.walk(case.pattern):
                name = getattr(pattern, "rest" if isinstance(pattern, ast.MatchMapping) else "name", None)
                if name is not None:
                    rest = Made(pattern)
                    self.put(rest, subject)
                    self.hold(self.scopes.owner(name, scope), subject | {rest, SCALAR})
            if case.guard is not None:
                self.expr(case.guard, scope)
            self.block(case.body, scope)


_Walk = Callable[[Flow, Any, Scope], None]
_STATEMENTS: Final[Mapping[type[ast.stmt], _Walk]] = {
    ast.Expr: Flow._expression,
    ast.Assign: Flow._assign_statement,
    ast.AnnAssign: Flow._annotated,
    ast.AugAssign: Flow._augmented,
    ast.If: Flow._if,
    ast.While: Flow._if,
    ast.For: Flow._for,
    ast.Return: Flow._return,
    ast.Try: Flow._try,
    ast.Raise: Flow._raise,
    ast.Delete: Flow._delete,
    ast.Assert: Flow._assert,
    ast.Import: Flow._import,
    ast.ImportFrom: Flow._import_from,
    ast.FunctionDef: Flow._function,
    ast.ClassDef: Flow._class,
    ast.Match: Flow._match,
    **dict.fromkeys((ast.Pass, ast.Break, ast.Continue, ast.Global, ast.Nonlocal), Flow._nothing),
}
