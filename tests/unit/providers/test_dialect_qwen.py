"""The dialect of Qwen Code: how it is started, and what its records mean."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loopwarden.failure_class import FailureClass
from loopwarden.providers.dialect import Answer, ProgramEnd, ProgramOptions, Trouble
from loopwarden.providers.dialects.qwen import MAX_PROMPT_BYTES, Qwen
from support import dialect_lab as lab
from support.dialect_lab import ENDED, SCHEMA, ask, survive_odd_records
from support.odd_records import kinds_of_records

SUCCESS: dict[str, Any] = {"type": "result", "is_error": False, "subtype": "success", "result": "done"}


def read(*records: dict[str, Any], end: ProgramEnd = ENDED, **of_ask: Any) -> Answer | Trouble:
    return lab.read(Qwen(), *records, end=end, **of_ask)


def failed(message: str) -> dict[str, Any]:
    return {"type": "result", "subtype": "error_during_execution", "is_error": True, "error": {"message": message}}


def test_a_plain_ask_declares_the_workspace_untrusted_and_allows_the_tools_by_name() -> None:
    launch = Qwen().launch(ask())
    assert launch.arguments == (
        "-o", "stream-json", "--chat-recording", "false", "--auth-type", "openai", "--approval-mode", "default",
        "--allowed-tools", "run_shell_command", "--allowed-tools", "edit", "--allowed-tools", "write_file",
        "--allowed-tools", "notebook_edit", "--allowed-tools", "web_fetch", "--allowed-tools", "monitor",
    )  # fmt: skip
    assert launch.stdin == "Do it."
    assert json.loads(launch.files[".qwen/trustedFolders.json"]) == {"/project": "DO_NOT_TRUST"}
    settings = json.loads(launch.files[".qwen/settings.json"])
    assert settings["security"] == {"folderTrust": {"enabled": True}}
    assert settings["model"] == {"generationConfig": {"maxRetries": 0}}
    assert launch.environment == {"QWEN_TELEMETRY_ENABLED": "0", "QWEN_CODE_SUPPRESS_YOLO_WARNING": "1"}


def test_options_and_call_become_arguments_and_those_of_the_deployment_come_last() -> None:
    options = ProgramOptions(max_turns=7, project_files=True, arguments=("--auth-type=anthropic",))
    launch = Qwen().launch(ask(schema=SCHEMA, schema_file=Path("/private/schema.json"), model="m1", options=options))
    assert launch.arguments == (
        "-o", "stream-json", "--chat-recording", "false", "--yolo", "--json-schema", "@/private/schema.json",
        "--max-session-turns", "7", "--model", "m1", "--auth-type=anthropic",
    )  # fmt: skip
    assert ".qwen/trustedFolders.json" not in launch.files
    assert json.loads(launch.files[".qwen/settings.json"])["security"] == {"folderTrust": {"enabled": False}}


def test_a_prompt_that_would_be_cut_off_is_refused() -> None:
    assert Qwen().prompt_problem("é" * (MAX_PROMPT_BYTES // 2)) is None
    problem = Qwen().prompt_problem("x" * (MAX_PROMPT_BYTES + 1))
    assert problem == "the prompt has 8388609 bytes, and Qwen Code reads only 8388608; shorten it"


def test_a_cap_on_money_is_refused() -> None:
    assert Qwen().problem(ProgramOptions(max_turns=3)) is None
    assert Qwen().problem(ProgramOptions(max_cost_usd=1.0)) == (
        "Qwen Code does not say what it costs, so a cap on money cannot be kept; leave max_cost_usd out"
    )


@pytest.mark.parametrize("change", [{"is_error": True}, {"is_error": None}, {"is_error": 0}, {"result": ""}])
def test_each_witness_of_success_is_needed(change: dict[str, Any]) -> None:
    assert read(SUCCESS) == Answer(text="done")
    assert isinstance(read(SUCCESS | change), Trouble)
    assert isinstance(read({key: value for key, value in SUCCESS.items() if key not in change}), Trouble)
    assert isinstance(read(SUCCESS, end=replace(ENDED, exit=1)), Trouble)


@pytest.mark.parametrize("value", [None, "{}", [], 1, True])
def test_success_in_words_is_no_success_of_a_call_with_a_schema(value: Any) -> None:
    found = read(SUCCESS | {"structured_result": value}, schema=SCHEMA)
    assert isinstance(found, Trouble)
    assert found.failure_class is FailureClass.INVALID_OUTPUT
    assert read(SUCCESS | {"structured_result": {"n": 1}}, schema=SCHEMA) == Answer(text="done", value={"n": 1})


@pytest.mark.parametrize(
    ("message", "with_schema", "failure_class", "delay"),
    [
        ("[API Error: 429 slow down, retry after 30s]", False, FailureClass.RATE_LIMITED, 30.0),
        ("[API Error: 402 Insufficient Balance]", False, FailureClass.BILLING, None),
        ("[API Error: 529 overloaded]", False, FailureClass.OVERLOADED, None),
        ("[API Error: 500 oops]", False, FailureClass.UNAVAILABLE, None),
        ("[API Error: cause: connect ECONNREFUSED 127.0.0.1:1]", False, FailureClass.UNAVAILABLE, None),
        ("[API Error: 400 maximum context length is 8192 tokens]", False, FailureClass.PROMPT_TOO_LONG, None),
        ("Model did not call the structured_output tool", True, FailureClass.INVALID_OUTPUT, None),
        ("Loop detection halted the run (x)", True, FailureClass.INVALID_OUTPUT, None),
        ("Loop detection halted the run (x)", False, FailureClass.LIMIT, None),
        ("[API Error: 400 bad request]", False, FailureClass.UNKNOWN, None),
    ],
)  # fmt: skip
def test_the_message_of_the_result_tells_the_class(
    message: str, with_schema: bool, failure_class: FailureClass, delay: float | None
) -> None:
    found = read(failed(message), end=replace(ENDED, exit=1), schema=SCHEMA if with_schema else None)
    assert isinstance(found, Trouble)
    assert (found.failure_class, found.retry_after_seconds) == (failure_class, delay)
    assert found.evidence == message


def test_what_the_agent_says_of_rate_limits_is_no_rate_limit() -> None:
    said = {"type": "assistant", "message": {"id": "m", "content": [{"type": "text", "text": "[API Error: 429 x]"}]}}
    for end, failure_class in (
        (replace(ENDED, exit=1), FailureClass.CRASHED),
        (replace(ENDED, exit=None, signal=15), FailureClass.CANCELLED),
    ):
        found = read(said, end=end)
        assert isinstance(found, Trouble)
        assert found.failure_class is failure_class


def test_an_error_of_the_api_that_took_no_tokens_is_no_answer() -> None:
    text = "[API Error: 429 slow down]"
    found = read(SUCCESS | {"result": text, "usage": {"input_tokens": 0, "output_tokens": 0}})
    assert isinstance(found, Trouble)
    assert (found.failure_class, found.evidence) == (FailureClass.RATE_LIMITED, text)
    assert read(SUCCESS | {"result": text, "usage": {"input_tokens": 9, "output_tokens": 9}}) == Answer(text=text)


@pytest.mark.parametrize("number", [53, 55])
def test_its_own_limits_are_told_by_the_exit_and_the_last_line_of_standard_error(number: int) -> None:
    found = read(end=replace(ENDED, exit=number, errors="Warning: a\nRun aborted: b\n"))
    assert isinstance(found, Trouble)
    assert (found.failure_class, found.evidence) == (FailureClass.LIMIT, "Run aborted: b")


def test_usage_is_that_of_the_result_else_that_of_each_message_once_and_zeros_are_no_measurement() -> None:
    reading = Qwen().reading(ask())

    def message(name: str, **usage: int) -> dict[str, Any]:
        return {"type": "assistant", "message": {"id": name, "content": [], "usage": usage}}

    reading.take(message("a", input_tokens=0, output_tokens=0))
    assert reading.usage is None
    for _ in range(2):
        reading.take(message("b", input_tokens=120, output_tokens=15, cache_read_input_tokens=100))
    assert reading.usage is not None
    assert reading.usage.to_json() == {
        "inputTokens": 120, "cachedInputTokens": 100, "outputTokens": 15, "costUsd": None,
    }  # fmt: skip
    reading.take(SUCCESS | {"usage": {"input_tokens": 240, "output_tokens": 30, "cache_read_input_tokens": 0}})
    assert (reading.usage.input_tokens, reading.usage.output_tokens) == (240, 30)


@pytest.mark.parametrize(
    ("said", "used"), [("[API Error: 401 no]", 0), ("A beginning[API Error: terminated]", None), (None, 0)]
)
def test_zeros_of_a_result_are_true_when_the_model_wrote_nothing(said: str | None, used: int | None) -> None:
    reading = Qwen().reading(ask())
    zeros = {"input_tokens": 0, "output_tokens": 0}
    if said is not None:
        content = [{"type": "text", "text": said}]
        reading.take({"type": "assistant", "message": {"id": "m", "content": content, "usage": zeros}})
    reading.take(failed("[API Error: x]") | {"usage": zeros})
    assert (None if reading.usage is None else reading.usage.output_tokens) == used


def test_progress_names_tool_and_file_and_repeats_nothing() -> None:
    reading = Qwen().reading(ask())
    block = {"type": "tool_use", "name": "write_file", "input": {"file_path": "/project/a.txt"}}
    assert reading.take({"type": "assistant", "message": {"content": [block]}}) == "write_file: a.txt"
    assert reading.take({"type": "assistant", "message": {"content": [block]}}) is None
    retry = {"type": "system", "subtype": "retry", "data": {"attempt": 2, "maxRetries": 10}}
    assert reading.take(retry) == "retrying, attempt 2 of 10"


@pytest.mark.parametrize("schema", [None, SCHEMA])
def test_no_record_whatever_it_holds_raises(schema: dict[str, Any] | None) -> None:
    records = kinds_of_records("qwen")
    assert {record.get("type") for record in records} >= {"system", "assistant", "user", "result", "stream_event"}
    survive_odd_records(Qwen(), records, schema)


@pytest.mark.parametrize("record", [{}, {"type": "result"}, {"type": None}, {"type": ["result"]}, {"": ""}])
def test_a_bare_record_is_no_success(record: dict[str, Any]) -> None:
    assert isinstance(read(record), Trouble)
