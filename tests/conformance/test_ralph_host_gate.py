"""Ralph's cases, one a line in ralph.jsonl: each gate alone, on the cases that it has to judge.

Kind `report`: the script's gate (loop.py, executed under the language policy with an agent that returns the report),
the schema, and the host's gate (the report wrapped into the result it fits). `terminal`, `provenance`, `args`, `text`:
the host alone. Kind `run` needs a whole run and is executed elsewhere.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loopwarden.contract import AgentOutcome, ContractBroken, Delivery, Facts, ProvenanceBroken
from loopwarden.failures import ArgsInvalid
from loopwarden.schema import compile_schema
from loopwarden_engine.language import compile_script, script_namespace
from loopwarden_scripts import ralph
from loopwarden_scripts.ralph.report import REPORT_SCHEMA
from loopwarden_scripts.ralph.result import check_facts, decode_terminal

CASES = [json.loads(line) for line in Path(__file__).with_name("ralph.jsonl").read_text("ascii").splitlines()]
KINDS = {"report", "terminal", "provenance", "args", "text", "run"}
COMPILED = compile_script(ralph.script.source)
SCHEMA = compile_schema(REPORT_SCHEMA)


def of_kind(kind: str) -> pytest.MarkDecorator:
    cases = [case for case in CASES if case["kind"] == kind]
    return pytest.mark.parametrize("case", cases, ids=[case["id"] for case in cases])


def verdict(judge: Callable[[], object], *refusals: type[Exception]) -> str:
    try:
        judge()
    except refusals:
        return "refuse"
    return "accept"


def run_one_round(report: Any, max_handoff_chars: int) -> Any:
    """What `main` of loop.py returns when the agent of its only round gives `report`."""
    hooks = dict.fromkeys(("agent", "log", "parallel", "phase", "pipeline"), lambda *args, **options: report)
    namespace: dict[str, Any] = script_namespace(hooks)
    exec(COMPILED.code, namespace)
    args = {
        "objective": "x",
        "maxRounds": 1,
        "maxHandoffChars": max_handoff_chars,
        "handoff": None,
        "failedChecks": None,
    }
    return namespace["main"](args)


def fitting_result(report: Any) -> Any:
    """A terminal result after one round of one that would be in order if the report were."""
    status = report.get("status") if isinstance(report, dict) else None
    fitting = status if status in ("complete", "blocked") else "budget-limited"
    return {"status": fitting, "roundsStarted": 1, "report": report}


def test_every_case_has_a_kind_that_is_run_and_an_id_of_its_own() -> None:
    assert {case["kind"] for case in CASES} == KINDS
    assert len({case["id"] for case in CASES}) == len(CASES)


@of_kind("report")
def test_the_script_gate_judges_the_report(case: dict[str, Any]) -> None:
    report, max_chars = case["input"]["report"], case["input"]["max_handoff_chars"]
    assert verdict(lambda: run_one_round(report, max_chars), ValueError) == case["verdict"]


@of_kind("report")
def test_the_host_gate_judges_the_report(case: dict[str, Any]) -> None:
    report, max_chars = case["input"]["report"], case["input"]["max_handoff_chars"]
    result = fitting_result(report)
    judged = verdict(lambda: decode_terminal(result, max_rounds=1, max_handoff_chars=max_chars), ContractBroken)
    assert judged == case["verdict"]


@of_kind("report")
def test_the_schema_judges_the_shape_of_the_report_and_nothing_else(case: dict[str, Any]) -> None:
    refused = SCHEMA.validate(case["input"]["report"]) is not None
    assert refused == ("schema" in case.get("gates", []))


@of_kind("report")
def test_the_length_of_the_report_is_counted_in_code_points_of_compact_json(case: dict[str, Any]) -> None:
    report = case["input"]["report"]
    length = case.get("length", len(json.dumps(report, ensure_ascii=False, separators=(",", ":"))))
    fits = length <= case["input"]["max_handoff_chars"]
    assert fits or case["verdict"] == "refuse"
    if case["verdict"] == "accept":
        decode_terminal(fitting_result(report), max_rounds=1, max_handoff_chars=length)
        with pytest.raises(ContractBroken, match=f"has {length} characters"):
            decode_terminal(fitting_result(report), max_rounds=1, max_handoff_chars=length - 1)


@of_kind("terminal")
def test_the_host_judges_the_terminal_result(case: dict[str, Any]) -> None:
    value, max_rounds = case["input"]["value"], case["input"]["max_rounds"]
    max_chars = case["input"]["max_handoff_chars"]
    judged = verdict(lambda: decode_terminal(value, max_rounds=max_rounds, max_handoff_chars=max_chars), ContractBroken)
    assert judged == case["verdict"]
    if judged == "accept":
        assert decode_terminal(value, max_rounds=max_rounds, max_handoff_chars=max_chars).to_json() == value


def facts_of(given: dict[str, Any]) -> Facts:
    deliveries = [
        Delivery(seq=seq, outcome=AgentOutcome(end["outcome"]), value=end.get("structured"))
        for seq, end in enumerate(given["delivered"], 1)
    ]
    return Facts(deliveries=deliveries, agents_started=len(deliveries))


@of_kind("provenance")
def test_the_host_holds_the_result_against_what_it_delivered(case: dict[str, Any]) -> None:
    given = case["input"]
    contract = ralph.RalphContract(ralph.RalphSettings(max_handoff_chars=given["max_handoff_chars"]))
    args = ralph.Args(objective="x", max_rounds=given["max_rounds"])
    facts = facts_of(given)
    judged = verdict(lambda: contract.decode_result(args, given["value"], facts), ContractBroken, ProvenanceBroken)
    assert judged == case["verdict"]


@of_kind("provenance")
def test_the_facts_alone_decide_about_a_well_formed_result(case: dict[str, Any]) -> None:
    given = case["input"]
    limits = {"max_rounds": given["max_rounds"], "max_handoff_chars": given["max_handoff_chars"]}
    result = decode_terminal(given["value"], **limits)
    facts = facts_of(given)
    assert verdict(lambda: check_facts(result, facts), ContractBroken, ProvenanceBroken) == case["verdict"]


@of_kind("args")
def test_the_host_judges_the_arguments_before_the_start(case: dict[str, Any]) -> None:
    given = case["input"]
    default = {"default_rounds": given["default_rounds"]} if "default_rounds" in given else {}
    contract = ralph.RalphContract(ralph.RalphSettings(max_rounds=given["ceiling"], **default))
    assert verdict(lambda: contract.decode_args(given["args"]), ArgsInvalid) == case["verdict"]
    if "normalized" in case:
        args = contract.decode_args(given["args"])
        assert args.model_dump(by_alias=True) == case["normalized"]
        assert contract.max_total_agents(args) == case["normalized"]["maxRounds"]


@of_kind("text")
def test_the_text_for_a_parent_is_cut_to_its_limit(case: dict[str, Any]) -> None:
    given, expected = case["input"], case["expect"]
    max_chars = given["max_result_chars"]
    rounds = given["value"]["roundsStarted"]
    result = decode_terminal(given["value"], max_rounds=rounds, max_handoff_chars=1_000_000)
    text = ralph.RalphContract(ralph.RalphSettings(max_result_chars=max_chars)).parent_text(result)
    assert len(text) == expected.get("length", len(text)) <= max_chars
    assert text.endswith(expected.get("ends_with", ""))
    assert text.startswith(expected.get("starts_with", ""))
    assert expected.get("contains", "") in text
    assert text == expected.get("is", text)
    assert text.encode("utf-8").decode("utf-8") == text
