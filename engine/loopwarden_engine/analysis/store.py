"""What variables and objects may hold: sets that only grow, until a pass over the script adds nothing more."""

import ast
from collections import defaultdict
from collections.abc import Iterable
from typing import Final, Literal, TypeAlias

from loopwarden_engine.hook_rules import HOOK_NAMES

from .scopes import FunctionNode, Scopes, Variable, body_of, own_nodes, parameters
from .things import (
    ARGS,
    ELSEWHERE,
    NOTHING,
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

_THINGS_PER_STEP: Final = 8
ENGINE: Final = Module("loopwarden_engine")
_UNHASHABLE: Final = (ast.List, ast.ListComp, ast.Dict, ast.DictComp, ast.Set, ast.SetComp)
_HOLDING_HASHABLE: Final[Things] = frozenset(
    [*map(Builtin, ("tuple", "frozenset", "list", "sorted", "dict", "set")), Hook("parallel"), Hook("pipeline")]
)
"""What calling these gives is either not hashable, or holds only what is."""
Growth: TypeAlias = Literal["one", "items", "unknown"]
"""How much longer one execution makes a list or dict: by one, by the items of what is given, nobody knows."""


class TooLargeError(Exception):
    """The script is too large to be followed."""


class Store:
    """What is held where, and what happens to it. Raises `TooLargeError` after about `max_steps` steps of work."""

    def __init__(self, scopes: Scopes, max_steps: int) -> None:
        self.scopes = scopes
        self._steps_left = max_steps
        self.held: defaultdict[Variable, set[Thing]] = defaultdict(set)
        self.content: defaultdict[Thing, set[Thing]] = defaultdict(set)
        self.returned: defaultdict[FunctionNode, set[Thing]] = defaultdict(set)
        self.growth: defaultdict[Thing, dict[ast.AST, Growth]] = defaultdict(dict)
        self.touched: set[Thing] = set()
        self.elsewhere: dict[Thing, int] = {}
        """What left the code that is followed, and the line where it did."""
        self.uncounted: dict[Thing, int] = {}
        """Functions, classes and hooks that something calls nobody knows how often, and the line that lets it."""
        self.slices: set[Thing] = set()
        """Slice objects: as a key of a list they mean many items."""
        self.args_changed: int | None = None
        """The line that may change args or what is in them."""
        self.has_changed = False
        self.callees: dict[ast.Call, Things] = {}
        self._generators: dict[FunctionNode, bool] = {}
        self.content[ARGS] |= {ARGS, SCALAR}
        self.content[SCALAR] |= {SCALAR}
        self.content[ELSEWHERE] |= {ELSEWHERE, SCALAR}
        self.content[ENGINE] |= {Hook(name) for name in HOOK_NAMES}

    def step(self, things: int = 0) -> None:
        """Count the work: one step, and more for sets of many things."""
        self._steps_left -= 1 + things // _THINGS_PER_STEP
        if self._steps_left < 0:
            raise TooLargeError

    # ---- holding

    def _add(self, held: set[Thing], things: Iterable[Thing]) -> None:
        before = len(held)
        held.update(things)
        self.step(len(held))
        if len(held) != before:
            self.has_changed = True

    def hold(self, variable: Variable, things: Things) -> None:
        """A variable may hold these."""
        self._add(self.held[variable], things)

    def put(self, container: Thing, things: Iterable[Thing]) -> None:
        """An object may hold these."""
        self._add(self.content[container], things)

    def give_back(self, function: FunctionNode, things: Things) -> None:
        """A function may return these."""
        self._add(self.returned[function], things)

    def inside(self, things: Things) -> Things:
        """What items of these may be."""
        found: set[Thing] = set()
        for thing in things:
            if not isinstance(thing, Module | Instance | Class):
                found |= self.content.get(thing, NOTHING)
        self.step(len(found))
        return frozenset(found)

    def reach(self, things: Iterable[Thing]) -> Things:
        """These and everything that can be got at from them."""
        found: set[Thing] = set()
        pending = list(things)
        while pending:
            thing = pending.pop()
            if thing in found:
                continue
            found.add(thing)
            pending.extend(self.content.get(thing, NOTHING))
            if isinstance(thing, Instance):
                pending.append(Class(thing.node))
            elif isinstance(thing, Class):
                pending.extend(self.content.get(Made(thing.node, "bases"), NOTHING))
                for variable in self.scopes.of[thing.node].variables.values():
                    pending.extend(self.held[variable])
        self.step(8 * len(found))
        return frozenset(found)

    def hashable(self, things: Things) -> Things:
        """What of these can be a key or an element of a set: not the lists and dicts of args and of replies."""
        kept = [
            thing for thing in things if thing is not ARGS and not (isinstance(thing, Made) and thing.part == "reply")
        ]
        return frozenset([*kept, SCALAR]) if len(kept) < len(things) else things

    # ---- changing

    def grow(self, things: Things, at: ast.AST, growth: Growth, added: Things) -> None:
        """Executing `at` may make these longer."""
        self.touch(things, at)
        for thing in things:
            if thing is ARGS:
                self.put(thing, added)
            elif isinstance(thing, Made):
                self.put(thing, added)
                if self.growth[thing].get(at) != growth:
                    self.growth[thing][at] = growth
                    self.has_changed = True
            elif thing is ELSEWHERE:
                self.send_elsewhere(added, at)

    def hold_in(self, holders: Things, things: Things, at: ast.AST) -> None:
        """Lists and dicts may hold these, in place of something else."""
        for holder in holders:
            if isinstance(holder, Made) or holder is ARGS:
                self.put(holder, things)
            elif holder is ELSEWHERE:
                self.send_elsewhere(things, at)

    def touch(self, things: Things, at: ast.AST) -> None:
        """Executing `at` may change these."""
        for thing in things:
            if thing is ARGS and self.args_changed is None:
                self.args_changed = line_of(at)
                self.has_changed = True
            if isinstance(thing, Made) and thing not in self.touched:
                self.touched.add(thing)
                self.has_changed = True

    def send_elsewhere(self, things: Iterable[Thing], at: ast.AST) -> None:
        """These are given to code that is not followed: it may change what it gets, keep it, and call it."""
        line = line_of(at)
        pending = list(things)
        while pending:
            thing = pending.pop()
            if thing in self.elsewhere or thing is SCALAR or thing is ELSEWHERE:
                continue
            self.elsewhere[thing] = line
            self.has_changed = True
            if thing is ARGS and self.args_changed is None:
                self.args_changed = line
            pending.extend(self._given_with(thing, line))

    def _given_with(self, thing: Thing, line: int) -> Iterable[Thing]:
        if isinstance(thing, Function):
            self.uncounted.setdefault(thing, line)
            for parameter in parameters(thing.node.args):
                self.hold(self.scopes.of[thing.node].variables[parameter.arg], frozenset({ELSEWHERE, SCALAR}))
            if self.is_generator(thing.node):
                return [Made(thing.node, "generator")]
            return self.returned[thing.node]
        if isinstance(thing, Class | Hook):
            self.uncounted.setdefault(thing, line)
        if isinstance(thing, Class):
            return [*self.reach([thing]), Instance(thing.node)]
        if isinstance(thing, Made):
            self.put(thing, [ELSEWHERE, SCALAR])
        elif isinstance(thing, Instance):
            self.put(thing, [ELSEWHERE, SCALAR])
            return [*self.content[thing], Class(thing.node)]
        return self.content.get(thing, NOTHING)

    def settle_elsewhere(self) -> None:
        """What came to be reachable from what left has left too."""
        for thing, line in list(self.elsewhere.items()):
            given = self._given_with(thing, line)
            new = [
                each for each in given if each not in self.elsewhere and each is not SCALAR and each is not ELSEWHERE
            ]
            if new:
                place = ast.Pass(lineno=line, col_offset=0)
                self.send_elsewhere(new, place)

    def missing(self, keys: Things, at: ast.AST) -> None:
        """These may be keys that a dict or set does not have: then KeyError hands them out."""
        found: list[Thing] = []
        seen: set[Thing] = set()
        pending = list(keys)
        while pending:
            thing = pending.pop()
            if thing in seen or thing is ARGS or self._is_unhashable(thing):
                continue  # what is hashable in args is plain
            seen.add(thing)
            if isinstance(thing, Function | Class | Instance | Hook) or self._is_iterator(thing):
                found.append(thing)
            else:
                pending.extend(self.content.get(thing, NOTHING))
        self.step(len(seen))
        if found:
            self.send_elsewhere(found, at)

    def _is_unhashable(self, thing: Thing) -> bool:
        return isinstance(thing, Made) and (
            thing.part == "reply" or (not thing.part and isinstance(thing.node, _UNHASHABLE))
        )

    def _is_iterator(self, thing: Thing) -> bool:
        """Whether this may be hashable and hold what is not: iterators, generators, views, exceptions."""
        if not isinstance(thing, Made):
            return False
        if isinstance(thing.node, ast.Call) and not thing.part:
            callees = self.callees.get(thing.node, NOTHING)
            return not callees or not callees <= _HOLDING_HASHABLE
        return thing.part == "generator" or isinstance(thing.node, ast.GeneratorExp)

    def called_unseen(self, things: Iterable[Thing], at: ast.AST) -> None:
        """Something calls these functions, and those in what these hold, nobody knows how often."""
        for thing in self.reach(things):
            if isinstance(thing, Function | Class | Hook) and thing not in self.uncounted:
                self.uncounted[thing] = line_of(at)
                self.has_changed = True

    def is_generator(self, function: FunctionNode) -> bool:
        """Whether calling a function only makes a generator."""
        known = self._generators.get(function)
        if known is None:
            nodes = own_nodes(body_of(function))
            known = self._generators[function] = any(isinstance(node, ast.Yield | ast.YieldFrom) for node in nodes)
        return known


def line_of(node: ast.AST) -> int:
    """The line where a node begins."""
    return int(getattr(node, "lineno", 1))
