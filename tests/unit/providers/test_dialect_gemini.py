"""The dialect of Gemini CLI: how it is started, and what its records mean."""

import json
import tomllib
from typing import Any

import pytest

from loopwarden.failure_class import FailureClass
from loopwarden.providers.dialect import Answer, ProgramOptions, Trouble
from loopwarden.providers.dialects.gemini import MAX_PROMPT_BYTES, Gemini
from loopwarden.usage import Usage
from support.dialect_lab import SCHEMA, ask, ended, progress, read, survive_damage

GEMINI = Gemini()
POLICY = ".gemini/loopwarden-policy.toml"
SETTINGS = ".gemini/settings.json"
STATS = {"total_tokens": 150, "input_tokens": 120, "output_tokens": 15, "cached": 100, "input": 20}
SUCCESS: dict[str, Any] = {"type": "result", "status": "success", "stats": STATS}
PROMPT: dict[str, Any] = {"type": "message", "role": "user", "content": "Do it."}
TOOL: dict[str, Any] = {
    "type": "tool_use", "tool_name": "write_file", "tool_id": "1", "parameters": {"file_path": "/project/src/a.py"},
}  # fmt: skip
RESULT: dict[str, Any] = {"type": "tool_result", "tool_id": "1", "status": "success"}
ATTEMPT_429 = "Attempt 2 failed: Number of requests has exceeded your rate limit\nSuggested retry after 9s.. Retrying\n"
ATTEMPT_500 = (
    "Attempt 3 failed with status 500. Retrying with backoff... _ApiError: "
    '{"error":{"code":500,"message":"Internal","status":"INTERNAL"}}\n    at f (x:401:5)\n  status: 500\n}\n'
)


def said(words: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": words, "delta": True}


def failure(message: str, kind: str = "unknown") -> dict[str, Any]:
    return {"type": "result", "status": "error", "error": {"type": kind, "message": message}, "stats": STATS}


def complaint(message: str, severity: str = "error") -> dict[str, Any]:
    return {"type": "error", "severity": severity, "message": message}


def trouble(*records: dict[str, Any], **end: Any) -> Trouble:
    verdict = read(GEMINI, *records, end=ended(**end))
    assert isinstance(verdict, Trouble)
    return verdict


def test_a_plain_ask_distrusts_the_workspace_and_allows_tools_by_a_policy() -> None:
    launch = GEMINI.launch(ask())
    assert launch.arguments == ("-o", "stream-json", "--policy", f"/private/home/{POLICY}")
    assert launch.stdin == "Do it."
    assert launch.environment == {"GEMINI_CLI_TRUST_WORKSPACE": "false"}
    assert launch.folders == (".gemini",)
    settings = json.loads(launch.files[SETTINGS])
    assert settings["security"] == {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}}
    assert settings["advanced"] == {"ignoreLocalEnv": True}
    assert "model" not in settings
    rules = tomllib.loads(launch.files[POLICY])["rule"]
    assert {"toolName": "*", "decision": "allow", "priority": 997} in rules
    assert [rule["argsPattern"] for rule in rules if rule["toolName"] == "run_shell_command"] == [".*"]


def test_project_files_are_trusted_when_they_are_wanted() -> None:
    options = ProgramOptions(project_files=True, arguments=("--debug",), max_turns=7)
    launch = GEMINI.launch(ask(model="pro", schema=SCHEMA, options=options))
    assert launch.arguments == ("-o", "stream-json", "--yolo", "--skip-trust", "-m", "pro", "--debug")
    assert launch.environment == {}
    assert list(launch.files) == [SETTINGS]
    assert json.loads(launch.files[SETTINGS])["model"] == {"maxSessionTurns": 7}
    assert launch.stdin.startswith("Do it.\n\nAnswer with exactly one JSON object")


def test_the_files_of_a_login_choose_the_login() -> None:
    options = ProgramOptions(credential_files={".gemini/oauth_creds.json": "/home/u/.gemini/oauth_creds.json"})
    settings = json.loads(GEMINI.launch(ask(options=options)).files[SETTINGS])
    assert settings["security"]["auth"] == {"selectedType": "oauth-personal"}


def test_what_cannot_be_kept_is_refused() -> None:
    assert GEMINI.problem(ProgramOptions(max_turns=1)) is None
    assert "max_turns" in str(GEMINI.problem(ProgramOptions(max_turns=0)))
    assert "max_cost_usd" in str(GEMINI.problem(ProgramOptions(max_cost_usd=3.0)))
    assert SETTINGS in str(GEMINI.problem(ProgramOptions(credential_files={SETTINGS: "/x"})))
    assert not GEMINI.capabilities.cost_known


def test_a_prompt_that_it_would_cut_is_refused_by_bytes() -> None:
    assert GEMINI.prompt_problem("é" * (MAX_PROMPT_BYTES // 2)) is None
    assert "8388609 bytes" in str(GEMINI.prompt_problem("é" * (MAX_PROMPT_BYTES // 2) + "x"))


def test_the_answer_is_all_that_the_assistant_said_and_not_the_echoed_prompt() -> None:
    assert read(GEMINI, PROMPT, said("Hel"), said("lo."), SUCCESS) == Answer(text="Hello.")


@pytest.mark.parametrize(
    ("records", "exit_", "failure_class"),
    [
        ([PROMPT, said("hello")], 0, FailureClass.INVALID_OUTPUT),
        ([PROMPT, SUCCESS], 0, FailureClass.INVALID_OUTPUT),
        ([PROMPT, said(" \n"), SUCCESS], 0, FailureClass.INVALID_OUTPUT),
        ([PROMPT, said("hello"), SUCCESS], 1, FailureClass.CRASHED),
        ([PROMPT, said("hello"), SUCCESS | {"status": "error"}], 0, FailureClass.UNKNOWN),
        ([PROMPT, said("hello"), {"type": "result"}], 0, FailureClass.UNKNOWN),
        ([PROMPT, said("hello"), complaint("Maximum session turns exceeded"), SUCCESS], 0, FailureClass.LIMIT),
    ],
)
def test_each_witness_of_success_is_needed(
    records: list[dict[str, Any]], exit_: int, failure_class: FailureClass
) -> None:
    assert trouble(*records, exit=exit_).failure_class is failure_class


def test_a_warning_does_not_fail_a_run_that_goes_well() -> None:
    assert read(GEMINI, said("hello"), complaint("careful", "warning"), SUCCESS) == Answer(text="hello")
    assert read(GEMINI, said("hello"), complaint("a tool failed"), SUCCESS) == Answer(text="hello")


@pytest.mark.parametrize(
    ("message", "kind", "exit_", "failure_class", "retry_after"),
    [
        ('[API Error: {"error":{"code":401,"message":"no","status":"UNAUTHENTICATED"}}]', "unknown", 145,
         FailureClass.AUTH, None),
        ("[API Error: You have exceeded your rate limit\nSuggested retry after 3600s.]", "unknown", 173,
         FailureClass.RATE_LIMITED, 3600.0),
        ("[API Error: slow down]", "unknown", 173, FailureClass.RATE_LIMITED, None),
        ("[API Error: something]", "unknown", 17, FailureClass.OVERLOADED, None),
        ("[API Error: something]", "unknown", 144, FailureClass.UNKNOWN, None),
        ("Reached max session turns for this session.", "FatalTurnLimitedError", 53, FailureClass.LIMIT, None),
        ("Operation cancelled.", "FatalCancellationError", 130, FailureClass.CANCELLED, None),
        ("Who are you?", "FatalAuthenticationError", 41, FailureClass.AUTH, None),
    ],
)  # fmt: skip
def test_a_failed_result_is_classified_by_type_words_and_exit(
    message: str, kind: str, exit_: int, failure_class: FailureClass, retry_after: float | None
) -> None:
    found = trouble(PROMPT, failure(message, kind), exit=exit_)
    assert (found.failure_class, found.retry_after_seconds) == (failure_class, retry_after)
    assert found.evidence == " ".join(message.split())


@pytest.mark.parametrize(
    ("exit_", "failure_class"),
    [
        (145, FailureClass.AUTH), (173, FailureClass.RATE_LIMITED), (244, FailureClass.UNAVAILABLE),
        (41, FailureClass.AUTH), (53, FailureClass.LIMIT), (130, FailureClass.CANCELLED),
        (143, FailureClass.CANCELLED), (55, FailureClass.CRASHED), (1, FailureClass.CRASHED),
    ],
)  # fmt: skip
def test_without_a_result_the_exit_may_tell(exit_: int, failure_class: FailureClass) -> None:
    assert trouble(PROMPT, exit=exit_).failure_class is failure_class


@pytest.mark.parametrize(
    ("errors", "failure_class", "retry_after"),
    [(ATTEMPT_429, FailureClass.RATE_LIMITED, 9.0), (ATTEMPT_429 + ATTEMPT_500, FailureClass.UNAVAILABLE, None)],
)
def test_a_failed_attempt_on_standard_error_explains_an_end_while_it_waits_for_its_model(
    errors: str, failure_class: FailureClass, retry_after: float | None
) -> None:
    for end in ({"signal": 15}, {"exit": 0}, {"signal": 9}, {"signal": 9, "is_cancelled": True}):
        for before in ((PROMPT,), (PROMPT, TOOL, RESULT)):
            found = trouble(*before, errors=errors, **end)
            assert (found.failure_class, found.retry_after_seconds) == (failure_class, retry_after)
    for busy in ((PROMPT, TOOL), (PROMPT, said("hel"))):
        assert trouble(*busy, errors=errors, signal=15).failure_class is FailureClass.CANCELLED
    assert trouble(PROMPT, TOOL, errors=errors, signal=9).failure_class is FailureClass.CRASHED
    assert trouble(PROMPT, errors=errors, signal=11).failure_class is FailureClass.CRASHED


def test_an_end_in_the_middle_without_a_word_is_a_signal_to_its_group() -> None:
    init = {"type": "init", "session_id": "1", "model": "m"}
    usual = "YOLO mode is enabled. All tool calls will be automatically approved.\n"
    for records in ((init, PROMPT), (init, PROMPT, TOOL), (init, PROMPT, said("Partial"))):
        assert trouble(*records, errors=usual).failure_class is FailureClass.CANCELLED
    assert trouble(init, PROMPT, errors=usual + "Error: odd\n").failure_class is FailureClass.INVALID_OUTPUT
    assert trouble(errors=usual, plain_output="0.61.0\n").failure_class is FailureClass.INVALID_OUTPUT


def test_a_prompt_that_was_cut_explains_a_success_without_an_answer() -> None:
    errors = "YOLO mode is enabled.\nWarning: stdin input truncated to 8388608 bytes.\n"
    found = trouble(PROMPT, SUCCESS, errors=errors)
    assert found.failure_class is FailureClass.PROMPT_TOO_LONG
    assert found.evidence == "Warning: stdin input truncated to 8388608 bytes."
    assert read(GEMINI, PROMPT, said("hello"), SUCCESS, end=ended(errors=errors)) == Answer(text="hello")


def test_what_agent_and_prompt_say_of_rate_limits_is_no_rate_limit() -> None:
    words = "429 Too Many Requests: I hit the rate limit, try again in 60s"
    assert read(GEMINI, said(words), SUCCESS) == Answer(text=words)
    found = trouble(said(words), exit=1, plain_output=words)
    assert (found.failure_class, found.retry_after_seconds) == (FailureClass.CRASHED, None)


def test_lines_of_every_run_on_standard_error_are_no_evidence() -> None:
    errors = "Warning: Basic terminal detected\nYOLO mode is enabled. All\nRipgrep is not available.\n[STARTUP] Phase\n"
    assert trouble(exit=42, errors=errors).evidence == "exit 42"
    assert trouble(exit=42, errors=errors + "No input provided via stdin.\n").evidence == "No input provided via stdin."


def test_usage_is_that_of_the_result_thinking_included() -> None:
    reading = GEMINI.reading(ask())
    reading.take(said("x"))
    assert reading.usage is None
    reading.take(SUCCESS)
    assert reading.usage == Usage(input_tokens=120, cached_input_tokens=100, output_tokens=30)


def test_progress_names_tool_and_file() -> None:
    shell = {"type": "tool_use", "tool_name": "run_shell_command", "parameters": {"command": "npm test"}}
    assert progress(GEMINI, PROMPT, shell, RESULT, TOOL, said("hm"), complaint("oh"), SUCCESS, {"type": "later"}) == [
        None, "shell: npm test", None, "write: src/a.py", None, "error: oh", None, None,
    ]  # fmt: skip


def test_no_record_whatever_it_holds_raises() -> None:
    records = [
        {"type": "init", "session_id": "1", "model": "m"},
        PROMPT,
        TOOL,
        RESULT,
        said("hello"),
        complaint("oh"),
        SUCCESS,
    ]
    assert survive_damage(GEMINI, records) + survive_damage(GEMINI, [PROMPT, failure("no")]) > 400
