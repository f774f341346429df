"""What the contract lets a worker call: checked before the charge, by what the host itself counted and delivered."""

from dataclasses import replace
from typing import Any

import pytest

from loopwarden.contract import AgentOutcome, CallFacts, ContractBroken, Delivery, Facts, Opening
from loopwarden.failures import ArgsInvalid
from loopwarden_engine.plain import JsonObject, JsonValue
from loopwarden_scripts import ralph
from loopwarden_scripts.ralph.report import REPORT_SCHEMA, decode_report, handoff_text

CONTRACT = ralph.RalphContract(ralph.RalphSettings())
ARGS = ralph.Args(objective="make it work", max_rounds=5)
CONTINUE: JsonObject = {
    "status": "continue",
    "summary": "did a thing",
    "evidence": [],
    "nextSteps": ["go on"],
    "blocker": "",
}
COMPLETE: JsonObject = {"status": "complete", "summary": "x", "evidence": ["y"], "nextSteps": [], "blocker": ""}
BLOCKED: JsonObject = {"status": "blocked", "summary": "x", "evidence": [], "nextSteps": [], "blocker": "a key"}


def text_of(report: JsonObject) -> str:
    return handoff_text(decode_report(report, max_chars=1_000))


def call(number: int, *held: str, **changes: Any) -> CallFacts:
    """An honest call of round `number` whose prompt holds the objective and `held`."""
    honest = CallFacts(
        seq=number,
        prompt="\n".join(["Do this:", ARGS.objective, *held, "Report."]),
        label=f"Ralph round {number}",
        phase="Fresh-agent rounds",
        schema=REPORT_SCHEMA,
        provider=None,
        model=None,
    )
    return replace(honest, **changes)


def after(*values: JsonValue, opening: Opening | None = None) -> Facts:
    """Facts after one round for each value; None stands for a failed agent."""
    facts = Facts(opening=opening)
    for seq, value in enumerate(values, 1):
        facts.calls.append(call(seq))
        outcome = AgentOutcome.FAILED if value is None else AgentOutcome.COMPLETED
        facts.deliveries.append(Delivery(seq=seq, outcome=outcome, value=value))
        facts.agents_started = seq
    return facts


def test_an_honest_first_call_passes() -> None:
    CONTRACT.check_call(ARGS, call(1), after())


def test_an_honest_second_call_passes() -> None:
    CONTRACT.check_call(ARGS, call(2, text_of(CONTINUE)), after(CONTINUE))


def test_a_schema_with_another_order_of_keys_is_the_same_schema() -> None:
    CONTRACT.check_call(ARGS, call(1, schema=dict(reversed(REPORT_SCHEMA.items()))), after())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"label": None}, "call 1 does not have the label Ralph round 1"),
        ({"label": "Ralph round 2"}, "call 1 does not have the label Ralph round 1"),
        ({"label": "ralph round 1"}, "call 1 does not have the label Ralph round 1"),
        ({"phase": None}, "call 1 is not in the phase Fresh-agent rounds"),
        ({"phase": "fresh-agent rounds"}, "call 1 is not in the phase Fresh-agent rounds"),
        ({"schema": None}, "call 1 does not ask for the report that Ralph's schema describes"),
        ({"schema": {"type": "object"}}, "call 1 does not ask for the report that Ralph's schema describes"),
        ({"schema": {**REPORT_SCHEMA, "additionalProperties": True}}, "call 1 does not ask for the report"),
        ({"schema": {**REPORT_SCHEMA, "additionalProperties": 0}}, "call 1 does not ask for the report"),
        ({"schema": {**REPORT_SCHEMA, "title": "x"}}, "call 1 does not ask for the report"),
        ({"provider": "other"}, "call 1 chooses a provider or a model"),
        ({"model": "other"}, "call 1 chooses a provider or a model"),
        ({"prompt": ""}, "the prompt of call 1 does not hold the objective word for word"),
        ({"prompt": "make it  work"}, "the prompt of call 1 does not hold the objective word for word"),
        ({"prompt": "Make it work"}, "the prompt of call 1 does not hold the objective word for word"),
    ],
)
def test_a_call_that_differs_from_the_loop_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ContractBroken, match=message):
        CONTRACT.check_call(ARGS, call(1, **changes), after())


@pytest.mark.parametrize(
    "held",
    [
        "",
        text_of({**CONTINUE, "summary": "did another thing"}),
        text_of(CONTINUE).replace("did", "Did"),
        text_of(CONTINUE)[:-1],
        text_of(COMPLETE),
    ],
)
def test_a_prompt_without_the_last_handoff_word_for_word_is_refused(held: str) -> None:
    with pytest.raises(ContractBroken, match="the prompt of call 2 does not hold the last handoff as it was delivered"):
        CONTRACT.check_call(ARGS, call(2, held), after(CONTINUE))


def test_a_prompt_with_an_older_handoff_is_refused() -> None:
    newer: JsonObject = {**CONTINUE, "summary": "newer"}
    with pytest.raises(ContractBroken, match="the prompt of call 3 does not hold the last handoff"):
        CONTRACT.check_call(ARGS, call(3, text_of(CONTINUE)), after(CONTINUE, newer))


def test_a_call_while_an_agent_is_at_work_is_refused() -> None:
    facts = after(CONTINUE)
    facts.calls.append(call(2))
    with pytest.raises(ContractBroken, match="call 3 was made while the agent of an earlier round was still at work"):
        CONTRACT.check_call(ARGS, call(3, text_of(CONTINUE)), facts)


@pytest.mark.parametrize("end", [COMPLETE, BLOCKED])
def test_a_call_after_a_report_that_ends_the_loop_is_refused(end: JsonObject) -> None:
    with pytest.raises(ContractBroken, match=f"call 3 was made after a round that reported {end['status']}"):
        CONTRACT.check_call(ARGS, call(3, text_of(end)), after(CONTINUE, end))


@pytest.mark.parametrize("value", [None, "text", [], {}, {**CONTINUE, "nextSteps": []}, {**CONTINUE, "summary": "x "}])
def test_a_call_after_a_round_without_a_valid_report_is_refused(value: JsonValue) -> None:
    with pytest.raises(ContractBroken, match="call 2 was made after a round that gave no valid report"):
        CONTRACT.check_call(ARGS, call(2, text_of(CONTINUE)), after(value))


def test_a_call_after_a_cancelled_agent_is_refused() -> None:
    facts = Facts(
        calls=[call(1)], deliveries=[Delivery(seq=1, outcome=AgentOutcome.CANCELLED, value=CONTINUE)], agents_started=1
    )
    with pytest.raises(ContractBroken, match="call 2 was made after a round that gave no valid report"):
        CONTRACT.check_call(ARGS, call(2, text_of(CONTINUE)), facts)


def test_the_first_call_of_a_continued_run_must_hold_the_handoff_and_the_failed_checks() -> None:
    opening = Opening(run_id="r1", handoff=COMPLETE, failed_checks="2 failed")
    CONTRACT.check_call(ARGS, call(1, text_of(COMPLETE), "2 failed"), after(opening=opening))
    with pytest.raises(ContractBroken, match="does not hold the last handoff"):
        CONTRACT.check_call(ARGS, call(1, "2 failed"), after(opening=opening))
    with pytest.raises(ContractBroken, match="does not hold the output of the failed checks"):
        CONTRACT.check_call(ARGS, call(1, text_of(COMPLETE)), after(opening=opening))


def test_later_calls_of_a_continued_run_hold_the_newest_handoff_only() -> None:
    opening = Opening(run_id="r1", handoff=COMPLETE, failed_checks="2 failed")
    CONTRACT.check_call(ARGS, call(2, text_of(CONTINUE)), after(CONTINUE, opening=opening))


def test_a_handoff_of_another_run_that_breaks_the_rules_is_refused_before_the_start() -> None:
    opening = Opening(run_id="r1", handoff={**COMPLETE, "evidence": []}, failed_checks=None)
    with pytest.raises(ArgsInvalid, match="the handoff of run r1 says complete and gives no evidence; start a new run"):
        CONTRACT.script_args(ARGS, opening)


def test_the_last_handoff_is_the_newest_valid_report_of_any_status() -> None:
    assert CONTRACT.last_handoff(ARGS, after(CONTINUE, BLOCKED).deliveries) == BLOCKED
    assert CONTRACT.last_handoff(ARGS, after(CONTINUE, None).deliveries) == CONTINUE
    assert CONTRACT.last_handoff(ARGS, after(CONTINUE, {**COMPLETE, "evidence": []}).deliveries) == CONTINUE
    assert CONTRACT.last_handoff(ARGS, after(None).deliveries) is None
    assert CONTRACT.last_handoff(ARGS, []) is None
    cancelled = Delivery(seq=1, outcome=AgentOutcome.CANCELLED, value=COMPLETE)
    assert CONTRACT.last_handoff(ARGS, [cancelled]) is None
