"""The body of an answer under any split: server-sent events, and the answer that is put together from them."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loopwarden.providers.openai.answer import AnswerBroken, AnswerTooLong, ErrorInAnswer
from loopwarden.providers.openai.server_sent_events import EventReader, EventStreamBroken, ServerSentEvent
from loopwarden.providers.openai.stream import AnswerStream
from support.model_server import ModelRequest, Say, Structured, UseTool
from support.model_server.chat_completions import ChatCompletions

CUTS = st.lists(st.integers(0, 4000), max_size=40)
TEXT = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=20)
EVENTS = st.lists(st.tuples(TEXT, st.lists(TEXT, min_size=1, max_size=3)), max_size=5)


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    """`data` in pieces, empty ones among them."""
    places = sorted(cut % (len(data) + 1) for cut in cuts)
    return [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]


def read_events(pieces: list[bytes], max_event_bytes: int = 100_000) -> list[ServerSentEvent]:
    reader = EventReader(max_event_bytes=max_event_bytes)
    return [event for piece in pieces for event in reader.feed(piece)] + reader.end()


@given(EVENTS, st.sampled_from(["\n", "\r\n", "\r"]), st.booleans(), st.booleans(), st.booleans(), CUTS)
def test_events_are_the_same_under_any_split(
    events: list[tuple[str, list[str]]], line_end: str, has_mark: bool, is_ended: bool, is_spaced: bool, cuts: list[int]
) -> None:
    space = " " if is_spaced else ""
    lines = []
    for name, data in events:
        # Without a space after the colon, one at the beginning of a value would be taken for it.
        texts = [text.lstrip(" ") for text in data]
        lines += [": a comment", f"event:{space}{name.lstrip(' ')}", *(f"data:{space}{text}" for text in texts)]
        lines += ["id: 7", "retry: 10", "data_of_something_else: x", ""]
    if not is_ended and lines:
        lines.pop()
    wire = ("\ufeff" if has_mark else "") + "".join(line + line_end for line in lines)
    expected = [
        ServerSentEvent(name=name.lstrip(" "), data="\n".join(text.lstrip(" ") for text in data))
        for name, data in events
    ]
    assert read_events(split(wire.encode(), cuts)) == expected


@given(st.binary(max_size=300), CUTS)
@example(b"data: a\r\n\r\ndata: b", [8])
@example(b"\xef\xbb\xbfdata: a\n\n", [1, 2])
def test_any_bytes_give_the_same_events_under_any_split(data: bytes, cuts: list[int]) -> None:
    def outcome(pieces: list[bytes]) -> Any:
        try:
            return read_events(pieces, 50)
        except EventStreamBroken as error:
            return str(error)

    assert outcome(split(data, cuts)) == outcome([data[i : i + 1] for i in range(len(data))])


def test_a_line_end_that_is_cut_in_two_is_one_line_end() -> None:
    pieces = [b"data: a\r", b"\ndata: b\r", b"", b"\n\r", b"\ndata: c\r", b"\r"]
    assert [event.data for event in read_events(pieces)] == ["a\nb", "c"]


@pytest.mark.parametrize(
    ("wire", "reason"),
    [
        (b"data: " + b"x" * 100, "sent an event of more than 64 bytes"),
        (b": " + b"x" * 100, "sent an event of more than 64 bytes"),
        (b"data: 0123456789\n" * 7, "sent an event of more than 64 bytes"),
        (b"data:\n" * 70, "sent an event of more than 64 bytes"),
        (b"data: \xff\n\n", "sent an event that is not UTF-8"),
        (b"event: \xc3\ndata: x\n\n", "sent an event that is not UTF-8"),
    ],
)
def test_what_is_no_event_stream_is_refused(wire: bytes, reason: str) -> None:
    with pytest.raises(EventStreamBroken) as caught:
        read_events([wire], 64)
    assert str(caught.value) == reason


def wire_of(said: Say | Structured | UseTool, *, streams: bool = True) -> bytes:
    """An answer as the model server sends it."""
    wire = ChatCompletions()
    body = {"messages": [], "model": "m", "stream": streams, "stream_options": {"include_usage": True}}
    request = ModelRequest(
        number=1,
        format=wire.name,
        method="POST",
        path="/",
        query="",
        headers={},
        body=body,
        asked=wire.read("", "", body),
    )
    return b"".join(wire.encode(request, said).pieces)


def read_answer(pieces: list[bytes], max_answer_bytes: int = 10_000) -> dict[str, Any]:
    """All that is known of an answer in the end."""
    stream = AnswerStream(max_answer_bytes=max_answer_bytes)
    try:
        for piece in pieces:
            stream.feed(piece)
        stream.end()
    except (AnswerBroken, AnswerTooLong) as error:
        return {"error": str(error)}
    except ErrorInAnswer as error:
        return {"error": error.record}
    answer = stream.answer
    return {
        "text": answer.text,
        "refusal": answer.refusal,
        "calls": [(call.name, call.arguments) for call in answer.tool_calls],
        "finish": answer.finish_reason,
        "usage": answer.usage,
        "thought": answer.thought_chars,
        "form": stream.form,
        "done": stream.is_done,
        "cut": stream.is_cut_off,
    }


WIRES = {
    "text": wire_of(Say(text="Grüße 🌱\r\n" * 5, thinking="hm, äh", parts=7)),
    "tool": wire_of(Structured(value={"n": 1, "word": "ß\n\u2028"}, tool="report")),
    "document": wire_of(Say(text="Grüße 🌱", thinking="hm"), streams=False),
    "with keep-alives": b"\xef\xbb\xbf: keep-alive\n\n" + wire_of(Say(text="a")).replace(b"\n\n", b"\r\n\r\n: x\r\n"),
    "without its end": wire_of(Say(text="abc")).removesuffix(b"\n\n"),
    "broken": wire_of(Say(text="abc")).replace(b'"finish_reason": "stop"', b'"finish_reason": stop'),
    "an error": b'data: {"error": {"message": "gr\xc3\xbcn"}}\n\n',
    "not UTF-8": b'data: {"choices": [{"delta": {"content": "\xc3"}}]}\n\n',
}


@pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES.keys())
def test_an_answer_is_the_same_cut_at_any_byte(wire: bytes) -> None:
    whole = read_answer([wire])
    assert whole == read_answer([wire[i : i + 1] for i in range(len(wire))])
    for at in range(len(wire)):
        assert read_answer([wire[:at], wire[at:]]) == whole


@given(st.sampled_from(sorted(WIRES)), CUTS)
def test_an_answer_is_the_same_under_any_split(name: str, cuts: list[int]) -> None:
    assert read_answer(split(WIRES[name], cuts)) == read_answer([WIRES[name]])


@pytest.mark.parametrize("name", ["text", "tool", "document", "with keep-alives"])
def test_no_beginning_of_an_answer_looks_like_an_answer(name: str) -> None:
    """Whatever is cut off, either no finish_reason has come, or the cut is seen, or only what follows it is missing."""
    wire = WIRES[name]
    whole = read_answer([wire])
    assert whole["finish"] is not None
    for end in range(len(wire)):
        cut = read_answer([wire[:end]])
        if "error" not in cut and cut["finish"] is not None and not cut["cut"]:
            assert {**cut, "usage": None, "done": True} == {**whole, "usage": None, "done": True}


def chunk(**choice: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, **choice}]}


def events(*records: Any) -> list[bytes]:
    return [
        b"data: " + (record if isinstance(record, bytes) else json.dumps(record).encode()) + b"\n\n"
        for record in records
    ]


def test_arguments_of_several_tool_calls_are_joined_by_index() -> None:
    def calls(*parts: tuple[int, str, str]) -> dict[str, Any]:
        made = [{"index": index, "function": {"name": name, "arguments": text}} for index, name, text in parts]
        return chunk(delta={"tool_calls": made})

    read = read_answer(events(calls((0, "a", "{"), (1, "b", "[")), calls((1, "", "]")), calls((0, "", "}"))))
    assert read["calls"] == [("a", "{}"), ("b", "[]")]


def test_calls_without_an_index_are_told_apart_by_their_id() -> None:
    first, second = (
        {"tool_calls": [{"id": name, "function": {"name": name, "arguments": {"n": 1}}}]} for name in ("a", "b")
    )
    assert read_answer(events(chunk(delta=first), chunk(delta=second)))["calls"] == [
        ("a", '{"n": 1}'),
        ("b", '{"n": 1}'),
    ]


def test_a_character_that_was_cut_into_two_escapes_is_whole_again() -> None:
    cut = [rb'{"choices": [{"delta": {"content": "\ud83c"}}]}', rb'{"choices": [{"delta": {"content": "\udf31"}}]}']
    assert read_answer(events(*cut))["text"] == "🌱"


def test_content_in_parts_is_joined_and_thinking_is_left_out() -> None:
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
        {"type": "text", "text": "a"},
        "b",
        {"type": "refusal", "refusal": "no"},
    ]
    read = read_answer(events(chunk(delta={"content": parts, "reasoning": "why"})))
    assert (read["text"], read["refusal"], read["thought"]) == ("ab", "no", 3)


def test_only_the_first_choice_counts() -> None:
    other = {"choices": [{"index": 1, "delta": {"content": "x"}, "finish_reason": "stop"}]}
    read = read_answer(events(other, chunk(delta={"content": "a"})))
    assert (read["text"], read["finish"]) == ("a", None)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (b"{", "sent something that is not JSON where"),
        (b"[" * 60_000, "sent something that is not JSON where"),
        (b"1" * 5000, "sent something that is not JSON where"),
        (b"7", "sent something that is not a JSON object where"),
        (b"[1, 2]", "sent something that is not a JSON object where"),
        ({"choices": 5}, "sent choices that are not a list"),
        ({"choices": [5]}, "sent choices that are not objects"),
        (chunk(delta=5), "sent a delta that is not an object"),
        (chunk(delta={"content": 5}), "sent something else than a text as content"),
        (chunk(delta={"content": {"text": "a"}}), "sent something else than a text as content"),
        (chunk(delta={"content": [5]}), "sent something else than a text as content"),
        (chunk(delta={"content": [{"type": "text", "text": 5}]}), "sent something else than a text as content"),
        (chunk(delta={"refusal": 5}), "sent something else than a text as refusal"),
        (chunk(delta={"tool_calls": {}}), "sent tool_calls that are not a list"),
        (chunk(delta={"tool_calls": [5]}), "sent tool_calls that are not objects"),
        (chunk(delta={"tool_calls": [{"index": 0}]}), "sent a tool call without a function"),
        (chunk(delta={"tool_calls": [{"function": {"arguments": 5}}]}), "sent something else than a text as arguments"),
        (chunk(finish_reason=5), "sent a finish_reason that is not a text"),
        (chunk(delta={"content": "x" * 10_001}), "sent an answer of more than 10,000 bytes"),
        (chunk(delta={"content": "x" * 100_000}), "sent an event of more than 75,536 bytes"),
        (b'{"x": "\xff"}', "sent an event that is not UTF-8"),
    ],
)
def test_a_record_of_another_shape_breaks_the_answer(record: Any, reason: str) -> None:
    assert reason in read_answer(events(record, chunk(delta={}, finish_reason="stop")))["error"]


@pytest.mark.parametrize("late", [{"content": "b"}, {"tool_calls": [{"function": {"name": "x", "arguments": "{}"}}]}])
def test_an_answer_does_not_go_on_after_its_end(late: dict[str, Any]) -> None:
    read = read_answer(events(chunk(delta={"content": "a"}, finish_reason="stop"), chunk(delta=late)))
    assert read == {"error": "went on after the end of its answer"}


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"choices": []},
        {"choices": None},
        chunk(),
        chunk(delta=None),
        chunk(delta={"content": None}),
        {"error": None},
    ],
)
def test_a_record_without_content_is_passed_over(record: dict[str, Any]) -> None:
    end = chunk(delta={}, finish_reason="stop")
    read = read_answer(events(chunk(delta={"content": "a"}), record, end, b"", b"[DONE]", b"after the end"))
    assert (read["text"], read["finish"], read["done"]) == ("a", "stop", True)


def test_a_flood_that_is_no_answer_ends() -> None:
    """Comments cost nothing to keep, so only the count of bytes ends them."""
    stream = AnswerStream(max_answer_bytes=1000)
    with pytest.raises(AnswerTooLong):
        any(stream.feed(b": keep-alive\n\n") for _ in range(100_000))


@pytest.mark.parametrize("key", ["index", "id"])
def test_a_flood_of_tool_calls_ends(key: str) -> None:
    """Each of them is kept, and costs nothing of the answer as long as it has no arguments."""
    stream = AnswerStream(max_answer_bytes=1_000_000)
    function = {"name": "x" * 10_000}
    calls = ({key: number if key == "index" else f"call-{number}", "function": function} for number in range(1000))
    with pytest.raises(AnswerTooLong, match="sent more than 128 tool calls"):
        any(stream.feed(events(chunk(delta={"tool_calls": [call]}))[0]) and False for call in calls)
    assert sum(len(kept.name) for kept in stream.answer.tool_calls) < 128 * 1000


def test_blank_lines_and_comments_are_no_signs_of_life() -> None:
    stream = AnswerStream(max_answer_bytes=1000)
    assert not any(stream.feed(piece) for piece in (b"\n\n", b" ", b": keep-alive\n\n", b"data: \n\n", b"data: {}\n\n"))
    assert stream.feed(events(chunk(delta={"role": "assistant"}))[0])
    document = AnswerStream(max_answer_bytes=1000)
    assert [document.feed(piece) for piece in (b"\n", b'{"choices":', b"\n", b"[]}")] == [False, True, False, True]
