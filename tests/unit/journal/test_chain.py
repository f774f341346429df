"""The stored form of entries, the chain, and what is said about rows that are damaged."""

import json
from dataclasses import replace
from typing import Any

import pytest

from loopwarden.journal.chain import (
    MAX_INLINE_BYTES,
    START,
    Unstorable,
    chain_hash,
    decode_rows,
    digests_in,
    encode_entry,
)
from loopwarden.journal.entries import Ended, Entry, Logged
from loopwarden.store.errors import StoreCorrupt, StoreTooNew
from loopwarden.store.runs import StoredEntry
from loopwarden_engine.plain import canonical_bytes, digest
from support.journals import RUN, Journal, begun, rechained

BIG = "x" * (MAX_INLINE_BYTES + 1)


class Flipping:
    """A codec that is easy to tell from none."""

    name = "flipping"

    def encode(self, data: bytes) -> bytes:
        return b"!" + bytes(byte ^ 0xFF for byte in data)

    def decode(self, data: bytes) -> bytes:
        if not data.startswith(b"!"):
            raise RuntimeError("the secret key is hunter2")
        return bytes(byte ^ 0xFF for byte in data[1:])


class Failing(Flipping):
    name = "failing"

    def encode(self, data: bytes) -> bytes:
        raise RuntimeError("the secret key is hunter2")


def entry_with(value: object) -> Ended:
    return Ended(at=1.5, seq=7, attempt=1, outcome="completed", value=value)


def damaged(rows: list[StoredEntry], blobs: dict[str, bytes]) -> str:
    with pytest.raises(StoreCorrupt) as caught:
        decode_rows(RUN, rows, blobs)
    assert caught.value.run_id == RUN
    return caught.value.problem


def with_body(body: dict[str, Any]) -> list[StoredEntry]:
    """A journal of an owner of the store: the second entry is this, and the hashes fit."""
    first = Journal().created().rows[0].body
    return rechained([first, json.dumps(body).encode()])


def test_an_entry_rests_as_compact_json_with_its_number() -> None:
    encoded = encode_entry(Logged(at=2.0, message="Grüße"), 12)
    assert encoded.body == '{"number":12,"entry":"log","at":2.0,"message":"Grüße"}'.encode()
    assert encoded.blobs == {}


def test_the_hash_covers_the_hash_before_and_the_body() -> None:
    body = b"body"
    assert chain_hash(START, body) == digest(START.encode() + body)
    assert chain_hash(chain_hash(START, body), body) != chain_hash(START, body)


@pytest.mark.parametrize(
    "value",
    [-0.0, 1.0, 1, True, None, 2**53 - 1, -(2**53 - 1), 1e22, 5e-324, 0.1, "", "\0\x1f\x7f\u2028", "😀é", [], {}],
)
@pytest.mark.parametrize("is_large", [False, True])
def test_plain_data_comes_back_exactly(value: object, is_large: bool) -> None:
    wanted = {"it": value, "in a list": [value], "padding": BIG if is_large else ""}
    journal = begun().asked(7).ended(7, wanted)
    assert bool(journal.blobs) is is_large
    found = decode_rows(RUN, journal.rows, journal.blobs)[-1].entry
    assert isinstance(found, Ended)
    assert canonical_bytes(found.value) == canonical_bytes(wanted)


def test_a_value_as_deep_as_plain_data_may_be_comes_back() -> None:
    value: object = 1
    for _ in range(64):
        value = [value]
    journal = begun().asked(7).ended(7, value)
    assert journal.entries[-1] == decode_rows(RUN, journal.rows, {})[-1].entry


def test_the_first_entry_says_everything_and_later_ones_leave_defaults_out() -> None:
    journal = begun().asked(1)
    assert json.loads(journal.rows[0].body)["format"] == 1
    assert "workspace" in json.loads(journal.rows[0].body)
    assert "prompt" not in json.loads(journal.rows[2].body)


def test_no_entry_has_a_field_with_the_names_that_the_chain_adds() -> None:
    for kind in Entry.__args__:  # type: ignore[attr-defined]
        assert not {"number", "blobs"} & kind.model_fields.keys()


def test_a_large_field_rests_as_a_blob_and_small_ones_stay() -> None:
    journal = begun().asked(1).ended(1, BIG, notes=["small"])
    body = json.loads(journal.rows[-1].body)
    assert "value" not in body
    assert body["notes"] == ["small"]
    [(name, where)] = body["blobs"].items()
    assert name == "value"
    assert journal.blobs == {where: json.dumps(BIG).encode()}
    assert digests_in(journal.rows[-1].body) == [where]
    assert decode_rows(RUN, journal.rows, journal.blobs)[-1].entry == journal.entries[-1]


def test_a_field_of_exactly_64_kib_stays_in_the_body() -> None:
    assert encode_entry(entry_with("x" * (MAX_INLINE_BYTES - 2)), 1).blobs == {}
    assert len(encode_entry(entry_with("x" * (MAX_INLINE_BYTES - 1)), 1).blobs) == 1


def test_many_fields_that_are_small_one_by_one_stay_in_the_body() -> None:
    half = "x" * (MAX_INLINE_BYTES // 2 + 10)
    assert encode_entry(entry_with(half).model_copy(update={"reason": half, "evidence": half}), 1).blobs == {}


@pytest.mark.parametrize("value", ["\ud800", object(), {"a": [object()]}, {"a": "\ud800"}])
def test_what_is_not_plain_data_is_not_written(value: object) -> None:
    with pytest.raises(Unstorable, match=r"^an entry 'ended' holds something that is not plain data$"):
        encode_entry(entry_with(None).model_copy(update={"value": value}), 1)


def test_rows_are_read_on_from_a_place_in_the_chain() -> None:
    journal = begun().phase("one").phase("two")
    later = decode_rows(RUN, journal.rows[2:], {}, after_seq=2, after_hash=journal.rows[1].hash)
    assert later == journal.chained[2:]


# ---- codecs


def test_a_codec_works_on_bodies_and_blobs_before_they_are_hashed() -> None:
    journal = Journal(codec=Flipping()).created().claimed().asked(1).ended(1, BIG)
    assert all(row.body.startswith(b"!") for row in journal.rows)
    [(where, data)] = journal.blobs.items()
    assert data.startswith(b"!")
    assert where == digest(data)
    assert decode_rows(RUN, journal.rows, journal.blobs, Flipping()) == journal.chained
    assert digests_in(journal.rows[-1].body, Flipping()) == [where]


def test_a_codec_that_cannot_read_is_named_without_its_words() -> None:
    with pytest.raises(StoreCorrupt) as caught:
        decode_rows(RUN, begun().rows, {}, Flipping())
    assert caught.value.problem == "entry 1: the codec 'flipping' cannot read it (RuntimeError); is its key right?"


def test_a_codec_that_cannot_write_is_named_without_its_words() -> None:
    with pytest.raises(Unstorable, match=r"^the codec 'failing' of the store failed with RuntimeError$"):
        encode_entry(entry_with(1), 1, Failing())


def test_what_cannot_be_read_names_no_blobs() -> None:
    assert digests_in(b"no JSON") == []
    assert digests_in(b'{"blobs":[1]}') == []


# ---- damage


def test_a_row_that_is_missing_is_found() -> None:
    rows = begun().phase("one").phase("two").rows
    assert damaged([*rows[:2], rows[3]], {}) == "entry 4 stands where entry 3 belongs"
    assert damaged(rows[1:], {}) == "entry 2 stands where entry 1 belongs"


def test_a_body_that_was_edited_is_found() -> None:
    rows = begun().phase("one").rows
    rows[2] = replace(rows[2], body=rows[2].body.replace(b"one", b"two"))
    assert damaged(rows, {}) == "entry 3 does not fit its hash: it, or an entry before it, was changed"


def test_a_hash_that_was_edited_is_found() -> None:
    rows = begun().phase("one").rows
    rows[1] = replace(rows[1], hash=START)
    assert damaged(rows, {}) == "entry 2 does not fit its hash: it, or an entry before it, was changed"


def test_a_body_that_a_database_turned_into_text_is_found() -> None:
    rows = begun().rows
    rows[1] = replace(rows[1], body=rows[1].body.decode())  # type: ignore[arg-type]
    assert damaged(rows, {}) == "entry 2 is not stored as bytes"


def test_a_blob_that_is_missing_changed_or_no_json_is_found() -> None:
    journal = begun().asked(1).ended(1, BIG)
    [where] = journal.blobs
    assert damaged(journal.rows, {}) == "entry 4: the blob of its field 'value' is missing"
    assert damaged(journal.rows, {where: b'"y"'}) == "entry 4: the blob of its field 'value' was changed"
    blob = b"[1,"
    rows = with_body({"number": 2, "entry": "log", "at": 1.0, "blobs": {"message": digest(blob)}})
    assert damaged(rows, {digest(blob): blob}).startswith("entry 2: the blob of its field 'message' cannot be read: ")


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"number": 3, "entry": "log", "at": 1.0, "message": "m"}, "its body says that it is entry 3"),
        ({"number": True, "entry": "log", "at": 1.0, "message": "m"}, "its body says that it is entry true"),
        ({"entry": "log", "at": 1.0, "message": "m"}, "its body says that it is entry null"),
        ({"number": 2, "entry": "log", "at": 1.0}, "log.message: Field required"),
        ({"number": 2, "entry": "log", "at": "1", "message": "m"}, "log.at: Input should be a valid number"),
        (
            {"number": 2, "entry": "log", "at": 1.0, "message": "m", "more": 1},
            "log.more: Extra inputs are not permitted",
        ),
        ({"number": 2, "entry": "log", "at": 1.0, "message": "m", "blobs": []}, "its blobs are not named by an object"),
        (
            {"number": 2, "entry": "log", "at": 1.0, "message": "m", "blobs": {"message": digest(b'"m"')}},
            "its field 'message' stands in the body and as a blob",
        ),
    ],
)
def test_a_body_that_is_no_entry_is_found_even_when_its_hash_fits(body: dict[str, Any], problem: str) -> None:
    assert damaged(with_body(body), {digest(b'"m"'): b'"m"'}) == f"entry 2: {problem}"


def test_an_unknown_entry_and_broken_json_are_found() -> None:
    first = Journal().created().rows[0].body
    assert damaged(rechained([first, b'{"number":2,"entry":"hm"}']), {}).startswith(
        "entry 2: the entry: Input tag 'hm'"
    )
    for long in (b'{"number":2,"entry":"%s"}', b'{"number":2,"entry":"log","at":1.0,"message":"m","%s":1}'):
        assert len(damaged(rechained([first, long % (b"x" * 1_000_000)]), {})) < 500
    assert damaged(rechained([first, b'{"number":2,"number":2}']), {}) == (
        "entry 2: its body cannot be read: the key 'number' stands twice in one object"
    )


def test_a_journal_begins_with_created_once() -> None:
    assert damaged(Journal().claimed().rows, {}) == "entry 1 is 'claimed'; a journal begins with 'created', once"
    assert damaged(begun().created().rows, {}) == "entry 3 is 'created'; a journal begins with 'created', once"


def test_a_journal_of_a_newer_format_is_left_alone() -> None:
    body = json.loads(Journal().created().rows[0].body) | {"format": 2, "somethingNew": 1}
    with pytest.raises(StoreTooNew) as caught:
        decode_rows(RUN, rechained([json.dumps(body).encode()]), {})
    assert str(caught.value) == (
        "entry 1 of run run-1: it begins a journal of format 2; this Loopwarden reads up to 1. "
        "Use the version that wrote it."
    )
