"""What is known of the parameters of a function in one call of it."""

import ast

from .amounts import Alternatives, Env, Sized, retained
from .formula import unknown
from .measure import Measure
from .scopes import FunctionNode, Scope, Variable, default_of
from .store import line_of


class Entering(Measure):
    """Goes into functions."""

    def entered(self, node: ast.Call, function: FunctionNode, scope: Scope, env: Env) -> Env:
        """What is known inside of a function that a call calls."""
        kept = self._kept(node.func, function, scope, env)
        inner: dict[Variable, Alternatives] = dict(kept)
        is_plain = not any(isinstance(part, ast.Starred) for part in node.args)
        is_plain = is_plain and all(keyword.arg is not None for keyword in node.keywords)
        # A method that was taken from an object gets the object first.
        is_plain = is_plain and not isinstance(node.func, ast.Attribute) and function not in self.flow.bound_methods
        variables = self.scopes.of[function].variables
        arguments = function.args
        positional = [*arguments.posonlyargs, *arguments.args]
        named = {keyword.arg: keyword.value for keyword in node.keywords}
        defaults = default_of(arguments)
        for index, parameter in enumerate([*positional, *arguments.kwonlyargs]):
            name = parameter.arg
            given: Alternatives = unknown(line_of(node), f"what {name} holds in this call cannot be told")
            if is_plain:
                if index < len(positional) and index < len(node.args):
                    given = self.alternatives(node.args[index], scope, env)
                elif name in named and index >= len(arguments.posonlyargs):
                    given = self.alternatives(named[name], scope, env)
                elif name in defaults:
                    given = self.default(defaults[name], function, kept)
            inner[variables[name]] = given
        if arguments.vararg is not None and is_plain:
            extra = self.formula.count(max(0, len(node.args) - len(positional)))
            inner[variables[arguments.vararg.arg]] = (Sized(extra),)
        return inner

    def entered_with(
        self, expression: ast.expr | None, function: FunctionNode, positional: int | None, scope: Scope, env: Env
    ) -> Env:
        """What is known inside of a function that something else calls, with so many positional arguments.

        None: nobody knows with what.
        """
        kept: Env = {} if expression is None else self._kept(expression, function, scope, env)
        inner: dict[Variable, Alternatives] = dict(kept)
        variables = self.scopes.of[function].variables
        arguments = function.args
        places = [*arguments.posonlyargs, *arguments.args]
        defaults = default_of(arguments)
        for index, parameter in enumerate([*places, *arguments.kwonlyargs]):
            name = parameter.arg
            # A method that was taken from an object gets the object first.
            is_given = positional is None or (index < len(places) and 0 < positional >= index)
            if name in defaults and not is_given:
                inner[variables[name]] = self.default(defaults[name], function, kept)
            else:
                inner[variables[name]] = unknown(line_of(function), f"what {name} holds cannot be told")
        return inner

    def default(self, value: ast.expr, function: FunctionNode, kept: Env) -> Alternatives:
        """What a default gives. It was computed when the function was made."""
        outer = self.scopes.of[function].parent
        assert outer is not None
        return self.alternatives(value, outer, retained(kept, outer))

    def _kept(self, callee: ast.expr, function: FunctionNode, scope: Scope, env: Env) -> Env:
        """What is still known of the functions around, when the callee was made in the very calls of them."""
        if callee is function:
            return env
        if isinstance(callee, ast.Name):
            variable = self.scopes.sole(callee.id, scope)
            binding = variable.only if variable is not None else None
            is_it = binding is not None and function in (binding.node, binding.value) and not binding.is_element
            if variable is not None and binding is not None and is_it and binding.scope is variable.scope:
                return retained(env, variable.scope)
        return {}
