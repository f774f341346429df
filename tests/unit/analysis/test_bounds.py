"""Which bounds are derived, as formulas; what is not derived, with the line that makes it so; numbers for args."""

import json
from pathlib import Path
from textwrap import indent

import pytest

from loopwarden.agent_bound import AgentBound
from loopwarden.findings import decode_findings
from loopwarden_engine.analysis import analyse
from loopwarden_engine.language import ScriptRejected, compile_script
from loopwarden_scripts import ralph

WORKFLOW = Path(__file__).parents[2] / "conformance" / "workflow.jsonl"


def bound_of(source: str) -> AgentBound:
    compile_script(source)
    return decode_findings(json.loads(json.dumps(analyse(source)))).bound


def main(body: str, before: str = "") -> str:
    return f"{before}\ndef main(args):\n{indent(body, '    ')}\n"


KNOWN: list[tuple[str, str]] = [
    # straight on, branches, handlers
    ("1", "agent('p')"),
    ("0", "return 1"),
    ("3", "agent('a')\nif args['x']:\n    agent('b')\n    agent('c')\nelse:\n    agent('d')"),
    (
        "4",
        (
            "try:\n    agent('a')\nexcept ValueError:\n    agent('b')\nexcept TypeError:\n"
            "    agent('c')\n    agent('d')\nfinally:\n    agent('e')"
        ),
    ),
    ("2", "match args['x']:\n    case 1:\n        agent('a')\n    case [a, b] if agent('guard'):\n        pass"),
    # loops over numbers
    ("args.maxRounds", "for i in range(args['maxRounds']):\n    agent('p')"),
    ("args.a.b", "n = args['a']['b']\nfor i in range(1, n + 1):\n    agent('p')"),
    ('args["max rounds"] + 1', "for i in range(args['max rounds'] + 1):\n    agent('p')"),
    ("max(0, args.n - 1)", "for i in range(1, args['n']):\n    agent('p')"),
    ("max(0, args.stop - args.start)", "for i in range(args['start'], args['stop']):\n    agent('p')"),
    ("ceil(args.n / 5)", "for i in range(0, args['n'], 5):\n    agent('p')"),
    ("len(range(args.a, args.b, args.c))", "for i in range(args['a'], args['b'], args['c']):\n    agent('p')"),
    ("30", "for i in range(10, 0, -1):\n    for j in range(3):\n        agent('p')"),
    ("10", "for i in range(5):\n    for j in range(2) if args else range(1):\n        agent('p')"),
    ("args.n * args.n", "for i in range(args['n']):\n    for j in range(i):\n        agent('p')"),
    ('args.get("n", 3)', "for i in range(args.get('n', 3)):\n    agent('p')"),
    ("(args.n or 5)", "for i in range(args['n'] or 5):\n    agent('p')"),
    ("max(args.n, 5)", "n = 5\nif args['x']:\n    n = args['n']\nfor i in range(n):\n    agent('p')"),
    ("min(args.n, 5)", "for i in range(min(args['n'], 5)):\n    agent('p')"),
    ("int(args.n)", "for i in range(int(args['n'])):\n    agent('p')"),
    ("(args.n // 2)", "for i in range(args['n'] // 2):\n    agent('p')"),
    ("len(args.files)", "for i in range(len(args['files'])):\n    agent('p')"),
    (
        "ceil(len(args.files) / args.size)",
        "fs = [f for f in args['files']]\nfor i in range(0, len(fs), args['size']):\n    agent(str(fs[i : i + 2]))",
    ),
    ("min(len(args.files), 5)", "fs = sorted(args['files'])\nfor i in range(min(len(fs), 5)):\n    agent('p')"),
    ("2 * len(args.files) + 1", "fs = [*args['files']]\nfor i in range(2 * 0 + len(fs) * 2 + 1):\n    agent('p')"),
    ("16", "for i in range(4):\n    for j in range(i + 1, 4):\n        agent('p')"),
    # loops over lists
    (
        "3 * len(args.files) + 1",
        "agent('plan')\nfor f in args['files']:\n    agent('a')\n    agent('b')\n    agent('c')",
    ),
    ('len(args.get("files"))', "for f in args.get('files') or []:\n    agent(f)"),
    ("len(args.a) * len(args.b)", "[agent(x + y) for x in args['a'] for y in sorted(args['b'])]"),
    ("min(len(args.a), len(args.b))", "for x, y in zip(args['a'], enumerate(args['b'])):\n    agent(x)"),
    ("min(len(args.a), 3)", "for x in args['a'][:3]:\n    agent(x)"),
    ("max(0, len(args.a) - 1)", "for x in args['a'][1:]:\n    agent(x)"),
    ("len(args.a) + len(args.b)", "for x in args['a'] + args['b']:\n    agent(x)"),
    ("len(args.a) + 2", "for x in [*args['a'], 'b', 'c']:\n    agent(x)"),
    (
        "len(args.files) + len(args.more)",
        "xs = list(args['files'])\nfor m in args['more']:\n    xs.append(m)\nfor x in xs:\n    agent(x)",
    ),
    ("len(args)", "for key in args:\n    agent(key)"),
    (
        "2 * args.n",
        "rs = [None] * args['n']\nfor i in range(args['n']):\n    rs[i] = agent('p')\n[agent(r) for r in rs]",
    ),
    ("5", "reply = agent('p', schema={'type': 'object'})\nfor x in reply['items'][:4]:\n    agent(x)"),
    (
        "6",
        (
            "groups = [['a', 'b'], ['c']]\nfor group in groups:\n    for x in list(group):\n"
            "        agent(x)\nfor n in (1, 2):\n    agent('p')"
        ),
    ),
    ("args.width, where args.width >= 0", "for x in str(args).split()[: args['width']]:\n    agent(x)"),
    ("min(len(args.a), args.k), where args.k >= 0", "for x in args['a'][:args['k']]:\n    agent(x)"),
    ("max(0, len(args.a) - args.k)", "for x in args['a'][: -args['k']]:\n    agent(x)"),
    ("max(0, len(args.a) - args.k)", "for x in args['a'][args['k'] :]:\n    agent(x)"),
    ("min(len(args.a), args.k), where args.k > 0", "for x in args['a'][-args['k'] :]:\n    agent(x)"),
    ("2 * ceil(len(args.a) / 2)", "a = args['a']\nfor i in range(0, len(a), 2):\n    [agent(x) for x in a[i : i + 2]]"),
    (
        "3 * ceil(args.n / 3) + 1",
        (
            "reply = agent('p', schema={'type': 'object'})\nfor i in range(0, args['n'], 3):\n"
            "    parallel([lambda x=x: agent(x) for x in reply['items'][i : i + 3]])"
        ),
    ),
    # together
    ("args.voters", "return parallel([lambda n=n: agent(str(n)) for n in range(args['voters'])])"),
    ("2 * args.n", "return parallel([lambda: agent('a'), lambda: agent('b')] * args['n'])"),
    ("2 * len(args.items)", "return pipeline(args['items'], lambda p, i, x: agent(p), lambda p, i, x: agent(p))"),
    (
        "len(args.files)",
        "thunks = []\nfor f in args['files']:\n    thunks.append(lambda f=f: agent(f))\nparallel(thunks)",
    ),
    (
        "3 * len(args.a)",
        (
            "def judge(p, i, x):\n    return parallel([lambda: agent('j')] * 2)\n"
            "pipeline(args['a'], lambda p, i, x: agent(p), judge)"
        ),
    ),
    # functions
    (
        "2 * len(args.a) + args.n * len(args.b)",
        (
            "def ask(items, n):\n    for i in items:\n        for j in range(n):\n"
            "            agent(i)\nask(args['a'], 2)\nask(n=args['n'], items=args['b'])"
        ),
    ),
    ("4", "def twice(f):\n    f()\n    f()\ntwice(lambda: agent('a'))\ntwice(lambda: agent('b'))"),
    ("2", "ask = agent\nask('a')\n{'b': ask}['b']('b')"),
    ("len(args.a)", "return list(map(lambda x: agent(x), args['a']))"),
    ("args.n", "def limit():\n    return args['n']\nfor i in range(limit()):\n    agent('p')"),
    ("3", "def say(*lines):\n    for line in lines:\n        agent(line)\nsay('a', 'b', 'c')"),
    (
        "len(args.b)",
        "def each():\n    for x in args['b']:\n        yield agent(x)\nfor reply in each():\n    log(reply)",
    ),
    ("1000000000000000000000", "for a in range(10000000000):\n    for b in range(100000000000):\n        agent('p')"),
]


@pytest.mark.parametrize(("formula", "body"), KNOWN)
def test_a_bound_is_derived(formula: str, body: str) -> None:
    """The formula of each script in the table."""
    assert bound_of(main(body)).text == f"agents <= {formula}"


GROWS = "this makes a list or dict longer, nobody knows how often"
CHANGES = "args may be changed here"
ELSEWHERE = "a list is handed on here to where nobody sees whether it grows"
UNSEEN = "a function with agent() calls goes to where nobody sees how often it is called"
# Each body begins at line 3.
UNKNOWN: list[tuple[str, int, str]] = [
    ("while args:\n    agent('p')", 3, "how often this while loop goes round cannot be told before the run"),
    ("def go(n):\n    agent('p')\n    go(n)\ngo(1)", 3, "go calls itself, nobody knows how often"),
    ("def a():\n    agent('p')\n    fs[0]()\nfs = [lambda: a()]\na()", 3, "a calls itself, nobody knows how often"),
    ("for x in agent('p').split():\n    agent(x)", 3, "what this gives cannot be told before the run"),
    ("r = agent('p', schema={})\nfor x in r['items']:\n    agent(x)", 4, "this goes over what an agent replied"),
    ("n = 1\nn += args['n']\nfor i in range(n):\n    agent('p')", 5, "what this gives cannot be told before the run"),
    ("n = 1\nn = n + n\nfor i in range(n):\n    agent('p')", 4, "n depends on what it was before"),
    ("def f():\n    yield 1\nfor x in f():\n    agent('p')", 5, "how much a generator yields is not counted"),
    # lists that grow while they are iterated
    ("xs = [1]\nfor x in xs:\n    xs.append(x)\n    agent('p')", 5, GROWS),
    ("xs = [1]\nys = xs\nfor x in xs:\n    agent('p')\n    ys.extend([1, 2])", 7, GROWS),
    ("xs = [1]\nfor i, x in enumerate(xs):\n    agent('p')\n    xs += [x]", 6, GROWS),
    ("xs = [1]\ndef more():\n    for x in xs:\n        xs.insert(0, agent('p'))\nparallel([more, more])", 6, GROWS),
    ("d = {1: 2}\nfor k in list(d):\n    d[k + 1] = agent('p')", 5, GROWS),
    ("xs = [1]\nkeep = xs.append\nfor x in xs:\n    keep(agent('p'))", 4, ELSEWHERE),
    ("xs = [1]\ngetattr(xs, 'append')(2)\nfor x in xs:\n    agent('p')", 4, ELSEWHERE),
    ("xs = [1]\nlist.append(xs, 2)\nfor x in xs:\n    agent('p')", 4, ELSEWHERE),
    ("xs = [1]\ntry:\n    raise KeyError(xs)\nexcept KeyError as e:\n    e.args[0].append(2)\n[agent(x) for x in xs]",
     5, ELSEWHERE),
    ("xs = [1]\nxs[:0] = args['more']\nfor x in xs:\n    agent('p')", 4,
     "by how much this makes a list or dict longer cannot be told"),
    # args that are changed
    ("args['files'].append('x')\nfor x in args['files']:\n    agent(x)", 3, CHANGES),
    ("args['n'] += 1\nfor i in range(args['n']):\n    agent('p')", 3, CHANGES),
    ("a = args\nb = [a]\nb[0]['n'] = 9\nfor i in range(args['n']):\n    agent('p')", 5, CHANGES),
    ("def spoil(x):\n    x.update(n=9)\nspoil(args)\nfor i in range(args['n']):\n    agent('p')", 4, CHANGES),
    ("match args:\n    case {'files': fs}:\n        fs.append(1)\nfor x in args['files']:\n    agent('p')", 5, CHANGES),
    ("try:\n    assert 0, args\nexcept Exception as e:\n    e.args[0].clear()\n[agent(x) for x in args]", 4, CHANGES),
    ("k = slice(args)\nk.stop['n'] = 9\nfor i in range(args['n']):\n    agent('p')", 4, CHANGES),
    # functions that get away
    ("list(iter(lambda: agent('p'), None))", 3, UNSEEN),
    ("import re\nre.sub('a', lambda m: agent('p') or '', args['text'])", 4, UNSEEN),
    ("xs = [2, 1]\nxs.sort(key=lambda x: len(agent('p')))", 4, UNSEEN),
    ("try:\n    {}[agent]\nexcept KeyError as e:\n    e.args[0]('p')", 4, UNSEEN),
    ("import loopwarden_engine as hooks\ngetattr(hooks, 'agent')('p')", 4, UNSEEN),
    ("def keep(f):\n    return f\n@keep\ndef go():\n    agent('p')\ngo()", 5, UNSEEN),
    ("class C:\n    def __lt__(self, other):\n        return agent('p')\nsorted([C(), C()])", 4,
     "__lt__ is called wherever values are compared, which is not followed"),
    # closures of another call, and of a main that was called with other args
    ("fs = []\ndef f(n):\n    fs.append(lambda: [agent('p') for x in range(n)])\n    fs[0]()\nf(9)\nf(1)", 5,
     "n is a parameter of a function that is called elsewhere"),
    ("def f():\n    [agent('p') for i in range(args['n'])]\n[f][0]()\nif not args:\n    main({'n': 9})", 4,
     "args is a parameter of a function that is called elsewhere"),
    # names that mean something else
    ("range = lambda n: n * n\nif args:\n    range = [2]\nfor i in range(2):\n    agent('p')", 6,
     "what this gives cannot be told before the run"),
    ("def f(n=2):\n    n = args['q'] ** 2\n    for i in range(n):\n        agent('p')\nf()", 4,
     "what this gives cannot be told before the run"),
    ("n = 1\ndef f():\n    nonlocal n\n    n = len(agent('p'))\nf()\nfor i in range(n):\n    agent('p')", 6,
     "this comes from the reply of an agent"),
    ("for args in [args, {'n': 99}]:\n    pass\nfor i in range(args['n']):\n    agent('p')", 3,
     "args depends on what it was before"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "line", "message"), UNKNOWN)
def test_a_bound_is_unknown_and_the_line_is_named(body: str, line: int, message: str) -> None:
    """Never too small: whatever is not followed makes the bound unknown."""
    bound = bound_of(main(body))
    assert not bound.is_known
    assert bound.text == f"unknown: line {line}: {message}"
    assert bound.evaluate({"n": 1}) is None


COUNTED_RIGHT: list[tuple[str, int]] = [
    # odd, and still followed: the number that these make at most
    ("ts = [lambda: agent('p')]\nparallel(ts)\nparallel(ts)", 2),
    ("ts = [agent] * 3\n[t('p') for t in ts]", 3),
    ("t = lambda: agent('p')\nparallel([t, t, lambda: parallel([t])])", 3),
    ("def outer():\n    def inner():\n        agent('p')\n    return inner\nf = outer()\nf()\nf()\nouter()()", 3),
    ("fs = {}\nfs['a'] = lambda: agent('p')\nfor k in 'abc':\n    fs[k]()", 3),
    ("args['f'] = [lambda: agent('p')]\nargs['f'][0]()\nargs['f'][0]()", 2),
    ("class C:\n    def __init__(self):\n        agent('i')\n    def run(self):\n        agent('r')\nC().run()", 2),
    ("class C:\n    hook = agent\nc = C()\nc.f = lambda: agent('q')\nC.hook('p')\nc.f()", 2),
    ("def made():\n    return [1]\nxs = made()\nxs.append(2)\nfor x in xs:\n    agent('p')", 2),
    ("f'{agent(1)} {agent(2)!r:>{agent(3)}}'", 3),
    ("def f(x=agent('default')):\n    pass\nf()\nf()", 1),
    ("for i in range(2):\n    break\nelse:\n    agent('p')", 1),
    ("[x for x in (1, 2) if agent('p')]", 2),
    ("g = (agent(x) for x in (1, 2, 3))\nnext(g)\nlist(g)", 3),
    ("def g():\n    agent('p')\n    yield\n    agent('q')\nlist(g())", 2),
    ("sorted((1, 2), key=lambda x: agent('p'))", 2),
    ("parallel([lambda: (agent('p') if args else agent('q'))] * True)", 1),
    ("for i in range(-3):\n    agent('p')", 0),
    ("while args:\n    log('x')", 0),
    ("def f(agent):\n    agent('p')\nf(str)", 0),
    ("range = lambda n: [1] * 99\nfor i in range(2):\n    agent('p')", 99),
    ("for i in range(3):\n    def f():\n        agent('p')\nf()", 1),
    ("def f():\n    agent('p')\n    return [1, 2]\nfor x in f():\n    agent('q')", 3),
]


@pytest.mark.parametrize(("body", "most"), COUNTED_RIGHT)
def test_odd_ways_to_call_are_counted(body: str, most: int) -> None:
    """Aliases, closures, methods, generators and thunks that are listed several times."""
    bound = bound_of(main(body))
    assert bound.evaluate({}) is not None, bound.text
    assert bound.evaluate({}) == most


def test_a_generator_of_the_module_body_counts_where_main_consumes_it() -> None:
    """It is made before hooks work, and asks its agents after."""
    assert bound_of(main("list(later)", "later = (agent(x) for x in ('a', 'b'))")).text == "agents <= 2"


def test_a_bound_is_evaluated_with_args() -> None:
    """Truth values are numbers, what range() refuses goes round never, and where kinds differ nothing is said."""
    bound = bound_of(main("for i in range(args['n']):\n    for f in args['files']:\n        agent(f)"))
    assert bound.text == "agents <= args.n * len(args.files)"
    for n, files, most in [
        (3, ["a", "b"], 6),
        (True, ["a"], 1),
        (-1, ["a"], 0),
        (2.0, ["a"], 0),
        (None, ["a"], 0),
        (2, "abc", 6),
        (2, {"k": 1}, 2),
        (2, 7, 0),
        (2**53 - 1, ["a"] * 3, 3 * (2**53 - 1)),
    ]:
        assert bound.evaluate({"n": n, "files": files}) == most  # type: ignore[dict-item]
    assert bound.evaluate({"n": 3}) == 0
    assert bound.evaluate({}) == 0
    added = bound_of(main("for i in range(args['n'] + 1):\n    agent('p')"))
    assert added.evaluate({"n": 3}) == 4
    assert added.evaluate({"n": "3"}) is None
    cut = bound_of(main("for x in str(args).split()[: args['n']]:\n    agent(x)"))
    assert [cut.evaluate({"n": n}) for n in (3, 0, True, -1, None, "x")] == [3, 0, 1, None, None, 0]
    given = bound_of(main("for i in range(args.get('n') or 2):\n    agent('p')"))
    assert [given.evaluate({"n": n}) for n in (0, None, 5)] == [2, 2, 5]
    assert given.evaluate({}) == 2


def test_ralph_starts_as_many_agents_as_it_has_rounds() -> None:
    """With what its contract gives to its main."""
    contract = ralph.RalphContract(ralph.RalphSettings())
    bound = bound_of(ralph.script.source)
    assert bound.text == "agents <= args.maxRounds"
    args = contract.decode_args(ralph.Args(objective="Do it.", max_rounds=7))
    assert bound.evaluate(contract.script_args(args, None)) == 7


def test_nearly_all_scripts_of_the_corpus_have_a_bound() -> None:
    """Only recursion and loops without end have none."""
    sources = {json.loads(line)["source"] for line in WORKFLOW.read_text(encoding="utf-8").splitlines()}
    known = unknown = 0
    for source in sources:
        try:
            bound = bound_of(source)
        except ScriptRejected:
            continue
        known += bound.is_known
        unknown += not bound.is_known
        assert bound.is_known or "while True" in source or "go(" in source, source
    assert known > 400
    assert unknown < 10


def test_a_script_that_is_too_large_has_an_unknown_bound() -> None:
    """And is told apart from one that is wrong: it still runs."""
    many = "\n".join(f"def f{i}():\n    agent('p')\n    f{i + 1}()" for i in range(3000))
    bound = bound_of(f"{many}\ndef f3000(): pass\ndef main(args):\n    f0()\n")
    assert bound.text == "unknown: line 1: the script is too large for its calls to be counted"


def test_a_formula_that_doubles_with_every_line_stays_short_or_is_unknown() -> None:
    """Functions that each call the next one twice with other arguments."""
    lines = [f"def f{i}(n):\n    f{i + 1}(n + 1)\n    f{i + 1}(n + 2)" for i in range(12)]
    source = "\n".join(
        [*lines, "def f12(n):\n    for i in range(n):\n        agent('p')", "def main(args):\n    f0(args['n'])\n"]
    )
    bound = bound_of(source)
    assert len(bound.text) < 1000
