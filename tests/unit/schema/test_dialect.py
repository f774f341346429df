"""The dialect of JSON Schema: what is accepted is enforced, everything else is refused by name and place."""

from typing import Any

import pytest

from loopwarden.schema import UnsupportedSchema, compile_schema


def with_a(schema: Any, **root: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}} | root


def nested(keyword: str, times: int) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(times):
        schema = {keyword: schema}
    return schema


def chain(length: int) -> dict[str, Any]:
    definitions: dict[str, Any] = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}]} for i in range(length)}
    return {"type": "object", "$ref": "#/$defs/d0", "$defs": definitions | {f"d{length}": {}}}


def doubling(times: int) -> dict[str, Any]:
    definitions: dict[str, Any] = {
        f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"$ref": f"#/$defs/d{i + 1}"}]} for i in range(times)
    }
    return {"type": "object", "$ref": "#/$defs/d0", "$defs": definitions | {f"d{times}": {}}}


REFUSED: list[tuple[Any, str, str]] = [
    (5, "schema", "must be a JSON object, not int"),
    (None, "schema", "must be a JSON object, not NoneType"),
    (True, "schema", "must be a JSON object, not bool"),
    ([], "schema", "must be a JSON object, not list"),
    ({}, "schema", 'its root needs "type": "object"'),
    ({"type": "array"}, "schema", 'its root needs "type": "object"'),
    ({"type": ["object"]}, "schema", 'its root needs "type": "object"'),
    (with_a({"format": "uri"}), "schema.properties.a", "the keyword 'format' is not supported; supported: $defs, $ref"),
    (with_a({"multipleOf": 2}), "schema.properties.a", "the keyword 'multipleOf' is not supported"),
    (with_a({"not": {}}), "schema.properties.a", "the keyword 'not' is not supported"),
    (with_a({}, **{"$schema": "x"}), "schema", "the keyword '$schema' is not supported"),
    (with_a({"items": {"oops": 1}}), "schema.properties.a.items", "the keyword 'oops' is not supported"),
    ({"type": "object", "properties": {"a b": {"x": 1}}}, "schema.properties['a b']", "the keyword 'x'"),
    (with_a({"anyOf": [{}, {"x": 1}]}), "schema.properties.a.anyOf[1]", "the keyword 'x'"),
    (with_a({"type": "text"}), "schema.properties.a", "'type' must be one of array, boolean"),
    (with_a({"type": []}), "schema.properties.a", "'type' must be one of"),
    (with_a({"type": [["string"]]}), "schema.properties.a", "'type' must be one of"),
    (with_a({"type": ["string", "string"]}), "schema.properties.a", "'type' lists a name twice"),
    (with_a(5), "schema.properties.a", "a schema must be an object"),
    ({"type": "object", "properties": []}, "schema", "'properties' must be an object"),
    ({"type": "object", "required": ["a"]}, "schema", "'required' names 'a', which 'properties' does not declare"),
    (with_a({}, required=["b"]), "schema", "'required' names 'b'"),
    (with_a({}, required=["a", "a"]), "schema", "'required' lists a name twice"),
    (with_a({}, required="a"), "schema", "'required' must be a list of names"),
    (with_a({"items": [{}]}), "schema.properties.a", "'items' must be one schema for all, not a list"),
    (with_a({}, additionalProperties="no"), "schema.additionalProperties", "a schema must be an object"),
    (with_a({"oneOf": [{}]}), "schema.properties.a", "'oneOf' must be a list of at least 2 schemas"),
    (with_a({"anyOf": []}), "schema.properties.a", "'anyOf' must be a list of at least 1"),
    (with_a({"enum": []}), "schema.properties.a", "'enum' must be a list with at least one value"),
    (with_a({"minLength": -1}), "schema.properties.a", "'minLength' must be an integer of at least 0"),
    (with_a({"maxItems": 1.0}), "schema.properties.a", "'maxItems' must be an integer"),
    (with_a({"maxItems": True}), "schema.properties.a", "'maxItems' must be an integer"),
    (with_a({"minimum": "1"}), "schema.properties.a", "'minimum' must be a number"),
    (with_a({"exclusiveMinimum": True}), "schema.properties.a", "'exclusiveMinimum' must be a number"),
    (with_a({"uniqueItems": 1}), "schema.properties.a", "'uniqueItems' must be true or false"),
    (with_a({"title": 1}), "schema.properties.a", "'title' must be a text"),
    (with_a({"examples": 1}), "schema.properties.a", "'examples' must be a list"),
    (with_a({"pattern": r"(a)\1"}), "schema.properties.a", "without back-references and look-around"),
    (with_a({"pattern": "(?=a)"}), "schema.properties.a", "without back-references and look-around"),
    (with_a({"pattern": "("}), "schema.properties.a", "cannot be enforced"),
    (with_a({"pattern": "(a{1000}){1000}"}), "schema.properties.a", "without large repetitions"),
    (with_a({"pattern": "a" * 1001}), "schema.properties.a", "longer than 1000 characters"),
    (with_a({"$ref": "http://localhost/x"}), "schema.properties.a", "'$ref' must be '#/$defs/NAME'"),
    (with_a({"$ref": "#"}), "schema.properties.a", "'$ref' must be '#/$defs/NAME'"),
    (with_a({"$ref": "#/$defs/x/items"}, **{"$defs": {"x": {}}}), "schema.properties.a", "'$ref' must be"),
    (with_a({"$ref": "#/$defs/x"}), "schema.properties.a", "which '$defs' does not hold"),
    (with_a({"$defs": {}}), "schema.properties.a", "'$defs' is supported at the root of the schema only"),
    (with_a({}, **{"$defs": 1}), "schema", "'$defs' must be an object"),
    (with_a({}, **{"$defs": {"x": {"$ref": "#/$defs/x"}}}), "schema.$defs", "circle of references"),
    (
        with_a({}, **{"$defs": {"x": {"items": {"$ref": "#/$defs/y"}}, "y": {"items": {"$ref": "#/$defs/x"}}}}),
        "schema.$defs",
        "circle of references",
    ),
    (with_a({"const": float("nan")}), "schema.properties.a.const", "nan is not JSON data"),
    (with_a({"const": {1: 2}}), "schema.properties.a.const", "a key of type int is not a string"),
    (with_a({"const": object()}), "schema.properties.a.const", "object is not JSON data"),
    (with_a(nested("items", 70)), "schema.properties.a", "nested more than 64 deep"),
    (chain(400), "schema.$defs", "the schema is too large with its references written out"),
    (doubling(40), "schema.$defs", "the schema is too large with its references written out"),
    ({"type": "object", "properties": {f"k{i}": {} for i in range(6000)}}, "schema.properties", "too large"),
    (with_a({"allOf": [{"pattern": f"[a-z]{{9{i}}}"} for i in range(10, 50)]}), "schema", "patterns"),
]


@pytest.mark.parametrize(("schema", "path", "reason"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_cannot_be_enforced_is_refused_with_its_place(schema: Any, path: str, reason: str) -> None:
    with pytest.raises(UnsupportedSchema) as refused:
        compile_schema(schema)
    assert refused.value.path.startswith(path)
    assert reason in refused.value.reason
    assert str(refused.value) == f"{refused.value.path}: {refused.value.reason}"
    assert len(str(refused.value)) < 700


def test_a_circular_object_is_refused() -> None:
    schema: dict[str, Any] = {"type": "object"}
    schema["properties"] = {"a": schema}
    with pytest.raises(UnsupportedSchema, match="nested more than 64 deep"):
        compile_schema(schema)


CASES: list[tuple[Any, list[Any], list[Any]]] = [
    ({}, [1, None, "x", [], {}], []),
    (True, [1, None], []),
    (False, [], [1, None]),
    ({"type": "integer"}, [0, -5, 2**53 - 1], [1.0, -0.0, 1.5, True, "1", None]),
    ({"type": "number"}, [0, 1.0, 1e300], [True, "1"]),
    ({"type": ["integer", "null"]}, [1, None], [1.0, False]),
    ({"type": ["integer", "number"]}, [1, 1.0], [True]),
    ({"type": "boolean"}, [True, False], [0, 1, None]),
    ({"const": 1}, [1], [1.0, True, "1", [1]]),
    ({"const": 1.0}, [1.0], [1]),
    ({"const": 0.0}, [0.0], [-0.0, 0, False]),
    ({"const": True}, [True], [1, 1.0]),
    ({"const": {"b": [1, 2.5], "a": "x"}}, [{"a": "x", "b": [1, 2.5]}], [{"a": "x", "b": [1.0, 2.5]}, {"a": "x"}]),
    ({"const": None}, [None], [0, False, ""]),
    ({"enum": [1, "x", None]}, [1, "x", None], [1.0, True, "y", 0, False]),
    ({"enum": [[1], {"a": 2.0}]}, [[1], {"a": 2.0}], [[1.0], {"a": 2}, [True]]),
    ({"enum": ["a", "a"]}, ["a"], ["b"]),
    ({"minLength": 2, "maxLength": 3}, ["ab", "😀😀😀", 5], ["a", "😀", "abcd"]),
    ({"minimum": 1, "maximum": 2.5}, [1, 2.5, "x"], [0.9, 3, 2.6]),
    ({"exclusiveMinimum": 1, "exclusiveMaximum": 3}, [2, 1.1], [1, 3, 1.0]),
    ({"maximum": 2**53 - 2}, [2**53 - 2], [2**53 - 1]),
    ({"minItems": 1, "maxItems": 2}, [[1], [1, 2], "x"], [[], [1, 2, 3]]),
    ({"minProperties": 1, "maxProperties": 1}, [{"a": 1}, []], [{}, {"a": 1, "b": 2}]),
    ({"uniqueItems": True}, [[1, 1.0, True, "1", None], [], "aa"], [[1, 1], [{"a": 1, "b": 2}, {"b": 2, "a": 1}]]),
    ({"uniqueItems": True}, [[0.0, -0.0], [[1], [1.0]], ['"a"', "a"], ["[1]", [1]]], [[[1], [1]], ["a", "a"]]),
    ({"uniqueItems": False}, [[1, 1]], []),
    ({"pattern": "^a+$"}, ["a", "aaa", 5, None], ["", "b", "aab"]),
    ({"pattern": r"\d"}, ["x1"], ["x", "١"]),
    ({"items": {"type": "string"}}, [[], ["a"], "x"], [[1], ["a", None]]),
    ({"items": False}, [[]], [[1]]),
    ({"properties": {"x": {"type": "null"}}, "required": ["x"]}, [{"x": None, "y": 1}, []], [{}, {"x": 1}]),
    ({"properties": {"x": {}}, "additionalProperties": False}, [{"x": 1}, {}], [{"y": 1}]),
    ({"additionalProperties": {"type": "integer"}}, [{"x": 1}], [{"x": 1.0}]),
    ({"anyOf": [{"type": "string"}, {"const": 1}]}, ["x", 1], [2, 1.0]),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, [1.0, 1.5], [1, "x"]),
    ({"oneOf": [{"const": 1}, {"const": 1.0}]}, [1, 1.0], [2]),
    ({"allOf": [{"minimum": 1}, {"maximum": 2}], "type": "integer"}, [1, 2], [0, 3, 1.5]),
    ({"allOf": [{"const": 1}], "enum": [1, 2], "pattern": "x"}, [1], [2, 1.0]),
    ({"$ref": "#/$defs/x"}, [1], [1.0, "x"]),
    ({"items": {"$ref": "#/$defs/x"}}, [[1, 2]], [[1.0]]),
    ({"title": "t", "description": "d", "default": 5, "examples": [1], "type": "string"}, ["x"], [5]),
]


@pytest.mark.parametrize(("schema", "valid", "invalid"), CASES, ids=lambda value: str(value)[:40])
def test_what_is_accepted_is_enforced(schema: Any, valid: list[Any], invalid: list[Any]) -> None:
    compiled = compile_schema(with_a(schema, **{"$defs": {"x": {"type": "integer"}}}))
    for value in valid:
        assert compiled.validate({"a": value}) is None, value
    for value in invalid:
        assert compiled.validate({"a": value}) is not None, value


def test_definitions_that_refer_to_each_other_without_a_circle_are_fine() -> None:
    definitions = {"x": {"items": {"$ref": "#/$defs/y"}}, "y": {"$ref": "#/$defs/z"}, "z": {"type": "integer"}}
    compiled = compile_schema(with_a({"$ref": "#/$defs/x"}, **{"$defs": definitions}))
    assert compiled.validate({"a": [1]}) is None
    assert compiled.validate({"a": [1.0]}) is not None


@pytest.mark.parametrize(
    ("schema", "value", "message"),
    [
        ({"type": "integer"}, 1.0, "value.a: 1.0 is not an integer"),
        ({"type": "string"}, 5, 'value.a: 5 is not of type "string"'),
        ({"items": {"type": "string"}}, ["x", 5], 'value.a[1]: 5 is not of type "string"'),
        ({"properties": {"x y": {"type": "string"}}}, {"x y": 1}, "value.a['x y']: 1 is not of type \"string\""),
        ({"const": 1}, 1.0, "value.a: 1.0 is not 1"),
        ({"enum": [1, 2.5, "x"]}, 1.0, "value.a: 1.0 is not 1 or 2.5"),
        ({"uniqueItems": True}, [3, 4, 3], "value.a: items 0 and 2 are the same"),
        ({"pattern": "^a$"}, "b", "value.a: the text does not match the pattern '^a$'"),
        (
            {"additionalProperties": False},
            {"z": 1},
            "value.a: Additional properties are not allowed ('z' was unexpected)",
        ),
    ],
)
def test_a_mismatch_is_one_sentence_that_names_the_place(schema: Any, value: Any, message: str) -> None:
    assert compile_schema(with_a(schema)).validate({"a": value}) == message


def test_the_root_is_checked_too() -> None:
    compiled = compile_schema(with_a({}, required=["a"]))
    assert compiled.validate([]) == 'value: [] is not of type "object"'
    assert compiled.validate({}) == 'value: "a" is a required property'


def test_a_mismatch_is_short_whatever_the_value() -> None:
    compiled = compile_schema({"type": "object", "additionalProperties": {"additionalProperties": {"type": "null"}}})
    message = compiled.validate({"k" * 10_000: {"q" * 10_000: "v" * 100_000}})
    assert message is not None
    assert len(message) <= 602


def test_the_same_schema_is_compiled_once_whatever_the_order_of_its_keys() -> None:
    first = compile_schema({"type": "object", "title": "once"})
    assert compile_schema({"title": "once", "type": "object"}) is first


def test_a_compiled_schema_shares_nothing_with_what_it_was_made_from() -> None:
    schema = with_a({"enum": ["x"]})
    compiled = compile_schema(schema)
    schema["properties"]["a"]["enum"].append("y")
    assert compiled.validate({"a": "y"}) is not None
