"""Where a value meets the wire: borders of depth, and no shape of a value that holds up a host."""

import time

import pytest

from loopwarden_engine.json_decoding import decode_json
from loopwarden_engine.message_decoding import decode_from_host, decode_from_worker
from loopwarden_engine.messages import (
    Call,
    FromWorker,
    Reply,
    Result,
    Start,
    encode_from_host,
    encode_from_worker,
)
from loopwarden_engine.plain import MAX_DEPTH, JsonObject, JsonValue, PlainDataError, canonical_bytes, copy_plain


def nested(levels: int) -> JsonObject:
    """An object `levels` deep."""
    value: JsonObject = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


@pytest.mark.parametrize("message", [Result(nested(MAX_DEPTH)), Call(1, "1", 1, "p", nested(MAX_DEPTH))])
def test_the_deepest_plain_value_fits_into_a_message_of_a_worker(message: FromWorker) -> None:
    """A message is one level more than the value in it."""
    assert decode_from_worker(encode_from_worker(message)) == message


@pytest.mark.parametrize(
    "message",
    [
        Reply(1, nested(MAX_DEPTH)),
        Start(source="", args=nested(MAX_DEPTH), max_items_per_call=1, max_narration=1, max_frame_bytes=1),
    ],
)
def test_the_deepest_plain_value_fits_into_a_message_of_the_host(message: Reply | Start) -> None:
    """Else an honest reply would end its worker."""
    assert decode_from_host(encode_from_host(message)) == message


def test_a_value_of_a_message_is_no_deeper_than_plain_data() -> None:
    """One level more is refused, on both sides."""
    with pytest.raises(ValueError, match="nested more than"):
        decode_from_worker(b'{"type":"result","value":' + canonical_bytes(nested(MAX_DEPTH + 1)) + b"}")
    with pytest.raises(PlainDataError, match="nested more than 64 deep"):
        decode_json(canonical_bytes(nested(MAX_DEPTH + 1)))


def test_a_long_key_above_many_items_is_copied_without_a_path_for_each() -> None:
    """30,000 paths of 900,000 characters would take many seconds."""
    began = time.process_time()
    copy_plain({"k" * 900_000: [1] * 30_000})
    assert time.process_time() - began < 1


def test_the_path_of_a_refusal_stays_readable() -> None:
    """It is cut, not left out."""
    with pytest.raises(PlainDataError) as caught:
        copy_plain({"k" * 500_000: [1, {"b c": [object()]}]}, "result")
    assert caught.value.path.startswith("result.kkk")
    assert len(caught.value.path) <= 300
    with pytest.raises(PlainDataError, match=r"^result\.a\[1\]\['b c'\]\[0\]: object is not JSON data$"):
        copy_plain({"a": [1, {"b c": [object()]}]}, "result")


@pytest.mark.parametrize(
    "text", ["9007199254740992", "-9007199254740992", "1e999", "[1, 12345678901234567890]", "1E400"]
)
def test_numbers_that_are_not_plain_are_found_wherever_they_stand(text: str) -> None:
    """Also when most texts are decoded without looking at each number."""
    with pytest.raises(PlainDataError):
        decode_json(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("9007199254740991", 2**53 - 1),
        ("[1e3, 0.1, -0.0, 1]", [1000.0, 0.1, -0.0, 1]),
        ("-999999999999999", -(10**15) + 1),
    ],
)
def test_numbers_that_are_plain_keep_their_types(text: str, value: JsonValue) -> None:
    """Both ways of decoding agree."""
    assert canonical_bytes(decode_json(text)) == canonical_bytes(value)
