"""Scopes and variables of a script: which name means which variable, and everything that binds it.

The rules are Python's: a class body's names are not seen by functions inside it, the first iterable of a comprehension
belongs to the scope around it, and `:=` in a comprehension binds outside of it.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

FunctionNode: TypeAlias = ast.FunctionDef | ast.Lambda
Comprehension: TypeAlias = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
COMPREHENSIONS: Final = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_SCOPED: Final = (ast.FunctionDef, ast.Lambda, ast.ClassDef, *COMPREHENSIONS)


@dataclass(slots=True, eq=False)
class Scope:
    """One scope. `variables` holds those that belong to it, not those that it declares global or nonlocal."""

    node: ast.AST
    parent: "Scope | None"
    variables: "dict[str, Variable]" = field(default_factory=dict)
    declared_global: set[str] = field(default_factory=set)
    declared_nonlocal: set[str] = field(default_factory=set)

    def chain(self) -> "Iterator[Scope]":
        """This scope and those around it, innermost first."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.parent

    @property
    def function(self) -> "Scope":
        """The innermost scope, from here outwards, that is no comprehension."""
        return next(scope for scope in self.chain() if not isinstance(scope.node, COMPREHENSIONS))


@dataclass(frozen=True, slots=True, eq=False)
class Binding:
    """One place that binds a variable.

    What is bound: `value` evaluated in `scope`; with `is_element`, one of its items; `node` itself when that is a
    function or a class; otherwise something that nothing is said about.
    """

    node: ast.AST
    scope: Scope
    value: ast.expr | None = None
    is_element: bool = False


@dataclass(slots=True, eq=False)
class Variable:
    """One variable."""

    name: str
    scope: Scope
    bindings: list[Binding] = field(default_factory=list)

    @property
    def only(self) -> Binding | None:
        """The binding, when there is exactly one."""
        return self.bindings[0] if len(self.bindings) == 1 else None


class Scopes:
    """All scopes of a script."""

    def __init__(self, tree: ast.Module) -> None:
        self.module = Scope(tree, None)
        self.of: dict[ast.AST, Scope] = {tree: self.module}
        self._declare(tree, self.module)
        self._bind_all(tree.body, self.module)

    def resolve(self, name: str, scope: Scope) -> list[Variable]:
        """The variables that reading `name` in `scope` may read. Empty: a built-in or a hook."""
        found: list[Variable] = []
        for index, around in enumerate(scope.chain()):
            if isinstance(around.node, ast.ClassDef) and index and around is not scope.function:
                continue  # functions do not see the names of a class around them
            if name in around.declared_global:
                break
            if name in around.variables:
                found.append(around.variables[name])
                if not isinstance(found[0].scope.node, ast.ClassDef):
                    return found
        # The body of a class that binds a name itself looks for it in the module, not in the functions between.
        if name in self.module.variables and self.module.variables[name] not in found:
            found.append(self.module.variables[name])
        return found

    def sole(self, name: str, scope: Scope) -> Variable | None:
        """The one variable that `name` can mean, if it cannot mean anything else."""
        found = self.resolve(name, scope)
        return found[0] if len(found) == 1 and not isinstance(found[0].scope.node, ast.ClassDef) else None

    # ---- first walk: scopes and declarations; second walk: bindings

    def _declare(self, node: ast.AST, scope: Scope) -> None:
        pending: list[tuple[ast.AST, Scope]] = [(child, scope) for child in ast.iter_child_nodes(node)]
        while pending:
            child, around = pending.pop()
            if isinstance(child, ast.Global):
                around.declared_global.update(child.names)
            elif isinstance(child, ast.Nonlocal):
                around.declared_nonlocal.update(child.names)
            inner = around
            if isinstance(child, _SCOPED):
                inner = self.of[child] = Scope(child, around)
            outside = set(map(id, evaluated_outside(child)))
            for below in ast.iter_child_nodes(child):
                if isinstance(below, ast.comprehension):
                    parts = ast.iter_child_nodes(below)
                    pending.extend((part, around if id(part) in outside else inner) for part in parts)
                elif isinstance(below, ast.arguments):
                    pending.extend((part, around) for part in _defaults(below))
                else:
                    pending.append((below, around if id(below) in outside else inner))

    def owner(self, name: str, scope: Scope) -> Variable:
        """The variable that binding `name` in `scope` binds."""
        owner = scope
        if name in scope.declared_global:
            owner = self.module
        elif name in scope.declared_nonlocal:
            for around in list(scope.chain())[1:]:
                is_passed_on = name in around.declared_nonlocal
                if isinstance(around.node, FunctionNode) and not is_passed_on and name in _bound_names(around.node):
                    owner = around
                    break
        return owner.variables.setdefault(name, Variable(name, owner))

    def bind(self, name: str, binding: Binding) -> None:
        """Note a binding of `name` made in `binding.scope`."""
        self.owner(name, binding.scope).bindings.append(binding)

    def _bind_all(self, body: list[ast.stmt], scope: Scope) -> None:
        pending: list[tuple[ast.AST, Scope]] = [(statement, scope) for statement in body]
        while pending:
            node, around = pending.pop()
            self._bind_node(node, around)
            inner = self.of.get(node, around)
            outside = set(map(id, evaluated_outside(node)))
            for below in ast.iter_child_nodes(node):
                if isinstance(below, ast.comprehension):
                    first = id(below.iter) in outside
                    self._bind_targets(
                        below.target, inner, Binding(below, around if first else inner, below.iter, True)
                    )
                    parts = (below.iter, *below.ifs, below.target)
                    pending.extend((part, around if id(part) in outside else inner) for part in parts)
                elif isinstance(below, ast.arguments):
                    pending.extend((part, around) for part in _defaults(below))
                else:
                    pending.append((below, around if id(below) in outside else inner))

    def _bind_targets(self, target: ast.AST, scope: Scope, binding: Binding) -> None:
        """Bind the names of a target; those inside of a tuple or list get something nothing is said about."""
        if isinstance(target, ast.Name):
            self.owner(target.id, scope).bindings.append(binding)
        elif isinstance(target, ast.Tuple | ast.List | ast.Starred):
            inner = target.elts if not isinstance(target, ast.Starred) else [target.value]
            for part in inner:
                self._bind_targets(part, scope, Binding(binding.node, binding.scope))

    def _bind_node(self, node: ast.AST, scope: Scope) -> None:  # noqa: PLR0912 -- one for each kind of node
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._bind_targets(target, scope, Binding(node, scope, value))
            case ast.AnnAssign(target=target, value=value):
                if value is not None:
                    self._bind_targets(target, scope, Binding(node, scope, value))
                elif isinstance(target, ast.Name) and isinstance(scope.node, FunctionNode):
                    self.owner(target.id, scope)  # makes it local
            case ast.AugAssign(target=ast.Name(id=name)):
                self.bind(name, Binding(node, scope))
            case ast.For(target=target, iter=iterable):
                self._bind_targets(target, scope, Binding(node, scope, iterable, True))
            case ast.NamedExpr(target=target, value=value):
                self.owner(target.id, scope.function).bindings.append(Binding(node, scope, value))
            case ast.Delete(targets=targets):
                for target in targets:
                    if isinstance(target, ast.Name):
                        self.owner(target.id, scope)
            case ast.FunctionDef(name=name):
                self.bind(name, Binding(node, scope))
                self._bind_parameters(node)
            case ast.Lambda():
                self._bind_parameters(node)
            case ast.ClassDef(name=name):
                self.bind(name, Binding(node, scope))
            case ast.alias():
                self.bind(node.asname or node.name.partition(".")[0], Binding(node, scope))
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                self.bind(name, Binding(node, scope))
            case ast.MatchMapping(rest=str(name)):
                self.bind(name, Binding(node, scope))
            case _:
                pass

    def _bind_parameters(self, node: FunctionNode) -> None:
        scope = self.of[node]
        for parameter in parameters(node.args):
            scope.variables.setdefault(parameter.arg, Variable(parameter.arg, scope)).bindings.append(
                Binding(parameter, scope)
            )


def parameters(arguments: ast.arguments) -> list[ast.arg]:
    """All parameters, those with stars last."""
    starred = [star for star in (arguments.vararg, arguments.kwarg) if star is not None]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *starred]


def default_of(arguments: ast.arguments) -> dict[str, ast.expr]:
    """Defaults by the parameter's name."""
    positional = [*arguments.posonlyargs, *arguments.args]
    found = {
        parameter.arg: default
        for parameter, default in zip(reversed(positional), reversed(arguments.defaults), strict=False)
    }
    for parameter, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if default is not None:
            found[parameter.arg] = default
    return found


def _defaults(arguments: ast.arguments) -> list[ast.expr]:
    return [*arguments.defaults, *(default for default in arguments.kw_defaults if default is not None)]


def evaluated_outside(node: ast.AST) -> list[ast.expr]:
    """The parts of a node with a scope of its own that are evaluated in the scope around it."""
    if isinstance(node, ast.FunctionDef):
        return [*node.decorator_list, *_defaults(node.args)]
    if isinstance(node, ast.Lambda):
        return _defaults(node.args)
    if isinstance(node, ast.ClassDef):
        return [*node.decorator_list, *node.bases]
    if isinstance(node, COMPREHENSIONS):
        return [node.generators[0].iter]
    return []


def own_nodes(body: "list[ast.stmt] | list[ast.expr]", *, enter_classes: bool = False) -> Iterator[ast.AST]:
    """The nodes that run in the scope of a body itself, comprehensions included. Functions and classes are given only.

    What a function or class evaluates where it stands (defaults, bases) is given too. `enter_classes`: bodies of
    classes too, which run together with the code around them.
    """
    pending: list[ast.AST] = list(body)
    while pending:
        node = pending.pop()
        yield node
        if isinstance(node, ast.FunctionDef | ast.Lambda) or (isinstance(node, ast.ClassDef) and not enter_classes):
            pending.extend(evaluated_outside(node))
        else:
            pending.extend(ast.iter_child_nodes(node))


def body_of(node: FunctionNode) -> "list[ast.stmt] | list[ast.expr]":
    """What runs when a function is called."""
    return [node.body] if isinstance(node, ast.Lambda) else node.body


def _bound_names(node: FunctionNode) -> set[str]:
    names = {parameter.arg for parameter in parameters(node.args)}
    nodes = list(own_nodes(body_of(node)))
    # Targets of comprehensions belong to these.
    theirs = {id(name) for inner in nodes if isinstance(inner, ast.comprehension) for name in ast.walk(inner.target)}
    for inner in nodes:
        match inner:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) if id(inner) not in theirs:
                names.add(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.alias():
                names.add(inner.asname or inner.name.partition(".")[0])
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                names.add(name)
            case ast.MatchMapping(rest=str(name)):
                names.add(name)
            case _:
                pass
    return names
