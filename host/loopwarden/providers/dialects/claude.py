"""Claude Code: `claude -p --output-format stream-json`, measured with 2.1.332.

    system/init                it begins
    assistant, user            messages; an error of the API is a message too, with `error` beside it
    stream_event               pieces of messages, when they were asked for
    system/api_retry           an error of the API that it waits out
    rate_limit_event           the state of a plan's allowance; also in runs that go well
    result                     the end: `is_error`, `subtype`, `structured_output`, totals

Traps: an error of the API says `subtype: "success"` and is told by `is_error` alone; SIGINT gives exit 0; and when the
model answers in words, a call with a schema ends well without `structured_output`.
"""

from collections.abc import Mapping
from typing import Final

from loopwarden.failure_class import FailureClass
from loopwarden.provider import Capabilities
from loopwarden.providers.dialect import Answer, Ask, Launch, ProgramEnd, ProgramOptions, Reading, Trouble, Verdict
from loopwarden.providers.dialects.blocks import UsageByMessage, blocks_of, words_on_block, words_on_message
from loopwarden.providers.dialects.endings import REASONS, after_a_result, was_interrupted, without_terminal_record
from loopwarden.providers.error_words import class_of_error, delay_in, evidence_line
from loopwarden.providers.fields import (
    count_at,
    number_at,
    object_at,
    objects_in,
    sum_of,
    text_at,
    texts_in,
    time_at,
    words,
)
from loopwarden.providers.schema_prompt import with_schema
from loopwarden.usage import Usage
from loopwarden_engine.plain import JsonObject, compact_json

MAX_PROMPT_BYTES: Final = 10_000_000
MAX_ARGUMENT_BYTES: Final = 128 * 1024 - 1
"""Of one argument, by MAX_ARG_STRLEN of Linux (execve(2)), which counts the byte that ends it."""
_HOME: Final = ".claude"

_OF_SUBTYPE: Final = {
    "error_max_turns": FailureClass.LIMIT,
    "error_max_budget_usd": FailureClass.LIMIT,
    "error_max_structured_output_retries": FailureClass.INVALID_OUTPUT,
}
_OF_TERMINAL_REASON: Final = {
    "max_turns": FailureClass.LIMIT,
    "budget_exhausted": FailureClass.LIMIT,
    "structured_output_retry_exhausted": FailureClass.INVALID_OUTPUT,
    "prompt_too_long": FailureClass.PROMPT_TOO_LONG,
}
_ABORTED: Final = "aborted"
_OF_ERROR_NAME: Final = {
    "authentication_failed": FailureClass.AUTH,
    "authentication_error": FailureClass.AUTH,
    "permission_error": FailureClass.AUTH,
    "oauth_org_not_allowed": FailureClass.AUTH,
    "billing_error": FailureClass.BILLING,
    "usage_limit_reached": FailureClass.RATE_LIMITED,
    "rate_limit": FailureClass.RATE_LIMITED,
    "rate_limit_error": FailureClass.RATE_LIMITED,
    "overloaded": FailureClass.OVERLOADED,
    "overloaded_error": FailureClass.OVERLOADED,
    "connection_failed": FailureClass.UNAVAILABLE,
    "timeout_error": FailureClass.UNAVAILABLE,
    "request_too_large": FailureClass.PROMPT_TOO_LONG,
}
# Said of every trouble of the server, so the status and the words of the error are asked first.
_OF_VAGUE_NAME: Final = {"server_error": FailureClass.UNAVAILABLE, "api_error": FailureClass.UNAVAILABLE}
_REASONS: Final[Mapping[FailureClass, str]] = REASONS | {
    FailureClass.AUTH: "is not logged in, or its credentials are not accepted",
    FailureClass.LIMIT: "reached its limit of turns or of money",
    FailureClass.INVALID_OUTPUT: "gave no output that fits the schema",
}


class Claude:
    """Claude Code, without any settings but its own defaults."""

    name: str = "claude"
    title: str = "Claude Code"
    program: str = "claude"
    tested_version: str | None = "2.1.332"
    capabilities: Capabilities = Capabilities(
        structured_output=True,
        native_schema=True,
        fresh_context=True,
        streams=True,
        tokens_known=True,
        cost_known=True,
    )
    credential_variables: tuple[str, ...] = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN")

    def problem(self, options: ProgramOptions) -> str | None:
        """None: every option can be kept."""
        del options
        return None

    def prompt_problem(self, prompt: str) -> str | None:
        """Claude Code takes at most 10 MB on standard input."""
        size = len(prompt.encode("utf-8", "replace"))
        if size > MAX_PROMPT_BYTES:
            return f"the prompt has {size} bytes, and Claude Code takes at most {MAX_PROMPT_BYTES}; shorten it"
        return None

    def launch(self, ask: Ask) -> Launch:
        """Start `claude -p` with the prompt on standard input and a configuration folder of its own."""
        arguments = ["-p", "--output-format", "stream-json", "--verbose", "--dangerously-skip-permissions"]
        if not ask.options.project_files:
            # With it, .claude/settings.json of the workspace runs its hooks unasked and sets variables and permissions,
            # and CLAUDE.md is sent. No trust is asked for.
            arguments += ["--setting-sources", ""]
        arguments += ["--strict-mcp-config", "--no-session-persistence"]
        native = native_schema(ask)
        if native is not None:
            arguments += ["--json-schema", native]
        if ask.options.max_turns is not None:
            arguments += ["--max-turns", str(ask.options.max_turns)]
        if ask.max_cost_usd is not None:
            arguments += ["--max-budget-usd", _decimal(ask.max_cost_usd)]
        if ask.model is not None:
            arguments += ["--model", ask.model]
        by_prompt = ask.schema is not None and native is None
        return Launch(
            arguments=(*arguments, *ask.options.arguments),
            stdin=with_schema(ask.prompt, ask.schema or {}) if by_prompt else ask.prompt,
            environment=_environment(ask),
            folders=(_HOME,),
        )

    def reading(self, ask: Ask) -> Reading:
        """A fresh reading."""
        return ClaudeReading(ask)


def native_schema(ask: Ask) -> str | None:
    """The schema as an argument; None without one, or when Linux takes no argument of its length.

    A longer schema is asked for by the prompt, and the value is then looked for in the answer. A file cannot be named.
    """
    if ask.schema is None:
        return None
    schema = compact_json(ask.schema)
    return schema if len(schema.encode()) <= MAX_ARGUMENT_BYTES else None


def _environment(ask: Ask) -> dict[str, str]:
    """No retries against the API: they are hidden waits, which only the deployment may grant, by a policy.

    MAX_STRUCTURED_OUTPUT_RETRIES stays as it is: the model mends its own output within the attempt, at most five times.
    That costs turns, which are counted, and saves whole attempts.
    """
    environment = {
        "CLAUDE_CONFIG_DIR": str(ask.home / _HOME),
        "CLAUDE_CODE_MAX_RETRIES": "0",
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
    }
    if ask.is_root:
        # Otherwise it refuses to skip permissions as root.
        environment["IS_SANDBOX"] = "1"
    return environment


def _decimal(number: float) -> str:
    """Without an exponent, which not every reader of options takes."""
    return f"{number:.10f}".rstrip("0").rstrip(".")


class ClaudeReading:
    """What one `claude -p` printed."""

    def __init__(self, ask: Ask) -> None:
        self._workspace = ask.workspace
        self._wants_value = native_schema(ask) is not None
        self._messages = UsageByMessage()
        self._message_id: str | None = None
        self._result: JsonObject | None = None
        self._api_error: JsonObject = {}
        """The last message, when it stands for an error of the API."""
        self._retrying: Trouble | None = None
        self._resets_at: float | None = None
        self._allowance: str | None = None
        self._last_words: str | None = None

    @property
    def usage(self) -> Usage | None:
        """The totals of the result; until then, what the messages add up to."""
        return (None if self._result is None else _totals(self._result)) or self._messages.total

    def take(self, record: JsonObject) -> str | None:
        """Take one record."""
        match record.get("type"):
            case "assistant":
                said = self._take_assistant(record)
            case "user":
                self._retrying, said = None, None
            case "stream_event":
                said = self._take_event(record)
            case "system":
                said = self._take_system(record)
            case "rate_limit_event":
                said = self._take_allowance(object_at(record, "rate_limit_info"))
            case "result":
                self._result, said = record, None
            case _:
                said = None
        if said is None or said == self._last_words:
            return None
        self._last_words = said
        return said

    def conclude(self, end: ProgramEnd) -> Verdict:
        """Success is exit 0, a result without error, `subtype` success and, with a schema, `structured_output`."""
        result = self._result
        if result is None:
            return without_terminal_record(end, self._retrying)
        if result.get("is_error") is not False or result.get("subtype") != "success":
            return self._trouble(result, end)
        return after_a_result(end) or self._answer(result)

    # ---- records

    def _take_assistant(self, record: JsonObject) -> str | None:
        message = object_at(record, "message")
        if text_at(record, "error") is not None or record.get("is_api_error_message") is True:
            self._api_error, self._retrying = record, self._retrying or _trouble_of_message(record, message)
            return words(f"API error: {text_at(record, 'error') or 'unknown'}")
        self._api_error, self._retrying = {}, None
        # Until the message is complete, its count of output tokens is a mere beginning.
        is_complete = isinstance(message.get("stop_reason"), str)
        self._messages.take(text_at(message, "id"), _usage_in(object_at(message, "usage"), is_complete=is_complete))
        return words_on_message(message, self._workspace)

    def _take_event(self, record: JsonObject) -> str | None:
        self._retrying = None
        event = object_at(record, "event")
        match event.get("type"):
            case "message_start":
                self._message_id = text_at(event, "message", "id")
                usage = _usage_in(object_at(event, "message", "usage"), is_complete=False)
                self._messages.take(self._message_id, usage)
            case "message_delta":
                usage = _usage_in(object_at(event, "usage"), is_complete=True)
                self._messages.take(text_at(record, "api_message_id") or self._message_id, usage)
            case "content_block_start":
                return words_on_block(object_at(event, "content_block"), self._workspace)
            case _:
                pass
        return None

    def _take_system(self, record: JsonObject) -> str | None:
        match record.get("subtype"):
            case "init":
                return words(f"started, {text_at(record, 'model') or 'model unknown'}")
            case "api_retry":
                self._retrying = _retrying(record)
                what = count_at(record, "error_status") or text_at(record, "error") or "unknown"
                if not count_at(record, "max_retries"):
                    return words(f"API error {what}")
                return words(f"API error {what}, attempt {_of(record, 'attempt')} of {_of(record, 'max_retries')}")
            case "permission_denied":
                return words(f"not allowed: {text_at(record, 'tool_name') or 'a tool'}")
            case "hook_started":
                return words(f"hook: {text_at(record, 'hook_name') or 'unnamed'}")
            case _:
                return None

    def _take_allowance(self, info: JsonObject) -> str | None:
        kind = text_at(info, "rateLimitType") or "plan"
        match info.get("status"):
            case "rejected" if info.get("isUsingOverage") is not True:
                self._resets_at = time_at(info, "resetsAt")
                self._retrying = Trouble(
                    failure_class=FailureClass.RATE_LIMITED,
                    reason="reached the limit of its plan",
                    evidence=evidence_line(compact_json(info)),
                    resets_at=self._resets_at,
                )
                return words(f"limit reached: {kind}")
            case "allowed_warning":
                used = number_at(info, "utilization")
                self._allowance = None if used is None else words(f"{used:.0%} of its {kind} limit is used")
            case _:
                pass
        return None

    # ---- verdict

    def _answer(self, result: JsonObject) -> Verdict:
        text = text_at(result, "result") or ""
        value = result.get("structured_output")
        if self._wants_value and not isinstance(value, dict):
            reason = "ended well, and gave words instead of the structured output"
            return self._failed(FailureClass.INVALID_OUTPUT, result, reason, evidence_line(text) or None)
        if not self._wants_value and not text.strip():
            return self._failed(FailureClass.INVALID_OUTPUT, result, "ended well and said nothing", None)
        return Answer(
            text=text, value=value if self._wants_value and isinstance(value, dict) else None, notes=self._notes(result)
        )

    def _trouble(self, result: JsonObject, end: ProgramEnd) -> Trouble:
        said = self._error_text(result)
        reason = text_at(result, "terminal_reason") or ""
        known = _OF_SUBTYPE.get(text_at(result, "subtype") or "") or _OF_TERMINAL_REASON.get(reason)
        evidence = evidence_line(said or text_at(result, "subtype") or "") or None
        if known is not None:
            return self._failed(known, result, _REASONS[known], evidence)
        if reason.startswith(_ABORTED) or (was_interrupted(end) and not self._is_api_error(result)):
            return self._failed(FailureClass.CANCELLED, result, REASONS[FailureClass.CANCELLED], evidence)
        failure_class = self._class_of_api_error(result, said)
        if failure_class is not None:
            return self._failed(failure_class, result, _REASONS[failure_class], evidence)
        if _denied_tools(result):
            return self._failed(FailureClass.DENIED, result, REASONS[FailureClass.DENIED], evidence)
        is_own_fault = end.exit != 0 and not self._is_api_error(result)
        failure_class = FailureClass.CRASHED if is_own_fault else FailureClass.UNKNOWN
        return self._failed(failure_class, result, "ended with an error", evidence)

    def _failed(self, failure_class: FailureClass, result: JsonObject, reason: str, evidence: str | None) -> Trouble:
        is_limited = failure_class is FailureClass.RATE_LIMITED
        return Trouble(
            failure_class=failure_class,
            reason=reason,
            evidence=evidence,
            resets_at=self._reset_time() if is_limited else None,
            retry_after_seconds=delay_in(self._error_text(result)) if is_limited else None,
            notes=self._notes(result),
        )

    def _reset_time(self) -> float | None:
        said = time_at(self._api_error, "api_error_params", "rate_limit_info", "resetsAt")
        return self._resets_at if said is None else said

    def _is_api_error(self, result: JsonObject) -> bool:
        is_told = result.get("terminal_reason") == "api_error" or isinstance(result.get("api_error_status"), int)
        return is_told or text_at(result, "api_error") is not None or bool(self._api_error)

    def _error_text(self, result: JsonObject) -> str:
        """What the result says of the error. Its `result` is the agent's answer unless the API failed."""
        errors = "; ".join(texts_in(result.get("errors")))
        return errors or (text_at(result, "result") or "" if self._is_api_error(result) else "")

    def _class_of_api_error(self, result: JsonObject, said: str) -> FailureClass | None:
        # The name beside the message knows money from other bad requests, which status and type do not.
        names = (text_at(self._api_error, "error"), text_at(result, "api_error"), text_at(result, "api_error_type"))
        found = _class_of(names, count_at(result, "api_error_status"), said)
        if found is None and self._retrying is not None and self._is_api_error(result):
            return self._retrying.failure_class
        return found

    def _notes(self, result: JsonObject) -> tuple[str, ...]:
        denied = _denied_tools(result)
        notes = [words(f"it was not allowed to use {', '.join(denied)}")] if denied else []
        return (*notes, *([self._allowance] if self._allowance is not None else []))


def _class_of(names: tuple[str | None, ...], status: int | None, said: str) -> FailureClass | None:
    """The class of an error by its names, the status, the words, and at last by the names that say little."""
    clear = [_OF_ERROR_NAME[name] for name in names if name in _OF_ERROR_NAME]
    vague = [_OF_VAGUE_NAME[name] for name in names if name in _OF_VAGUE_NAME]
    return next(iter(clear), None) or class_of_error(status, said) or next(iter(vague), None)


def _trouble_of_message(record: JsonObject, message: JsonObject) -> Trouble:
    names = (text_at(record, "error"), text_at(record, "api_error"), text_at(record, "api_error_type"))
    said = " ".join(text for block in blocks_of(message) if (text := text_at(block, "text")) is not None)
    failure_class = _class_of(names, count_at(record, "api_error_status"), said) or FailureClass.UNKNOWN
    return Trouble(failure_class=failure_class, reason=_REASONS[failure_class], evidence=evidence_line(said) or None)


def _retrying(record: JsonObject) -> Trouble:
    status, name = count_at(record, "error_status"), text_at(record, "error") or ""
    failure_class = _class_of((name,), status, name)
    if failure_class is None:
        # No status: there was no answer at all.
        failure_class = FailureClass.UNAVAILABLE if status is None else FailureClass.UNKNOWN
    told = {key: record[key] for key in _TELLING_OF_RETRY if isinstance(record.get(key), str | int)}
    return Trouble(
        failure_class=failure_class, reason=_REASONS[failure_class], evidence=evidence_line(compact_json(told))
    )


_TELLING_OF_RETRY: Final = ("type", "subtype", "attempt", "max_retries", "error_status", "error")


def _of(record: JsonObject, key: str) -> str:
    count = count_at(record, key)
    return "?" if count is None else str(count)


def _denied_tools(result: JsonObject) -> tuple[str, ...]:
    denials = objects_in(result.get("permission_denials"))
    return tuple(dict.fromkeys(text_at(denial, "tool_name") or "a tool" for denial in denials))


def _usage_in(usage: JsonObject, *, is_complete: bool) -> Usage:
    cached = count_at(usage, "cache_read_input_tokens")
    return Usage(
        input_tokens=sum_of(count_at(usage, "input_tokens"), count_at(usage, "cache_creation_input_tokens"), cached),
        cached_input_tokens=cached,
        output_tokens=count_at(usage, "output_tokens") if is_complete else None,
    )


def _totals(result: JsonObject) -> Usage | None:
    """By model where that is told: `usage` leaves out other models, and all that an exhausted budget had bought."""
    cost = number_at(result, "total_cost_usd")
    total = Usage()
    for usage in objects_in(list(object_at(result, "modelUsage").values())):
        cached = count_at(usage, "cacheReadInputTokens")
        read = sum_of(count_at(usage, "inputTokens"), count_at(usage, "cacheCreationInputTokens"), cached)
        written = count_at(usage, "outputTokens")
        total += Usage(input_tokens=read, cached_input_tokens=cached, output_tokens=written)
    if total == Usage():
        total = _usage_in(object_at(result, "usage"), is_complete=True)
    total += Usage(cost_usd=cost)
    return None if total == Usage() else total
