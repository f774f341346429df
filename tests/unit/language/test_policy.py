"""The static check: default deny, every violation at once, with its line and a hint."""

import ast
import warnings
from typing import Any

import pytest

from loopwarden_engine.language import ScriptRejected, compile_script
from loopwarden_engine.language.grammar import ALLOWED_NODES, LEAF_NODES, REFUSED_NODES
from loopwarden_engine.language.survey import MAX_SOURCE_DEPTH
from loopwarden_engine.language.transformer import PolicyTransformer

MAIN = "def main(args):\n    return 1\n"


def _kinds_of_nodes() -> list[type[ast.AST]]:
    def below(kind: type[ast.AST]) -> list[type[ast.AST]]:
        return [kind] + [found for child in kind.__subclasses__() for found in below(child)]

    # The deprecated names of constants are classes of their own and make no nodes.
    old = {
        "Num",
        "Str",
        "Bytes",
        "NameConstant",
        "Ellipsis",
        "Index",
        "ExtSlice",
        "Suite",
        "AugLoad",
        "AugStore",
        "Param",
    }
    return [kind for kind in below(ast.AST) if kind.__module__ == "ast" and kind.__name__ not in old]


def test_every_statement_expression_and_pattern_of_this_python_is_allowed_with_a_reason_or_refused() -> None:
    """Nothing falls between: what is not in the table is refused even if RestrictedPython knows it."""
    for kind in _kinds_of_nodes():
        if not issubclass(kind, ast.stmt | ast.expr | ast.pattern) or kind in (ast.stmt, ast.expr, ast.pattern):
            continue
        if kind in ALLOWED_NODES:
            assert ALLOWED_NODES[kind]
            continue
        transformer = PolicyTransformer(frozenset())
        transformer.visit(kind.__new__(kind))
        assert [violation.rule for violation in transformer.violations] == [kind.__name__]
        assert transformer.violations[0].hint


def test_a_node_of_a_later_python_is_refused() -> None:
    """A grammar that we have not read is not trusted."""

    class Teleport(ast.stmt):
        _fields = ("value",)

    transformer = PolicyTransformer(frozenset())
    transformer.visit(ast.Module(body=[Teleport(lineno=7, col_offset=0)], type_ignores=[]))
    assert [(violation.line, violation.rule) for violation in transformer.violations] == [(7, "Teleport")]


def test_every_allowed_node_has_a_visitor() -> None:
    """A node in the table without a visitor would be refused by RestrictedPython's default: one of the two is wrong."""
    for kind in ALLOWED_NODES:
        assert hasattr(PolicyTransformer, "visit_" + kind.__name__), kind


def test_leaf_nodes_carry_nothing() -> None:
    """They are passed unseen."""
    assert all(kind._fields == () for kind in LEAF_NODES)


def test_refused_nodes_are_not_allowed_ones() -> None:
    """A hint for what is allowed could never be shown."""
    assert not {kind.__name__ for kind in ALLOWED_NODES} & set(REFUSED_NODES)


def test_all_violations_come_at_once_in_source_order(refusals_of: Any) -> None:
    """The author corrects them in one go; the missing main counts as one."""
    source = (
        "import os\nwith open('x') as _f:\n    print(_f.__class__)\n"
        "class A(list):\n    def __del__(self):\n        pass\n"
    )
    assert refusals_of(source) == [
        (1, "main"),
        (1, "import"),
        (2, "With"),
        (2, "builtin"),
        (2, "name"),
        (3, "name"),
        (3, "attribute"),
        (3, "name"),
        (4, "class"),
        (5, "special-method"),
    ]


def test_a_violation_names_line_column_rule_message_and_hint() -> None:
    """Everything a person needs to correct it."""
    with pytest.raises(ScriptRejected) as caught:
        compile_script(MAIN + "x = 1 + print")
    (violation,) = caught.value.violations
    assert (violation.line, violation.column, violation.rule) == (3, 9, "name")
    assert str(violation) == "line 3: the name 'print' is not allowed (use log() to tell observers something)"
    assert "line 3" in str(caught.value)


def test_the_number_of_violations_is_bounded() -> None:
    """A hostile source cannot make the refusal large."""
    with pytest.raises(ScriptRejected) as caught:
        compile_script(MAIN + "_x = 1\n" * 5_000)
    assert len(caught.value.violations) == 200


def test_a_long_name_is_cut_in_the_message() -> None:
    """The name is the author's, the message is ours."""
    with pytest.raises(ScriptRejected) as caught:
        compile_script(MAIN + "_" + "x" * 10_000 + " = 1")
    assert len(caught.value.violations[0].message) == 200


@pytest.mark.parametrize(
    "source",
    [
        pytest.param("def main(args):\n    return '\0'", id="null byte"),
        pytest.param("def main(args):\n    return '\ud800'", id="lone surrogate"),
        pytest.param("x = " + "not " * 50_000 + "1\n" + MAIN, id="long chain of not"),
        pytest.param("x = " + "(" * 50_000 + ")" * 50_000 + "\n" + MAIN, id="parentheses"),
        pytest.param("x = a" + ".a" * 50_000 + "\n" + MAIN, id="attributes"),
        pytest.param("x = " + "+".join(["1"] * 50_000) + "\n" + MAIN, id="sums"),
        pytest.param("x = " + "[" * 150 + "]" * 150 + "\n" + "if 1:\n    y = 2\n" + "  3", id="bad indentation"),
        pytest.param("x = " + "lambda: " * 500 + "1\n" + MAIN, id="lambdas"),
        pytest.param("x = 1" + "0" * 10_000 + "\n" + MAIN, id="number with too many digits"),
        pytest.param("def main(args):\n    nonlocal x\n", id="nonlocal without a variable"),
        pytest.param("break\n" + MAIN, id="break outside a loop"),
        pytest.param("def f(a, a): pass\n" + MAIN, id="parameter twice"),
        pytest.param("x = f'{'\n" + MAIN, id="unfinished f-string"),
        pytest.param("# coding: utf-7\n+AAo-\n", id="an encoding cookie changes nothing"),
        pytest.param("", id="empty"),
    ],
)
def test_whatever_the_parser_or_compiler_says_becomes_one_refusal(source: str) -> None:
    """Never another exception."""
    with pytest.raises(ScriptRejected) as caught:
        compile_script(source)
    (violation,) = caught.value.violations
    assert violation.line >= 1
    assert violation.hint


def test_a_tree_just_below_the_limit_compiles_within_the_ordinary_stack() -> None:
    """The depth limit is what keeps the transformer and CPython's compiler from overflowing."""
    terms = MAX_SOURCE_DEPTH - 10
    assert compile_script(f"x = {' + '.join(['1'] * terms)}\n" + MAIN).code
    assert compile_script("x = a" + ".b" * terms + "\n" + MAIN).code
    assert compile_script("x = " + "f(" * 90 + ")" * 90 + "\n" + MAIN).code


def test_a_tree_beyond_the_limit_is_refused_at_its_line(refusals_of: Any) -> None:
    """With a line, unlike what the parser itself cannot hold."""
    assert refusals_of(MAIN + "\nx = " + " + ".join(["1"] * (MAX_SOURCE_DEPTH + 10))) == [(4, "too-deep")]


def test_a_syntax_warning_of_the_parser_stays_silent() -> None:
    """The test suite turns warnings into errors; a worker must not show one either."""
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        assert compile_script('def main(args):\n    return "\\d"\n').code
    assert shown == []


def test_the_summary_is_the_first_line_of_the_docstring() -> None:
    """It says what a loop does, at a glance."""
    assert compile_script('"""First line.\n\nMore."""\n' + MAIN).summary == "First line."
    assert compile_script(MAIN).summary == ""


def test_the_hint_for_an_import_names_what_can_be_imported() -> None:
    """The author should not have to search."""
    with pytest.raises(ScriptRejected, match="json, math, re, textwrap, loopwarden_engine"):
        compile_script("import datetime\n" + MAIN)


def test_a_name_is_checked_after_the_parser_has_normalized_it(refusals_of: Any) -> None:
    """Full-width letters become the plain ones."""
    assert refusals_of("x = main.\uff4dro\n" + MAIN) == [(1, "attribute")]
    assert refusals_of("x = 1\nx.\uff47i_frame = 1\n" + MAIN) == [(2, "attribute")]
    assert refusals_of("\uff50rint = 1\n" + MAIN) == [(1, "name")]
