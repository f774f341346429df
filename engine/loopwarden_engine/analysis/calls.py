"""What calls do to the things that are given to them: functions of the script, hooks, built-ins and methods."""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from loopwarden_engine.language.attributes import READABLE
from loopwarden_engine.language.errors import EXCEPTIONS

from .store import Store
from .things import (
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
    Module,
    Thing,
    Things,
)

UNSEEN: Final[Things] = frozenset({ELSEWHERE, SCALAR})

_SCALAR_BUILTINS: Final = frozenset(
    [
        "abs",
        "all",
        "any",
        "ascii",
        "bin",
        "bool",
        "bytes",
        "callable",
        "chr",
        "complex",
        "float",
        "format",
        "hasattr",
        "hex",
        "int",
        "isinstance",
        "issubclass",
        "len",
        "oct",
        "ord",
        "pow",
        "repr",
        "round",
        "str",
    ]
)
_COPYING_BUILTINS: Final = frozenset(["list", "tuple", "set", "frozenset", "sorted", "reversed", "iter", "filter"])
CALLING_BUILTINS: Final = frozenset(["map", "filter", "sorted", "min", "max"])
"""These call a function that they are given once for each item."""
_GROWING: Final[Mapping[str, str]] = {
    "append": "one", "add": "one", "insert": "one", "setdefault": "one",
    "extend": "items", "update": "items", "symmetric_difference_update": "items",
}  # fmt: skip
_SHRINKING: Final = frozenset(
    ["pop", "popitem", "remove", "discard", "clear", "reverse", "sort", "difference_update", "intersection_update"]
)
_HANDING_BACK: Final = frozenset(["math.prod", "str.maketrans", "json.JSONDecodeError", "re.error"])
"""Members of modules whose results hold what these are given, and may give it back."""
_GROUPS: Final = frozenset(["groups", "groupdict", "maketrans"])
"""Methods of the same kind."""
_VIEWING: Final = frozenset(["values", "keys", "copy"])
_SET_METHODS: Final = frozenset(["union", "intersection", "difference", "symmetric_difference"])
_HARMLESS: Final = frozenset(
    name for kind, names in READABLE.items() if kind is not dict for name in names
) - frozenset(_GROWING) - _SHRINKING - _VIEWING - _SET_METHODS - {"send", "throw", "close"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Given:
    """What a call gives: positional things in order, keywords by name (`**`: None), and what stars unpack."""

    positional: tuple[Things, ...] = ()
    keywords: tuple[tuple[str | None, Things], ...] = ()
    starred: Things = NOTHING

    def everything(self) -> Things:
        """All of it."""
        return frozenset().union(self.starred, *self.positional, *(things for _, things in self.keywords))

    def at(self, index: int) -> Things:
        """The positional argument with this index, or whatever a star may put there."""
        own = self.positional[index] if index < len(self.positional) else NOTHING
        return own | self.starred

    def keyword(self, name: str) -> Things:
        """The keyword argument of this name, or whatever `**` may hold."""
        return frozenset().union(*(things for given, things in self.keywords if given in (name, None)))


class Calls(Store):
    """Effects and results of calls."""

    def call(self, callees: Things, given: Given, at: ast.AST, *, is_direct: bool = False) -> Things:
        """Call each of these. `is_direct`: the text has the call, so that it is counted where it stands."""
        found: set[Thing] = set()
        for callee in callees:
            if isinstance(callee, Function):
                found |= self._call_function(callee, given)
            elif isinstance(callee, Class):
                found |= self._instantiate(callee, given, at)
            elif isinstance(callee, Hook):
                if not is_direct and callee.name in ("parallel", "pipeline"):
                    self.called_unseen(given.everything(), at)
                found |= self._call_hook(callee.name, given, at)
            elif isinstance(callee, Builtin):
                if not is_direct:
                    self.called_unseen(given.everything(), at)
                found |= self._call_builtin(callee.name, given, at)
            elif callee is ELSEWHERE:
                self.send_elsewhere(given.everything(), at)
                found |= UNSEEN
        return frozenset(found)

    def _call_function(self, function: Function, given: Given) -> Things:
        node = function.node
        arguments, scope = node.args, self.scopes.of[node]
        places = [*arguments.posonlyargs, *arguments.args]
        for index, parameter in enumerate(places):
            self.hold(scope.variables[parameter.arg], given.at(index) | given.keyword(parameter.arg))
        for parameter in arguments.kwonlyargs:
            self.hold(scope.variables[parameter.arg], given.keyword(parameter.arg))
        if arguments.vararg is not None:
            rest = Made(arguments.vararg)
            self.put(rest, given.starred.union(*given.positional[len(places) :]))
            self.hold(scope.variables[arguments.vararg.arg], frozenset({rest}))
        if arguments.kwarg is not None:
            rest = Made(arguments.kwarg)
            self.put(rest, frozenset().union(*(things for _, things in given.keywords)) | PLAIN)
            self.hold(scope.variables[arguments.kwarg.arg], frozenset({rest}))
        if self.is_generator(node):
            return frozenset({Made(node, "generator")})
        return frozenset(self.returned[node])

    def _instantiate(self, made: Class, given: Given, at: ast.AST) -> Things:
        instance = Instance(made.node)
        for initialiser in self.class_attribute(made, "__init__"):
            shifted = Given((frozenset({instance}), *given.positional), given.keywords, given.starred)
            self.call(frozenset({initialiser}), shifted, at)
        arguments = Made(at, "arguments")  # an exception keeps them
        self.put(arguments, given.everything())
        self.put(instance, [arguments])
        if self._is_exception(made):
            self.put(instance, given.everything())  # as `errno` or `value`
        return frozenset({instance})

    def _is_exception(self, made: Class) -> bool:
        """Whether a class inherits from anything but classes that are followed."""
        return any(isinstance(thing, Builtin) or thing is ELSEWHERE for thing in self.reach([made]))

    def class_attribute(self, owner: Class, name: str) -> Things:
        """What `name` is in a class or in one that it inherits from."""
        found: set[Thing] = set()
        pending, seen = [owner], {owner}
        while pending:
            current = pending.pop()
            scope = self.scopes.of[current.node]
            if name in scope.variables:
                found |= self.held[scope.variables[name]]
            found |= self.content.get(current, NOTHING)
            for base in self.content.get(Made(current.node, "bases"), NOTHING):
                if isinstance(base, Class) and base not in seen:
                    seen.add(base)
                    pending.append(base)
                elif base is ELSEWHERE:
                    found |= UNSEEN
        return frozenset(found)

    def attribute(self, things: Things, name: str) -> Things:
        """What reading an attribute that is no method of a built-in type may give."""
        found: set[Thing] = set()
        for thing in things:
            match thing:
                case Instance():
                    found |= self.content[thing] | self.class_attribute(Class(thing.node), name)
                case Class():
                    found |= self.class_attribute(thing, name)
                case Module(name=module):
                    found |= (
                        {Hook(name)} if Hook(name) in self.content[thing] else {Builtin(f"{module}.{name}"), SCALAR}
                    )
                case Builtin(name=owner):
                    found.add(Builtin(f"{owner}.{name}"))
                case _ if thing is ELSEWHERE:
                    found |= UNSEEN
                case _:
                    pass
        return frozenset(found)

    # ---- hooks

    def _call_hook(self, name: str, given: Given, at: ast.AST) -> Things:
        if name == "agent":
            reply = Made(at, "reply")
            self.put(reply, [reply, SCALAR])
            return frozenset({reply, SCALAR})
        if name == "parallel":
            results = self.call(self.inside(given.at(0) | given.keyword("thunks")), Given(), at)
        elif name == "pipeline":
            items = self.inside(given.at(0))
            results = items
            for stage in (*given.positional[1:], given.starred):
                results |= self.call(stage, Given((results, items, PLAIN)), at)
        else:
            return PLAIN
        made = Made(at)
        self.put(made, results | PLAIN)
        return frozenset({made})

    # ---- built-ins

    def _call_builtin(self, name: str, given: Given, at: ast.AST) -> Things:  # noqa: PLR0911 -- one for each kind
        made = Made(at)
        first = given.at(0)
        if name in _SCALAR_BUILTINS:
            return PLAIN
        if name in ("range", "divmod"):
            self.put(made, PLAIN)
            return frozenset({made})
        if name in ("sorted", "min", "max"):
            items = self.inside(first) | frozenset().union(*given.positional, given.starred)
            self.call(given.keyword("key"), Given((items,)), at)
            if name != "sorted":
                return items | given.keyword("default") | PLAIN
        if name == "map":
            each = tuple(self.inside(things) for things in given.positional[1:])
            self.put(made, self.call(first, Given(each, (), self.inside(given.starred)), at))
            return frozenset({made})
        if name == "filter":
            self.call(first, Given((self.inside(given.at(1)),)), at)
            self.put(made, self.inside(given.at(1)))
            return frozenset({made})
        if name == "iter" and (len(given.positional) > 1 or given.starred):
            self.send_elsewhere(given.everything(), at)
            return UNSEEN
        if name in _COPYING_BUILTINS:
            self.put(made, self.inside(first))
            return frozenset({made})
        return self._call_other_builtin(name, given, at)

    def _call_other_builtin(self, name: str, given: Given, at: ast.AST) -> Things:  # noqa: PLR0911 -- as above
        made, pair, first = Made(at), Made(at, "pair"), given.at(0)
        inner = self.inside(first)
        module = name.partition(".")[0]
        if name in ("enumerate", "zip"):
            self.put(pair, self.inside(given.everything()) | PLAIN)
            self.put(made, [pair])
        elif name == "sum":
            self.put(made, self.inside(inner) | self.inside(given.at(1)) | self.inside(given.keyword("start")))
            return given.at(1) | given.keyword("start") | {made, SCALAR}
        elif name == "next":
            return inner | given.at(1)
        elif name == "dict":
            self.put(made, inner | self.inside(inner) | given.everything() | PLAIN)
        elif name == "dict.fromkeys":
            self.put(made, inner | given.at(1))
        elif name == "slice":
            self.put(made, given.everything())
            self.slices.add(made)
        elif name in EXCEPTIONS:
            arguments = Made(at, "arguments")
            self.put(arguments, given.everything())
            self.put(made, [arguments])
        elif name == "json.loads":
            self.put(made, [made, SCALAR])
            return frozenset({made, SCALAR})
        elif name not in _HANDING_BACK and module in (
            "json",
            "math",
            "str",
            "int",
            "float",
            "bytes",
            "bool",
            "complex",
        ):
            self.put(made, PLAIN)
            return frozenset({made, SCALAR})
        elif name not in _HANDING_BACK and module in ("re", "textwrap"):
            self._call_back(given, at)
            self.put(pair, PLAIN)
            self.put(made, [pair, SCALAR])
            return frozenset({made, SCALAR})
        else:
            self.send_elsewhere(given.everything(), at)
            return UNSEEN
        return frozenset({made})

    def _call_back(self, given: Given, at: ast.AST) -> None:
        """Functions among these are called with matches or texts."""
        functions = frozenset(
            thing for thing in given.everything() if isinstance(thing, Function | Class | Hook | Builtin)
        )
        self.called_unseen(functions, at)
        self.call(functions, Given((PLAIN,)), at)

    # ---- methods of built-in types

    def call_method(self, receivers: Things, name: str, given: Given, at: ast.AST) -> Things:  # noqa: PLR0911 -- as above
        """`receiver.name(…)` for lists, dicts, sets, texts and the like; by name, as their kinds are not told apart."""
        made = Made(at)
        everything = given.everything()
        inner = self.inside(receivers)
        if name in _GROWING:
            growth = _GROWING[name]
            added = everything
            if name == "setdefault":
                added = self.hashable(given.at(0)) | given.at(1)
            elif name == "add":
                added = self.hashable(everything)
            if growth == "items":
                added = self.inside(everything) | self.inside(self.inside(everything)) | everything
            if (growth == "items" and given.keywords) or given.starred:
                growth = "unknown"
            self.grow(receivers, at, growth, added)  # type: ignore[arg-type]
            return (inner | given.at(1) | PLAIN) if name == "setdefault" else PLAIN
        if name in _SHRINKING:
            self.touch(receivers, at)
            self.missing(everything, at)
            if name == "sort":
                self.called_unseen(given.keyword("key"), at)
                self.call(given.keyword("key"), Given((inner,)), at)
            pair = Made(at, "pair")
            self.put(pair, inner)
            return inner | given.at(1) | {pair, SCALAR}
        if name == "get":
            return inner | given.at(1) | given.keyword("default") | PLAIN
        if name == "items":
            self.put(Made(at, "pair"), inner)
            self.put(made, [Made(at, "pair")])
            return frozenset({made})
        if name in _VIEWING or name in _SET_METHODS:
            self.put(made, inner | self.inside(everything))
            return frozenset({made, SCALAR})
        if name in _HARMLESS:
            self._call_back(given, at)
            self.put(made, PLAIN)
            if name in _GROUPS:
                self.put(made, everything | self.inside(everything))
            return frozenset({made, SCALAR})
        self.send_elsewhere(receivers | everything, at)
        return UNSEEN


def shifted(given: Given, receivers: Sequence[Thing]) -> Given:
    """The same with the receiver before it."""
    return Given((frozenset(receivers), *given.positional), given.keywords, given.starred)
