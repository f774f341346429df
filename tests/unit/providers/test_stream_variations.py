"""Recordings as other runs would have made them: other words, models, line ends and records, and the same outcome.

Every recording of every program is played once as it is and once in each variation. What an agent and its tools say may
hold any word that an error could: it must never change what became of the attempt.
"""

import copy
import functools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from loopwarden.provider import AgentFailed
from loopwarden.providers.configured import make_dialect
from loopwarden.providers.dialect import Ask, ProgramOptions
from loopwarden.providers.process import Ending
from loopwarden.providers.records import RecordReader
from loopwarden.providers.verdict import ProgramAttempt, conclude
from support.replay import PROGRAMS, Recording, asked_schema, recordings

JsonObject = dict[str, Any]
Vary = Callable[[str, JsonObject], list[JsonObject]]

HOT = (
    "429 Too Many Requests: rate limit exceeded, try again in 60s. status 401 Unauthorized, invalid api key. "
    "Overloaded. Credit balance is too low. Prompt is too long. ECONNREFUSED. interrupted. limit reached|1796048552. "
    "Loop detection halted the run. structured_output tool. Reached max session turns."
)
DAY = 86_400.0


@functools.cache
def all_recordings() -> tuple[Recording, ...]:
    return tuple(recording for program in PROGRAMS for recording in recordings(program).values())


def recorded(program: str, scenario: str) -> Recording:
    return next(one for one in all_recordings() if (one.program, one.scenario) == (program, scenario))


def outcome(
    recording: Recording, stdout: bytes | None = None, stderr: bytes | None = None, end: int | None = None
) -> JsonObject:
    """What the driver makes of a recording, or of other bytes and another end in its place."""
    schema = asked_schema(recording)
    end = recording.end if end is None else end
    ask = Ask(
        prompt="Do it.", schema=schema, schema_file=None if schema is None else Path("/private/s.json"), model=None,
        workspace=Path("/workspace"), home=Path("/private/home"), max_cost_usd=None, is_root=False,
        options=ProgramOptions(),
    )  # fmt: skip
    reading, reader = make_dialect(recording.program).reading(ask), RecordReader()
    for record in (*reader.feed(recording.stdout if stdout is None else stdout), *reader.finish()):
        reading.take(record)
    ending = Ending(
        exit=end if end >= 0 else None, signal=-end if end < 0 else None, left=0, seconds=1.0, output=b"",
        output_excess=False, errors=recording.stderr if stderr is None else stderr, notes=(), problem=None,
    )  # fmt: skip
    attempt = ProgramAttempt(
        title="It", schema=schema, reading=reading, reader=reader, ending=ending, max_output_bytes=2**24,
        cancelled=None, notes=(),
    )  # fmt: skip
    found: JsonObject = {"class": None, "value": None, "text": None, "resets_at": None, "retry_after": None}
    try:
        reply = conclude(attempt)
    except AgentFailed as failed:
        found |= {"class": str(failed.failure_class), "resets_at": failed.resets_at}
        return found | {"retry_after": failed.retry_after_seconds, "usage": failed.usage}
    return found | {"value": reply.value, "text": reply.text, "usage": reply.usage}


def varied(recording: Recording, vary: Vary) -> bytes:
    """The standard output with each record varied. What is no record stays."""

    def lines() -> Iterator[str]:
        for line in recording.stdout.decode().split("\n"):
            try:
                record = json.loads(line)
            except ValueError:
                record = None
            if isinstance(record, dict):
                yield from (json.dumps(one) for one in vary(recording.program, copy.deepcopy(record)))
            else:
                yield line

    return "\n".join(lines()).encode()


# ---- ways to print the same


def in_other_order(_: str, record: JsonObject) -> list[JsonObject]:
    def turned(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: turned(value[key]) for key in reversed(value)}
        return [turned(one) for one in value] if isinstance(value, list) else value

    return [turned(record)]


def with_unknown_records_and_fields(_: str, record: JsonObject) -> list[JsonObject]:
    strange = {"type": "later", "status": "error", "error": {"message": HOT}, "message": HOT, "is_error": True}
    return [strange, {"subtype": "odd", "data": HOT}, record | {"later": {"error": HOT, "status": 401}}, strange]


def with_messages_told_twice(_: str, record: JsonObject) -> list[JsonObject]:
    is_told = record.get("type") in {"assistant", "text", "step_finish", "item.started", "item.completed"}
    return [record, record] if is_told else [record]


def with_other_models(_: str, record: JsonObject) -> list[JsonObject]:
    text = json.dumps(record)
    for model in ("claude-opus-5-5", "claude-sonnet-5-5", "gemini-2.5-pro", '"m1"'):
        text = text.replace(model, json.dumps("vendor/overloaded-429") if model[0] == '"' else "vendor/overloaded-429")
    return [json.loads(text)]


def with_thinking(program: str, record: JsonObject) -> list[JsonObject]:
    match program, record.get("type"):
        case "claude", "assistant" if "error" not in record:
            thinking = [{"type": "thinking", "thinking": HOT, "signature": "s"}]
            return [record | {"message": record["message"] | {"content": thinking}}, record]
        case "codex", "item.completed":
            return [{"type": "item.completed", "item": {"id": "r", "type": "reasoning", "text": HOT}}, record]
        case "opencode", "text":
            return [{"type": "reasoning", "part": {"id": "r", "type": "reasoning", "text": HOT}}, record]
        case _:
            return [record]


def with_a_sub_agent(program: str, record: JsonObject) -> list[JsonObject]:
    if program not in ("claude", "qwen") or record.get("type") != "user":
        return [record]
    said: JsonObject = {"id": "sub", "content": [{"type": "text", "text": HOT}], "stop_reason": None, "usage": {}}
    result = {"role": "user", "content": [{"type": "tool_result", "is_error": True, "content": HOT}]}
    return [
        {"type": "assistant", "parent_tool_use_id": "toolu_1", "message": said},
        {"type": "user", "parent_tool_use_id": "toolu_1", "message": result},
        record,
    ]


def with_words_of_errors(program: str, record: JsonObject) -> list[JsonObject]:
    """All that the agent says, runs and reads is full of errors. Values that a schema asked for stay."""
    match program, record.get("type"):
        case "claude" | "qwen", "assistant" | "user" if "error" not in record:
            for block in record["message"]["content"]:
                if "[API Error" not in block.get("text", ""):
                    block |= {key: HOT for key in ("text", "content") if key in block}
                if block.get("name", "").lower().replace("_", "") != "structuredoutput" and "input" in block:
                    block["input"] = {"command": HOT, "file_path": HOT}
            if "tool_use_result" in record:
                record["tool_use_result"] = HOT
        case "claude" | "qwen", "result" if record["is_error"] is False:
            if "structured_output" not in record and "structured_result" not in record:
                record["result"] = HOT
        case "codex", _ if "item" in record and record["item"]["type"] != "error":
            said = record["item"].get("text", "")
            record["item"] |= {"text": said if said.startswith("{") else HOT, "command": HOT, "aggregated_output": HOT}
        case "opencode", "text":
            record["part"]["text"] = HOT
        case "opencode", "tool_use" if "output" in record["part"]["state"]:
            record["part"]["state"] |= {"output": HOT, "input": {"command": HOT}, "title": HOT}
        case "gemini", "message":
            record["content"] = HOT
        case "gemini", "tool_use" | "tool_result":
            record |= {"parameters": {"command": HOT}, "output": HOT, "error": {"type": "x", "message": HOT}}
        case _:
            pass
    return [record]


RECORDS: dict[str, Vary] = {
    "keys in another order": in_other_order,
    "unknown records and fields": with_unknown_records_and_fields,
    "messages told twice": with_messages_told_twice,
    "other models": with_other_models,
    "thinking": with_thinking,
    "a sub-agent": with_a_sub_agent,
}
BYTES: dict[str, Callable[[bytes], bytes]] = {
    "Windows line ends": lambda stream: stream.replace(b"\n", b"\r\n"),
    "a byte order mark": lambda stream: b"\xef\xbb\xbf" + stream,
    "no last line end": lambda stream: stream.rstrip(b"\n"),
    "blank lines": lambda stream: stream.replace(b"\n", b"\n\n \t\n"),
}


@pytest.mark.parametrize("name", RECORDS)
def test_a_recording_with_varied_records_has_the_same_outcome(name: str) -> None:
    changed = 0
    for one in all_recordings():
        stream = varied(one, RECORDS[name])
        changed += stream != varied(one, lambda _, record: [record])
        assert outcome(one, stream) == outcome(one), f"{one.program}/{one.scenario}"
    assert changed >= 15


@pytest.mark.parametrize("name", BYTES)
def test_a_recording_in_other_bytes_has_the_same_outcome(name: str) -> None:
    for one in all_recordings():
        found = outcome(one, BYTES[name](one.stdout), BYTES[name](one.stderr))
        assert found == outcome(one), f"{one.program}/{one.scenario}"


def test_what_an_agent_and_its_tools_say_of_errors_is_no_error() -> None:
    answers = 0
    for one in all_recordings():
        found, expected = outcome(one, varied(one, with_words_of_errors)), outcome(one)
        answers += HOT in (found["text"] or "")
        assert found | {"text": None} == expected | {"text": None}, f"{one.program}/{one.scenario}"
    assert answers >= 70


def test_a_last_line_that_was_cut_off_changes_nothing() -> None:
    cut_off = b'{"type":"assistant","message":{"content":[{"type":"text","text":"' + HOT.encode()
    for one in all_recordings():
        assert outcome(one, one.stdout + cut_off) == outcome(one), f"{one.program}/{one.scenario}"


def test_what_node_warns_of_changes_nothing() -> None:
    warning = (
        b"(node:17) Warning: Setting the NODE_TLS_REJECT_UNAUTHORIZED environment variable to '0' makes TLS insecure.\n"
        b"(Use `node --trace-warnings ...` to show where the warning was created)\n"
    )
    for one in all_recordings():
        assert outcome(one, stderr=warning + one.stderr) == outcome(one), f"{one.program}/{one.scenario}"
        assert outcome(one, stderr=one.stderr + warning) == outcome(one), f"{one.program}/{one.scenario}"


# ---- what other runs would print


def stream(*records: JsonObject) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def records_of(recording: Recording) -> list[JsonObject]:
    return [json.loads(line) for line in recording.stdout.splitlines() if line.startswith(b"{")]


@pytest.mark.parametrize("delay", ["1", "17", "3600", "86400"])
def test_another_retry_after_is_another_delay(delay: str) -> None:
    limited = recorded("opencode", "04-429")
    (record,) = records_of(limited)
    record["error"]["data"]["responseHeaders"]["retry-after"] = delay
    found = outcome(limited, stream(record))
    assert (found["class"], found["retry_after"]) == ("rateLimited", float(delay))
    retried = recorded("gemini", "04-429")
    found = outcome(retried, stderr=retried.stderr.replace(b"retry after 1s", b"retry after " + delay.encode() + b"s"))
    assert (found["class"], found["retry_after"]) == ("rateLimited", float(delay))


@pytest.mark.parametrize(
    ("scenario", "failure_class"), [("04-429", "rateLimited"), ("05-401", "auth"), ("06-500", "unavailable")]
)
@pytest.mark.parametrize("retries", [1, 3])
@pytest.mark.parametrize("end", [143, 130, -15, -2, -9])
def test_claude_ended_amid_any_number_of_retries_was_kept_by_their_error(
    scenario: str, failure_class: str, retries: int, end: int
) -> None:
    waiting = recorded("claude", scenario)
    records = records_of(waiting)[: 1 + retries]
    assert records[-1]["attempt"] == retries
    assert outcome(waiting, stream(*records), end=end)["class"] == failure_class
    went_on = {"type": "assistant", "message": {"id": "m", "content": [{"type": "text", "text": HOT}]}}
    expected = "crashed" if end == -9 else "cancelled"
    assert outcome(waiting, stream(*records, went_on), end=end)["class"] == expected


@pytest.mark.parametrize("end", [-15, -2, -9])
def test_qwen_ended_amid_a_wait_with_a_delay_was_kept_by_a_rate_limit(end: int) -> None:
    silent = recorded("qwen", "04c-429-retryafter3600")
    data: JsonObject = {"reason": "retry", "discardedToolCalls": 0, "preserveText": False}
    again = {"type": "system", "subtype": "retry", "data": data}
    waits = again | {"data": data | {"attempt": 1, "maxRetries": 10, "delayMs": 60000}}
    expected = "crashed" if end == -9 else "cancelled"
    assert outcome(silent, silent.stdout + stream(waits), end=end)["class"] == "rateLimited"
    assert outcome(silent, silent.stdout + stream(again), end=end)["class"] == expected
    assert outcome(silent, silent.stdout + stream(waits, again), end=end)["class"] == expected
    went_on = {"type": "assistant", "message": {"id": "m", "content": [{"type": "text", "text": HOT}]}}
    assert outcome(silent, silent.stdout + stream(waits, went_on), end=end)["class"] == expected


def test_claude_waits_until_whatever_time_its_plan_names() -> None:
    limited = recorded("claude", "04d-429-oauth-unified")
    for kind, resets_at in (("seven_day", 1796480552), ("seven_day_opus", 1796480552000)):
        text = limited.stdout.replace(b"five_hour", kind.encode()).replace(b"1796048552", str(resets_at).encode())
        found = outcome(limited, text)
        assert (found["class"], found["resets_at"]) == ("rateLimited", 1796480552.0)


def test_codex_names_a_day_when_its_plan_frees_later_than_today() -> None:
    limited = recorded("codex", "04e-429-usage_limit-resets_at")
    when = time.localtime(time.time() + 5 * DAY)
    named = time.strftime(f"%b {when.tm_mday}th, %Y %I:%M %p", when)
    found = outcome(limited, limited.stdout.replace(b"2:27 PM", named.encode()))
    assert found["class"] == "rateLimited"
    assert time.localtime(found["resets_at"])[:5] == when[:5]


def test_usage_goes_over_all_models_and_counts_a_cache_as_input() -> None:
    plain = recorded("claude", "01-plain")
    *before, result = records_of(plain)
    tokens = {
        "inputTokens": 10, "cacheReadInputTokens": 1000, "cacheCreationInputTokens": 100, "outputTokens": 7,
    }  # fmt: skip
    result |= {"modelUsage": {"large": tokens, "small": tokens}, "total_cost_usd": 0.5}
    usage = outcome(plain, stream(*before, result))["usage"].to_json()
    assert usage == {"inputTokens": 2220, "cachedInputTokens": 2000, "outputTokens": 14, "costUsd": 0.5}


def test_steps_of_opencode_are_added_up_and_the_answer_is_that_of_the_last() -> None:
    plain = recorded("opencode", "03-tool-default")
    records = records_of(plain)
    for number, record in enumerate(records):
        if record["type"] == "step_finish":
            cache = {"read": 1000, "write": 10}
            record["part"] |= {"cost": 0.25, "tokens": {"input": 5, "output": 7, "reasoning": 3, "cache": cache}}
        if record["type"] == "step_start" and number == 0:
            records.insert(1, {"type": "text", "part": {"id": "first", "text": "I shall write it."}})
    found = outcome(plain, stream(*records))
    assert found["text"] == "File written."
    assert found["usage"].to_json() == {
        "inputTokens": 2030, "cachedInputTokens": 2000, "outputTokens": 20, "costUsd": 0.5,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("program", "scenario", "said", "failure_class"),
    [
        ("codex", "05-401", "unexpected status 402 Payment Required: no funds, url: http://h:401/v1", "billing"),
        ("codex", "05-401", "unexpected status 503 Service Unavailable: try later", "overloaded"),
        ("codex", "05-401", "exceeded retry limit, last status: 502 Bad Gateway", "unavailable"),
        ("codex", "05-401", "request timed out", "unavailable"),
        (
            "codex",
            "05-401",
            "Codex ran out of room in the model's context window.",
            "promptTooLong",
        ),
        ("codex", "05-401", "Selected model is at capacity. Please try a different model.", "overloaded"),
        (
            "qwen",
            "05-401",
            "[API Error: 429 Allocated quota exceeded, please increase it.]",
            "rateLimited",
        ),
        ("qwen", "05-401", "[API Error: 403 Free allocated quota exceeded.]", "billing"),
        ("qwen", "05-401", "[API Error: 400 Range of input length: maximum context length is 9]", "promptTooLong"),
        ("qwen", "05-401", "[API Error: terminated (cause: other)]", "unavailable"),
        ("gemini", "05-401", '[API Error: {"error":{"code":503,"message":"The model is overloaded."}}]', "overloaded"),
        ("gemini", "05-401", '[API Error: {"error":{"code":400,"message":"API key not valid."}}]', "auth"),
    ],
)
def test_another_error_text_has_its_own_class(program: str, scenario: str, said: str, failure_class: str) -> None:
    failed = recorded(program, scenario)
    *before, last = records_of(failed)
    before = [record for record in before if record["type"] not in {"error", "assistant"}]
    last["error"] = last["error"] | {"message": said}
    assert outcome(failed, stream(*before, last))["class"] == failure_class
