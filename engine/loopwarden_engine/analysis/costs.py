"""How often something happens: `agent()` calls, or the places that make one list longer.

The sum over everything that one call of a function evaluates: a loop counts its body as often as it goes round, of two
branches the larger counts, what a call calls counts where the call stands. A generator counts where it is made, all of
it. Leaving early (return, break, an exception) only makes it less.
"""

import ast
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from .amounts import Env
from .calls import CALLING_BUILTINS
from .flow import Flow
from .formula import Count, Unknown, unknown
from .scopes import COMPREHENSIONS, Comprehension, FunctionNode, Scope, body_of, default_of, own_nodes
from .sizes import Sizes
from .store import Growth, line_of
from .things import Builtin, Class, Function, Hook, Things

AGENT: Final = Hook("agent")


class Costs:
    """Counts `agent()` calls, or with `events` how many items these places add."""

    def __init__(self, sizes: Sizes, events: Mapping[ast.AST, Growth] | None = None) -> None:
        self._sizes, self._events = sizes, events
        self._flow: Flow = sizes.flow
        self._formula = sizes.formula
        self._known: dict[tuple[FunctionNode, frozenset[Any]], Count] = {}
        self._stack: list[FunctionNode] = []
        self.rounds: dict[ast.AST, bool] = {}
        """Loops that something was counted in, and whether their rounds could be counted every time."""
        self._eventful = self._find_eventful()

    # ---- the whole

    def in_run(self) -> Count:
        """In one run: of main, and of the module body.

        No hook works in the module body itself, but a generator that is made there may be consumed in main.
        """
        scopes = self._sizes.scopes
        tree = scopes.module.node
        assert isinstance(tree, ast.Module)
        for binding in scopes.module.variables["main"].bindings:
            if binding.node not in tree.body:  # after `global main` in a function or class
                return unknown(line_of(binding.node), "main may become something else here")
        parts: list[Count] = [self._unseen(), self._block(tree.body, scopes.module, {})]
        for statement in tree.body:
            if isinstance(statement, ast.FunctionDef) and statement.name == "main":
                (parameter,) = [*statement.args.posonlyargs, *statement.args.args]
                given = scopes.of[statement].variables[parameter.arg]
                parts.append(self.in_function(statement, {given: self._sizes.arguments()}))
        return self._formula.sum(parts)

    def in_function(self, function: FunctionNode, env: Env) -> Count:
        """In one call of a function, with what is known of its parameters and of those around it."""
        if function not in self._eventful:
            return self._formula.zero
        if function in self._stack:
            name = getattr(function, "name", "a lambda")
            return unknown(line_of(function), f"{name} calls itself, nobody knows how often")
        key = (function, frozenset(env.items()))
        found = self._known.get(key)
        if found is None:
            self._stack.append(function)
            try:
                found = self._body(function, self._sizes.scopes.of[function], env)
            finally:
                self._stack.pop()
            self._known[key] = found
        return found

    def _body(self, function: FunctionNode, scope: Scope, env: Env) -> Count:
        if isinstance(function, ast.Lambda):
            return self._expr(function.body, scope, env)
        return self._block(function.body, scope, env)

    def _unseen(self) -> Count:
        """What is called where nobody sees it must not count anything."""
        for thing, line in self._flow.uncounted.items():
            things: Things = frozenset({thing})
            counted = self._called(things, None, None, self._sizes.scopes.module, {})
            if counted != self._formula.zero:
                what = "agent() calls" if self._events is None else "a list that grows"
                return unknown(line, f"a function with {what} goes to where nobody sees how often it is called")
        return self._formula.zero

    def _find_eventful(self) -> set[FunctionNode]:
        """Functions that may come to an event: they have one, or name something that may."""
        flow, scopes = self._flow, self._sizes.scopes
        named_by: dict[FunctionNode, set[FunctionNode]] = {}
        found: set[FunctionNode] = set()
        pending: list[FunctionNode] = []
        reached: dict[Things, Things] = {}
        for node in scopes.of:
            if not isinstance(node, ast.FunctionDef | ast.Lambda):
                continue
            for inner in own_nodes(body_of(node), enter_classes=True):
                given = flow.things_of(inner)
                if given not in reached:
                    reached[given] = flow.reach(given)
                things = reached[given]
                is_event = AGENT in things if self._events is None else inner in self._events
                if is_event and node not in found:
                    found.add(node)
                    pending.append(node)
                for named in self._called_by(things):
                    named_by.setdefault(named, set()).add(node)
        while pending:
            for caller in named_by.get(pending.pop(), ()):
                if caller not in found:
                    found.add(caller)
                    pending.append(caller)
        return found

    def _called_by(self, things: Things) -> list[FunctionNode]:
        """The functions that run when something calls these."""
        made = [each for thing in things if isinstance(thing, Class) for each in self._initialisers(thing)]
        return [thing.node for thing in (*things, *made) if isinstance(thing, Function)]

    def _initialisers(self, owner: Class) -> Things:
        return self._flow.class_attribute(owner, "__init__")

    # ---- statements

    def _block(self, body: Iterable[ast.stmt], scope: Scope, env: Env) -> Count:
        return self._formula.sum([self._statement(statement, scope, env) for statement in body])

    def _statement(self, node: ast.stmt, scope: Scope, env: Env) -> Count:
        self._sizes.step()
        count = _STATEMENTS.get(type(node), Costs._parts)(self, node, scope, env)
        if self._events is not None and node in self._events:
            return self._formula.sum([count, self._amount(node, scope, env)])
        return count

    def _parts(self, node: ast.AST, scope: Scope, env: Env) -> Count:
        parts: list[Count] = []
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                parts.append(self._expr(child, scope, env))
            elif isinstance(child, ast.keyword):
                parts.append(self._expr(child.value, scope, env))
        return self._formula.sum(parts)

    def _if(self, node: ast.If, scope: Scope, env: Env) -> Count:
        branches = self._formula.max([self._block(node.body, scope, env), self._block(node.orelse, scope, env)])
        return self._formula.sum([self._expr(node.test, scope, env), branches])

    def _while(self, node: ast.While, scope: Scope, env: Env) -> Count:
        inside = self._formula.sum([self._expr(node.test, scope, env), self._block(node.body, scope, env)])
        if inside != self._formula.zero:
            self.rounds[node] = False
            inside = unknown(line_of(node), "how often this while loop goes round cannot be told before the run")
        return self._formula.sum([inside, self._block(node.orelse, scope, env)])

    def _for(self, node: ast.For, scope: Scope, env: Env) -> Count:
        once = self._formula.sum([self._expr(node.target, scope, env), self._block(node.body, scope, env)])
        return self._formula.sum(
            [
                self._expr(node.iter, scope, env),
                self._times(node, node.iter, once, scope, env),
                self._block(node.orelse, scope, env),
            ]
        )

    def _times(self, loop: ast.AST, iterable: ast.expr, once: Count, scope: Scope, env: Env) -> Count:
        if once == self._formula.zero:
            return once
        rounds = self._sizes.iterations(iterable, scope, env)
        self.rounds[loop] = self.rounds.get(loop, True) and not isinstance(rounds, Unknown)
        return self._formula.product([rounds, once])

    def _try(self, node: ast.Try, scope: Scope, env: Env) -> Count:
        types = [self._expr(handler.type, scope, env) for handler in node.handlers if handler.type is not None]
        ways = [self._block(handler.body, scope, env) for handler in node.handlers]
        ways.append(self._block(node.orelse, scope, env))
        body, final = self._block(node.body, scope, env), self._block(node.finalbody, scope, env)
        return self._formula.sum([body, *types, self._formula.max(ways), final])

    def _match(self, node: ast.Match, scope: Scope, env: Env) -> Count:
        guards = [self._expr(case.guard, scope, env) for case in node.cases if case.guard is not None]
        bodies = self._formula.max(self._block(case.body, scope, env) for case in node.cases)
        return self._formula.sum([self._expr(node.subject, scope, env), *guards, bodies])

    def _function(self, node: ast.FunctionDef, scope: Scope, env: Env) -> Count:
        parts = [*node.decorator_list, *default_of(node.args).values()]
        return self._formula.sum([self._expr(part, scope, env) for part in parts])

    def _class(self, node: ast.ClassDef, scope: Scope, env: Env) -> Count:
        parts = [self._expr(part, scope, env) for part in (*node.bases, *node.decorator_list)]
        return self._formula.sum([*parts, self._block(node.body, self._sizes.scopes.of[node], env)])

    def _annotated(self, node: ast.AnnAssign, scope: Scope, env: Env) -> Count:
        if node.value is None:
            return self._formula.zero
        return self._formula.sum([self._expr(node.value, scope, env), self._expr(node.target, scope, env)])

    # ---- expressions

    def _expr(self, node: ast.expr, scope: Scope, env: Env) -> Count:
        self._sizes.step()
        count = _EXPRESSIONS.get(type(node), Costs._parts)(self, node, scope, env)
        if self._events is not None and node in self._events:
            return self._formula.sum([count, self._amount(node, scope, env)])
        return count

    def _amount(self, node: ast.AST, scope: Scope, env: Env) -> Count:
        """How many items one execution of an event adds."""
        assert self._events is not None
        if self._events[node] == "one":
            return self._formula.one
        if isinstance(node, ast.AugAssign):
            return self._sizes.iterations(node.value, scope, env)
        assert isinstance(node, ast.Call)
        return self._formula.sum([self._sizes.iterations(argument, scope, env) for argument in node.args])

    def _lambda(self, node: ast.Lambda, scope: Scope, env: Env) -> Count:
        return self._formula.sum([self._expr(part, scope, env) for part in default_of(node.args).values()])

    def _if_else(self, node: ast.IfExp, scope: Scope, env: Env) -> Count:
        branches = self._formula.max([self._expr(node.body, scope, env), self._expr(node.orelse, scope, env)])
        return self._formula.sum([self._expr(node.test, scope, env), branches])

    def _comprehension(self, node: Comprehension, scope: Scope, env: Env) -> Count:
        inner = self._sizes.scopes.of[node]
        made = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        once = self._formula.sum([self._expr(part, inner, env) for part in made])
        for index, generator in reversed(list(enumerate(node.generators))):
            around = inner if index else scope
            tests = [self._expr(test, inner, env) for test in generator.ifs]
            once = self._formula.sum([self._expr(generator.target, inner, env), *tests, once])
            rounds = self._times(node, generator.iter, once, around, env)
            once = self._formula.sum([self._expr(generator.iter, around, env), rounds])
        return once

    def _call(self, node: ast.Call, scope: Scope, env: Env) -> Count:
        parts = [self._parts(node, scope, env)]
        options: list[Count] = []
        for callee in self._flow.callees_of(node):
            if isinstance(callee, Function):
                if callee.node in self._eventful:
                    options.append(self.in_function(callee.node, self._sizes.entered(node, callee.node, scope, env)))
            elif isinstance(callee, Hook) and callee.name in ("parallel", "pipeline"):
                combined = self._parallel if callee.name == "parallel" else self._pipeline
                options.append(combined(node, scope, env))
            elif isinstance(callee, Builtin):
                if callee.name in CALLING_BUILTINS:
                    options.append(self._calling(callee.name, node, scope, env))
            else:
                options.append(self._called(frozenset({callee}), None, None, scope, env))
        parts.append(self._formula.max(options))
        return self._formula.sum(parts)

    # ---- what is called by something else

    def _called(
        self, callees: Things, expression: ast.expr | None, positional: int | None, scope: Scope, env: Env
    ) -> Count:
        """One call of any of these, by something that gives so many positional arguments; None: nobody knows what."""
        options: list[Count] = []
        for callee in callees:
            if isinstance(callee, Function):
                if callee.node in self._eventful:
                    inner = self._sizes.entered_with(expression, callee.node, positional, scope, env)
                    options.append(self.in_function(callee.node, inner))
            elif isinstance(callee, Class):
                options.append(self._called(self._initialisers(callee), None, None, scope, {}))
            elif callee == AGENT and self._events is None:
                options.append(self._formula.one)
        return self._formula.max(options)

    def _each(self, node: ast.expr, positional: int, scope: Scope, env: Env) -> Count:
        """One call of what an expression gives."""
        return self._called(self._flow.things_of(node), node, positional, scope, env)

    def _any_reached(self, node: ast.Call, what: str) -> Count:
        """For calls that are too odd to be followed: nothing, if nothing they get counts."""
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        things = self._flow.reach(thing for part in given for thing in self._flow.things_of(part))
        if self._called(things, None, None, self._sizes.scopes.module, {}) == self._formula.zero:
            return self._formula.zero
        return unknown(line_of(node), f"what this {what} calls cannot be told")

    def _parallel(self, node: ast.Call, scope: Scope, env: Env) -> Count:
        given = [*node.args, *(keyword.value for keyword in node.keywords if keyword.arg == "thunks")]
        if len(given) != 1 or len(node.args) + len(node.keywords) != 1 or isinstance(given[0], ast.Starred):
            return self._any_reached(node, "parallel()")
        thunks, inner, known = self._sizes.unfolded(given[0], scope, env)
        if isinstance(thunks, ast.List | ast.Tuple):
            return self._formula.sum([self._element(part, inner, known) for part in thunks.elts])
        if isinstance(thunks, ast.ListComp):
            once = self._each(thunks.elt, 0, self._sizes.scopes.of[thunks], known)
            return self._rounds_of(thunks, once, inner, known)
        callees = self._flow.inside(self._flow.things_of(given[0]))
        once = self._called(callees, None, 0, scope, {})
        return self._product_of(given[0], once, scope, env)

    def _element(self, part: ast.expr, scope: Scope, env: Env) -> Count:
        if not isinstance(part, ast.Starred):
            return self._each(part, 0, scope, env)
        once = self._called(self._flow.inside(self._flow.things_of(part.value)), None, 0, scope, {})
        return self._product_of(part.value, once, scope, env)

    def _product_of(self, items: ast.expr, once: Count, scope: Scope, env: Env) -> Count:
        if once == self._formula.zero:
            return once
        return self._formula.product([self._sizes.iterations(items, scope, env), once])

    def _rounds_of(self, node: Comprehension, once: Count, scope: Scope, env: Env) -> Count:
        if once == self._formula.zero:
            return once
        rounds = self._sizes.rounds(node, scope, env)
        self.rounds[node] = self.rounds.get(node, True) and not isinstance(rounds, Unknown)
        return self._formula.product([rounds, once])

    def _pipeline(self, node: ast.Call, scope: Scope, env: Env) -> Count:
        if not node.args or node.keywords or isinstance(node.args[0], ast.Starred):
            return self._any_reached(node, "pipeline()")
        stages: list[Count] = []
        for stage in node.args[1:]:
            if isinstance(stage, ast.Starred):
                once = self._called(self._flow.inside(self._flow.things_of(stage.value)), None, 3, scope, {})
                stages.append(self._product_of(stage.value, once, scope, env))
            else:
                stages.append(self._each(stage, 3, scope, env))
        return self._product_of(node.args[0], self._formula.sum(stages), scope, env)

    def _calling(self, name: str, node: ast.Call, scope: Scope, env: Env) -> Count:
        """`map`, `filter`, and `sorted`, `min` and `max` with a key."""
        if any(isinstance(part, ast.Starred) for part in node.args) or any(each.arg is None for each in node.keywords):
            return self._any_reached(node, f"{name}()")
        if name in ("map", "filter"):
            if len(node.args) < 2:
                return self._formula.zero
            once = self._each(node.args[0], len(node.args) - 1, scope, env)
            if once == self._formula.zero:
                return once
            lists = [self._sizes.iterations(part, scope, env) for part in node.args[1:]]
            return self._formula.product([self._formula.min(lists), once])
        keys = [keyword.value for keyword in node.keywords if keyword.arg == "key"]
        once = self._formula.sum([self._each(key, 1, scope, env) for key in keys])
        if len(node.args) == 1:
            return self._product_of(node.args[0], once, scope, env)
        return self._formula.product([self._formula.count(len(node.args)), once])


_Walk = Callable[[Costs, Any, Scope, Env], Count]
_STATEMENTS: Final[Mapping[type[ast.stmt], _Walk]] = {
    ast.If: Costs._if,
    ast.While: Costs._while,
    ast.For: Costs._for,
    ast.Try: Costs._try,
    ast.Match: Costs._match,
    ast.FunctionDef: Costs._function,
    ast.ClassDef: Costs._class,
    ast.AnnAssign: Costs._annotated,
}
_EXPRESSIONS: Final[Mapping[type[ast.expr], _Walk]] = {
    ast.Lambda: Costs._lambda,
    ast.IfExp: Costs._if_else,
    ast.Call: Costs._call,
    **dict.fromkeys(COMPREHENSIONS, Costs._comprehension),
}
