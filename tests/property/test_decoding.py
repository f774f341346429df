"""Promise 4: a text of very many values is decoded by other code than a short one, and means the same."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwarden_engine import json_decoding
from loopwarden_engine.json_decoding import decode_json, decode_object_in_steps
from loopwarden_engine.json_marks import count_marks
from loopwarden_engine.plain import PlainDataError, ValueTooLargeError, canonical_bytes, copy_plain

TEXTS = st.text(st.sampled_from('a",:[]{}\\\n\x00\u00e9\U0001f600'), max_size=6)
NUMBERS = st.sampled_from(
    [
        "0",
        "-1",
        "1.5",
        "-0.0",
        "1e5",
        "1E308",
        "1e309",
        "-1e999",
        "9007199254740991",
        "9007199254740993",
        "1" * 30,
        "NaN",
    ]
)
ESCAPED = st.sampled_from(
    [r'"\ud83d\ude00"', r'"\ud83d"', r'"\ude00\ud83d"', r'"\\ud800"', r'"\\\ud800"', r'"\u0022,"']
)
SCALARS = NUMBERS | ESCAPED | st.builds(json.dumps, TEXTS) | st.sampled_from(["null", "true", '""', "", "x"])
SPACE = st.sampled_from(["", "", " ", "\n\t"])


def _lists(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.builds(lambda items, space: f"[{space}{(space + ',').join(items)}]", st.lists(inner, max_size=4), SPACE)


def _objects(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    keys = st.sampled_from(['"a"', '"b"', '"a:,[{"', r'"\""', r'"\udc00"', '""', r'"\\"'])
    member = st.builds(lambda key, space, value: f"{key}{space}:{value}", keys, SPACE, inner)
    return st.builds(lambda members: "{" + ",".join(members) + "}", st.lists(member, max_size=4))


JSON_LIKE = st.recursive(SCALARS, lambda inner: _lists(inner) | _objects(inner), max_leaves=12)


def decoded(text: str | bytes) -> "tuple[bool, Any]":
    """Whether the text was taken, and its value in a form that can be compared."""
    try:
        return True, canonical_bytes(decode_json(text))
    except PlainDataError:
        return False, None


@given(text=JSON_LIKE)
def test_many_values_are_decoded_as_few_are(text: str) -> None:
    """Both take the same texts, and make the same of them."""
    few = decoded(text), decoded(text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_decoding, "_FEW_MARKS", -1)
        many = decoded(text), decoded(text.encode())
    assert many == few


@given(text=JSON_LIKE)
def test_an_object_is_decoded_in_steps_as_it_is_in_one(text: str) -> None:
    """Three steps at the most, and every refusal is the typed one."""
    steps = decode_object_in_steps(text.encode(), max_depth=64, max_values=None)
    try:
        for _ in range(3):
            next(steps)
        pytest.fail("there are more than three steps")
    except PlainDataError:
        in_steps: tuple[bool, Any] = False, None
    except StopIteration as over:
        in_steps = True, canonical_bytes(over.value)
    taken = decoded(text.encode())
    assert in_steps == (taken if taken[1] and taken[1].startswith(b"{") else (False, None))


@given(text=JSON_LIKE)
def test_what_is_counted_is_what_is_there(text: str) -> None:
    """Before anything is decoded; and a copy counts the same."""
    taken, _ = decoded(text)
    if not taken:
        return
    value = decode_json(text)
    marks = count_marks(text.encode().replace(b"\\\\", b"__"), None)
    assert marks is not None
    assert (marks.values, marks.members) == reference(value)
    copy_plain(value, max_values=marks.values)
    if marks.values:
        with pytest.raises(ValueTooLargeError):
            copy_plain(value, max_values=marks.values - 1)
        assert count_marks(text.encode().replace(b"\\\\", b"__"), marks.values - 1) is None


def reference(value: Any) -> tuple[int, int]:
    """Values and members of a value, counted plainly."""
    if not isinstance(value, list | dict):
        return 0, 0
    inner = list(value if isinstance(value, list) else value.values())
    below = [reference(item) for item in inner]
    members = len(inner) if isinstance(value, dict) else 0
    return max(len(inner), 1) + sum(v for v, _ in below), members + sum(m for _, m in below)


@given(text=JSON_LIKE, place=st.integers(0, 60), damage=st.sampled_from(['"', "\\", "x", '\\"', "]", "}", "[1 2", ","]))
def test_no_text_is_decoded_into_more_than_was_counted(text: str, place: int, damage: str) -> None:
    """Whatever it is: up to a mistake, no more is made than is allowed."""
    text = "[" + text[:place] + damage + text[place:] + "]"
    made = 0

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal made
        made += len(pairs)
        return dict(pairs)

    with contextlib.suppress(ValueError):
        json.loads(text, object_pairs_hook=members)
    marks = count_marks(text.encode().replace(b"\\\\", b"__"), None)
    assert marks is not None
    assert made <= marks.members
