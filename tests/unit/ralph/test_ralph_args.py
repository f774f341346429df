"""Arguments of a caller and settings of a deployment: each refusal is a sentence that names the argument."""

from typing import Any

import pytest
from pydantic import ValidationError

from loopwarden.contract import Opening
from loopwarden.failures import ArgsInvalid
from loopwarden.limits import Limits
from loopwarden_engine.plain import JsonObject, compact_json
from loopwarden_scripts import ralph
from loopwarden_scripts.ralph.args import MAX_OBJECTIVE_BYTES, MAX_OBJECTIVE_CHARS

CONTRACT = ralph.RalphContract(ralph.RalphSettings())


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({}, "objective is missing; say what the agents are to reach"),
        ({"objective": " \n"}, "objective is empty; say what the agents are to reach"),
        ({"objective": 5}, "objective must be a text, not a whole number"),
        ({"objective": "x", "maxRounds": "8"}, "maxRounds must be a whole number such as 10, not a text"),
        ({"objective": "x", "maxRounds": 8.0}, "maxRounds must be a whole number such as 10, not the number 8.0"),
        ({"objective": "x", "maxRounds": True}, "maxRounds must be a whole number such as 10, not a boolean"),
        ({"objective": "x", "maxRounds": 0}, "maxRounds must be at least 1"),
        (
            {"objective": "x", "maxRounds": 257},
            "maxRounds is 257, above the ceiling of 256 rounds in this deployment; ask for 256 at most",
        ),
        (
            {"objective": "x", "maxRounds": 10**5000},
            "maxRounds is far too large, above the ceiling of 256 rounds in this deployment; ask for 256 at most",
        ),
        (
            {"objective": "x", "maxRounds": None},
            "maxRounds must be a whole number, not null; leave it out to get the default",
        ),
        ({"objective": "x", "max_rounds": 3}, "max_rounds is no argument of ralph in JSON; write maxRounds"),
        ({"objective": "x", "rounds": 3}, "'rounds' is no argument of ralph, which takes objective and maxRounds"),
        ({"objective": 5, "maxRounds": "x"}, "objective must be .*; maxRounds must be "),
        ({"objective": "x" * (MAX_OBJECTIVE_CHARS + 1)}, "objective has 200,001 characters, and 200,000 are allowed"),
        ({"objective": "\ud800"}, "args.objective: the text holds a lone surrogate"),
        ("x", "the arguments of ralph must be an object with objective and maxRounds, not a text"),
        (None, "the arguments of ralph must be an object with objective and maxRounds, not null"),
    ],
)
def test_wrong_arguments_are_refused_with_a_sentence(args: object, message: str) -> None:
    with pytest.raises(ArgsInvalid, match=message):
        CONTRACT.decode_args(args)


def test_an_objective_of_the_greatest_length_is_taken() -> None:
    assert len(CONTRACT.decode_args({"objective": "x" * MAX_OBJECTIVE_CHARS}).objective) == MAX_OBJECTIVE_CHARS
    widest = "é" * ((MAX_OBJECTIVE_BYTES - 2) // 2)
    assert CONTRACT.decode_args({"objective": widest}).objective == widest


def test_an_objective_of_too_many_bytes_is_refused() -> None:
    with pytest.raises(ArgsInvalid, match="objective takes 350,002 bytes as JSON, and 350,000 are allowed; put long"):
        CONTRACT.decode_args({"objective": "é" * (MAX_OBJECTIVE_BYTES // 2)})


def test_the_largest_objective_handoff_and_failed_checks_fit_together() -> None:
    report: JsonObject = {"status": "blocked", "summary": "", "evidence": [], "nextSteps": [], "blocker": "x"}
    report["summary"] = "😀" * (16_384 - len(compact_json(report)))
    opening = Opening(run_id="r1", handoff=report, failed_checks="\x01" * 20_000 + "x")
    args = CONTRACT.decode_args({"objective": "é" * ((MAX_OBJECTIVE_BYTES - 2) // 2)})
    assert len(compact_json(CONTRACT.script_args(args, opening)).encode()) <= Limits().max_args_bytes


def test_arguments_of_an_embedder_get_the_default_and_are_checked_again() -> None:
    assert CONTRACT.decode_args(ralph.Args(objective=" x ")) == ralph.Args(objective="x", max_rounds=10)
    with pytest.raises(ArgsInvalid, match="above the ceiling of 256"):
        CONTRACT.decode_args(ralph.Args(objective="x", max_rounds=300))
    with pytest.raises(ArgsInvalid, match="maxRounds must be at least 1"):
        CONTRACT.decode_args(ralph.Args(objective="x").model_copy(update={"max_rounds": -1}))


@pytest.mark.parametrize(
    "given", [{"objective": ""}, {"objective": "x", "max_rounds": True}, {"objective": "x", "a": 1}]
)
def test_wrong_arguments_of_an_embedder_are_refused_where_they_are_made(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ralph.Args(**given)


def test_arguments_cannot_be_changed() -> None:
    args = ralph.Args(objective="x", max_rounds=3)
    with pytest.raises(ValidationError):
        args.max_rounds = 4


def test_the_script_gets_what_the_caller_and_the_deployment_said() -> None:
    contract = ralph.RalphContract(ralph.RalphSettings(default_rounds=7, max_handoff_chars=99))
    assert contract.script_args(contract.decode_args({"objective": "x"}), None) == {
        "objective": "x",
        "maxRounds": 7,
        "maxHandoffChars": 99,
        "handoff": None,
        "failedChecks": None,
    }


def test_the_agent_cap_of_a_run_is_its_number_of_rounds() -> None:
    assert CONTRACT.max_total_agents(CONTRACT.decode_args({"objective": "x", "maxRounds": 3})) == 3
    assert CONTRACT.max_total_agents(CONTRACT.decode_args({"objective": "x"})) == 10


def test_shipped_settings_are_those_of_the_design() -> None:
    assert ralph.RalphSettings().model_dump() == {
        "max_rounds": 256,
        "default_rounds": 10,
        "max_handoff_chars": 16384,
        "max_result_chars": 16384,
    }


@pytest.mark.parametrize(
    "given",
    [
        {"max_rounds": 0},
        {"max_rounds": True},
        {"max_rounds": 8.0},
        {"max_rounds": "8"},
        {"default_rounds": 0},
        {"default_rounds": 257},
        {"max_rounds": 5, "default_rounds": 6},
        {"max_handoff_chars": 0},
        {"max_result_chars": -1},
        {"maxRounds": 5},
        {"rounds": 5},
    ],
)
def test_wrong_settings_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ralph.RalphSettings(**given)


def test_a_lower_ceiling_lowers_the_shipped_default_but_never_a_default_that_was_set() -> None:
    assert ralph.RalphSettings(max_rounds=4).default_rounds == 4
    assert ralph.RalphSettings(max_rounds=10).default_rounds == 10
    assert ralph.RalphSettings(max_rounds=4, default_rounds=3).default_rounds == 3
