"""Ralph's two gates, written apart in two trust domains, agree on every report (design section 10)."""

import itertools
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from loopwarden.contract import AgentOutcome, ContractBroken, Delivery, Facts, ProvenanceBroken
from loopwarden.visible import INVISIBLE_RANGES, REFUSED_RANGES, SPACE_RANGES
from loopwarden_engine.language import compile_script, script_namespace
from loopwarden_engine.plain import JsonObject, JsonValue, PlainDataError, canonical_bytes, copy_plain
from loopwarden_scripts import ralph
from loopwarden_scripts.ralph.report import REPORT_KEYS, ReportBroken, decode_report

MAX_HANDOFF_CHARS = 200
CONTRACT = ralph.RalphContract(ralph.RalphSettings(max_handoff_chars=MAX_HANDOFF_CHARS))
COMPILED = compile_script(ralph.script.source)

EDGES = sorted(
    {
        chr(code)
        for first, last in INVISIBLE_RANGES + SPACE_RANGES + REFUSED_RANGES
        for code in (max(first - 1, 0), first, last, last + 1)
    }
)
CHARACTERS = st.sampled_from(EDGES) | st.characters() | st.sampled_from('ab"\\\n\t ')
TEXTS = st.just("done") | st.text(CHARACTERS, max_size=6) | st.integers(30, 160).map(lambda count: "é" * count)
LISTS = st.lists(TEXTS, max_size=3)
JUNK: st.SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(REPORT_KEYS), inner, max_size=2),
    max_leaves=4,
)


@st.composite
def honest_reports(draw: st.DrawFn) -> JsonObject:
    """Reports that break no rule but by their texts."""
    status = draw(st.sampled_from(["continue", "complete", "blocked"]))
    return {
        "status": status,
        "summary": draw(TEXTS),
        "evidence": list(draw(st.lists(TEXTS, min_size=1 if status == "complete" else 0, max_size=2))),
        "nextSteps": [] if status == "complete" else list(draw(st.lists(TEXTS, min_size=1, max_size=2))),
        "blocker": draw(TEXTS) if status == "blocked" else "",
    }


@st.composite
def mutated_reports(draw: st.DrawFn) -> JsonValue:
    """Honest reports with one part replaced, added or taken away."""
    report = draw(honest_reports())
    match draw(st.sampled_from(["value", "list", "extra", "missing", "whole"])):
        case "value":
            report[draw(st.sampled_from(REPORT_KEYS))] = draw(JUNK)
        case "list":
            report[draw(st.sampled_from(["evidence", "nextSteps"]))] = list(draw(LISTS | st.lists(JUNK, max_size=3)))
        case "extra":
            report[draw(TEXTS)] = draw(JUNK)
        case "missing":
            del report[draw(st.sampled_from(REPORT_KEYS))]
        case _:
            return draw(JUNK)
    return report


def run_script(replies: list[JsonValue]) -> tuple[Any, Facts]:
    """Execute loop.py with agents that return `replies`; the facts hold what a host would have counted."""
    facts = Facts()

    def agent(prompt: str, **options: Any) -> JsonValue:
        reply = replies[facts.agents_started]
        facts.agents_started += 1
        outcome = AgentOutcome.FAILED if reply is None else AgentOutcome.COMPLETED
        facts.deliveries.append(Delivery(seq=facts.agents_started, outcome=outcome, value=reply))
        return copy_plain(reply)

    hooks = dict.fromkeys(("agent", "log", "parallel", "phase", "pipeline"), agent) | {"phase": lambda title: None}
    namespace: dict[str, Any] = script_namespace(hooks)
    exec(COMPILED.code, namespace)
    args = ralph.Args(objective="x", max_rounds=len(replies))
    return namespace["main"](CONTRACT.script_args(args, None)), facts


def script_accepts(report: JsonValue) -> bool:
    try:
        result, _ = run_script([report])
    except ValueError:
        return False
    return bool(result["status"] != "round-failed")


def host_accepts(report: JsonValue) -> bool:
    try:
        decode_report(report, max_chars=MAX_HANDOFF_CHARS)
    except ReportBroken:
        return False
    return True


def is_plain(value: JsonValue) -> bool:
    try:
        copy_plain(value)
    except PlainDataError:
        return False
    return True


@given(honest_reports() | mutated_reports())
@settings(max_examples=600, deadline=None)
@example({"status": "complete", "summary": "a", "evidence": ["b"], "nextSteps": [], "blocker": ""})
@example({"status": "blocked", "summary": "a", "evidence": [], "nextSteps": [], "blocker": "\ufeff"})
def test_script_and_host_agree_on_every_report(report: JsonValue) -> None:
    if is_plain(report):
        assert script_accepts(report) == host_accepts(report)


@given(
    st.integers(0, 0x10FFFF).filter(lambda code: not 0xD800 <= code <= 0xDFFF),
    st.sampled_from(["{}", "x{}y", "{}x", "x{}"]),
)
@settings(max_examples=400, deadline=None)
def test_script_and_host_agree_on_every_character(code: int, place: str) -> None:
    report: JsonObject = {
        "status": "blocked",
        "summary": place.format(chr(code)),
        "evidence": [],
        "nextSteps": [],
        "blocker": place.format(chr(code)),
    }
    assert script_accepts(report) == host_accepts(report)


def test_script_and_host_agree_on_every_character_at_a_border() -> None:
    for character, place in itertools.product(EDGES, ["{}", "x{}y", "{}x", "x{}"]):
        report: JsonObject = {
            "status": "continue",
            "summary": "x",
            "evidence": [],
            "nextSteps": [place.format(character)],
            "blocker": "",
        }
        assert script_accepts(report) == host_accepts(report), ascii(character)


@given(st.lists(honest_reports() | st.none(), min_size=1, max_size=4))
@settings(max_examples=200, deadline=None)
def test_what_the_script_returns_is_believed_by_the_host(replies: list[JsonValue]) -> None:
    try:
        value, facts = run_script([reply if reply is None or is_plain(reply) else None for reply in replies])
    except ValueError:
        return
    args = ralph.Args(objective="x", max_rounds=len(replies))
    result = CONTRACT.decode_result(args, value, facts)
    assert canonical_bytes(result.to_json()) == canonical_bytes(value)


@given(st.lists(honest_reports(), min_size=1, max_size=3), mutated_reports())
@settings(max_examples=200, deadline=None)
def test_a_changed_report_in_an_honest_result_is_never_believed(replies: list[JsonValue], forged: JsonValue) -> None:
    if not all(is_plain(value) for value in (*replies, forged)):
        return
    try:
        value, facts = run_script(replies)
    except ValueError:
        return
    if canonical_bytes(value["report"]) == canonical_bytes(forged):
        return
    args = ralph.Args(objective="x", max_rounds=len(replies))
    with pytest.raises((ContractBroken, ProvenanceBroken)):
        CONTRACT.decode_result(args, {**value, "report": forged}, facts)
