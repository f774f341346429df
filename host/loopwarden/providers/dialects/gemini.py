"""Gemini CLI: `gemini -o stream-json`, measured with 0.61.0.

    init, message {role, content}, tool_use, tool_result, error {severity, message}
    result {status "success" or "error", error {type, message}, stats}

The answer is all that the assistant said. The prompt is echoed as a message of the user. The exit code is the HTTP
status modulo 256, or one of its own. While it waits out a failing backend it says so on standard error only, without a
time: such a line counts when the program is ended while it waits for its model.

It takes no schema: that is asked for by the prompt. It works without being asked only in a folder that it trusts, and
then it follows all that lies there: GEMINI.md, skills, and an .env that may even set its endpoint. So, unless project
files are wanted, it is told to distrust the workspace, and a policy of ours allows its tools.
"""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Final

from loopwarden.failure_class import FailureClass
from loopwarden.provider import Capabilities
from loopwarden.providers.dialect import Answer, Ask, Launch, ProgramEnd, ProgramOptions, Reading, Trouble, Verdict
from loopwarden.providers.dialects.endings import how, was_interrupted, without_terminal_record
from loopwarden.providers.dialects.troubles import trouble, trouble_of_error, without_lines
from loopwarden.providers.error_words import class_of_status, status_in
from loopwarden.providers.fields import count_at, object_at, text_at, tool_words, words
from loopwarden.providers.schema_prompt import with_schema
from loopwarden.usage import Usage
from loopwarden_engine.plain import JsonObject

MAX_PROMPT_BYTES: Final = 8 * 1024 * 1024
"""Of standard input, in UTF-8. What is above is cut off, and at 9 MB it reported success without asking its model."""
_SETTINGS: Final = ".gemini/settings.json"
_LOGIN: Final = ".gemini/oauth_creds.json"
_POLICY: Final = ".gemini/loopwarden-policy.toml"
# A rule with a pattern of arguments is final. Without one, its own judgement of a shell command follows, and that turns
# every use of git in a folder that is not trusted into a question that nobody answers.
_POLICY_TEXT: Final = """\
[[rule]]
toolName = ["ask_user", "enter_plan_mode", "exit_plan_mode"]
decision = "deny"
priority = 999

[[rule]]
toolName = "run_shell_command"
argsPattern = ".*"
decision = "allow"
priority = 998
allowRedirection = true

[[rule]]
toolName = "*"
decision = "allow"
priority = 997
"""
_USUAL_LINES: Final = re.compile(
    r"^Warning: (?:Basic terminal|256-color|True color)|^YOLO mode is enabled|^Approval mode overridden|^Ripgrep is not"
    r"|^\[STARTUP\]|^Project hooks disabled|^Loaded cached credentials|^\s+at "
)
_ATTEMPT: Final = re.compile(r"^Attempt \d+ failed\b", re.MULTILINE)
_CUT_OFF: Final = re.compile(r"^.*stdin input truncated.*$", re.IGNORECASE | re.MULTILINE)
_TURN_LIMIT: Final = re.compile(r"max(?:imum)? session turns", re.IGNORECASE)
_CLASS_OF_TYPE: Final = {
    "FatalAuthenticationError": FailureClass.AUTH,
    "FatalTurnLimitedError": FailureClass.LIMIT,
    "FatalCancellationError": FailureClass.CANCELLED,
    "FatalInputError": FailureClass.CRASHED,
    "FatalConfigError": FailureClass.CRASHED,
    "FatalSandboxError": FailureClass.CRASHED,
    "FatalToolExecutionError": FailureClass.CRASHED,
    "FatalUntrustedWorkspaceError": FailureClass.CRASHED,
}
_CLASS_OF_EXIT: Final = {41: FailureClass.AUTH, 53: FailureClass.LIMIT}
_STATUS_OF_EXIT: Final = {status % 256: status for status in (401, 402, 403, 408, 413, 429, 500, 502, 503, 504, 529)}
_TOOL_NAMES: Final = {
    "run_shell_command": "shell", "write_file": "write", "replace": "edit", "read_file": "read",
    "list_directory": "list", "grep_search": "search", "google_web_search": "web search", "web_fetch": "fetch",
}  # fmt: skip


class Gemini:
    """Gemini keeps its settings below HOME, which the driver makes private."""

    name: str = "gemini"
    title: str = "Gemini CLI"
    program: str = "gemini"
    tested_version: str | None = "0.61.0"
    capabilities: Capabilities = Capabilities(
        structured_output=True, fresh_context=True, streams=True, tokens_known=True
    )
    credential_variables: tuple[str, ...] = ("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_APPLICATION_CREDENTIALS")

    def problem(self, options: ProgramOptions) -> str | None:
        """Gemini has a limit of turns, and does not say what a turn costs. Its settings are ours."""
        if options.max_cost_usd is not None:
            return "Gemini CLI does not say what it costs, so a cap on money cannot be kept; leave max_cost_usd out"
        if options.max_turns is not None and options.max_turns < 1:
            return "max_turns has to be at least 1; leave it out for no limit"
        if _SETTINGS in options.credential_files:
            return f"{_SETTINGS} of Gemini CLI is written for each agent; leave it out of credential_files"
        return None

    def prompt_problem(self, prompt: str) -> str | None:
        """More than 8 MiB are cut off without a failure."""
        length = len(prompt.encode("utf-8", "surrogatepass"))
        if length > MAX_PROMPT_BYTES:
            return f"the prompt has {length} bytes, and Gemini CLI reads at most {MAX_PROMPT_BYTES}; shorten it"
        return None

    def launch(self, ask: Ask) -> Launch:
        """Start `gemini` with the prompt, and the schema behind it, on standard input."""
        options = ask.options
        arguments = ["-o", "stream-json"]
        environment: dict[str, str] = {}
        files: dict[str, str] = {}
        if options.project_files:
            arguments += ["--yolo", "--skip-trust"]
        else:
            arguments += ["--policy", str(ask.home / _POLICY)]
            environment["GEMINI_CLI_TRUST_WORKSPACE"] = "false"
            files[_POLICY] = _POLICY_TEXT
        files[_SETTINGS] = json.dumps(_settings(options), indent=2) + "\n"
        if ask.model is not None:
            arguments += ["-m", ask.model]
        return Launch(
            arguments=(*arguments, *options.arguments),
            stdin=ask.prompt if ask.schema is None else with_schema(ask.prompt, ask.schema),
            environment=environment,
            files=files,
            folders=(".gemini",),
        )

    def reading(self, ask: Ask) -> Reading:
        """A fresh reading."""
        return GeminiReading(ask.workspace)


class GeminiReading:
    """What one `gemini` printed."""

    def __init__(self, workspace: Path) -> None:
        self._workspace = f"{workspace}/"
        self._usage: Usage | None = None
        self._texts: list[str] = []
        self._has_begun = False
        self._is_model_due = False
        self._complaint: str | None = None
        self._result: JsonObject | None = None

    @property
    def usage(self) -> Usage | None:
        """Of the result: it counts the whole session, and nothing is said before."""
        return self._usage

    def take(self, record: JsonObject) -> str | None:
        """Take one record."""
        match record.get("type"):
            case "init":
                self._has_begun = True
            case "message":
                self._take_message(record)
            case "tool_use":
                self._is_model_due = False
                tool = text_at(record, "tool_name") or "tool"
                said = tool_words(_TOOL_NAMES.get(tool, tool), object_at(record, "parameters"))
                return said.replace(self._workspace, "")
            case "tool_result":
                self._is_model_due = True
            case "error":
                message = text_at(record, "message") or ""
                if text_at(record, "severity") != "warning":
                    self._complaint = message or self._complaint
                return words(f"error: {message}") if message else None
            case "result":
                self._result = record
                self._usage = _usage_in(object_at(record, "stats")) or self._usage
            case _:
                pass
        return None

    def conclude(self, end: ProgramEnd) -> Verdict:
        """Success is exit 0, a result with status "success", and text of the assistant."""
        if self._result is not None and text_at(self._result, "status") != "success":
            return self._failure(self._result, end)
        if self._result is None or end.exit != 0:
            return self._unfinished(end)
        text = "".join(self._texts)
        complaint = self._complaint
        if complaint is not None and _TURN_LIMIT.search(complaint):
            return trouble(FailureClass.LIMIT, complaint)
        if text.strip():
            return Answer(text=text)
        return _without_text(complaint, end)

    def _take_message(self, record: JsonObject) -> None:
        role, content = text_at(record, "role"), text_at(record, "content")
        if role == "user":
            self._is_model_due = True
        elif role == "assistant" and content is not None:
            self._is_model_due = False
            self._texts.append(content)

    def _failure(self, result: JsonObject, end: ProgramEnd) -> Trouble:
        error = object_at(result, "error")
        message = text_at(error, "message")
        by_type = _CLASS_OF_TYPE.get(text_at(error, "type") or "")
        if by_type is not None:
            return trouble(by_type, message)
        text = message or self._complaint or ""
        status = status_in(text)
        if status is None and end.exit is not None:
            status = _STATUS_OF_EXIT.get(end.exit)
        return trouble_of_error(text, status=status)

    def _unfinished(self, end: ProgramEnd) -> Trouble:
        # Its errors stand on standard error. Other lines on standard output are pieces of the echoed prompt.
        heard = replace(without_lines(end, _USUAL_LINES), plain_output="")
        found = without_terminal_record(heard, self._retrying(end))
        if found.failure_class is FailureClass.INVALID_OUTPUT and self._has_begun and found.evidence is None:
            # So it ends on a signal to its group: well, in the middle, without a word. No other cause was ever seen.
            return trouble(FailureClass.CANCELLED, how(end))
        if found.failure_class is not FailureClass.CRASHED or end.exit is None:
            return found
        by_exit = _CLASS_OF_EXIT.get(end.exit) or class_of_status(_STATUS_OF_EXIT.get(end.exit, 0))
        return found if by_exit is None else trouble(by_exit, found.evidence)

    def _retrying(self, end: ProgramEnd) -> Trouble | None:
        """The failed request that it said last to try again, when it was still waiting for its model."""
        attempts = list(_ATTEMPT.finditer(end.errors))
        if not attempts or not self._is_model_due:
            return None
        told = trouble_of_error(end.errors[attempts[-1].start() :].split("\n    at ", 1)[0])
        return None if told.failure_class is FailureClass.UNKNOWN and was_interrupted(end) else told


def _without_text(complaint: str | None, end: ProgramEnd) -> Trouble:
    if complaint is not None:
        return trouble_of_error(complaint, otherwise=FailureClass.INVALID_OUTPUT)
    cut_off = _CUT_OFF.search(end.errors)
    if cut_off is not None:
        return trouble(FailureClass.PROMPT_TOO_LONG, cut_off[0])
    return trouble(FailureClass.INVALID_OUTPUT, None, "reported success without an answer")


def _settings(options: ProgramOptions) -> JsonObject:
    login = "oauth-personal" if _LOGIN in options.credential_files else "gemini-api-key"
    settings: JsonObject = {
        "security": {"auth": {"selectedType": login}, "folderTrust": {"enabled": options.project_files}},
        "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
        "privacy": {"usageStatisticsEnabled": False},
    }
    if not options.project_files:
        settings["advanced"] = {"ignoreLocalEnv": True}
    if options.max_turns is not None:
        settings["model"] = {"maxSessionTurns": options.max_turns}
    return settings


def _usage_in(stats: JsonObject) -> Usage | None:
    """`input_tokens` holds the cached ones. `output_tokens` leaves out the thinking, which only the total holds."""
    read, wrote, total = (count_at(stats, name) for name in ("input_tokens", "output_tokens", "total_tokens"))
    if read is not None and total is not None:
        wrote = max(wrote or 0, total - read)
    found = Usage(input_tokens=read, cached_input_tokens=count_at(stats, "cached"), output_tokens=wrote)
    return None if found == Usage() else found
