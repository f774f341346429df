"""The dialect of Codex: how it is started, and what its records mean."""

from pathlib import Path
from typing import Any

import pytest

from loopwarden.failure_class import FailureClass
from loopwarden.providers.dialect import Answer, ProgramOptions, Trouble
from loopwarden.providers.dialects.codex import MAX_PROMPT_CHARS, Codex
from loopwarden.usage import Usage
from support.dialect_lab import SCHEMA, ask, ended, progress, read, survive_damage

CODEX = Codex()
COMPLETED: dict[str, Any] = {
    "type": "turn.completed",
    "usage": {"input_tokens": 120, "cached_input_tokens": 100, "output_tokens": 15, "reasoning_output_tokens": 5},
}


def message(text: str) -> dict[str, Any]:
    return {"type": "item.completed", "item": {"id": "item_0", "type": "agent_message", "text": text}}


def error(text: str) -> dict[str, Any]:
    return {"type": "error", "message": text}


def failed(text: str) -> dict[str, Any]:
    return {"type": "turn.failed", "error": {"message": text}}


def command(text: str, kind: str = "item.started") -> dict[str, Any]:
    return {"type": kind, "item": {"id": "item_1", "type": "command_execution", "command": text}}


def test_a_plain_ask_keeps_everything_of_the_workspace_out_and_its_home_exists() -> None:
    launch = CODEX.launch(ask())
    assert launch.arguments == (
        "exec", "--json", "--skip-git-repo-check", "--ephemeral", "--dangerously-bypass-approvals-and-sandbox",
        "-c", "check_for_update_on_startup=false", "-c", "analytics.enabled=false",
        "--ignore-user-config", "--ignore-rules", "-c", "project_doc_max_bytes=0",
        "-c", "skills.include_instructions=false", "-",
    )  # fmt: skip
    assert launch.stdin == "Do it."
    assert launch.environment == {"CODEX_HOME": "/private/home/.codex"}
    assert launch.folders == (".codex",)
    assert launch.files == {}


def test_schema_model_and_arguments_of_the_deployment_stand_before_the_prompt() -> None:
    options = ProgramOptions(arguments=("-c", "model_provider=own"))
    launch = CODEX.launch(ask(schema=SCHEMA, schema_file=Path("/private/s.json"), model="gpt", options=options))
    assert launch.arguments[-7:] == ("--output-schema", "/private/s.json", "-m", "gpt", *options.arguments, "-")
    assert launch.stdin == "Do it."


def test_project_files_are_trusted_when_they_are_wanted() -> None:
    arguments = CODEX.launch(ask(options=ProgramOptions(project_files=True))).arguments
    assert "--trust" in arguments
    # Codex refuses both together.
    assert "--ignore-user-config" not in arguments
    assert "project_doc_max_bytes=0" not in arguments


def test_caps_that_it_does_not_have_are_refused() -> None:
    assert CODEX.problem(ProgramOptions()) is None
    assert "max_turns" in str(CODEX.problem(ProgramOptions(max_turns=3)))
    assert "max_cost_usd" in str(CODEX.problem(ProgramOptions(max_cost_usd=3.0)))
    assert not CODEX.capabilities.cost_known


def test_a_prompt_beyond_its_limit_is_refused_by_characters() -> None:
    assert CODEX.prompt_problem("é" * MAX_PROMPT_CHARS) is None
    assert "1048577 characters" in str(CODEX.prompt_problem("é" * (MAX_PROMPT_CHARS + 1)))


def test_the_answer_is_the_last_message_of_a_completed_turn() -> None:
    assert read(CODEX, message("first"), message("last"), COMPLETED) == Answer(text="last")


@pytest.mark.parametrize(
    ("records", "exit_", "failure_class"),
    [
        ([message("hello")], 0, FailureClass.INVALID_OUTPUT),
        ([COMPLETED], 0, FailureClass.INVALID_OUTPUT),
        ([message(" "), COMPLETED], 0, FailureClass.INVALID_OUTPUT),
        ([message("hello"), COMPLETED], 1, FailureClass.CRASHED),
        ([message("hello"), failed("unexpected status 401 Unauthorized: no")], 0, FailureClass.AUTH),
        ([message("hello"), COMPLETED, {"type": "turn.started"}], 0, FailureClass.INVALID_OUTPUT),
    ],
)
def test_each_witness_of_success_is_needed(
    records: list[dict[str, Any]], exit_: int, failure_class: FailureClass
) -> None:
    verdict = read(CODEX, *records, end=ended(exit_))
    assert isinstance(verdict, Trouble)
    assert verdict.failure_class is failure_class


@pytest.mark.parametrize(
    ("text", "failure_class", "retry_after"),
    [
        ("exceeded retry limit, last status: 429 Too Many Requests", FailureClass.RATE_LIMITED, None),
        ("rate limit exceeded: Please try again in 1.5s.", FailureClass.RATE_LIMITED, 1.5),
        ("You’ve hit your usage limit. Try again later.", FailureClass.RATE_LIMITED, None),
        ("You’ve hit your usage limit. Visit x to purchase more credits or try again at 2:27 PM.",
         FailureClass.RATE_LIMITED, None),
        ("Quota exceeded. Check your plan and billing details.", FailureClass.BILLING, None),
        ("To use Codex with your ChatGPT plan, upgrade to Plus: https://x.", FailureClass.BILLING, None),
        ("Missing environment variable: `KEY`.", FailureClass.AUTH, None),
        ("Selected model is at capacity. Please try a different model.", FailureClass.OVERLOADED, None),
        ("unexpected status 529 <unknown status code>: Overloaded, url: http://x", FailureClass.OVERLOADED, None),
        ("unexpected status 502 Bad Gateway: x", FailureClass.UNAVAILABLE, None),
        ("stream disconnected before completion: idle timeout", FailureClass.UNAVAILABLE, None),
        ("Codex ran out of room in the model's context window.", FailureClass.PROMPT_TOO_LONG, None),
        ("interrupted (Ctrl-C). Something went wrong?", FailureClass.CANCELLED, None),
        ('{"error": {"message": "bad request"}}', FailureClass.UNKNOWN, None),
    ],
)  # fmt: skip
def test_a_failed_turn_is_classified_by_its_text(
    text: str, failure_class: FailureClass, retry_after: float | None
) -> None:
    verdict = read(CODEX, failed(text), end=ended(1))
    assert isinstance(verdict, Trouble)
    assert (verdict.failure_class, verdict.retry_after_seconds) == (failure_class, retry_after)
    assert verdict.evidence == text
    assert verdict.resets_at is None


def test_a_failed_turn_without_words_is_explained_by_the_error_before() -> None:
    verdict = read(CODEX, error("unexpected status 401 Unauthorized"), {"type": "turn.failed"}, end=ended(1))
    assert isinstance(verdict, Trouble)
    assert verdict.failure_class is FailureClass.AUTH


@pytest.mark.parametrize("end", [ended(signal=15), ended(signal=2), ended(143), ended(signal=9, is_cancelled=True)])
def test_reconnecting_explains_an_end_from_outside_unless_it_went_on(end: Any) -> None:
    waiting = error("Reconnecting... 1/5 (exceeded retry limit, last status: 429 Too Many Requests)")
    verdict = read(CODEX, waiting, end=end)
    assert isinstance(verdict, Trouble)
    assert verdict.failure_class is FailureClass.RATE_LIMITED
    went_on = read(CODEX, waiting, command("ls"), end=end)
    assert isinstance(went_on, Trouble)
    assert went_on.failure_class is FailureClass.CANCELLED


def test_a_warning_item_does_not_end_the_waiting() -> None:
    warning = {"type": "item.completed", "item": {"type": "error", "message": "Falling back to HTTPS"}}
    verdict = read(CODEX, error("Reconnecting... waiting for network (x)"), warning, end=ended(signal=15))
    assert isinstance(verdict, Trouble)
    assert verdict.failure_class is FailureClass.UNAVAILABLE


def test_reconnecting_and_warnings_do_not_fail_a_run_that_goes_well() -> None:
    warning = {"type": "item.completed", "item": {"type": "error", "message": "Model metadata not found."}}
    verdict = read(CODEX, error("Reconnecting... 2/5 (x 429)"), warning, message("hello"), COMPLETED)
    assert verdict == Answer(text="hello", notes=("it warned: Model metadata not found.",))


def test_what_the_agent_says_of_rate_limits_is_no_rate_limit() -> None:
    said = "429 Too Many Requests: I hit the rate limit, try again in 60s"
    assert read(CODEX, message(said), COMPLETED) == Answer(text=said)
    verdict = read(CODEX, message(said), end=ended(1))
    assert isinstance(verdict, Trouble)
    assert verdict.failure_class is FailureClass.CRASHED
    assert verdict.retry_after_seconds is None


def test_lines_of_every_run_on_standard_error_are_no_evidence() -> None:
    usual = (
        "WARNING: proceeding, even though we could not create PATH aliases: x\n"
        "ERROR codex_api::endpoint::responses_websocket: failed to connect to Responses WebSocket\n"
    )
    verdict = read(CODEX, end=ended(1, errors=usual))
    assert isinstance(verdict, Trouble)
    assert (verdict.failure_class, verdict.evidence) == (FailureClass.CRASHED, "exit 1")


def test_an_end_in_the_middle_of_a_turn_without_a_word_is_an_interrupt() -> None:
    started = {"type": "turn.started"}
    usual = "WARNING: proceeding, even though we could not create PATH aliases: x\n"
    for records, end, failure_class in (
        ((started, command("ls")), ended(1, errors=usual), FailureClass.CANCELLED),
        ((started,), ended(1, errors=usual + "Error: odd\n"), FailureClass.CRASHED),
        ((started,), ended(101, errors=usual), FailureClass.CRASHED),
        ((), ended(1, errors=usual), FailureClass.CRASHED),
        ((started, error("Reconnecting... 1/5 (unexpected status 401 Unauthorized: x)")), ended(1), FailureClass.AUTH),
    ):
        verdict = read(CODEX, *records, end=end)
        assert isinstance(verdict, Trouble)
        assert verdict.failure_class is failure_class


@pytest.mark.parametrize(
    ("last", "exit_", "failure_class"),
    [
        ("tokens used\n135\n", 0, FailureClass.INVALID_OUTPUT),
        ("tokens used\n135\n", 1, FailureClass.CRASHED),
        ("ERROR: unexpected status 401 Unauthorized: no key\n", 1, FailureClass.AUTH),
    ],
)
def test_of_a_conversation_on_standard_error_only_the_errors_are_read(
    last: str, exit_: int, failure_class: FailureClass
) -> None:
    said = "OpenAI Codex v0.171.0\n--------\nworkdir: /w\n--------\nuser\nDo it.\ncodex\n429: I hit the rate limit.\n"
    verdict = read(CODEX, end=ended(exit_, errors=said + last))
    assert isinstance(verdict, Trouble)
    assert verdict.failure_class is failure_class


def test_usage_is_that_of_the_last_turn_record_and_unknown_before() -> None:
    reading = CODEX.reading(ask())
    reading.take(message("x"))
    assert reading.usage is None
    reading.take(COMPLETED)
    reading.take(COMPLETED | {"usage": {"input_tokens": 240, "output_tokens": 30}})
    assert reading.usage == Usage(input_tokens=240, output_tokens=30)
    reading.take(COMPLETED | {"usage": {"input_tokens": "many"}})
    assert reading.usage == Usage(input_tokens=240, output_tokens=30)


def test_progress_names_tool_and_file_and_repeats_nothing() -> None:
    change = {"type": "file_change", "changes": [{"path": "/project/src/a.py"}, {"path": "/project/b.py"}]}
    assert progress(
        CODEX,
        command("/bin/bash -lc 'npm test'"),
        command("/bin/bash -lc 'npm test'", "item.completed"),
        {"type": "item.completed", "item": change},
        {"type": "item.started", "item": {"type": "mcp_tool_call", "server": "db", "tool": "query"}},
        {"type": "item.started", "item": {"type": "web_search", "query": "asyncio"}},
        {"type": "item.completed", "item": {"type": "reasoning", "text": "hm"}},
        {"type": "from.the.future", "item": {}},
        error("Reconnecting... 1/5 (x)"),
        message("bye"),
    ) == [
        "shell: npm test", None, "write: src/a.py and 1 more", "db: query", "search: asyncio", None, None,
        "Reconnecting... 1/5 (x)", None,
    ]  # fmt: skip
    [long] = progress(CODEX, command("x" * 5000))
    assert long is not None
    assert len(long) <= 120


def test_no_record_whatever_it_holds_raises() -> None:
    records = [
        {"type": "thread.started", "thread_id": "1"},
        {"type": "turn.started"},
        error("Reconnecting... 1/5 (x)"),
        command("/bin/bash -lc 'ls'"),
        {"type": "item.completed", "item": {"type": "file_change", "changes": [{"path": "a", "kind": "add"}]}},
        {"type": "item.completed", "item": {"type": "error", "message": "careful"}},
        message("hello"),
        COMPLETED,
        failed("no"),
    ]
    assert survive_damage(CODEX, records) > 300
