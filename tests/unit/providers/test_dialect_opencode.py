"""The dialect of OpenCode: how it is started, and what its records mean."""

from pathlib import Path
from typing import Any

import pytest

from loopwarden.failure_class import FailureClass
from loopwarden.providers.dialect import Answer, ProgramOptions, Trouble
from loopwarden.providers.dialects.opencode import OpenCode
from loopwarden.usage import Usage
from support.dialect_lab import SCHEMA, ask, ended, progress, read, survive_damage

OPENCODE = OpenCode()
START: dict[str, Any] = {"type": "step_start", "part": {"id": "p0", "type": "step-start"}}
QUIET = {
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
}


def text(words: str, part: str = "p1") -> dict[str, Any]:
    return {"type": "text", "part": {"id": part, "type": "text", "text": words}}


def finish(reason: str = "stop", part: str = "p9", **of_part: Any) -> dict[str, Any]:
    tokens = {"total": 150, "input": 20, "output": 10, "reasoning": 5, "cache": {"read": 100, "write": 15}}
    return {"type": "step_finish", "part": {"id": part, "reason": reason, "tokens": tokens, "cost": 0} | of_part}


def tool(**state: Any) -> dict[str, Any]:
    state = {"status": "completed", "input": {"filePath": "/project/src/a.py"}} | state
    return {"type": "tool_use", "part": {"id": "t1", "type": "tool", "tool": "write", "state": state}}


def error(name: str = "APIError", **data: Any) -> dict[str, Any]:
    return {"type": "error", "error": {"name": name, "data": data}}


def trouble(*records: dict[str, Any], **end: Any) -> Trouble:
    verdict = read(OPENCODE, *records, end=ended(**end))
    assert isinstance(verdict, Trouble)
    return verdict


def test_a_plain_ask_keeps_everything_of_the_workspace_out() -> None:
    launch = OPENCODE.launch(ask())
    assert launch.arguments == ("run", "--format", "json", "--title", "loopwarden", "--auto", "--pure")
    assert launch.stdin == "Do it."
    assert launch.environment == QUIET | {
        "OPENCODE_DISABLE_PROJECT_CONFIG": "1",
        "OPENCODE_DISABLE_CLAUDE_CODE": "1",
        "OPENCODE_DISABLE_EXTERNAL_SKILLS": "1",
    }
    assert launch.files == {}


def test_model_and_arguments_of_the_deployment_come_last_and_the_schema_stands_in_the_prompt() -> None:
    options = ProgramOptions(project_files=True, arguments=("--variant", "high"))
    launch = OPENCODE.launch(ask(schema=SCHEMA, schema_file=Path("/s"), model="a/b", options=options))
    assert launch.arguments == (
        "run", "--format", "json", "--title", "loopwarden", "--auto", "--model", "a/b", "--variant", "high",
    )  # fmt: skip
    assert launch.environment == QUIET
    assert launch.stdin.startswith("Do it.\n\nAnswer with exactly one JSON object")
    assert '{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}' in launch.stdin


def test_caps_that_it_does_not_have_are_refused() -> None:
    assert OPENCODE.problem(ProgramOptions()) is None
    assert "max_turns" in str(OPENCODE.problem(ProgramOptions(max_turns=3)))
    assert "max_cost_usd" in str(OPENCODE.problem(ProgramOptions(max_cost_usd=3.0)))
    assert not OPENCODE.capabilities.cost_known
    assert not OPENCODE.capabilities.native_schema
    assert OPENCODE.prompt_problem("x" * 3_000_000) is None


def test_the_answer_is_the_text_of_the_last_step_each_part_once() -> None:
    records = [START, text("thinking aloud"), finish("tool-calls"), START, text("al"), text("all"), text("done", "p2")]
    assert read(OPENCODE, *records, finish()) == Answer(text="all\ndone")


@pytest.mark.parametrize(
    ("records", "exit_", "failure_class"),
    [
        ([START, text("hello")], 0, FailureClass.INVALID_OUTPUT),
        ([START, finish()], 0, FailureClass.INVALID_OUTPUT),
        ([START, text(" "), finish()], 0, FailureClass.INVALID_OUTPUT),
        ([START, text("hello"), finish("length")], 0, FailureClass.INVALID_OUTPUT),
        ([START, text("hello"), finish("tool-calls")], 0, FailureClass.INVALID_OUTPUT),
        ([START, text("hello"), finish(), START], 0, FailureClass.INVALID_OUTPUT),
        ([START, text("hello"), finish()], 1, FailureClass.CRASHED),
        ([START, text("hello"), finish(), error(message="no", statusCode=401)], 0, FailureClass.AUTH),
    ],
)
def test_each_witness_of_success_is_needed(
    records: list[dict[str, Any]], exit_: int, failure_class: FailureClass
) -> None:
    assert trouble(*records, exit=exit_).failure_class is failure_class


def test_a_rejected_tool_denies_a_run_that_ends_with_it_and_is_a_note_of_one_that_goes_on() -> None:
    rejected = tool(status="error", error="The user rejected permission to use this specific tool call.")
    denied = trouble(START, rejected, finish("tool-calls"))
    assert denied.failure_class is FailureClass.DENIED
    assert denied.evidence == "The user rejected permission to use this specific tool call."
    went_on = [START, rejected, finish("tool-calls", "p8"), START, text("hello"), finish()]
    assert read(OPENCODE, *went_on) == Answer(text="hello", notes=("1 of its tool calls were refused",))
    broken = tool(status="error", error="No such file")
    assert trouble(START, broken, finish("tool-calls")).failure_class is FailureClass.INVALID_OUTPUT


@pytest.mark.parametrize(
    ("record", "failure_class"),
    [
        (error(message="Slow down", statusCode=429), FailureClass.RATE_LIMITED),
        (error(message="No", statusCode=429, responseBody='{"error":{"code":"insufficient_quota"}}'),
         FailureClass.BILLING),
        (error(message="No", statusCode=403), FailureClass.AUTH),
        (error(message="Overloaded", statusCode=529), FailureClass.OVERLOADED),
        (error(message="Oops", statusCode=500), FailureClass.UNAVAILABLE),
        (error(message="bad request", statusCode=400), FailureClass.UNKNOWN),
        (error(message="prompt is too long: 1 > 0", statusCode=400), FailureClass.PROMPT_TOO_LONG),
        (error("ProviderAuthError", message="Log in", providerID="x"), FailureClass.AUTH),
        (error("ContextOverflowError", message="Too much"), FailureClass.PROMPT_TOO_LONG),
        (error("MessageAbortedError", message="Aborted"), FailureClass.CANCELLED),
        (error("MessageOutputLengthError"), FailureClass.INVALID_OUTPUT),
        (error("UnknownError", message="Unexpected server error. Check server logs for details."),
         FailureClass.UNKNOWN),
        (error("UnknownError", message="connect ECONNREFUSED 127.0.0.1:1"), FailureClass.UNAVAILABLE),
        ({"type": "error"}, FailureClass.UNKNOWN),
    ],
)  # fmt: skip
def test_an_error_record_is_classified_by_status_name_and_words(
    record: dict[str, Any], failure_class: FailureClass
) -> None:
    assert trouble(record, exit=1).failure_class is failure_class


@pytest.mark.parametrize(
    ("headers", "delay", "resets_at"),
    [
        ({"retry-after": "7"}, 7.0, None),
        ({"Retry-After": " 3600 "}, 3600.0, None),
        ({"retry-after-ms": "1500"}, 1.5, None),
        ({"retry-after": "Mon, 30 Nov 2026 12:30:00 GMT"}, None, 1796041800.0),
        ({"retry-after": "soon"}, None, None),
        ({"retry-after": "-1"}, None, None),
        ({"retry-after": "9" * 400}, None, None),
        ({"retry-after": 7}, None, None),
        ({}, None, None),
    ],
)
def test_the_delay_stands_in_the_headers(headers: dict[str, Any], delay: float | None, resets_at: float | None) -> None:
    found = trouble(error(message="Slow down", statusCode=429, responseHeaders=headers), exit=1)
    assert (found.retry_after_seconds, found.resets_at) == (delay, resets_at)
    assert found.evidence == "Slow down"


def test_what_the_agent_says_of_rate_limits_is_no_rate_limit() -> None:
    said = "429 Too Many Requests: I hit the rate limit, try again in 60s"
    assert read(OPENCODE, START, text(said), finish()) == Answer(text=said)
    found = trouble(START, text(said), exit=1)
    assert (found.failure_class, found.retry_after_seconds) == (FailureClass.CRASHED, None)


def test_usage_counts_each_step_once_and_a_price_of_zero_is_unknown() -> None:
    reading = OPENCODE.reading(ask())
    for record in (START, finish(part="a"), finish(part="a"), finish(part="b")):
        reading.take(record)
    assert reading.usage == Usage(input_tokens=270, cached_input_tokens=200, output_tokens=30)
    reading.take(finish(part="c", cost=0.25))
    assert reading.usage.cost_usd == 0.25
    assert OPENCODE.reading(ask()).usage is None


def test_progress_names_tool_and_file() -> None:
    shell = {"type": "tool_use", "part": {"tool": "bash", "state": {"input": {"command": "npm test"}}}}
    assert progress(OPENCODE, START, shell, tool(), text("hm"), finish(), {"type": "from_the_future"}) == [
        None, "shell: npm test", "write: src/a.py", None, None, None,
    ]  # fmt: skip


def test_no_record_whatever_it_holds_raises() -> None:
    records = [
        START,
        tool(status="error", error="The user rejected permission"),
        finish("tool-calls", "a", cost=0.5),
        START,
        text("hello"),
        finish(),
        error(message="m", statusCode=429, responseHeaders={"retry-after": "1"}, responseBody="b"),
    ]
    assert survive_damage(OPENCODE, records) > 400
