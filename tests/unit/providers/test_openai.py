"""The openai provider against a model server: what it asks, and what it makes of every kind of answer."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from loopwarden import Host, Limits, Script
from loopwarden.failure_class import FailureClass
from loopwarden.usage import Usage
from support.agents import until
from support.asking import KEY, SCHEMA, VALUE, ask, ask_once, failure_of, provider_at, reply_of
from support.model_server import (
    CutShort,
    ModelRequest,
    ModelServer,
    Raw,
    Say,
    Stall,
    Structured,
    Tokens,
    UseTool,
    always,
    in_order,
)
from support.model_server.chat_completions import ChatCompletions

MODES = ("json_schema", "tool", "text")
USAGE = Usage(input_tokens=1200, cached_input_tokens=200, output_tokens=30)


# ---- what comes back


@pytest.mark.parametrize("mode", MODES)
def test_an_answer_in_one_piece_is_taken_too(runner: asyncio.Runner, mode: str) -> None:
    def brain(request: ModelRequest) -> Raw:
        wire = ChatCompletions()
        whole = ModelRequest(
            number=1, format="", method="", path="", query="", headers={}, body=request.body,
            asked=wire.read("", "", {**request.body, "stream": False}),
        )  # fmt: skip
        return Raw(pieces=(b"\n", *wire.encode(whole, Structured(value=VALUE)).pieces), headers={})

    reply = reply_of(ask_once(runner, brain, options={"structured_output": mode}, schema=SCHEMA))
    assert (reply.value, reply.usage) == (VALUE, USAGE)
    assert "the endpoint answered in one piece, although a stream was asked for" in reply.notes


@pytest.mark.parametrize("mode", ["json_schema", "text"])
def test_a_value_inside_of_words_is_found_as_with_a_command(runner: asyncio.Runner, mode: str) -> None:
    text = f"Here it is:\n```json\n{json.dumps(VALUE)}\n```\n"
    reply = reply_of(ask_once(runner, always(Say(text=text)), options={"structured_output": mode}, schema=SCHEMA))
    assert (reply.value, reply.text, reply.notes) == (VALUE, text, ("the value stood in a code fence",))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("no value", "the output holds no JSON object"),
        ("", "the output holds no JSON object"),
        ('{"n": "1", "word": "a"}', "the JSON object in the output is not usable: value.n: "),
        ('{"n": 1, "word": "a"} {"n": 2, "word": "a"}', "the output holds 2 different JSON objects that satisfy"),
        ('{"n": 1, "word": "\\ud800"}', "it is not plain JSON"),
        ('{"n": 1, "word": "a"', "the output holds no JSON object"),
    ],
)
def test_a_text_without_the_value_is_invalid_output(runner: asyncio.Runner, text: str, reason: str) -> None:
    failed = failure_of(ask_once(runner, always(Say(text=text)), schema=SCHEMA))
    assert failed.failure_class is FailureClass.INVALID_OUTPUT
    assert "gave no usable answer: " in failed.reason
    assert reason in failed.reason
    assert failed.usage == USAGE


def call(arguments: str, name: str = "report", index: int = 0) -> dict[str, Any]:
    return {"index": index, "id": f"c{index}", "type": "function", "function": {"name": name, "arguments": arguments}}


def stream_of(*records: dict[str, Any]) -> Raw:
    """A stream of exactly these records."""
    events = [b"data: " + json.dumps(record).encode() + b"\n\n" for record in records]
    return Raw(pieces=(*events, b"data: [DONE]\n\n"))


def calling(*calls: dict[str, Any], finish: str = "tool_calls") -> Raw:
    return stream_of({"choices": [{"delta": {"tool_calls": list(calls)}, "finish_reason": finish}]})


ONE, OTHER = json.dumps(VALUE), json.dumps({**VALUE, "n": 2})


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Say(text=ONE), "the model did not call the tool 'report' that it had to call"),
        (calling(call(ONE, "other")), "the model called the tool 'other', and it has only 'report'"),
        (calling(call("")), "the arguments of its tool call are not one plain JSON object"),
        (calling(call(ONE + ONE)), "the arguments of its tool call are not one plain JSON object"),
        (calling(call("[]")), "the arguments of its tool call are not one plain JSON object"),
        (calling(call('{"n": 1, "n": 1}')), "the key 'n' stands twice in one object"),
        (calling(call('{"n": NaN}')), "the arguments of its tool call are not one plain JSON object"),
        (calling(call('{"n": 1}')), "the arguments of its tool call do not satisfy the schema: value: "),
        (calling(call(ONE), call(OTHER, index=1)), "the model called its tool with 2 different values"),
        (calling(call('{"n": 1, "word": "\ud800"}')), "it holds half of a character"),
    ],
)
def test_a_tool_call_that_is_not_the_value_is_invalid_output(runner: asyncio.Runner, answer: Any, reason: str) -> None:
    failed = failure_of(ask_once(runner, always(answer), options={"structured_output": "tool"}, schema=SCHEMA))
    assert failed.failure_class is FailureClass.INVALID_OUTPUT
    assert reason in failed.reason


@pytest.mark.parametrize(
    "answer",
    [calling(call(ONE), finish="stop"), calling(call(ONE), call(ONE, index=1))],
    ids=["as OpenAI ends a forced call", "the same twice"],
)
def test_one_distinct_tool_call_is_the_value(runner: asyncio.Runner, answer: Raw) -> None:
    reply = reply_of(ask_once(runner, always(answer), options={"structured_output": "tool"}, schema=SCHEMA))
    assert reply.value == VALUE


@pytest.mark.parametrize("schema", [None, SCHEMA])
def test_a_tool_that_was_not_offered_is_invalid_output(runner: asyncio.Runner, schema: dict[str, Any] | None) -> None:
    answer = UseTool(name="write", arguments={}, text=ONE)
    failed = failure_of(ask_once(runner, always(answer), schema=schema))
    assert failed.failure_class is FailureClass.INVALID_OUTPUT
    assert "the model called a tool, and it has none" in failed.reason


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_text_is_no_answer(runner: asyncio.Runner, text: str) -> None:
    failed = failure_of(ask_once(runner, always(Say(text=text))))
    assert (failed.failure_class, "the model said nothing" in failed.reason) == (FailureClass.INVALID_OUTPUT, True)


@pytest.mark.parametrize(
    ("finish", "failure_class"),
    [
        ("length", FailureClass.LIMIT),
        ("model_length", FailureClass.LIMIT),
        ("content_filter", FailureClass.DENIED),
        ("insufficient_system_resource", FailureClass.OVERLOADED),
        ("error", FailureClass.UNAVAILABLE),
        ("something new", FailureClass.UNKNOWN),
    ],
)
def test_an_end_that_is_not_good_fails_whatever_was_said(
    runner: asyncio.Runner, finish: str, failure_class: FailureClass
) -> None:
    answer = stream_of(
        {"choices": [{"delta": {"content": ONE}, "finish_reason": None}]},
        {"choices": [{"delta": {}, "finish_reason": finish}], "usage": {"prompt_tokens": 5, "completion_tokens": 6}},
    )
    failed = failure_of(ask_once(runner, always(answer), options={"max_output_tokens": 9}, schema=SCHEMA))
    assert (failed.failure_class, failed.evidence) == (failure_class, f"finish_reason {finish}")
    assert failed.usage == Usage(input_tokens=5, output_tokens=6)
    assert ("max_output_tokens, 9" in failed.reason) == (failure_class is FailureClass.LIMIT)


def test_a_refusal_is_denied(runner: asyncio.Runner) -> None:
    answer = stream_of(
        {"choices": [{"delta": {"refusal": "I will "}}]},
        {"choices": [{"delta": {"refusal": "not."}, "finish_reason": "stop"}]},
    )
    failed = failure_of(ask_once(runner, always(answer), schema=SCHEMA))
    assert (failed.failure_class, failed.evidence) == (FailureClass.DENIED, "I will not.")


@pytest.mark.parametrize("tidy", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_a_cut_stream_is_unavailable_and_never_a_shorter_answer(runner: asyncio.Runner, mode: str, tidy: bool) -> None:
    """Cut after each event. Only once the model has said that it ended, and HTTP has ended well, is it an answer."""
    good_from = 5  # The role, three pieces, the finish_reason; in the tool's stream one more names the tool.
    good_from += mode == "tool"
    for pieces in range(good_from + 2):
        answer = CutShort(said=Structured(value=VALUE), pieces=pieces, tidy=tidy)
        asked = ask_once(runner, always(answer), options={"structured_output": mode}, schema=SCHEMA)
        if tidy and pieces >= good_from:
            assert reply_of(asked).value == VALUE
            assert "the endpoint ended its stream without [DONE]" in reply_of(asked).notes
        else:
            assert failure_of(asked).failure_class is FailureClass.UNAVAILABLE
            assert pieces == 0 or "broke off after" in failure_of(asked).reason


def test_a_stream_that_is_cut_inside_of_its_last_record_is_cut(runner: asyncio.Runner) -> None:
    """Though the model had come to its end: what HTTP calls a good end is none."""
    end = b'data: {"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}\n\n'
    failed = failure_of(ask_once(runner, always(Raw(pieces=(end, b'data: {"choices": [], "usa')))))
    assert failed.failure_class is FailureClass.UNAVAILABLE
    assert "broke off after 1 character" in failed.reason


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Raw(pieces=()), "answered without a chat completion; check base_url"),
        (Raw(pieces=(b"ok",)), "answered without a chat completion; check base_url"),
        (Raw(pieces=(b"<html>Log in</html>",)), "answered with a web page, not with a chat completion"),
        (Raw(pieces=(b"data: {\n\n",)), "sent something that is not JSON where a piece of the answer is due"),
        (Raw(pieces=(b"{",)), "sent something that is not JSON where a piece of the answer is due"),
        (Raw(pieces=(b"{}",)), "answered without a chat completion; check base_url"),
        (Raw(pieces=(b'{"choices": []}',)), "answered without a chat completion; check base_url"),
        (Raw(pieces=(b"data: \xff\n\n",)), "sent an event that is not UTF-8"),
        (Raw(pieces=(b"\x1f\x8b",), headers={"content-encoding": "gzip"}), "compressed its answer"),
    ],
)
def test_what_is_no_chat_completion_is_unavailable(runner: asyncio.Runner, answer: Raw, reason: str) -> None:
    failed = failure_of(ask_once(runner, always(answer)))
    assert failed.failure_class is FailureClass.UNAVAILABLE
    assert reason in failed.reason


@pytest.mark.parametrize("streams", [True, False])
def test_an_answer_beyond_the_cap_is_ended(runner: asyncio.Runner, streams: bool) -> None:
    text = "x" * 200_000
    record = {"choices": [{"message": {"content": text}, "finish_reason": "stop"}]}
    answer = Say(text=text, parts=200) if streams else Raw(pieces=(json.dumps(record).encode(),))
    failed = failure_of(ask_once(runner, always(answer), max_output_bytes=100_000))
    assert failed.failure_class is FailureClass.INVALID_OUTPUT
    assert "sent an answer of more than" in failed.reason


# ---- life and end


def test_a_stall_gives_no_sign_of_life_and_a_cancel_closes_the_connection(runner: asyncio.Runner) -> None:
    async def play(server: ModelServer) -> None:
        signs: list[str] = []
        task = asyncio.create_task(ask(provider_at(server.url), alive=lambda: signs.append("alive")))
        await until(lambda: bool(server.exchanges) and server.exchanges[0].state == "stalled")
        await until(lambda: len(signs) == 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: server.exchanges[0].state == "client left" and not server.open_connections)
        assert len(signs) == 2
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with ModelServer(always(Stall(said=Say(text="a long answer"), pieces=2))) as server:
        runner.run(play(server))


def test_a_cancel_while_nothing_has_come_closes_the_connection(runner: asyncio.Runner) -> None:
    async def play(server: ModelServer) -> None:
        task = asyncio.create_task(ask(provider_at(server.url)))
        await until(lambda: bool(server.exchanges) and server.exchanges[0].state == "stalled")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: server.exchanges[0].state == "client left" and not server.open_connections)

    with ModelServer(always(Stall())) as server:
        runner.run(play(server))


def test_keep_alives_of_a_gateway_are_no_sign_of_life(runner: asyncio.Runner) -> None:
    quiet = Raw(pieces=[b": keep-alive\n\n", b"\n", b": PROCESSING\n\n"] * 5)
    asked = ask_once(runner, always(quiet))
    assert (asked.signs, asked.words) == (0, [])
    assert failure_of(asked).failure_class is FailureClass.UNAVAILABLE


def test_nothing_is_read_after_the_end_of_the_stream(runner: asyncio.Runner) -> None:
    """An endpoint that does not hang up does not hold up the answer."""
    end = b'data: {"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
    assert reply_of(ask_once(runner, always(Raw(pieces=(end,), stalls=True)))).text == "a"


def test_progress_is_told_now_and_then(runner: asyncio.Runner) -> None:
    asked = ask_once(runner, always(Say(text="x" * 5000, thinking="y" * 2500, parts=50)))
    assert asked.words[:3] == ["thinking, 50 characters", "thinking, 1,050 characters", "thinking, 2,050 characters"]
    assert asked.words[3:5] == ["writing, 100 characters", "writing, 1,100 characters"]
    assert len(asked.words) == 8
    assert asked.signs > 100


# ---- usage and money


def test_the_cost_is_known_with_both_prices(runner: asyncio.Runner) -> None:
    asked = ask_once(runner, always(Say(text="a")), options={"input_price_usd": 2.5, "output_price_usd": 10})
    assert reply_of(asked).usage == USAGE + Usage(cost_usd=(1200 * 2.5 + 30 * 10) / 1e6)
    asked = ask_once(runner, always(Say(text="a")), options={"input_price_usd": 2.5})
    assert reply_of(asked).usage == USAGE


@pytest.mark.parametrize(
    ("given", "usage"),
    [
        ({"prompt_tokens": 3, "completion_tokens": 4}, Usage(input_tokens=3, output_tokens=4)),
        ({"prompt_tokens": 3, "prompt_cache_hit_tokens": 1}, Usage(input_tokens=3, cached_input_tokens=1)),
        ({"prompt_tokens": -3, "completion_tokens": True}, None),
        ({"prompt_tokens": "3"}, None),
        ([], None),
        (None, None),
    ],
)
def test_usage_that_is_not_told_stays_unknown(runner: asyncio.Runner, given: Any, usage: Usage | None) -> None:
    record = {"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}], "usage": given}
    options = {"input_price_usd": 0, "output_price_usd": 0}
    reply = reply_of(ask_once(runner, always(stream_of(record)), options=options))
    assert reply.usage == (usage if usage is None or usage.output_tokens is None else usage + Usage(cost_usd=0.0))
    assert ("the endpoint did not say how many tokens were used" in reply.notes) == (usage is None)


def test_an_endpoint_that_sends_no_usage_leaves_it_unknown(runner: asyncio.Runner) -> None:
    reply = reply_of(ask_once(runner, always(Say(text="a", tokens=None))))
    assert (reply.usage, reply.notes) == (None, ("the endpoint did not say how many tokens were used",))
    reply = reply_of(ask_once(runner, always(Say(text="a", tokens=Tokens(input=1, cached=0, output=2)))))
    assert reply.usage == Usage(input_tokens=1, cached_input_tokens=0, output_tokens=2)


# ---- in a run


def test_a_run_gets_text_value_and_failure(runner: asyncio.Runner, tmp_path: Path) -> None:
    script = Script.from_text(
        f"def main(args):\n    return [agent('one'), agent('two', schema={SCHEMA!r}), agent('three')]\n"
    )
    answers = (Say(text="first"), Structured(value=VALUE), Say(text="cut", finish="length"))

    async def play(url: str) -> Any:
        async with Host(providers={"default": provider_at(url)}, state_folder=tmp_path) as host:
            return await host.run(script)

    with ModelServer(in_order(*answers)) as server:
        outcome = runner.run(play(server.url))
    assert (outcome.stop_reason, outcome.value) == ("completed", ["first", VALUE, None])
    assert KEY not in json.dumps(outcome.receipt.to_json())
    kept = sorted((path.parent.name, path.read_text()) for path in tmp_path.rglob("output*.txt"))
    assert [text for _, text in kept] == ["first", json.dumps(VALUE, ensure_ascii=False), "cut"]


def test_a_stalled_endpoint_is_noticed_by_the_host(runner: asyncio.Runner) -> None:
    async def play(server: ModelServer) -> Any:
        limits = Limits(agent_idle_seconds=0.2)
        async with Host(providers={"default": provider_at(server.url)}, limits=limits) as host:
            outcome = await host.run(Script.from_text("def main(args):\n    return agent('p')\n"))
        await until(lambda: server.exchanges[0].state == "client left" and not server.open_connections)
        return outcome

    with ModelServer(always(Stall(said=Say(text="long"), pieces=3))) as server:
        outcome = runner.run(play(server))
    assert (outcome.stop_reason, outcome.value) == ("completed", None)
    assert "it was silent for longer than agentIdleSeconds allows" in str(outcome.receipt.agents[0].reason)


def test_what_was_written_is_kept_whatever_became_of_it(runner: asyncio.Runner, tmp_path: Path) -> None:
    options = {"structured_output": "tool"}
    ask_once(runner, always(calling(call("{broken"))), options=options, schema=SCHEMA, folder=tmp_path)
    ask_once(runner, always(Say(text=f"key {KEY}", finish="length")), folder=tmp_path, attempt=2)
    ask_once(runner, always(CutShort(said=Say(text="abc"), pieces=0)), folder=tmp_path, attempt=3)
    kept = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert kept == {"output.txt": "{broken", "output-2.txt": "key [secret]"}


def test_a_schema_that_cannot_be_enforced_asks_nothing(runner: asyncio.Runner) -> None:
    asked = ask_once(runner, in_order(), schema={"type": "object", "pattern": 5})
    assert "the schema of the call cannot be enforced" in failure_of(asked).reason
