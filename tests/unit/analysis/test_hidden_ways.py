"""Ways to hide from the analysis what is called or made longer: each script is run, and its bound is not below that."""

import json
import random
from textwrap import indent

import pytest

from loopwarden.findings import decode_findings
from loopwarden_engine.analysis import analyse
from loopwarden_engine.language import compile_script
from support.counted_run import counted_calls

IMPORTS = "import json, math, re\n"
HELPERS = """
class Value(StopIteration):
    pass
class Base:
    def __init__(self, held=None):
        self.held = held
    def get(self, more=0):
        return self.held
    def times(self, n=1):
        [agent('p') for i in range(n)]
class Sub(Base):
    pass
def given_back(key):
    try:
        {}[key]
    except KeyError as error:
        return error.args[0]
"""

# Each gives its `it` back: a function is called then, a list is made longer and iterated.
ALIASES: list[str] = [
    "math.prod([], start=it)",
    "Value(it).value",
    "Sub(it).get()",
    "getattr(Sub(it), 'get')()",
    "re.error(it).msg",
    "json.JSONDecodeError(it, 'd', 0).msg",
    "re.match('(a)?b', 'b').groups(it)[0]",
    "re.match('(?P<n>a)?b', 'b').groupdict([it])['n'][0]",
    "str.maketrans({'a': it})[97]",
    "''.maketrans({'a': [it]})[97][0]",
    "(lambda make: make({'a': it}))(''.maketrans)[97]",
    "next(given_back(iter([it])))",
    "next(given_back((1, (x for x in [it])))[1])",
    "given_back(ValueError(it)).args[0]",
    "given_back(Sub(it)).held",
    "[x for x in given_back({'a': it}.values())][0]",
    "list[int]([it])[0]",
    "dict[str, int](a=it)['a']",
    "list(enumerate[int]([it]))[0][1]",
    "[it][slice(None)][0]",
]


def run(source: str, args: dict[str, object]) -> tuple[int, int | None]:
    """How many calls the script makes, and what its bound says."""
    compiled = compile_script(source)
    bound = decode_findings(json.loads(json.dumps(analyse(source)))).bound
    return counted_calls(compiled, args, random.Random(1)), bound.evaluate(args)  # type: ignore[arg-type]


def check(source: str, calls: int, args: dict[str, object] | None = None) -> None:
    made, most = run(source, args or {})
    assert made == calls
    assert most is None or most >= calls, source


@pytest.mark.parametrize("alias", ALIASES)
def test_a_function_or_list_that_comes_back_another_way_is_still_counted(alias: str) -> None:
    """A function, a hook, a list of the script, and one of args."""
    body = f"def back(it):\n    return {alias}\ndef main(args):\n"
    script = f"{IMPORTS}{HELPERS}{body}"
    check(f"{script}    back(lambda: [agent('p'), agent('p')])()\n", 2)
    check(f"{script}    back(agent)('p')\n", 1)
    check(f"{script}    xs = [1]\n    back(xs).extend([2, 3])\n    for x in xs:\n        agent('p')\n", 3)
    grown = "    back(args['l']).extend([2, 3])\n    for x in args['l']:\n        agent('p')\n"
    check(f"{script}{grown}", 3, {"l": [1]})


CALLED: list[tuple[int, str]] = [
    # what a call gives to parameters
    (10, "def f(n=10, /, **more):\n    [agent('p') for i in range(n)]\nf(n=1)"),
    (5, "def f(n=0):\n    [agent('p') for i in range(n)]\ngetattr([f], 'pop')()(5)"),
    (5, "def f(*, n=0):\n    [agent('p') for i in range(n)]\ngetattr([f], 'pop')()(n=5)"),
    (5, "class C:\n    def __init__(self, *, n=0):\n        [agent('p') for i in range(n)]\nC(n=5)"),
    (5, "later = Base().times\nlater(5)"),
    (5, "later = [Base().times]\nlater[0](5)"),
    (5, "def own(self, n=1):\n    [agent('p') for i in range(n)]\nclass C:\n    run = own\nlater = C().run\nlater(5)"),
    (5, "def own(self, n=1):\n    [agent('p') for i in range(n)]\nclass C:\n    pass\nC.run = own\nm = C().run\nm(5)"),
    # bodies of classes
    (2, "def f():\n    class C:\n        x = agent('p')\nf()\nf()"),
    (3, "xs = [1]\ndef f():\n    class C:\n        class D:\n            xs.append(1)\nf()\nf()\nlist(map(ask, xs))"),
    (5, "FIVE = [1]\nclass C:\n    for x in FIVE:\n        agent('p')\n    FIVE = []"),
    (1, "ask = str\nclass C:\n    ask('p')\n    ask = str"),
    (1, "agent = str\nclass C:\n    agent('p')\n    agent = str"),
    # methods of the script with names of methods of lists
    (4, "class C:\n    def copy():\n        return [1]\nx = C if args else [1] * 4\n[agent('p') for y in x.copy()]"),
    (4, "class C:\n    copy = list\nx = C if args else [1] * 4\n[agent('p') for y in x.copy()]"),
    # lists and dicts that grow
    (4, "xs = [1]\nxs[0:0] += [2, 3, 4]\n[agent('p') for x in xs]"),
    (4, "xs = [1]\nxs[slice(0, 0)] = [2, 3, 4]\n[agent('p') for x in xs]"),
    (4, "xs = [1]\nxs[slice(0, 0)] += [2, 3, 4]\n[agent('p') for x in xs]"),
    (3, "xs = [[1], [2], [3]]\nfor x in xs[slice(None)]:\n    agent('p')"),
    (11, ("kept = []\ndef f():\n    xs = [0]\n    kept.append(xs)\n    [xs.append(1) for xs in kept[:1]]\n"
         "for i in range(10):\n    f()\nfor x in kept[0]:\n    agent('p')")),
    (2, "d = {'a': [1], 'b': [2]}\nfor k in d:\n    agent('p')\n    d[k] += d.pop(k)"),
    (3, "xs = [0] * 2\nxs[5:] = [1]\n[agent('p') for x in xs]"),
    # methods that a built-in class calls
    (2, ("class D:\n    def count(self, *more):\n        return len(agent('p') or '')\n    def rfind(self, *more):\n"
        "        return len(agent('p') or '')\njson.JSONDecodeError('m', D(), 0)")),
    # numbers of which only the most is known
    (6, "xs = [1, 2, 3]\nfor i in range((len(xs) - 5) * -3):\n    agent('p')"),
    (9, "xs = [1]\nfor i in range(len(xs) - (len(xs) - 9)):\n    agent('p')"),
    (4, "xs = [1, 2]\nfor c in len(xs) * 'ab':\n    agent('p')"),
    (2, "xs = [1]\nfor i in range(1, len(xs) - 2, -1):\n    agent('p')"),
]  # fmt: skip


@pytest.mark.parametrize(("calls", "body"), CALLED)
def test_an_odd_way_to_call_or_to_grow_is_counted_or_makes_the_bound_unknown(calls: int, body: str) -> None:
    """Each of these had a bound that was too small, or nearly."""
    before = f"{IMPORTS}{HELPERS}FIVE = [1] * 5\ndef ask(p):\n    agent('p')\n"
    check(f"{before}def main(args):\n{indent(body, '    ')}\n", calls)


def test_a_function_that_puts_another_main_in_place_makes_the_bound_unknown() -> None:
    """The language forbids a second main at the top level only."""
    other = "    global main\n    def main(args):\n        [agent('p') for i in range(5)]\n"
    check(f"def main(args):\n    agent('p')\ndef setup():\n{other}setup()\n", 5)
    walrus = "    global main\n    [main := more for i in range(1)]\n"
    more = "def more(args):\n    [agent('p') for i in range(5)]\n"
    check(f"def main(args):\n    agent('p')\n{more}def setup():\n{walrus}setup()\n", 5)


def test_the_least_of_a_float_and_a_number_that_is_not_known_is_not_nothing() -> None:
    """`min(2.5, i)` gives i, though `range(2.5)` raises."""
    body = "    for i in range(3):\n        for j in range(min(args['n'], i)):\n            agent('p')\n"
    check(f"def main(args):\n{body}", 3, {"n": 2.5})
    assert run(f"def main(args):\n{body}", {"n": 2})[1] == 6
