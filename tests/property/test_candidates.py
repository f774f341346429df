"""Whatever JSON is wrapped in whatever prose: found or refused as the rule says."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from loopwarden.providers.candidates import Found, NotFound, find_value
from loopwarden.schema import compile_schema
from loopwarden_engine.plain import canonical_bytes

SAFE = 2**53 - 1
TEXT = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(
    ["{", "}", '{"a": 1}', '"', "\\", "```", "{}"]
)
SCALARS = st.none() | st.booleans() | st.integers(-SAFE, SAFE) | st.floats(allow_nan=False, allow_infinity=False) | TEXT
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=12
)
OBJECTS = st.dictionaries(TEXT, VALUES, max_size=4)
# Text without an object of its own, so that what is wrapped is all there is.
PROSE = st.sampled_from(
    ["", " ", "\n\n", "\r\n", "Here you are:\n", "f(x) { return 1 }; ", "{x} ", "it's \"quoted ", "[1, 2] ", "{ ", "} ",
     "```json\n", "```\r\n", "~~~\n", "\ufeff", "- {{placeholder}} ", "é😀 ", "\\", "{'a': 1} ", "null ", '{"', "{,"]
)  # fmt: skip
LAYOUTS = st.sampled_from([{"indent": None}, {"indent": 2}, {"separators": (",", ":")}, {"ensure_ascii": False}])


def find(output: str) -> Found | NotFound:
    finding = find_value(output, compile_schema({"type": "object"}))
    assert find_value(output.encode(), compile_schema({"type": "object"})) == finding
    return finding


@given(value=OBJECTS, before=PROSE, after=PROSE, layout=LAYOUTS)
@settings(max_examples=400, deadline=None)
def test_one_object_in_any_prose_is_the_value(value: Any, before: str, after: str, layout: Any) -> None:
    # `{"` in front may turn the object's first quote into the end of a name; a blank line ends that string for good.
    finding = find(f"{before}\n{json.dumps(value, **layout)}\n{after}")
    assert isinstance(finding, Found)
    assert canonical_bytes(finding.value) == canonical_bytes(value)


@given(values=st.lists(OBJECTS, min_size=2, max_size=4), between=PROSE, layout=LAYOUTS)
@settings(max_examples=300, deadline=None)
def test_several_objects_are_one_value_exactly_when_they_are_the_same(values: Any, between: str, layout: Any) -> None:
    finding = find(f"\n{between}\n".join(json.dumps(value, **layout) for value in values))
    if len({canonical_bytes(value) for value in values}) == 1:
        assert isinstance(finding, Found)
    else:
        assert isinstance(finding, NotFound)
        assert "different JSON objects" in finding.reason


@given(value=SCALARS, before=PROSE)
@settings(max_examples=200, deadline=None)
def test_a_value_that_is_no_object_is_never_taken(value: Any, before: str) -> None:
    text = json.dumps(value if not isinstance(value, str) else value.replace("{", "("))
    assert isinstance(find(f"{before}\n{text}"), NotFound)


@given(inner=OBJECTS, depth=st.integers(1, 5))
@settings(max_examples=200, deadline=None)
def test_only_the_outermost_object_counts(inner: Any, depth: int) -> None:
    value = inner
    for _ in range(depth):
        value = {"outer": [value]}
    finding = find(json.dumps(value))
    assert isinstance(finding, Found)
    assert canonical_bytes(finding.value) == canonical_bytes(value)


@given(noise=st.text(st.sampled_from('{}[]":,\\a1 \n`'), max_size=60))
@settings(max_examples=500, deadline=None)
def test_noise_never_raises_and_what_is_found_stands_in_it(noise: str) -> None:
    finding = find(noise)
    if isinstance(finding, Found):
        starts = [index for index, char in enumerate(noise) if char == "{"]
        decoder = json.JSONDecoder()
        found = []
        for start in starts:
            try:
                found.append(decoder.raw_decode(noise, start)[0])
            except ValueError:
                continue
        assert canonical_bytes(finding.value) in {canonical_bytes(value) for value in found}
