"""What a script uses, as the worker finds it, and how the host decodes a worker's words about it."""

import copy
import json
import math
from collections.abc import Callable
from typing import Any

import pytest

from loopwarden.findings import AgentCall, EnclosingLoop, Findings, decode_findings
from loopwarden_engine.analysis import analyse
from loopwarden_engine.analysis.report import MAX_BYTES
from loopwarden_engine.language import compile_script

SOURCE = """\
from loopwarden_engine import agent as ask, phase
import loopwarden_engine

TEXT = {"type": "object"}

def main(args):
    phase("Asking")
    for name in args["names"]:
        while args:
            ask(name, label="a", schema=TEXT)
    [loopwarden_engine.agent("p", schema=None, **args) for n in range(3)]
    for reply in agent("list").split():
        parallel([lambda: agent(reply, model="m")])
    log("done")
"""


def found(source: str) -> Findings:
    compile_script(source)
    return decode_findings(json.loads(json.dumps(analyse(source))))


def test_hooks_options_schemas_and_loops_are_found() -> None:
    """By what a name means, not by how it is spelled."""
    findings = found(SOURCE)
    assert findings.hooks == {
        "agent": (10, 11, 12, 13),
        "log": (14,),
        "parallel": (13,),
        "phase": (7,),
        "pipeline": (),
    }
    first, second, third, fourth = findings.calls
    names, forever = EnclosingLoop(line=8, has_bound=True), EnclosingLoop(line=9, has_bound=False)
    assert first == AgentCall(
        line=10, column=13, positionals=1, options=("label", "schema"), has_schema=True, loops=(names, forever)
    )
    assert (second.line, second.options, second.has_schema) == (11, ("schema", "**"), False)
    assert second.loops == (EnclosingLoop(line=11, has_bound=True),)
    assert (third.options, third.loops) == ((), ())
    assert (fourth.options, fourth.loops) == (("model",), (EnclosingLoop(line=12, has_bound=False),))
    assert findings.more_calls == 0


def test_arguments_without_a_name_are_counted_unless_they_are_computed() -> None:
    calls = found("def main(args):\n    agent()\n    agent('a', 'b')\n    agent(*args)\n    agent(prompt='x')\n").calls
    assert [call.positionals for call in calls] == [0, 2, None, 0]


def test_a_byte_order_mark_is_no_part_of_the_script() -> None:
    """As when it is compiled."""
    assert found("\ufeffdef main(args):\n    agent('p')\n").bound.text == "agents <= 1"


def test_findings_of_a_script_with_very_many_calls_are_cut_and_stay_small() -> None:
    """What was left out is counted."""
    options = ", ".join(f"{'o' * 60}{index}=1" for index in range(20))
    body = "\n".join(f"    agent('p', {options})" for _ in range(2000))
    words = analyse(f"def main(args):\n{body}\n")
    assert len(json.dumps(words)) <= MAX_BYTES
    findings = decode_findings(words)
    assert len(findings.calls) + findings.more_calls == 2000
    assert findings.bound.text == "agents <= 2000"


@pytest.mark.parametrize(
    "source", ["def main(", "\ud800", "x = '\0'", "(" * 500, "def main(args):\n    " + "-" * 5000 + "1"]
)
def test_analysing_never_raises(source: str) -> None:
    """Not even for what no compiler takes."""
    assert not decode_findings(analyse(source)).bound.is_known


# ---- the host's side

GOOD = json.loads(json.dumps(analyse(SOURCE)))
BOUND = {"nodes": [["args"], ["item", 0, "n"], ["items", 1]], "reasons": []}


def test_a_bound_is_read_from_nodes() -> None:
    """The table that the cases below break."""
    words = {**GOOD, "bound": BOUND}
    assert decode_findings(words).bound.text == "agents <= len(args.n)"


def nodes(*rows: Any) -> Callable[[Any], None]:
    def change(words: Any) -> None:
        words["bound"] = {"nodes": list(rows), "reasons": []}

    return change


def put(value: Any, *path: str | int) -> Callable[[Any], None]:
    def change(words: Any) -> None:
        for step in path[:-1]:
            words = words[step]
        words[path[-1]] = value

    return change


BROKEN: dict[str, Callable[[Any], None]] = {
    "a key too many": put(1, "more"),
    "hooks are a list": put([], "hooks"),
    "a hook that is none": put([1], "hooks", "print"),
    "a line that is a truth value": put([True], "hooks", "agent"),
    "a negative line": put([-1], "hooks", "agent"),
    "too many lines": put([1] * 501, "hooks", "agent"),
    "too many calls": put([{}] * 501, "calls"),
    "a call that is a text": put("x", "calls", 0),
    "an option that is long": put(["x" * 41], "calls", 0, "options"),
    "a negative number of arguments": put(-1, "calls", 0, "positionals"),
    "a number of arguments that is a truth value": put(True, "calls", 0, "positionals"),
    "a schema that is a number": put(1, "calls", 0, "hasSchema"),
    "too many loops": put([{"line": 1, "hasBound": True}] * 21, "calls", 0, "loops"),
    "a bound with nothing": put({"nodes": [], "reasons": []}, "bound"),
    "a bound with both": put({**BOUND, "reasons": [{"line": 1, "message": "x"}]}, "bound"),
    "a reason that is long": put({"nodes": [], "reasons": [{"line": 1, "message": "x" * 301}]}, "bound"),
    "too many nodes": nodes(*[["count", 1]] * 2001),
    "too many operands": nodes(["count", 1], *[["sum", *[0] * 1999]] * 4),
    "an empty node": nodes([]),
    "an unknown operation": nodes(["power", 0, 0]),
    "an operation that is a list": nodes([["count"], 1]),
    "a node that names itself": nodes(["sum", 0]),
    "a node that names a later one": nodes(["sum", 1], ["count", 1]),
    "a place that is negative": nodes(["count", 1], ["sum", -1]),
    "a place that is a truth value": nodes(["count", 1], ["count", 1], ["sum", True]),
    "a value where a count is needed": nodes(["args"], ["sum", 0]),
    "a count where a value is needed": nodes(["count", 1], ["items", 0]),
    "a sum of nothing": nodes(["sum"]),
    "an operand too many": nodes(["args"], ["items", 0, 0]),
    "a bound that is a value": nodes(["args"]),
    "a negative count": nodes(["count", -1]),
    "a count that is a fraction": nodes(["count", 1.5]),
    "digits that are none": nodes(["count", "1e9"]),
    "digits of another script": nodes(["count", "١"]),
    "very many digits": nodes(["count", "9" * 402]),
    "a key that is long": nodes(["args"], ["item", 0, "k" * 201], ["items", 1]),
    "a key that is a list": nodes(["args"], ["item", 0, []], ["items", 1]),
    "a literal that is endless": nodes(["literal", math.inf], ["items", 0]),
    "a literal that is no number": nodes(["literal", math.nan], ["items", 0]),
    "a literal that is an object": nodes(["literal", {}], ["items", 0]),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_word_of_a_worker_is_refused(case: str) -> None:
    """A worker that a script has taken over says what it likes."""
    words = copy.deepcopy(GOOD)
    decode_findings(words)
    BROKEN[case](words)
    with pytest.raises(ValueError, match=r"."):
        decode_findings(words)


@pytest.mark.parametrize("operation", ["product", "multiply", "sum", "add"])
def test_a_table_that_doubles_with_every_row_costs_nothing(operation: str) -> None:
    """Two thousand squarings describe a number that no machine can hold, and a text that is longer still."""
    is_count = operation in ("product", "sum")
    start: list[Any] = [["args"], ["item", 0, "n"]]
    if is_count:
        start = [["args"], ["items", 0]]
    rows = start + [[operation, place, place] for place in range(1, 1990)]
    if not is_count:
        rows += [["literal", 0], ["literal", 1], ["range", len(rows), len(rows) - 1, len(rows) + 1]]
    words = copy.deepcopy(GOOD)
    nodes(*rows)(words)
    bound = decode_findings(words).bound
    assert len(bound.text) < 1000
    number = bound.evaluate({"n": 3, "m": 2})
    assert number is None or number.bit_length() < 10_000


def test_a_product_of_very_many_long_constants_costs_nothing() -> None:
    """Its text gives up, its number is not said."""
    words = copy.deepcopy(GOOD)
    nodes(["count", "9" * 400], *[["product", *[place] * 1990] for place in range(3)])(words)
    bound = decode_findings(words).bound
    assert bound.text == "agents <= …"
    assert bound.evaluate({}) is None


def test_a_number_that_is_not_finite_counts_nothing() -> None:
    """int() raises for it, in the script too."""
    words = copy.deepcopy(GOOD)
    nodes(["args"], ["item", 0, "n"], ["int", 1], ["literal", 0], ["literal", 1], ["range", 3, 2, 4])(words)
    bound = decode_findings(words).bound
    assert [bound.evaluate({"n": n}) for n in (math.inf, math.nan, 2.9)] == [0, 0, 2]
