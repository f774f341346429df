"""The language corpus against the language wall alone, in this process. (Hostile ones run confined: tests/escape.)"""

import json
from pathlib import Path
from typing import Any

import pytest

_TESTS = Path(__file__).parents[2]
# What these expect is the work of the value boundary, not of the language: nested too deep, an unsafe integer.
_OF_THE_BOUNDARY = {"recursion-06", "values-05", "own-result-depth-65", "own-result-long-key-above-many-items"}


def _cases(path: str) -> list[dict[str, Any]]:
    lines = (_TESTS / path).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.strip()]


_LANGUAGE = [case for case in _cases("conformance/language.jsonl") if case["id"] not in _OF_THE_BOUNDARY]


@pytest.mark.parametrize("case", [pytest.param(case, id=case["id"]) for case in _LANGUAGE])
def test_language_case(case: dict[str, Any], run: Any) -> None:
    """The value with its types, or the code, line and text of the error."""
    ending = run(case["source"], case["args"], case["agent_replies"])
    variants = case["expect"].get("either", [case["expect"]])
    assert any(_matches(case, variant, ending) for variant in variants), ending


def _matches(case: dict[str, Any], expected: dict[str, Any], ending: Any) -> bool:
    if "value" in expected:
        plain = not ending.violations and ending.fault is None
        return plain and json.dumps(ending.value, sort_keys=True) == json.dumps(expected["value"], sort_keys=True)
    contained = case.get("error_contains", "")
    if expected["error_code"] == "SCRIPT_REJECTED":
        lines = [violation.line for violation in ending.violations]
        return expected.get("line", lines[0]) in lines and contained in " ".join(map(str, ending.violations))
    if ending.fault is None:
        return False
    lines = [expected.get("line", ending.fault.line)]
    return ending.fault.line in lines and contained in f"{ending.fault.type_name}: {ending.fault.message}"
