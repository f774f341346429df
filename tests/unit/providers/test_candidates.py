"""Finding the value in the output: exactly one distinct outermost JSON object that satisfies the schema."""

import time
from typing import Any

import pytest

from loopwarden.providers.candidates import Found, NotFound, find_value
from loopwarden.schema import CompiledSchema, compile_schema

N = {"n": 1}


def schema_for_n() -> CompiledSchema:
    return compile_schema(
        {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
    )


@pytest.mark.parametrize(
    ("output", "how"),
    [
        ('{"n": 1}', "the value was the whole output"),
        (' \r\n{"n": 1}\r\n', "the value was the whole output"),
        ('\ufeff{"n":1}', "the value was the whole output"),
        ('{"n": 1}\n{"n":1}', "the value stood inside other text, 2 times"),
        ('```json\n{"n": 1}\n```', "the value stood in a code fence"),
        ('Done:\r\n\r\n```\r\n{"n": 1}\r\n```\r\nBye.', "the value stood in a code fence"),
        ('~~~ json title="x"\n\n  {"n": 1}\n~~~', "the value stood in a code fence"),
        ('I did it: {"n": 1}.', "the value stood inside other text"),
        ('if (x) { return {"n": 1}; }', "the value stood inside other text"),
        ('Use `{x}` and {{y}}, then {"n": 1}', "the value stood inside other text"),
        ('{"n": 1', None),
        ('{ {"n": 1}', "the value stood inside other text"),
        ('{"broken": {"n": 1}', "the value stood inside other text"),
        ('[{"n": 1}]', "the value stood inside other text"),
        ('{"type": "progress"}\n{"n": 1}\n{"type": "end"}', "the value stood inside other text"),
        ('a " quote, then {"n": 1} and " again', "the value stood inside other text"),
        ('{"note": "say {\\"n\\": 2}"} {"n": 1}', "the value stood inside other text"),
        ('{"n" : 1 }\t\n', "the value was the whole output"),
        ('{\n  "n"\n:\n1\n}', "the value was the whole output"),
    ],
)
def test_where_the_value_may_stand(output: str, how: str | None) -> None:
    finding = find_value(output, schema_for_n())
    if how is None:
        assert isinstance(finding, NotFound)
    else:
        assert finding == Found(value={"n": 1}, how=how)
    assert find_value(output.encode(), schema_for_n()) == finding


@pytest.mark.parametrize(
    ("output", "candidates", "reason"),
    [
        ("", 0, "the output holds no JSON object"),
        ("done {x} [1] {}x"[:9], 0, "the output holds no JSON object"),
        ("{'n': 1}", 0, "the output holds no JSON object"),
        ('"{\\"n\\": 1}"', 0, "the output holds no JSON object"),
        ('{"n": 1} {"n": 2}', 2, "the output holds 2 different JSON objects that satisfy the schema"),
        ('{"n": 1} {"n": 1} {"n": 2} {"n": 3}', 3, "the output holds 3 different JSON objects that satisfy the schema"),
        ('{"m": 1}', 1, "the JSON object in the output is not usable: value:"),
        ('{"n": 1.0}', 1, "the JSON object in the output is not usable: value.n: 1.0 is not an integer"),
        ('{"m": 1} {"k": 1}', 2, "none of the 2 JSON objects in the output satisfies the schema; the first: value:"),
        ('{"outer": {"n": 1}}', 1, "the JSON object in the output is not usable"),
        ('{"outer": [{"n": 1}]}', 1, "the JSON object in the output is not usable"),
        ('{"n": 1, "n": 1}', 0, "it is not plain JSON: the key 'n' stands twice in one object"),
        ('{"n": 1, "n": {"n": 1}}', 0, "it is not plain JSON: the key 'n' stands twice in one object"),
        ('{"n": 9007199254740992}', 0, "it is not plain JSON: the integer 9007199254740992 is outside"),
        ('{"n": ' + "9" * 10_000 + "}", 0, "it is not plain JSON: an integer is outside"),
        ('{"n": NaN, "x": {"n": 1}}', 0, "it is not plain JSON: NaN is not JSON"),
        ('{"n": 1e999}', 0, "it is not plain JSON: the number 1e999 is too large"),
        ('{"n": "\\ud800"}', 0, "a lone surrogate"),
        ('{"n": ' + "[" * 70 + "]" * 70 + "}", 0, "it is not plain JSON: nested more than 64 deep"),
    ],
)
def test_what_is_no_value_has_a_reason(output: str, candidates: int, reason: str) -> None:
    finding = find_value(output, schema_for_n())
    assert isinstance(finding, NotFound)
    assert reason in finding.reason
    assert finding.candidates == candidates
    assert len(finding.reason) < 1000


def test_objects_are_distinct_by_canonical_bytes() -> None:
    anything = compile_schema({"type": "object"})
    assert isinstance(find_value('{"a": 1, "b": 2} {"b": 2, "a": 1}', anything), Found)
    assert isinstance(find_value('{"a": 1} {"a": 1.0}', anything), NotFound)
    assert isinstance(find_value('{"a": 1} {"a": true}', anything), NotFound)


def test_bytes_that_are_not_utf_8_hold_no_value() -> None:
    assert find_value(b'{"n": 1}\xff', schema_for_n()) == NotFound(
        reason="the output is not UTF-8 at byte 8", candidates=0
    )


MEGABYTES = 16 * 1024 * 1024


@pytest.mark.parametrize(
    "output",
    [
        "{" * MEGABYTES,
        '{"' * (MEGABYTES // 2),
        '{"a":' * (MEGABYTES // 5),
        '{"a":[' * (MEGABYTES // 6),
        "{}" * (MEGABYTES // 2),
        '{"a"' * (MEGABYTES // 4),
        '{"a":"' * (MEGABYTES // 6),
        '{"a":1,' * (MEGABYTES // 7),
        '{"a":{},' * (MEGABYTES // 8),
        '{"' + "x" * MEGABYTES,
        ('{"' + "x" * 200 + "\n") * (MEGABYTES // 203),
        '{":":":1,{",' * (MEGABYTES // 12),
        "{ " * (MEGABYTES // 2),
        "{" + " " * (MEGABYTES // 2) + "{" + " " * (MEGABYTES // 2),
        ("{" + " " * 1000) * (MEGABYTES // 1001),
        '{"a":' + "[" * 900 + "1",
        ('{"a":' + "9" * 100_000 + ",") * 160,
    ],
    ids=lambda output: repr(output[:12]),
)
def test_16_megabytes_of_anything_are_searched_in_bounded_time(output: str) -> None:
    began = time.monotonic()
    finding: Any = find_value(output, schema_for_n())
    assert isinstance(finding, NotFound)
    assert time.monotonic() - began < 10


def test_a_long_event_log_with_one_report_is_searched() -> None:
    line = '{"type": "progress", "text": "' + "x" * 200 + '"}\n'
    assert isinstance(find_value(line * 50_000 + '{"n": 1}\n', schema_for_n()), Found)
