"""No text and no order may depend on an address or a hash seed."""

import itertools
import os
import re
import subprocess
import sys
from typing import Any

import pytest

from loopwarden_engine.language.sets import ItemsView, KeysView, OrderedFrozenSet, OrderedSet
from loopwarden_engine.language.text import percent_formatted, repr_of, text_of

_PLAIN: list[object] = [
    None, True, 5, -2.5, "a'b\n", b"x", (1,), (), [1, "a"], {"a": [1]}, range(3), 1j, ..., [[], ({},)], float("nan"),
    slice(1, "x"), ValueError("x"), KeyError("k"), OSError(2, "no"), UnicodeDecodeError("ascii", b"x", 0, 1, "bad"),
    (ValueError(1, [2]),), {1: {2: 3}}.values(), re.compile("a"), NotImplemented,
]  # fmt: skip


@pytest.mark.parametrize("value", _PLAIN, ids=repr)
def test_text_of_plain_values_is_that_of_python(value: object) -> None:
    """Only what would show an address or an order differs."""
    assert repr_of(value) == repr(value)
    assert text_of(value) == str(value)


@pytest.mark.parametrize("template", ["%s", "%r", "%a", "%10s|", "%-10.3r|", "x"])
def test_percent_is_that_of_python_for_plain_values(template: str) -> None:
    """Also for single values that are no tuple."""
    for value in (1, "é", None, 2.5, ("a",), [1, 2], {"k": 1}):
        try:
            expected = template % value
        except TypeError as error:
            with pytest.raises(TypeError, match=re.escape(str(error))):
                percent_formatted(template, value)
        else:
            assert percent_formatted(template, value) == expected


def test_no_text_shows_an_address(value_of: Any) -> None:
    """Every way to text, every kind of thing without text of its own, alone and inside others."""
    before = (
        "import json, re\nclass C:\n    def m(self):\n        return 1\nclass E(Exception):\n    pass\n"
        "def g():\n    yield 1\n"
    )
    body = (
        "c = C()\n"
        "things = [main, len, C, E, c, c.m, g(), (x for x in [1]), map(str, []), iter([]), iter({}), [].append, json, "
        "json.dumps, zip(), agent, str, int, set, E(c), ValueError(main), slice(main), {c}, frozenset([main]), "
        "{c: main}.keys(), {c: main}.items(), {1: c}.values(), str.upper, enumerate([]), reversed([])]\n"
        "things += [int.real, lambda: 1]\n"
        "out = []\n"
        "for t in things:\n"
        "    for v in [t, [t], (t,), {'k': t}, ValueError(t), E('x', t)]:\n"
        "        out += [str(v), repr(v), f'{v}', f'{v!r:>3}', '%s' % (v,), '%r' % (v,), '%(v)s' % {'v': v}, ascii(v), "
        "format(v), ' '.join(map(str, [v]))]\n"
        "    for thunk in [lambda: [].index(t), lambda: {}[t], lambda: t(**5), lambda: t + 1, lambda: int(t), "
        "lambda: json.dumps(t), lambda: f'{t:>5}', lambda: '%d' % t, lambda: len(t), lambda: t.nope, lambda: t(1, 2), "
        "lambda: [1][t], lambda: sorted([t, 1]), lambda: json.JSONDecodeError(t, 'x', 0), lambda: re.compile(t), "
        "lambda: (t,).index(5), lambda: range(3).index(t), lambda: t < 1, lambda: ' '.join([t])]:\n"
        "        try:\n            out.append(str(thunk()))\n"
        "        except Exception as e:\n            out += [str(e), repr(e), f'{e}', str(e.args), str([e])]\n"
        "return out"
    )
    texts = value_of(body, before)
    assert isinstance(texts, list)
    assert len(texts) > 2_000
    assert [text for text in texts if "0x" in text or "loopwarden" in text] == []


def test_a_value_in_itself_is_shown_once(value_of: Any) -> None:
    """Cycles end."""
    body = (
        "l = [1]\nl.append(l)\nd = {}\nd['d'] = (d,)\ne = ValueError(l)\nl.append(e)\nreturn [str(l), str(d), repr(e)]"
    )
    assert value_of(body) == [
        "[1, [...], ValueError([...])]",
        "{'d': ({...},)}",
        "ValueError([1, [...], ValueError(...)])",
    ]


def test_a_very_deep_value_raises_recursion_error_as_in_python(fault_of: Any) -> None:
    """An ordinary exception of the script."""
    assert fault_of("l = []\nfor i in range(100000):\n    l = [l]\nreturn str(l)").type_name == "RecursionError"


@pytest.mark.parametrize("kinds", list(itertools.product([OrderedSet, OrderedFrozenSet], repeat=2)), ids=str)
def test_sets_agree_with_those_of_python_on_every_pair_of_small_sets(kinds: Any) -> None:
    """All operators, comparisons and methods; only the order is ours."""
    subsets = [subset for size in range(4) for subset in itertools.combinations((1, 2, 3), size)]
    operators = ("__and__", "__or__", "__sub__", "__xor__", "__le__", "__lt__", "__ge__", "__gt__", "__eq__", "__ne__")
    methods = ("union", "intersection", "difference", "symmetric_difference", "issubset", "issuperset", "isdisjoint")
    for left, right in itertools.product(subsets, repeat=2):
        ours, theirs = kinds[0](left), frozenset(left)
        for name in operators:
            result, expected = getattr(ours, name)(kinds[1](right)), getattr(theirs, name)(frozenset(right))
            assert (set(result) == expected) if isinstance(expected, frozenset) else (result is expected), name
        for name in methods:
            result, expected = getattr(ours, name)(list(right)), getattr(theirs, name)(list(right))
            assert (set(result) == expected) if isinstance(expected, frozenset) else (result is expected), name
            assert not isinstance(expected, frozenset) or type(result) is kinds[0]


@pytest.mark.parametrize("name", ["__iand__", "__ior__", "__isub__", "__ixor__"])
def test_operators_in_place_change_the_set_itself(name: str) -> None:
    """Others that hold it see the change, an iterator notices."""
    for right in [(), (1,), (2, 4), (1, 2, 3, 4)]:
        ours, theirs = OrderedSet([1, 2, 3]), {1, 2, 3}
        assert getattr(ours, name)(OrderedSet(right)) is ours
        assert set(ours) == getattr(theirs, name)(set(right))


def test_sets_refuse_other_operands_as_those_of_python_do() -> None:
    """A list is no set; None is not iterable."""
    for operation in ("|", "&", "-", "^", "<", "<=", "|=", "-="):
        with pytest.raises(TypeError, match=r"not supported between|unsupported operand"):
            exec(f"s {operation} [1]" if "=" in operation else f"t = s {operation} [1]", {"s": OrderedSet([1])})
    with pytest.raises(TypeError, match="unhashable type: 'set'"):
        hash(OrderedSet())
    with pytest.raises(KeyError):
        OrderedSet().pop()


def test_views_agree_with_those_of_python() -> None:
    """Keys and items, against sets and lists."""
    mapping, other = {"b": 1, "a": 2}, {"a": 2, "z": 3}
    for name in ("__and__", "__or__", "__sub__", "__xor__"):
        assert set(getattr(KeysView(mapping), name)(KeysView(other))) == getattr(mapping.keys(), name)(other.keys())
        assert set(getattr(ItemsView(mapping), name)(ItemsView(other))) == getattr(mapping.items(), name)(other.items())
        assert set(getattr(KeysView(mapping), name)(["a"])) == getattr(mapping.keys(), name)(["a"])
    assert list(reversed(ItemsView(mapping))) == [("a", 2), ("b", 1)]
    assert KeysView(mapping) == {"a": 0, "b": 0}.keys() or KeysView(mapping) == OrderedSet("ab")


_SEEDED = """
import json, sys
from loopwarden_engine.language import compile_script, script_namespace
source = '''
class C:
    pass
def main(args):
    cs = [C() for _ in range(50)]
    names = [chr(97 + i) * 3 for i in range(20)]
    s = set(cs) | {main, len, None, "x", 1.5}
    index = {c: i for i, c in enumerate(cs)}
    d = dict.fromkeys(names)
    return [[index.get(c, str(c)) for c in s ^ set(cs[:7])], list(set(names) & d.keys()),
            list(frozenset(names) - {"aaa"}), str({*names}), list(d.keys() | set("zyx")), str(s),
            [x for x in {w[0] for w in names}], str({1: s}.items())]
'''
namespace = script_namespace({})
exec(compile_script(source).code, namespace)
print(json.dumps(namespace["main"](None)))
"""


def test_order_and_text_do_not_depend_on_the_hash_seed() -> None:
    """Three processes with three seeds, and three layouts of memory, say the same."""
    outputs = set()
    for seed in ("0", "1", "4242"):
        done = subprocess.run(
            [sys.executable, "-c", _SEEDED],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        )
        outputs.add(done.stdout)
    assert len(outputs) == 1
