"""Agents that speak the Agent Client Protocol: what they are told, what becomes of what they say, how they fail."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loopwarden import Host, events
from loopwarden.failure_class import FailureClass
from loopwarden.provider import AgentFailed, AgentReply, ProviderStartError
from loopwarden.providers.acp.provider import AcpProvider
from loopwarden.usage import Usage
from loopwarden_scripts import ralph
from support.acp_lab import SCHEMA, Lab, leaving_nothing
from support.agents import request

ANSWER = 'Here it is: {"n": 1} – done ✓'
INSIDE = "the value stood inside other text"


@pytest.fixture
def lab(tmp_path: Path, mark: str, caplog: pytest.LogCaptureFixture) -> Iterator[Lab]:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    with leaving_nothing(mark, caplog):
        yield Lab(workspace, mark)


def reply_of(lab: Lab, mode: str, *arguments: str, **changes: Any) -> AgentReply:
    return asyncio.run(lab.ask(mode, *arguments, **changes))


def failure_of(lab: Lab, mode: str, *arguments: str, **changes: Any) -> AgentFailed:
    with pytest.raises(AgentFailed) as failed:
        reply_of(lab, mode, *arguments, **changes)
    return failed.value


# ---- a good answer


def test_the_value_stands_in_the_text_of_the_turn(lab: Lab) -> None:
    reply = reply_of(lab, "answers")
    assert reply == AgentReply(text=ANSWER, value={"n": 1}, notes=(INSIDE,))
    assert lab.signs > 0


def test_without_a_schema_the_text_is_the_answer_and_the_prompt_goes_as_it_is(lab: Lab) -> None:
    prompt = 'repair "it"\r\n\tüñ😀\u2028\n'
    reply = reply_of(lab, "echoes", prompt=prompt, schema=None)
    assert reply == AgentReply(text=prompt)


def test_the_schema_is_asked_for_in_the_prompt(lab: Lab) -> None:
    [asked] = reply_of(lab, "answers", prompt="repair it") and lab.heard("session/prompt")
    [block] = asked["params"]["prompt"]
    assert block["type"] == "text"
    assert block["text"].startswith("repair it\n\n")
    assert json.dumps(SCHEMA, separators=(",", ":")) in block["text"]


def test_the_agent_is_offered_no_files_no_terminals_and_no_servers(lab: Lab) -> None:
    reply_of(lab, "answers")
    assert [message["method"] for message in lab.heard()] == ["initialize", "session/new", "session/prompt"]
    [hello] = lab.heard("initialize")
    assert hello["params"]["protocolVersion"] == 1
    assert hello["params"]["clientCapabilities"] == {
        "fs": {"readTextFile": False, "writeTextFile": False},
        "terminal": False,
    }
    [session] = lab.heard("session/new")
    assert session["params"] == {"cwd": str(lab.workspace), "mcpServers": []}


def test_single_bytes_give_the_same_answer(lab: Lab) -> None:
    assert reply_of(lab, "writes single bytes").text == ANSWER


def test_progress_says_what_the_agent_does_and_only_messages_are_its_answer(lab: Lab) -> None:
    reply = reply_of(lab, "uses tools")
    assert reply.text == 'First.\n\n {"n": 2}'
    assert reply.value == {"n": 2}
    assert reply.notes == (INSIDE, "1 of its updates could not be read")
    assert lab.progress == [
        "thinking",
        "plan: 1 of 2 done, now: repair the bridge",
        "edit: src/a.py",
        "failed: edit: src/a.py",
        "execute: make test",
        "writing",
    ]


def test_usage_is_taken_where_the_agent_says_it(lab: Lab) -> None:
    usage = Usage(input_tokens=110, cached_input_tokens=100, output_tokens=7, cost_usd=0.5)
    assert reply_of(lab, "says its usage").usage == usage


def test_the_home_is_private_and_holds_the_credentials_that_were_named(lab: Lab, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("secret")
    code = (
        "import os, pathlib, sys; home = pathlib.Path.home();"
        "pathlib.Path('seen').write_text((home / '.agent/key').read_text() + ' ' + str(home));"
        "os.execv(sys.executable, [sys.executable, '-EsS', *sys.argv[1:]])"
    )
    [*_, agent] = lab.provider("answers").argv[:-1]
    argv = [sys.executable, "-IS", "-c", code, agent, "answers"]
    provider = AcpProvider(argv, env=lab.env, credential_files={".agent/key": str(key)})
    asyncio.run(provider.reply(request(lab.workspace)))
    content, _, home = (lab.workspace / "seen").read_text().partition(" ")
    assert content == "secret"
    assert home != os.environ.get("HOME")
    assert not Path(home).exists()


# ---- permissions


def test_allow_chooses_once_before_always_and_never_an_option_that_rejects(lab: Lab) -> None:
    reply = reply_of(lab, "asks permission", schema=None)
    assert reply.text == "allow_once allow_always cancelled"
    assert reply.notes == (
        "2 requests for permission allowed: execute: make test (2 times)",
        "1 request for permission denied, since no option allowed it: execute: make test",
    )


def test_deny_chooses_to_reject(lab: Lab) -> None:
    reply = reply_of(lab, "asks permission", schema=None, options={"permissions": "deny"})
    assert reply.text == "reject_once reject_always cancelled"
    assert reply.notes == ("3 requests for permission denied: execute: make test (3 times)",)


def test_an_agent_that_was_denied_and_says_nothing_was_denied(lab: Lab) -> None:
    failed = failure_of(lab, "asks in vain", options={"permissions": "deny"})
    assert failed.failure_class is FailureClass.DENIED
    assert failed.reason == "the agent program said nothing, after 1 of its requests for permission were denied"


def test_requests_that_are_not_offered_do_not_exist(lab: Lab) -> None:
    reply = reply_of(lab, "asks for a file", schema=None)
    assert reply.text == "-32601 -32601 -32601 -32601"
    assert reply.notes == (
        "it asked for fs/read_text_file 2 times, which is not offered",
        "it asked for terminal/create once, which is not offered",
        "it asked for other methods once, which is not offered",
    )


# ---- the model, the login


@pytest.mark.parametrize("wanted", ["vendor/large", "Large"])
def test_the_model_of_the_call_is_set_as_an_option_of_the_session(lab: Lab, wanted: str) -> None:
    reply_of(lab, "offers models", model=wanted, options={"model": "vendor/small"})
    [chosen] = lab.heard("session/set_config_option")
    assert chosen["params"] == {"sessionId": "session-1", "configId": "llm", "value": "vendor/large"}


def test_a_model_is_set_the_older_way_where_the_agent_has_only_that(lab: Lab) -> None:
    reply_of(lab, "offers older models", options={"model": "pro"})
    [chosen] = lab.heard("session/set_model")
    assert chosen["params"] == {"sessionId": "session-1", "modelId": "pro"}


def test_a_model_that_is_not_offered_is_a_start_error(lab: Lab) -> None:
    with pytest.raises(ProviderStartError, match=r"^the agent does not offer the model 'x'; it offers auto, pro$"):
        reply_of(lab, "offers older models", model="x")


def test_an_agent_without_models_cannot_choose_one(lab: Lab) -> None:
    with pytest.raises(ProviderStartError, match="does not let its client choose a model; leave model out"):
        reply_of(lab, "answers", model="x")


def test_a_login_that_needs_a_person_is_an_auth_failure(lab: Lab) -> None:
    failed = failure_of(lab, "demands a login")
    assert failed.failure_class is FailureClass.AUTH
    assert failed.reason == (
        "the agent program failed to begin a session: Authentication required; it offers browser, key; "
        "give it credentials by pass_env or credential_files"
    )
    assert failed.evidence == "JSON-RPC error -32000: Authentication required"
    assert lab.heard("authenticate") == []


@pytest.mark.parametrize(
    ("mode", "options", "method"),
    [
        ("demands a login", {"login": "key"}, "key"),
        ("demands a variable", {"env": {"AGENT_KEY": "k"}}, "by-key"),
    ],
)
def test_a_login_that_needs_nobody_is_done_when_it_is_demanded(
    lab: Lab, mode: str, options: dict[str, Any], method: str
) -> None:
    assert reply_of(lab, mode, options=options).value == {"n": 1}
    assert [message["params"] for message in lab.heard("authenticate")] == [{"methodId": method}]


def test_a_login_whose_variables_are_not_set_is_not_tried(lab: Lab) -> None:
    assert failure_of(lab, "demands a variable").failure_class is FailureClass.AUTH
    assert lab.heard("authenticate") == []


# ---- failures


def test_another_version_of_the_protocol_is_a_start_error(lab: Lab) -> None:
    with pytest.raises(ProviderStartError, match="speaks version 99 of the Agent Client Protocol"):
        reply_of(lab, "speaks another version")


@pytest.mark.parametrize(
    ("stop_reason", "failure_class", "reason"),
    [
        ("max_tokens", FailureClass.LIMIT, "reached the limit of tokens of its model"),
        ("max_turn_requests", FailureClass.LIMIT, "reached its limit of requests to the model"),
        ("refusal", FailureClass.DENIED, "refused to go on with the prompt"),
        ("cancelled", FailureClass.CANCELLED, "ended its turn as cancelled"),
        ("done", FailureClass.CRASHED, "answered session/prompt with something that is not the protocol"),
    ],
)
def test_a_turn_that_stops_otherwise_is_a_failure(
    lab: Lab, stop_reason: str, failure_class: FailureClass, reason: str
) -> None:
    failed = failure_of(lab, "stops", stop_reason)
    assert (failed.failure_class, failed.reason) == (failure_class, f"the agent program {reason}")


@pytest.mark.parametrize(
    ("code", "words", "data", "failure_class"),
    [
        (-32000, "Authentication required", None, FailureClass.AUTH),
        (-32000, "Too many requests", None, FailureClass.RATE_LIMITED),
        (-32603, "Internal error", {"details": "429 rate limit reached"}, FailureClass.RATE_LIMITED),
        (-32603, "Internal error", {"error": {"message": "the model is overloaded"}}, FailureClass.OVERLOADED),
        (503, "Internal error", None, FailureClass.OVERLOADED),
        (-32603, "Internal error", "connect ECONNREFUSED 127.0.0.1:9", FailureClass.UNAVAILABLE),
        (-32602, "Invalid params", {"details": {"details": {"details": {"details": "x"}}}}, FailureClass.UNKNOWN),
    ],
)
def test_an_error_of_the_agent_has_a_class(
    lab: Lab, code: int, words: str, data: object, failure_class: FailureClass
) -> None:
    failed = failure_of(lab, "fails", str(code), words, json.dumps(data))
    assert failed.failure_class is failure_class
    assert failed.reason.startswith(f"the agent program failed to work on the prompt: {words}")
    assert failed.evidence is not None
    assert failed.evidence.startswith(f"JSON-RPC error {code}: {words}")


def test_a_delay_that_an_error_names_is_kept(lab: Lab) -> None:
    assert failure_of(lab, "fails", "429", "rate limited, retry after 7 s").retry_after_seconds == 7


def test_an_agent_that_says_nothing_gave_no_answer(lab: Lab) -> None:
    failed = failure_of(lab, "says nothing", schema=None)
    assert failed.failure_class is FailureClass.INVALID_OUTPUT
    assert failed.reason == "the agent program ended its turn and said nothing"


def test_an_answer_without_a_value_is_no_answer(lab: Lab) -> None:
    failed = failure_of(lab, "asks permission")
    assert failed.failure_class is FailureClass.INVALID_OUTPUT
    assert failed.reason == "the agent program gave no usable value: the output holds no JSON object"
    assert "2 requests for permission allowed: execute: make test (2 times)" in failed.notes


@pytest.mark.parametrize(
    ("mode", "failure_class", "reason", "evidence"),
    [
        ("dies", FailureClass.CRASHED, "ended with exit 3 before it had answered", "it was going so well"),
        ("is killed", FailureClass.CRASHED, "was ended by signal SIGKILL before it had answered", None),
        ("ends at once", FailureClass.CRASHED, "ended with exit 2 before it had answered", "there is no such model"),
        ("is no such agent", FailureClass.CRASHED, "ended with exit 0 before it had answered", None),
        (
            "loses its credentials",
            FailureClass.AUTH,
            "ended with exit 1 before it had answered: Error: 401 invalid api key",
            "Error: 401 invalid api key",
        ),
        (
            "says no version",
            FailureClass.CRASHED,
            "answered initialize with something that is not the protocol",
            None,
        ),
    ],
)
def test_an_agent_that_is_gone_early_failed(
    lab: Lab, mode: str, failure_class: FailureClass, reason: str, evidence: str | None
) -> None:
    failed = failure_of(lab, mode)
    assert (failed.failure_class, failed.reason) == (failure_class, f"the agent program {reason}")
    assert failed.evidence == evidence


def test_a_program_that_speaks_something_else_is_not_waited_for(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loopwarden.providers.acp.session.HELLO_SECONDS", 0.1)
    failed = failure_of(lab, "reads all of its input")
    assert failed.reason == (
        "the agent program did not answer initialize within 0.1 s; "
        "check that its arguments make it speak the Agent Client Protocol"
    )


def test_what_is_no_message_is_counted_and_not_fatal(lab: Lab) -> None:
    reply = reply_of(lab, "prints garbage")
    assert reply.value == {"n": 1}
    assert {
        "it asked for other methods once, which is not offered",
        "it asked for terminal/create once, which is not offered",
        "3 of its updates could not be read",
        "its output held 2 lines of plain text",
        "its output held 2 lines of JSON that is no object",
        "its output held 3 lines of JSON that is broken",
        "its output held 8 messages outside of the protocol, which were left out",
    } <= set(reply.notes)


@pytest.mark.parametrize("mode", ["floods", "prints one long line"])
def test_an_agent_that_says_too_much_is_ended(lab: Lab, mode: str) -> None:
    failed = failure_of(lab, mode, max_output_bytes=300_000)
    assert failed.failure_class is FailureClass.INVALID_OUTPUT
    assert failed.reason == "the agent program was ended: it printed more than 300000 bytes"


def test_an_agent_that_asks_too_much_is_ended(lab: Lab) -> None:
    failed = failure_of(lab, "floods with requests", max_output_bytes=16 * 1024 * 1024)
    assert failed.failure_class is FailureClass.CRASHED
    assert failed.reason == "the agent program sent more than 10000 requests, and was ended"


@pytest.mark.parametrize(
    ("then", "reason"),
    [
        ("ends", "ended with exit 4 before it had answered"),
        ("lives", "does not read its input any more, and was ended"),
    ],
)
def test_an_agent_that_does_not_listen_any_more_failed(lab: Lab, then: str, reason: str) -> None:
    failed = failure_of(lab, "closes its input", then)
    assert (failed.failure_class, failed.reason) == (FailureClass.CRASHED, f"the agent program {reason}")


def test_a_prompt_that_cannot_be_sent_is_too_long(lab: Lab) -> None:
    failed = failure_of(lab, "answers", prompt="p" * 4 * 1024 * 1024)
    assert failed.failure_class is FailureClass.PROMPT_TOO_LONG


# ---- in a run


def test_the_ralph_loop_runs_to_its_completion(lab: Lab) -> None:
    async def play() -> tuple[Any, list[Any]]:
        async with Host(providers={"default": lab.provider("reports")}) as host:
            run = await host.start(
                ralph.build(ralph.RalphSettings()), ralph.Args(objective="Build the bridge."), workspace=lab.workspace
            )
            outcome = await run.wait()
            return outcome, [event async for event in run.events()]

    outcome, seen = asyncio.run(play())
    assert outcome.failure is None
    assert (outcome.value.status, outcome.agents_started) == ("complete", 3)
    assert (lab.workspace / "bridge.txt").read_text() == "plank\n" * 3
    assert [event.message for event in seen if isinstance(event, events.AgentProgress)] == ["writing"] * 3


# ---- settings


@pytest.mark.parametrize(
    ("argv", "options", "reason"),
    [
        ("agent", {}, "a command is a list of a program and its arguments"),
        (["agent"], {"permissions": "ask"}, "permissions must be one of allow, deny, not 'ask'"),
        (["agent"], {"credential_files": {"../x": "/x"}}, "'../x' does not lie below the home of the agent"),
        (["agent"], {"env": {"A=B": "x"}}, "'A=B' cannot be the name of an environment variable"),
    ],
)
def test_settings_that_cannot_be_kept_are_refused(argv: Any, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        AcpProvider(argv, **options)


def test_a_program_that_is_not_there_is_a_start_error(lab: Lab) -> None:
    with pytest.raises(ProviderStartError, match="'no-such-agent' was not found in PATH"):
        asyncio.run(AcpProvider(["no-such-agent"]).reply(request(lab.workspace)))


def test_a_plan_says_what_would_be_started(lab: Lab) -> None:
    plan = lab.provider("answers").describe(request(lab.workspace, prompt="do it"))
    assert (plan.argv[-1], plan.folder, plan.stdin_chars) == ("answers", str(lab.workspace), 5)
    assert {"HOME", "LOOPWARDEN_AGENT", "PATH", "TEST_MARK", "TMPDIR"} <= set(plan.environment_names)


def test_the_sdk_is_loaded_with_the_first_provider_and_not_with_the_host() -> None:
    code = (
        "import sys, loopwarden, loopwarden.providers.acp.provider as acp; assert 'acp' not in sys.modules;"
        "acp.AcpProvider(['x']); assert 'acp' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
