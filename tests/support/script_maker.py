"""Scripts by chance: shapes that can be counted, mixed with everything that could make a count too small.

Every loop and function calls `tick()` (see counted_run.py), a name that means nothing to the analysis.
"""

import random
import re
from collections.abc import Callable
from typing import Any

from support.odd_script_parts import odd_calls, odd_statements

_PLACE = re.compile("@[ILNFC]")


def indented(lines: list[str]) -> list[str]:
    return ["    " + line for line in lines] or ["    pass"]


class ScriptMaker:
    """One script. `names` hold what was bound so far, by what it probably is."""

    def __init__(self, chance: random.Random, *, hostility: float) -> None:
        self.chance = chance
        self.hostility = hostility
        self.count = 0
        self.level = 0
        self.ints: list[str] = []
        self.lists: list[str] = ["FILES"]
        self.functions: list[str] = []
        self.thunks: list[str] = []
        self.dicts: list[str] = []
        self.generators: list[str] = []

    # ---- the whole

    def source(self) -> str:
        body = self.block(self.chance.choice([1, 2, 2, 3]), 1 + self.chance.randrange(5))
        before: list[str] = ['FILES = ["a", "b", "c"]', "LIMIT = 3", "TABLE = {}", "STORE = []"]
        if self.hostile(0.15):
            before.append(
                self.pick(
                    [
                        "range = lambda *given: [1, 2, 3, 4, 5]",
                        "len = lambda value: 6",
                        "def list(value):\n    return [1] * 6",
                        "def sorted(value):\n    return [1, 2, 3, 4, 5]",
                        "enumerate = lambda value: [(1, 2)] * 5",
                        "def grow(xs):\n    xs.append(1)\n    return xs",
                        "FILES = FILES * 2",
                        "for i in range(3):\n    FILES.append(i)",
                        "class Item:\n    def __eq__(self, other):\n        return bool(agent('eq'))",
                        "LIMIT += 2",
                        "FILES = (agent(q) for q in (1, 2, 3))",
                        "def later():\n    yield agent('y')\nFILES = later()",
                        "STORE.append(lambda: agent('early'))",
                        "FILES = map(agent, ['a', 'b'])",
                    ]
                )
            )
        imports = self.pick(["", "from loopwarden_engine import agent, parallel, pipeline", "import json, re", ""])
        return "\n".join([imports, *before, "def main(args):", *indented(body)]) + "\n"

    def args(self) -> dict[str, Any]:
        def number() -> Any:
            return self.pick([0, 1, 2, 3, 3, 2, 4, -1, True, None, 2.0, "3"])

        def items() -> Any:
            return self.pick([[], ["a"], ["a", "b"], ["a", "b", "c"], [["x", "y"], ["z"]], "abc", {"a": 1, "b": 2},
                              None, [{"n": 2}, {"n": 3}]])  # fmt: skip

        args = {"n": number(), "m": number(), "files": items(), "more": items(),
                "conf": {"n": number(), "files": items()}}  # fmt: skip
        for key in ("n", "files", "conf"):
            if self.chance.random() < 0.05:
                del args[key]
        return args

    # ---- chance

    def pick(self, options: list[Any]) -> Any:
        return self.chance.choice(options)

    def hostile(self, share: float) -> bool:
        return self.chance.random() < share * self.hostility

    def name(self, prefix: str) -> str:
        if self.hostile(0.1) and self.count:
            return f"{prefix}{self.chance.randrange(self.count)}"
        self.count += 1
        return f"{prefix}{self.count}"

    # ---- expressions: @I an integer, @L something to loop over, @N a list by name, @F a function, @C a call

    def filled(self, text: str) -> str:
        """The same with something in each place."""
        makers = {"@I": self.integer, "@L": self.items, "@N": lambda: self.pick(self.lists), "@F": self.function,
                  "@C": self.call}  # fmt: skip
        self.level += 1
        try:
            return _PLACE.sub(lambda place: makers[place.group()](), text)
        finally:
            self.level -= 1

    def integer(self) -> str:
        simple = ["2", "3", "1", "LIMIT", 'args["n"]', 'args["m"]', 'args["conf"]["n"]', 'args.get("n", 2)',
                  'args.get("q", 3)', *self.ints, *self.ints]  # fmt: skip
        first = self.pick(simple)
        if self.level > 2:
            return str(first)
        return self.filled(
            self.pick(
                [
                    first,
                    first,
                    first,
                    f"{first} + 1",
                    f"{first} - {self.pick(simple)}",
                    f"2 * {first}",
                    "len(@L)",
                    f"min({first}, {self.pick(simple)})",
                    f"max({first}, {self.pick(simple)})",
                    f"({first} or 2)",
                    f"({first} if args else {self.pick(simple)})",
                    f"int({first})",
                    f"{first} // 2",
                    f"{first} % 3",
                    f"-{first}",
                    f"min(len(STORE), {first})",
                ]
            )
        )

    def items(self) -> str:
        simple = ['args["files"]', 'args["more"]', 'args["conf"]["files"]', 'args.get("files", [])', "FILES",
                  '(args.get("none") or ["a", "b"])', '["a", "b"]', "(1, 2, 3)", "[[1, 2], [3]]", '"xyz"', *self.lists,
                  *self.lists, *self.lists]  # fmt: skip
        first = self.pick(simple)
        if self.level > 2 or self.chance.random() < 0.5:
            return str(first)
        second = self.pick(simple)
        choices = [
            f"list({first})",
            f"sorted({first})",
            f"tuple({first})",
            f"list(enumerate({first}))",
            f"list(zip({first}, {second}))",
            f"list(reversed({first}))",
            f"{first}[:@I]",
            f"{first}[1:]",
            f"{first}[@I:]",
            f"{first}[::2]",
            f"[x for i in range(@I, @I, {self.pick(['1', '2', '-1', self.integer()])}) for x in {first}[i : i + @I]]",
            f"[{first}[i : i + @I] for i in range(@I)]",
            f"[x for x in {first}]",
            f"[x for x in {first} for y in {second}]",
            f"[x for x in {first} if x]",
            "range(@I)",
            "range(@I, @I)",
            f"range(@I, @I, {self.pick(['1', '2', '-1', self.integer()])})",
            f"({first} + {second})",
            "[1] * @I",
            f"{first} * 2",
            f"list(set({first}))",
            f"[*{first}, *{second}]",
            f"({first} or {second})",
            f"({first} if args else {second})",
            f"list(map(str, {first}))",
            f"list(filter(None, {first}))",
            f"{{k: 1 for k in {first}}}",
            "args",
            "TABLE",
            "STORE",
            "args.copy()",
            "[x for x in args.values()]",
            'list(args["conf"].items())',
            f"({first}).copy()",
            f"(w1 := {first})",
        ]
        return self.filled(self.pick(choices))

    def function(self) -> str:
        """Something that can be called without arguments."""
        choices = ['lambda: agent("l")', "lambda: [agent(x) for x in @L]",
                   "lambda n=@I: [agent('d') for q in range(n)]", *self.functions, *self.functions]  # fmt: skip
        if self.hostile(0.3):
            choices += [
                f"lambda: STORE.append({self.pick(['1', 'lambda: agent(1)'])})",
                "lambda: @N.append(1)",
                "lambda: (agent('w'), @N.extend([1, 2]))",
                "lambda: [(@N.append(q), agent('g')) for q in range(3)]",
                "lambda: args['files'].append('more')",
                "lambda: TABLE.update({len(TABLE): 1})",
                "(lambda: lambda: agent('inner'))()",
            ]
        return self.filled(self.pick(choices))

    def call(self) -> str:
        """An expression that makes calls, perhaps."""
        choices = [
            'agent("p")',
            'agent("p", schema={"type": "object"})',
            "f\"{agent('f')}\"",
            "(agent('t') or agent('u'))",
        ]
        for name in self.functions[-4:]:
            choices += [f"{name}()"] * 2
        if self.level < 3:
            choices += [
                "parallel([@F, @F])",
                "parallel([lambda x=x: agent(x) for x in @L])",
                "parallel([@F] * @I)",
                "pipeline(list(@L), lambda p, i, x: agent(p), lambda p, i, x: @C)",
                "[@C for x in @L]",
                "[agent(x) for x in @L for y in @L]",
                "list(map(lambda x: agent(x), @L))",
                "sorted(@L, key=lambda x: str(agent(x)))",
                "[x for x in @L if agent(x)]",
                "(agent('a') if args else @C)",
            ]
        for thunks in self.thunks:
            choices += [
                f"parallel({thunks})",
                f"parallel(list({thunks}))",
                f"[t() for t in {thunks}]",
                f"{thunks}[0]()",
            ]
        for made in self.generators:
            choices += [f"list({made}())", f"next({made}())", f"[x for x in {made}()]"]
        if self.hostile(0.4):
            choices += odd_calls(self)
        return self.filled(self.pick(choices))

    # ---- statements

    def block(self, depth: int, size: int) -> list[str]:
        lines: list[str] = []
        kept = (list(self.ints), list(self.lists), list(self.functions), list(self.thunks), list(self.generators))
        for _ in range(size):
            lines += self.statement(depth)
        if self.chance.random() < 0.7:
            self.ints, self.lists, self.functions, self.thunks, self.generators = kept
        return lines

    def statement(self, depth: int) -> list[str]:
        choices: list[Callable[[int], list[str]]] = [self.make_call, self.make_call, self.make_call, self.bind_int,
                                                     self.bind_list, self.bind_thunks, self.define]  # fmt: skip
        if depth > 0:
            choices += [self.loop, self.loop, self.loop, self.branch, self.attempt, self.define, self.grow]
        if self.hostile(0.5):
            choices += [self.odd, self.odd, self.grow, self.define_generator, self.define_class, self.loop_that_grows,
                        self.recursion, self.while_loop]  # fmt: skip
        chosen: Callable[[int], list[str]] = self.pick(choices)
        return [self.filled(line) for line in chosen(depth)]

    def make_call(self, depth: int) -> list[str]:
        return [self.pick(["", "", "r = "]) + self.call()]

    def bind_int(self, depth: int) -> list[str]:
        value, name = self.integer(), self.name("n")
        self.ints.append(name)
        return [f"{name} = {value}"]

    def bind_list(self, depth: int) -> list[str]:
        value, name = self.items(), self.name("xs")
        self.lists.append(name)
        return [f"{name} = {value}", "tick()"]

    def bind_thunks(self, depth: int) -> list[str]:
        name = self.name("ts")
        value = self.pick(
            [
                "[@F, @F]",
                "[lambda x=x: agent(x) for x in @L]",
                "[]",
                "[@F] * @I",
            ]
        )
        self.thunks.append(name)
        lines = [f"{name} = {value}"]
        if self.chance.random() < 0.5:
            lines += ["for x in @L:", "    tick()", f"    {name}.append(lambda x=x: agent(x))"]
        if self.chance.random() < 0.2:
            lines += [f"{name} += [@F]"]
        return lines

    def loop(self, depth: int) -> list[str]:
        target = self.pick(["x", "y", "z", "_", self.name("v")])
        head = f"for {target} in {self.pick([self.items(), 'range(@I)'])}:"
        lines = [head, "    tick()"]
        if target.startswith("v") and self.chance.random() < 0.5:
            self.pick([self.ints, self.lists]).append(target)
        lines += indented(self.block(depth - 1, 1 + self.chance.randrange(2)))
        if self.chance.random() < 0.1:
            lines += ["else:", "    agent('else')"]
        return lines

    def branch(self, depth: int) -> list[str]:
        test = self.pick(["args", 'args.get("n")', "r_unset", "len(STORE) > 2", "True", "False", self.call()])
        lines = [f"if {test}:", *indented(self.block(depth - 1, 1 + self.chance.randrange(2)))]
        if self.chance.random() < 0.6:
            lines += ["else:", *indented(self.block(depth - 1, 1 + self.chance.randrange(2)))]
        return lines

    def attempt(self, depth: int) -> list[str]:
        failing = self.pick([[], [], ["1 / 0"], ["raise ValueError(STORE)"], ["raise ValueError(args)"]])
        caught = (
            self.pick([[], [], ["e.args[0].append(1)"], ["e.args[0]['files'].append(1)"]]) if self.hostility else []
        )
        lines = ["try:", *indented([*self.block(depth - 1, 1), *failing])]
        lines += ["except Exception as e:", *indented([*self.block(depth - 1, 1), *caught])]
        if self.chance.random() < 0.3:
            lines += ["finally:", *indented(self.block(depth - 1, 1))]
        return lines

    def define(self, depth: int) -> list[str]:
        name = self.name("f")
        outer = (list(self.ints), list(self.lists))
        parameters, given = self.pick(
            [
                ("", ""),
                ("", ""),
                ("p", self.integer()),
                ("ps", self.items()),
                ("p=3", ""),
                ("p=@I", ""),
                ("*ps", "*@L"),
                ("*ps", "1, 2, 3"),
                ("ps=[]", ""),
                ("p, *, q=2", "p=@I, q=@I"),
            ]
        )
        parameters, given = self.filled(parameters), self.filled(given)
        if "ps" in parameters:
            self.lists += ["ps", "ps"]
        elif "p" in parameters:
            self.ints += ["p", "p"]
        lines = [f"def {name}({parameters}):", "    tick()"]
        if self.hostile(0.2) and outer[1][-1].startswith("xs") and "ps" not in parameters:
            lines += [
                "    nonlocal " + outer[1][-1],
                f"    {outer[1][-1]} = {self.pick(['[1, 2, 3, 4]', self.items()])}",
            ]
        lines += indented(self.block(max(0, depth - 1), 1 + self.chance.randrange(2)))
        lines.append(
            "    return " + self.pick(["1", "STORE", self.integer(), self.items(), self.call(), "lambda: agent('ret')"])
        )
        self.ints, self.lists = outer
        calls = [f"{name}({given})" for _ in range(self.chance.randrange(3))]
        if not parameters or parameters.startswith(("p=", "ps=")):
            self.functions.append(name)
        if self.chance.random() < 0.3:
            self.lists.append(f"{name}({given})")
        if self.chance.random() < 0.3:
            self.ints.append(f"{name}({given})")
        return lines + calls

    def grow(self, depth: int) -> list[str]:
        name = self.pick([*self.lists, "STORE", "TABLE", 'args["files"]' if self.hostile(0.4) else "STORE"])
        return [
            str(
                self.pick(
                    [
                        f"{name}.append({self.pick(['1', 'FILES', '[1, 2]'])})",
                        f"{name}.extend(@L)",
                        f"{name}.insert(0, 1)",
                        f"{name} += [1, 2]" if name.startswith(("xs", "ps")) else f"{name}.append(2)",
                        f"{name}[0:0] = @L",
                        f"TABLE[len(TABLE)] = {self.pick(['1', self.items()])}",
                        "TABLE.update({len(TABLE): 1, 'b': 2})",
                        f"TABLE.setdefault('k', []).append({self.pick(['1', 'FILES'])})",
                        f"{name}.pop()",
                        "STORE.append(@F)",
                    ]
                )
            ),
            "tick()",
        ]

    # ---- what a count must not fall for

    def loop_that_grows(self, depth: int) -> list[str]:
        name = self.pick([*self.lists, "STORE"])
        other = self.name("alias")
        grow = self.pick([f"{name}.append(1)", f"{other}.append(1)", f"{name}.extend([1, 2])", f"{name} += [3]"])
        return [
            f"{other} = {name}",
            f"for x in {self.pick([name, other, f'enumerate({name})', f'zip({name}, FILES)'])}:",
            "    tick()",
            f"    if len({other}) < {self.pick(['8', '20'])}:",
            f"        {grow if name.startswith('xs') or '+=' not in grow else other + '.append(1)'}",
            "    agent('growing')",
        ]

    def while_loop(self, depth: int) -> list[str]:
        name = self.name("w")
        return [f"{name} = 0", f"while {name} < @I:", "    tick()", f"    {name} += 1",
                *indented(self.block(max(0, depth - 1), 1))]  # fmt: skip

    def recursion(self, depth: int) -> list[str]:
        name = self.name("rec")
        again = self.pick([f"{name}(d - 1)", f"parallel([lambda: {name}(d - 1)])", f"[g(d - 1) for g in [{name}]]"])
        return [f"def {name}(d):", "    agent('rec')", "    if d > 0:", f"        {again}", f"{name}(@I)"]

    def define_generator(self, depth: int) -> list[str]:
        name = self.name("gen")
        self.generators.append(name)
        return [
            f"def {name}():",
            "    tick()",
            "    for x in @L:",
            f"        yield {self.pick(['x', 'agent(x)', 'FILES', 'lambda: agent(x)'])}",
            *indented(self.block(max(0, depth - 2), 1)),
            f"{self.name('xs')} = {self.pick([f'{name}()', f'list({name}())', '(agent(q) for q in @L)'])}",
        ]

    def define_class(self, depth: int) -> list[str]:
        name, made = self.name("C"), self.name("o")
        lines = [
            f"class {name}:",
            f"    kept = {self.pick(['[]', 'FILES', 'agent', self.items()])}",
            "    def __init__(self, items=None):",
            f"        self.items = {self.pick(['items', 'FILES', '[]', self.items()])}",
            f"        {self.pick(['agent(1)', 'pass', 'self.hook = agent'])}",
            "    def run(self, n=2):",
            *indented(indented(self.block(max(0, depth - 2), 1))),
            f"        return [agent(x) for x in {self.pick(['self.items', 'self.kept', 'range(n)'])}]",
            f"{made} = {name}({self.pick(['', self.items()])})",
        ]
        uses = [f"{made}.run()", f"{made}.run(@I)", f"{made}.items.append(1)", f"{name}.kept.append(2)",
                f"{made}.hook('h')", f"parallel([{made}.run] * 2)", f"{name}().run()",
                f"{made}.run = lambda: agent('x')",
                f"k = {made}.run", "k()", f"{made}.items += [1]", f"{name}.run({made}, @I)"]  # fmt: skip
        return lines + [self.pick(uses) for _ in range(1 + self.chance.randrange(3))]

    def odd(self, depth: int) -> list[str]:
        return [self.filled(line) for line in self.pick(odd_statements(self))]
