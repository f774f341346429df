"""Which of the two failures a false result is, and what an honest one says in words."""

from typing import Any

import pytest

from loopwarden.contract import AgentOutcome, ContractBroken, Delivery, Facts, ProvenanceBroken, Standing
from loopwarden_engine.plain import JsonObject, JsonValue
from loopwarden_scripts import ralph
from loopwarden_scripts.ralph.report import ReportBroken, decode_report

CONTRACT = ralph.RalphContract(ralph.RalphSettings())
ARGS = ralph.Args(objective="x", max_rounds=2)
CONTINUE: JsonObject = {"status": "continue", "summary": "a", "evidence": [], "nextSteps": ["b"], "blocker": ""}
COMPLETE: JsonObject = {"status": "complete", "summary": "a", "evidence": ["c"], "nextSteps": [], "blocker": ""}
BLOCKED: JsonObject = {"status": "blocked", "summary": "a", "evidence": [], "nextSteps": [], "blocker": "d"}


def facts_of(*values: JsonValue) -> Facts:
    deliveries = [
        Delivery(seq=seq, outcome=AgentOutcome.FAILED if value is None else AgentOutcome.COMPLETED, value=value)
        for seq, value in enumerate(values, 1)
    ]
    return Facts(deliveries=deliveries, agents_started=len(deliveries))


def ended(status: str, rounds: int, report: JsonValue) -> JsonObject:
    key = "lastReport" if status == "round-failed" else "report"
    return {"status": status, "roundsStarted": rounds, key: report}


@pytest.mark.parametrize(
    ("value", "values", "message"),
    [
        (ended("complete", 2, COMPLETE), (COMPLETE,), "claims 2 rounds, but the host started 1 agents"),
        (ended("complete", 1, {**COMPLETE, "evidence": []}), (COMPLETE,), "says complete and gives no evidence"),
        (ended("round-failed", 1, None), (COMPLETE,), "says that round 1 failed, but its agent completed"),
        (ended("complete", 2, COMPLETE), (BLOCKED, COMPLETE), "round 1 gave no continue report, but another round"),
        (ended("budget-limited", 1, CONTINUE), (CONTINUE,), "says budget-limited after 1 of 2 rounds"),
    ],
)
def test_false_shape_meaning_or_count_breaks_the_contract(
    value: JsonObject, values: tuple[JsonValue, ...], message: str
) -> None:
    with pytest.raises(ContractBroken, match=message):
        CONTRACT.decode_result(ARGS, value, facts_of(*values))


@pytest.mark.parametrize(
    ("value", "values"),
    [
        (ended("complete", 1, {**COMPLETE, "summary": "other"}), (COMPLETE,)),
        (ended("complete", 2, COMPLETE), (CONTINUE, {**COMPLETE, "summary": "other"})),
        (ended("complete", 1, COMPLETE), (None,)),
        (ended("budget-limited", 2, CONTINUE), (CONTINUE, {**CONTINUE, "summary": "newer"})),
        (ended("round-failed", 2, {**CONTINUE, "summary": "other"}), (CONTINUE, None)),
    ],
)
def test_a_report_that_no_agent_gave_in_its_place_breaks_provenance(
    value: JsonObject, values: tuple[JsonValue, ...]
) -> None:
    with pytest.raises(ProvenanceBroken):
        CONTRACT.decode_result(ARGS, value, facts_of(*values))


def test_a_result_while_an_agent_is_at_work_breaks_the_contract() -> None:
    facts = facts_of(CONTINUE)
    facts.agents_started = 2
    with pytest.raises(ContractBroken, match="while an agent was still at work"):
        CONTRACT.decode_result(ARGS, ended("budget-limited", 2, CONTINUE), facts)


@pytest.mark.parametrize(
    ("value", "values", "standing", "sentence"),
    [
        (
            ended("complete", 1, COMPLETE),
            (COMPLETE,),
            Standing.COMPLETE,
            "agent reported completion after 1 round",
        ),
        (
            ended("complete", 2, COMPLETE),
            (CONTINUE, COMPLETE),
            Standing.COMPLETE,
            "agent reported completion after 2 rounds",
        ),
        (ended("blocked", 1, BLOCKED), (BLOCKED,), Standing.BLOCKED, "agent reported a blocker after 1 round"),
        (
            ended("budget-limited", 2, CONTINUE),
            (CONTINUE, CONTINUE),
            Standing.ROUNDS_USED,
            "the limit of 2 rounds is used up; the agent reported work remaining",
        ),
        (ended("round-failed", 1, None), (None,), Standing.ROUND_FAILED, "round 1 failed before it gave a report"),
        (
            ended("round-failed", 2, CONTINUE),
            (CONTINUE, None),
            Standing.ROUND_FAILED,
            "round 2 failed before it gave a report",
        ),
    ],
)
def test_a_conclusion_says_what_the_agent_claimed_and_no_more(
    value: JsonObject, values: tuple[JsonValue, ...], standing: Standing, sentence: str
) -> None:
    result = CONTRACT.decode_result(ARGS, value, facts_of(*values))
    conclusion = CONTRACT.conclusion(ARGS, result)
    assert (conclusion.standing, conclusion.sentence) == (standing, sentence)


def test_a_result_is_typed_data() -> None:
    result = CONTRACT.decode_result(ARGS, ended("complete", 1, COMPLETE), facts_of(COMPLETE))
    report = ralph.Report(status="complete", summary="a", evidence=("c",), next_steps=(), blocker="")
    assert result == ralph.Reported(status="complete", rounds_started=1, report=report)
    failed = CONTRACT.decode_result(ARGS, ended("round-failed", 1, None), facts_of(None))
    assert failed == ralph.RoundFailed(status="round-failed", rounds_started=1, last_report=None)


def test_the_structured_value_is_never_cut() -> None:
    contract = ralph.RalphContract(ralph.RalphSettings(max_result_chars=1))
    long: JsonObject = {**COMPLETE, "summary": "x" * 10_000}
    result = contract.decode_result(ARGS, ended("complete", 1, long), facts_of(long))
    assert result.to_json() == ended("complete", 1, long)
    assert contract.parent_text(result) == "\n"


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb"])
def test_a_lone_surrogate_is_no_text(text: str) -> None:
    with pytest.raises(ReportBroken):
        decode_report({**COMPLETE, "summary": text}, max_chars=100)


def test_a_report_made_of_other_types_than_plain_data_is_refused() -> None:
    class Text(str):
        __slots__ = ()

    odd: list[Any] = [{**COMPLETE, "summary": Text("x")}, {**COMPLETE, "evidence": ("x",)}]
    for value in odd:
        with pytest.raises(ReportBroken):
            decode_report(value, max_chars=100)
