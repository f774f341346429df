"""No schema and no value holds up the host. The clock is only a safety net here: what counts is the refusal."""

import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from loopwarden.schema import UnsupportedSchema, compile_schema
from loopwarden.schema_cost import measure_schema, measure_value

TOO_LARGE = "the value is too large to be checked against its schema"
SECONDS = 5.0
"""Far above what is needed (below 0.05 s each), far below what an unbounded search would take."""


def with_a(schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}}


def deep(levels: int, make: Callable[[Any], Any], inner: Any) -> Any:
    for _ in range(levels):
        inner = make(inner)
    return inner


def letters(count: int) -> str:
    chosen = random.Random(1)
    return "".join(chosen.choice("ab") for _ in range(count))


def test_width_counts_what_applies_to_one_part_and_not_what_stands_side_by_side() -> None:
    beside: dict[str, Any] = {"type": "object", "properties": {f"k{i}": {"type": "string"} for i in range(100)}}
    assert measure_schema(beside).width <= 2
    assert measure_schema(with_a({"anyOf": [{"type": "string"} for _ in range(100)]})).width >= 101


def test_width_follows_references_and_repetition() -> None:
    branch = {"properties": {"b": {"$ref": "#/$defs/x"}}}
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"a": {"anyOf": [branch, branch, branch]}},
        "$defs": {"x": {"anyOf": [{}, {"type": "null"}]}},
    }
    assert measure_schema(schema).width == 9 + 3  # three times: the reference, its target, and two branches


def test_a_long_text_counts_as_many_parts() -> None:
    assert measure_value("x").parts == 1
    assert measure_value("x" * 256_000).parts == 1001
    assert measure_value({"k" * 25_600: [1, 2]}).parts == 104


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (with_a({"items": {"anyOf": [{"const": -i} for i in range(450)]}}), [0.5] * 200_000),
        (with_a({"items": {"enum": [{"k": i} for i in range(400)]}}), [{"k": 399}] * 50_000),
        (with_a({"anyOf": [{"items": {"type": "string"}} for _ in range(450)]}), [1] * 300_000),
        (
            with_a(deep(25, lambda inner: {"uniqueItems": True, "items": inner}, {"uniqueItems": True})),
            deep(25, lambda inner: [inner], list(range(140_000))),
        ),
    ],
    ids=["alternatives", "objects to compare with", "branches", "nested unique items"],
)
def test_a_value_that_would_take_too_long_is_refused(schema: Any, value: Any) -> None:
    compiled = compile_schema(schema)
    began = time.monotonic()
    message = compiled.validate({"a": value})
    assert message is not None
    assert message.startswith(TOO_LARGE)
    assert time.monotonic() - began < SECONDS


def test_a_pattern_that_is_slow_for_its_engine_is_stopped() -> None:
    compiled = compile_schema(with_a({"pattern": "a[ab]{400}[cd]"}))
    began = time.monotonic()
    message = compiled.validate({"a": letters(1_000_000)})
    assert message == "the value is too large to be checked against the patterns of its schema"
    assert compiled.validate({"a": letters(500)}) == "value.a: the text does not match the pattern 'a[ab]{400}[cd]'"
    assert time.monotonic() - began < SECONDS


def test_what_one_text_used_up_is_not_missing_for_the_next_value() -> None:
    compiled = compile_schema(with_a({"pattern": "^[ab]+$"}))
    text = letters(200_000)
    for _ in range(20):
        assert compiled.validate({"a": text}) is None


def test_a_classic_catastrophic_pattern_is_harmless() -> None:
    compiled = compile_schema(with_a({"pattern": "^(a+)+$"}))
    began = time.monotonic()
    assert compiled.validate({"a": "a" * 500_000 + "b"}) is not None
    assert time.monotonic() - began < SECONDS


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (with_a({"items": {"type": "integer"}}), list(range(32_000))),
        (with_a({"type": "string", "minLength": 1}), "x" * 1_000_000),
        (with_a({"uniqueItems": True, "items": {"type": "string"}}), [str(i) for i in range(15_000)]),
        (with_a({"items": {"enum": [f"k{i}" for i in range(900)]}}), ["k899"] * 32_000),
    ],
    ids=["integers", "text", "unique texts", "names"],
)
def test_the_largest_ordinary_values_are_checked(schema: Any, value: Any) -> None:
    compiled = compile_schema(schema)
    began = time.monotonic()
    assert compiled.validate({"a": value}) is None
    assert time.monotonic() - began < SECONDS


def test_a_large_value_with_one_bad_place_is_not_explained_at_any_price() -> None:
    branches = [{"type": "object", "properties": {"x": {"minLength": 2_000_000 + i}}} for i in range(100)]
    compiled = compile_schema(with_a({"oneOf": branches}))
    assert compiled.validate({"a": {"x": letters(1_000_000)}}) == (
        "the value does not satisfy the schema; it is too large to say where"
    )


@pytest.mark.parametrize(
    "schema",
    [
        {
            "type": "object",
            "$ref": "#/$defs/d0",
            "$defs": {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 9} for i in range(2000)} | {"d2000": {}},
        },
        with_a(deep(25, lambda inner: {"anyOf": [inner, inner]}, {})),
        {"type": "object", "properties": {f"k{i}": {"type": "string"} for i in range(200_000)}},
        {"type": "object", "$defs": {f"d{i}": {"$ref": f"#/$defs/d{(i + 1) % 4000}"} for i in range(4000)}},
    ],
    ids=["nine branches, 2,000 times", "shared branches", "200,000 names", "a circle of 4,000"],
)
def test_a_schema_that_explodes_is_refused_soon(schema: Any) -> None:
    began = time.monotonic()
    with pytest.raises(UnsupportedSchema):
        compile_schema(schema)
    assert time.monotonic() - began < SECONDS
