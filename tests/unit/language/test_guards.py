"""What holds at run time: attributes, writes, exceptions, classes. A test for each pitfall of RestrictedPython 9.0."""

from typing import Any

import pytest


def test_a_missing_attribute_raises_instead_of_giving_none(fault_of: Any) -> None:
    """RestrictedPython's safer_getattr gives None."""
    assert fault_of('return "x".nope').type_name == "AttributeError"
    assert fault_of("class A:\n    pass\nreturn A().nope").type_name == "AttributeError"


@pytest.mark.parametrize("name", ["obj", "name", "with_traceback", "add_note", "__traceback__", "__context__", "path"])
def test_an_exception_hands_out_no_live_object(name: str, fault_of: Any) -> None:
    """AttributeError.obj and its like."""
    body = f'try:\n    "x".nope\nexcept AttributeError as e:\n    return getattr(e, "{name}")'
    assert fault_of(body).type_name == "AttributeError"


def test_an_exception_class_of_the_script_still_hides_what_its_base_holds(value_of: Any) -> None:
    """The instance's own attributes are the script's; those of AttributeError are not."""
    before = "class E(AttributeError):\n    level = 3\n    def __init__(self, code):\n        self.code = code\n"
    body = 'try:\n    raise E(7)\nexcept E as e:\n    return [e.code, e.level, list(e.args), hasattr(e, "obj")]'
    assert value_of(body, before) == [7, 3, [7], False]


@pytest.mark.parametrize(
    "statement",
    [
        "agent.x = 1",
        "json.dumps = len",
        "del json.loads",
        "json.x = 1",
        "str.x = 1",
        "ValueError.x = 1",
        "(1, 2)[0] = 1",
        '"abc"[0] = "x"',
        "main.x = 1",
        "(x for x in [1]).x = 1",
        "ValueError().x = 1",
        "{1}.x = 1",
        "math.pi += 1",
        "args.keys()[0] = 1",
        'agent["x"] = 1',
        'agent["x"] += 1',
        "for agent.x in [1]: pass",
        "[json.x, y] = 1, 2",
    ],
)
def test_a_script_writes_to_lists_dicts_and_its_own_classes_only(statement: str, fault_of: Any) -> None:
    """An identity write guard would let a script replace hooks and members of facades."""
    fault = fault_of(statement, "import json, math")
    assert fault.type_name in ("TypeError", "AttributeError")


def test_attribute_names_that_are_data_follow_the_static_rule(value_of: Any) -> None:
    """Underscores, text formatting, frames: the same list, and a default as Python gives it."""
    body = "names = ['__class__', 'format', 'format_map', 'gi_frame', 'mro', 'tb_next', 'x__roles__', '_x']\n"
    assert value_of(body + "return [hasattr('', n) or hasattr(main, n) for n in names]") == [False] * 8
    assert value_of("return getattr('', '__class__', 5)") == 5


@pytest.mark.parametrize("call", ['getattr("", 5)', 'getattr("", b"upper")', 'getattr("", "upper", 1, len)',
                                  'getattr("", "upper", default=1)', 'getattr("", name="upper")'])  # fmt: skip
def test_getattr_takes_a_string_and_nothing_more(call: str, fault_of: Any) -> None:
    """A further parameter once replaced the inner getattr."""
    assert fault_of(f"return {call}").type_name == "TypeError"


def test_functions_modules_and_unknown_objects_have_no_attributes(value_of: Any) -> None:
    """Reading is default deny by type, too."""
    body = (
        "names = ['f_globals', 'loader', 'name', 'obj', 'real', 'func_globals', 'send', 'decoder']\n"
        "things = [main, agent, len, ''.upper, json, json.dumps, map(str, []), iter([]), slice(1), None, str, int]\n"
        "things.append(ValueError)\n"
        "return [n for t in things for n in names if hasattr(t, n)]"
    )
    assert value_of(body, "import json") == ["real"]  # int.real, a descriptor without attributes


@pytest.mark.parametrize("base", ["S", "list[int]", "B(1)", "json", "5"])
def test_a_computed_base_is_checked_when_the_class_is_made(base: str, fault_of: Any) -> None:
    """The static check sees names only."""
    fault = fault_of(f"S = [str, list][1]\ndef B(x):\n    return dict\nclass A({base}):\n    pass", "import json")
    assert fault.type_name == "TypeError"


def test_class_instances_and_their_comparisons_work_as_in_python(value_of: Any) -> None:
    """__eq__ without __hash__ makes instances unhashable; without __eq__ they are keys."""
    before = "class A:\n    pass\nclass B:\n    def __eq__(self, o):\n        return True\n"
    body = (
        "a = A()\nout = [{a: 1}[a], B() == 5]\n"
        "try:\n    {B(): 1}\nexcept TypeError as e:\n    out.append(str(e))\nreturn out"
    )
    assert value_of(body, before) == [1, True, "unhashable type: 'B'"]


def test_a_codec_error_of_the_script_has_the_text_of_python(value_of: Any) -> None:
    """Whatever the script writes into its fields."""
    before = "class F(UnicodeDecodeError):\n    pass\n"
    body = "e = F('a', b'x', 0, 1, 'r')\nout = [str(e)]\ne.reason = [main]\nreturn out + [str(e), f'{e}']"
    expected = "'a' codec can't decode byte 0x78 in position 0: "
    assert value_of(body, before) == [expected + "r", expected + "[<function main>]", expected + "[<function main>]"]


def test_a_bare_except_lets_through_what_ends_a_worker(run: Any) -> None:
    """GreenletExit and the like are no Exceptions; the handler is narrowed."""
    source = "def main(args):\n    try:\n        args()\n    except:\n        return 'swallowed'\n    return 'no'\n"

    class Ending(BaseException):
        pass

    def end() -> None:
        raise Ending("over")

    assert run(source, end).fault.type_name == "Ending"

    def fail() -> None:
        raise ValueError("x")

    assert run(source, fail).value == "swallowed"


def test_the_names_of_base_exceptions_cannot_catch_what_ends_a_worker(run: Any, refusals_of: Any) -> None:
    """BaseException means Exception in a script; the others have no name."""
    source = "def main(args):\n    try:\n        args()\n    except BaseException:\n        return 'swallowed'\n"

    def end() -> None:
        raise SystemExit(3)

    assert run(source, end).fault.type_name == "SystemExit"
    for name in ("SystemExit", "KeyboardInterrupt", "GeneratorExit", "ExceptionGroup", "BaseExceptionGroup"):
        assert refusals_of(f"def main(args):\n    raise {name}\n") == [(2, "builtin")]
    assert refusals_of("class A(BaseException):\n    pass\ndef main(args):\n    pass\n") == [(1, "class")]


def test_augmented_assignment_reads_once_before_the_right_side_and_writes_last(value_of: Any) -> None:
    """As Python does it, with guards in between."""
    before = "log = []\nclass Box:\n    n = 1\n"
    body = (
        "def box():\n    log.append('box')\n    return b\n"
        "def one():\n    log.append('one')\n    b.n = 50\n    return 1\n"
        "b = Box()\nbox().n += one()\n"
        "d = {'k': [1]}\nl = d['k']\nd['k'] += (2,)\n"
        "return [b.n, log, l, d['k'] is l]"
    )
    assert value_of(body, before) == [2, ["box", "one"], [1, 2], True]


def test_json_and_textwrap_refuse_hooks_and_live_objects(fault_of: Any) -> None:
    """Callbacks and objects with methods of their own stay out of library code."""
    for call in ("json.loads('1', cls=len)", "json.loads(b'1')", "json.dumps(1, default=str)", "json.dumps(1, cls=len)",
                 "textwrap.wrap(T())", "textwrap.wrap('x', placeholder=T())", "textwrap.dedent(5)"):  # fmt: skip
        assert fault_of(f"return {call}", "import json, textwrap\nclass T:\n    pass").type_name == "TypeError"


def test_regular_expressions_work_from_a_script_frame(value_of: Any) -> None:
    """C code of `re` imports its template parser through the caller's builtins, which in a script hold no import."""
    body = 'p = re.compile("(a)")\nreturn [p.sub(r"<\\1>", "a"), p.subn("b", "aa")[1], p.match("a").expand(r"\\1\\1")]'
    assert value_of(body, "import re") == ["<a>", 2, "aa"]


def test_each_namespace_is_fresh() -> None:
    """Nothing of one execution is left in the next."""
    from loopwarden_engine.language import script_namespace

    one, two = script_namespace({}), script_namespace({})
    assert one["__builtins__"] is not two["__builtins__"]
    builtins: Any = one["__builtins__"]
    forbidden = (
        "open eval exec compile __import__ type object super globals locals vars dir id hash print input memoryview "
        "setattr delattr property staticmethod classmethod help exit quit breakpoint SystemExit KeyboardInterrupt"
    )
    assert not set(forbidden.split()) & set(builtins)
