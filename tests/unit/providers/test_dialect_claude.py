"""The dialect of Claude Code: how it is started, and what its records mean."""

from dataclasses import replace
from typing import Any

import pytest

from loopwarden.failure_class import FailureClass
from loopwarden.providers.dialect import Answer, ProgramEnd, ProgramOptions, Trouble
from loopwarden.providers.dialects.claude import MAX_ARGUMENT_BYTES, MAX_PROMPT_BYTES, Claude
from support import dialect_lab as lab
from support.dialect_lab import ENDED, SCHEMA, ask, survive_odd_records
from support.odd_records import kinds_of_records

SUCCESS: dict[str, Any] = {"type": "result", "is_error": False, "subtype": "success", "result": "done"}


def read(*records: dict[str, Any], end: ProgramEnd = ENDED, **of_ask: Any) -> Answer | Trouble:
    return lab.read(Claude(), *records, end=end, **of_ask)


def test_a_plain_ask_keeps_everything_of_the_workspace_out() -> None:
    launch = Claude().launch(ask())
    assert launch.arguments == (
        "-p", "--output-format", "stream-json", "--verbose", "--dangerously-skip-permissions",
        "--setting-sources", "", "--strict-mcp-config", "--no-session-persistence",
    )  # fmt: skip
    assert launch.stdin == "Do it."
    assert launch.files == {}


def test_options_and_call_become_arguments_and_those_of_the_deployment_come_last() -> None:
    options = ProgramOptions(max_turns=7, project_files=True, arguments=("--effort", "low"))
    launch = Claude().launch(ask(schema=SCHEMA, model="opus", max_cost_usd=0.00001, options=options))
    assert launch.arguments == (
        "-p", "--output-format", "stream-json", "--verbose", "--dangerously-skip-permissions",
        "--strict-mcp-config", "--no-session-persistence",
        "--json-schema", '{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}',
        "--max-turns", "7", "--max-budget-usd", "0.00001", "--model", "opus", "--effort", "low",
    )  # fmt: skip


def test_its_configuration_is_private_and_it_does_not_retry_by_itself() -> None:
    launch = Claude().launch(ask())
    assert launch.folders == (".claude",)
    assert launch.environment == {
        "CLAUDE_CONFIG_DIR": "/private/home/.claude",
        "CLAUDE_CODE_MAX_RETRIES": "0",
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
    }
    assert Claude().launch(ask(is_root=True)).environment["IS_SANDBOX"] == "1"


def test_a_schema_too_long_for_an_argument_is_asked_for_by_the_prompt() -> None:
    long = SCHEMA | {"description": "é" * (MAX_ARGUMENT_BYTES // 2)}
    launch = Claude().launch(ask(schema=long))
    assert "--json-schema" not in launch.arguments
    assert launch.stdin.startswith("Do it.\n")
    assert "é" * 100 in launch.stdin
    assert read(SUCCESS | {"result": '{"n": 1}'}, schema=long) == Answer(text='{"n": 1}')


def test_a_prompt_of_more_than_ten_megabytes_is_refused() -> None:
    assert Claude().prompt_problem("é" * (MAX_PROMPT_BYTES // 2)) is None
    problem = Claude().prompt_problem("é" * (MAX_PROMPT_BYTES // 2) + "x")
    assert problem == "the prompt has 10000001 bytes, and Claude Code takes at most 10000000; shorten it"


def test_every_option_can_be_kept() -> None:
    assert Claude().problem(ProgramOptions(max_turns=1, max_cost_usd=1.0, project_files=True)) is None


@pytest.mark.parametrize(
    "change",
    [{"is_error": True}, {"is_error": None}, {"is_error": 0}, {"subtype": "error_during_execution"}, {"result": " "}],
)
def test_each_witness_of_success_is_needed(change: dict[str, Any]) -> None:
    assert read(SUCCESS) == Answer(text="done")
    assert isinstance(read(SUCCESS | change), Trouble)
    missing = {key: value for key, value in SUCCESS.items() if key not in change}
    assert isinstance(read(missing), Trouble)


@pytest.mark.parametrize("value", [None, "{}", [], 1, True])
def test_success_in_words_is_no_success_of_a_call_with_a_schema(value: Any) -> None:
    found = read(SUCCESS | {"structured_output": value}, schema=SCHEMA)
    assert isinstance(found, Trouble)
    assert found.failure_class is FailureClass.INVALID_OUTPUT
    assert found.evidence == "done"
    assert read(SUCCESS | {"structured_output": {"n": 1}}, schema=SCHEMA) == Answer(text="done", value={"n": 1})


def test_a_good_result_does_not_outweigh_a_bad_exit() -> None:
    crashed = read(SUCCESS, end=replace(ENDED, exit=1))
    assert isinstance(crashed, Trouble)
    assert crashed.failure_class is FailureClass.CRASHED
    interrupted = read(SUCCESS, end=replace(ENDED, exit=143))
    assert isinstance(interrupted, Trouble)
    assert interrupted.failure_class is FailureClass.CANCELLED


def test_what_the_agent_says_of_rate_limits_is_no_rate_limit() -> None:
    said = {"type": "assistant", "message": {"id": "m", "content": [{"type": "text", "text": "Error 429: rate limit"}]}}
    assert read(said, SUCCESS | {"result": "429 rate limit"}) == Answer(text="429 rate limit")
    failed = {"type": "result", "is_error": True, "subtype": "error_during_execution", "result": "429 rate limit"}
    for end in (ENDED, replace(ENDED, exit=1)):
        found = read(said, failed, end=end)
        assert isinstance(found, Trouble)
        assert found.failure_class is not FailureClass.RATE_LIMITED
    killed = read(said, end=replace(ENDED, exit=143))
    assert isinstance(killed, Trouble)
    assert killed.failure_class is FailureClass.CANCELLED


def test_an_error_that_it_waits_out_explains_its_end_unless_it_went_on() -> None:
    retry = {"type": "system", "subtype": "api_retry", "attempt": 1, "max_retries": 9, "error_status": 529}
    killed = replace(ENDED, exit=None, signal=15, is_cancelled=True)
    found = read(retry, end=killed)
    assert isinstance(found, Trouble)
    assert found.failure_class is FailureClass.OVERLOADED
    went_on = read(retry, {"type": "assistant", "message": {"id": "m", "content": []}}, end=killed)
    assert isinstance(went_on, Trouble)
    assert went_on.failure_class is FailureClass.CANCELLED


def test_a_rejected_allowance_tells_the_time_of_reset_and_an_allowed_one_nothing() -> None:
    def event(status: str) -> dict[str, Any]:
        info = {"status": status, "resetsAt": 1796048552000, "rateLimitType": "five_hour", "utilization": 0.93}
        return {"type": "rate_limit_event", "rate_limit_info": info}

    found = read(event("rejected"), end=replace(ENDED, exit=1))
    assert isinstance(found, Trouble)
    assert (found.failure_class, found.resets_at) == (FailureClass.RATE_LIMITED, 1796048552.0)
    assert read(event("allowed"), SUCCESS) == Answer(text="done")
    assert read(event("allowed_warning"), SUCCESS) == Answer(text="done", notes=("93% of its five_hour limit is used",))


def test_a_plan_that_is_used_up_and_pays_for_more_is_not_waited_for() -> None:
    info = {"status": "rejected", "resetsAt": 1796048552, "rateLimitType": "five_hour", "isUsingOverage": True}
    found = read({"type": "rate_limit_event", "rate_limit_info": info}, end=replace(ENDED, exit=143))
    assert isinstance(found, Trouble)
    assert found.failure_class is FailureClass.CANCELLED


def test_denied_tools_are_a_note_of_a_success_and_the_class_of_a_failure_without_another() -> None:
    denials = {"permission_denials": [{"tool_name": "Write"}, {"tool_name": "Write"}, {"tool_name": "Bash"}]}
    note = "it was not allowed to use Write, Bash"
    assert read(SUCCESS | denials) == Answer(text="done", notes=(note,))
    failed = read(SUCCESS | denials | {"is_error": True})
    assert isinstance(failed, Trouble)
    assert (failed.failure_class, failed.notes) == (FailureClass.DENIED, (note,))
    limited = read(SUCCESS | denials | {"is_error": True, "subtype": "error_max_turns"})
    assert isinstance(limited, Trouble)
    assert limited.failure_class is FailureClass.LIMIT


def test_usage_counts_each_message_once_and_a_beginning_is_no_count() -> None:
    reading = Claude().reading(ask())
    usage = {"input_tokens": 5, "cache_creation_input_tokens": 10, "cache_read_input_tokens": 100, "output_tokens": 1}
    first = {"type": "assistant", "message": {"id": "m1", "content": [], "stop_reason": None, "usage": usage}}
    assert reading.usage is None
    reading.take(first)
    reading.take(first)
    assert reading.usage is not None
    assert reading.usage.to_json() == {
        "inputTokens": 115, "cachedInputTokens": 100, "outputTokens": None, "costUsd": None,
    }  # fmt: skip
    delta = {"type": "message_delta", "usage": {"output_tokens": 15}}
    reading.take({"type": "stream_event", "api_message_id": "m1", "event": delta})
    reading.take({"type": "stream_event", "api_message_id": "m1", "event": delta})
    assert reading.usage.output_tokens == 15
    reading.take(SUCCESS | {"usage": {"input_tokens": 7, "output_tokens": 3}, "total_cost_usd": 0.25})
    assert reading.usage.to_json() == {
        "inputTokens": 7, "cachedInputTokens": None, "outputTokens": 3, "costUsd": 0.25,
    }  # fmt: skip


def test_progress_names_tool_and_file_and_repeats_nothing() -> None:
    reading = Claude().reading(ask())

    def use(name: str, **of_tool: str) -> dict[str, Any]:
        return {"type": "assistant", "message": {"content": [{"type": "tool_use", "name": name, "input": of_tool}]}}

    assert reading.take({"type": "system", "subtype": "init", "model": "opus"}) == "started, opus"
    assert reading.take(use("Write", file_path="/project/src/a.py")) == "Write: src/a.py"
    assert reading.take(use("Write", file_path="/project/src/a.py")) is None
    assert reading.take(use("Bash", command="npm\n test")) == "Bash: npm test"
    assert len(reading.take(use("Bash", command="x" * 500)) or "") == 120
    retry = {"type": "system", "subtype": "api_retry", "attempt": 3, "max_retries": 10, "error_status": 429}
    assert reading.take(retry) == "API error 429, attempt 3 of 10"


@pytest.mark.parametrize("schema", [None, SCHEMA])
def test_no_record_whatever_it_holds_raises(schema: dict[str, Any] | None) -> None:
    records = kinds_of_records("claude")
    assert {record.get("type") for record in records} >= {"system", "assistant", "user", "result", "rate_limit_event"}
    survive_odd_records(Claude(), records, schema)


@pytest.mark.parametrize("record", [{}, {"type": "result"}, {"type": None}, {"type": ["result"]}, {"": ""}])
def test_a_bare_record_is_no_success(record: dict[str, Any]) -> None:
    assert isinstance(read(record), Trouble)
