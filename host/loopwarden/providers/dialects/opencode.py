"""OpenCode: `opencode run --format json`, measured with 1.18.33.

    step_start, text, tool_use, step_finish {reason, tokens, cost}    one request of the model
    error {name, data {message, statusCode, responseHeaders}}         the end; exit 1

The answer is the text of the last step, whose reason is then "stop". OpenCode takes no schema: it is asked for by the
prompt. While it waits out a failing backend it prints nothing at all. `cost` is 0 for models whose price it does not
know, so 0 counts as unknown, and a cap on money cannot be kept.
"""

import re
from dataclasses import replace
from datetime import UTC
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Final

from loopwarden.failure_class import FailureClass
from loopwarden.provider import Capabilities
from loopwarden.providers.dialect import Answer, Ask, Launch, ProgramEnd, ProgramOptions, Reading, Trouble, Verdict
from loopwarden.providers.dialects.endings import without_terminal_record
from loopwarden.providers.dialects.troubles import trouble, trouble_of_error
from loopwarden.providers.error_words import MAX_DELAY_SECONDS, evidence_line
from loopwarden.providers.fields import count_at, number_at, object_at, sum_of, text_at, tool_words, words
from loopwarden.providers.schema_prompt import with_schema
from loopwarden.usage import Usage
from loopwarden_engine.plain import JsonObject

_QUIET: Final = {
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
}
_NO_PROJECT_FILES: Final = {
    "OPENCODE_DISABLE_PROJECT_CONFIG": "1",
    # Skills in .claude and .agents of the workspace are no project configuration to it, and would be offered.
    "OPENCODE_DISABLE_CLAUDE_CODE": "1",
    "OPENCODE_DISABLE_EXTERNAL_SKILLS": "1",
}
_CLASS_OF_NAME: Final = {
    "ProviderAuthError": FailureClass.AUTH,
    "ContextOverflowError": FailureClass.PROMPT_TOO_LONG,
    "MessageOutputLengthError": FailureClass.INVALID_OUTPUT,
    "StructuredOutputError": FailureClass.INVALID_OUTPUT,
    "MessageAbortedError": FailureClass.CANCELLED,
}
# Its "server" is a part of itself: this says nothing about the backend.
_SAYS_NOTHING: Final = re.compile(r"^unexpected server error\b", re.IGNORECASE)
_DENIAL: Final = re.compile(r"rejected permission|specified a rule|user dismissed|auto-reject", re.IGNORECASE)
_TOOL_NAMES: Final = {"bash": "shell"}


class OpenCode:
    """OpenCode keeps its state below HOME and the XDG folders, which the driver makes private."""

    name: str = "opencode"
    title: str = "OpenCode"
    program: str = "opencode"
    tested_version: str | None = "1.18.33"
    capabilities: Capabilities = Capabilities(
        structured_output=True, fresh_context=True, streams=True, tokens_known=True
    )
    credential_variables: tuple[str, ...] = (
        "ANTHROPIC_API_KEY", "AWS_ACCESS_KEY_ID", "AWS_BEARER_TOKEN_BEDROCK", "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN", "AZURE_API_KEY", "CEREBRAS_API_KEY", "CLOUDFLARE_API_TOKEN", "DEEPSEEK_API_KEY",
        "GEMINI_API_KEY", "GITHUB_TOKEN", "GITLAB_TOKEN", "GOOGLE_APPLICATION_CREDENTIALS",
        "GOOGLE_GENERATIVE_AI_API_KEY", "GROQ_API_KEY", "MISTRAL_API_KEY", "MOONSHOT_API_KEY", "OPENAI_API_KEY",
        "OPENCODE_API_KEY", "OPENCODE_AUTH_CONTENT", "OPENCODE_CONSOLE_TOKEN", "OPENROUTER_API_KEY",
        "TOGETHER_AI_API_KEY", "XAI_API_KEY",
    )  # fmt: skip

    def problem(self, options: ProgramOptions) -> str | None:
        """OpenCode has neither cap."""
        if options.max_turns is not None:
            return "OpenCode has no limit of turns; leave max_turns out, and let agentTimeoutSeconds bound an attempt"
        if options.max_cost_usd is not None:
            return (
                "OpenCode has no limit of money, and knows the price of some models only; leave max_cost_usd out, "
                "or set a limit at the model's provider"
            )
        return None

    def prompt_problem(self, prompt: str) -> str | None:  # noqa: ARG002 - part of the protocol
        """No limit of its own was met up to 2 MB."""
        return None

    def launch(self, ask: Ask) -> Launch:
        """Start `opencode run` with the prompt, and the schema behind it, on standard input."""
        arguments = ["run", "--format", "json", "--title", "loopwarden", "--auto"]
        environment = dict(_QUIET)
        if not ask.options.project_files:
            arguments += ["--pure"]
            environment |= _NO_PROJECT_FILES
        if ask.model is not None:
            arguments += ["--model", ask.model]
        return Launch(
            arguments=(*arguments, *ask.options.arguments),
            stdin=ask.prompt if ask.schema is None else with_schema(ask.prompt, ask.schema),
            environment=environment,
        )

    def reading(self, ask: Ask) -> Reading:
        """A fresh reading."""
        return OpenCodeReading(ask.workspace)


class OpenCodeReading:
    """What one `opencode run` printed."""

    def __init__(self, workspace: Path) -> None:
        self._workspace = f"{workspace}/"
        self._usage: dict[str, Usage] = {}
        self._texts: dict[str, str] = {}
        self._reason: str | None = None
        self._is_finished = False
        self._denial: str | None = None
        self._denials = 0
        self._error: Trouble | None = None

    @property
    def usage(self) -> Usage | None:
        """The sum over the steps, each counted once."""
        total = Usage()
        for one in self._usage.values():
            total += one
        return None if total == Usage() else total

    def take(self, record: JsonObject) -> str | None:
        """Take one record."""
        part = object_at(record, "part")
        match record.get("type"):
            case "step_start":
                self._texts, self._reason, self._is_finished, self._denial, self._error = {}, None, False, None, None
            case "text":
                text = text_at(part, "text")
                if text is not None:
                    self._texts[_id_of(part, len(self._texts))] = text
            case "tool_use":
                return self._take_tool(part)
            case "step_finish":
                self._is_finished = True
                self._reason = text_at(part, "reason")
                used = _usage_in(part)
                if used is not None:
                    self._usage[_id_of(part, len(self._usage))] = used
            case "error":
                self._error = _trouble_in(record)
                return words(f"error: {self._error.evidence}") if self._error.evidence else None
            case _:
                pass
        return None

    def conclude(self, end: ProgramEnd) -> Verdict:
        """Success is exit 0, a last step that ended with "stop", and text in it."""
        if self._error is not None:
            return self._error
        if not self._is_finished or end.exit != 0:
            return without_terminal_record(end)
        text = "\n".join(self._texts.values())
        if self._reason == "stop" and text.strip():
            refused = f"{self._denials} of its tool calls were refused" if self._denials else None
            return Answer(text=text, notes=(refused,) if refused else ())
        if self._denial is not None and not text.strip():
            return trouble(FailureClass.DENIED, self._denial)
        reason = (
            "ended without an answer"
            if self._reason == "stop"
            else f"stopped before its answer was complete ({words(self._reason or 'no reason given')})"
        )
        return trouble(FailureClass.INVALID_OUTPUT, None, reason)

    def _take_tool(self, part: JsonObject) -> str:
        state = object_at(part, "state")
        error = text_at(state, "error")
        if text_at(state, "status") == "error" and error is not None and _DENIAL.search(error[:1000]):
            self._denial = error
            self._denials += 1
        tool = text_at(part, "tool") or "tool"
        said = tool_words(_TOOL_NAMES.get(tool, tool), object_at(state, "input"))
        return said.replace(self._workspace, "")


def _id_of(part: JsonObject, position: int) -> str:
    return text_at(part, "id") or f"without id {position}"


def _usage_in(part: JsonObject) -> Usage | None:
    """`input` leaves out what the cache gave and took, `output` the reasoning."""
    tokens = object_at(part, "tokens")
    cached = count_at(tokens, "cache", "read")
    cost = number_at(part, "cost")
    found = Usage(
        input_tokens=sum_of(count_at(tokens, "input"), cached, count_at(tokens, "cache", "write")),
        cached_input_tokens=cached,
        output_tokens=sum_of(count_at(tokens, "output"), count_at(tokens, "reasoning")),
        cost_usd=cost or None,
    )
    return None if found == Usage() else found


def _trouble_in(record: JsonObject) -> Trouble:
    error = object_at(record, "error")
    data = object_at(error, "data")
    name = text_at(error, "name") or "error"
    status = count_at(data, "statusCode")
    message = text_at(data, "message") or text_at(error, "message") or name
    by_name = _CLASS_OF_NAME.get(name)
    if by_name is not None:
        return trouble(by_name, message)
    if status is None and _SAYS_NOTHING.search(message):
        return trouble(FailureClass.UNKNOWN, message)
    delay, resets_at = _delay_in(object_at(data, "responseHeaders"))
    # The body tells money from a rate limit, and the message does not always repeat it.
    found = trouble_of_error(
        f"{message}\n{text_at(data, 'responseBody') or ''}",
        status=status,
        retry_after_seconds=delay,
        resets_at=resets_at,
    )
    return replace(found, evidence=evidence_line(message))


def _delay_in(headers: JsonObject) -> tuple[float | None, float | None]:
    """Seconds to wait and Unix time to wait for, as the headers name one or the other."""
    named = {name.lower(): value.strip() for name, value in headers.items() if isinstance(value, str)}
    seconds = _seconds_in(named.get("retry-after"))
    milliseconds = _seconds_in(named.get("retry-after-ms"))
    if seconds is None and milliseconds is not None:
        seconds = milliseconds / 1000
    return seconds, _date_in(named.get("retry-after"))


def _seconds_in(text: str | None) -> float | None:
    if text is None or not re.fullmatch(r"\d{1,10}(?:\.\d{1,9})?", text):
        return None
    return float(text) if float(text) <= MAX_DELAY_SECONDS else None


def _date_in(text: str | None) -> float | None:
    """Unix time of an HTTP date (RFC 9110, 5.6.7)."""
    if text is None or not text[:1].isalpha():
        return None
    try:
        when = parsedate_to_datetime(text)
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError, TypeError, IndexError):
        return None
