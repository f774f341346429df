"""Qwen Code: `qwen -o stream-json`, measured with 0.24.4.

    system/init         it begins
    assistant, user     messages; an error of the API is a message too, without a mark
    system/retry        an error of the API that it waits out, without its name; with `delayMs` it is a rate limit
    result              the end: `is_error`, `subtype`, `structured_result`, `error.message`, totals

The shapes follow those of Claude Code, with other names: `structured_result`, and no status of errors. A limit of its
own ends it without a result, with exit 53 or 55 and a line on standard error.

How the workspace is kept out, tried with 0.24.4 and 0.15.10: `--bare` would do it, but then neither the settings that
limit retries are read nor files can be written; `--safe-mode` still reads settings of the workspace. So the folder is
declared untrusted. Then no settings, hooks, MCP servers, .env or QWEN.md of the workspace are taken, nor is `--yolo`:
the tools that an agent needs are allowed by name.
"""

import json
import re
from typing import Final

from loopwarden.failure_class import FailureClass
from loopwarden.provider import Capabilities
from loopwarden.providers.dialect import Answer, Ask, Launch, ProgramEnd, ProgramOptions, Reading, Trouble, Verdict
from loopwarden.providers.dialects.blocks import UsageByMessage, blocks_of, words_on_block, words_on_message
from loopwarden.providers.dialects.endings import REASONS, after_a_result, how, was_interrupted, without_terminal_record
from loopwarden.providers.error_words import (
    class_of_text,
    delay_in,
    epoch_in,
    evidence_line,
    last_line,
)
from loopwarden.providers.fields import count_at, object_at, objects_in, text_at, words
from loopwarden.usage import Usage
from loopwarden_engine.plain import JsonObject, compact_json

MAX_PROMPT_BYTES: Final = 8 * 1024 * 1024
"""It cuts off what is longer, and says so on standard error only."""
_HOME: Final = ".qwen"
_ALLOWED_TOOLS: Final = ("run_shell_command", "edit", "write_file", "notebook_edit", "web_fetch", "monitor")
_API_ERROR: Final = "[API Error: "
_TELLING_OF_RETRY: Final = ("reason", "attempt", "maxRetries", "delayMs")
_LIMIT_EXITS: Final = {53: "turns", 55: "tool calls or time"}
# Its own guards: against a model that never calls the tool for structured output, and against one that repeats itself,
# as it does when its output is refused again and again.
_NO_OUTPUT: Final = re.compile(r"structured_output tool", re.IGNORECASE)
_LOOP: Final = re.compile(r"loop detection", re.IGNORECASE)


class Qwen:
    """Qwen Code, with settings of ours and none of the workspace."""

    name: str = "qwen"
    title: str = "Qwen Code"
    program: str = "qwen"
    tested_version: str | None = "0.24.4"
    capabilities: Capabilities = Capabilities(
        structured_output=True, native_schema=True, fresh_context=True, streams=True, tokens_known=True
    )
    credential_variables: tuple[str, ...] = ("OPENAI_API_KEY", "DASHSCOPE_API_KEY", "QWEN_API_KEY")

    def problem(self, options: ProgramOptions) -> str | None:
        """Qwen Code does not say what it costs."""
        if options.max_cost_usd is not None:
            return "Qwen Code does not say what it costs, so a cap on money cannot be kept; leave max_cost_usd out"
        return None

    def prompt_problem(self, prompt: str) -> str | None:
        """Qwen Code cuts off what is beyond 8 MiB."""
        size = len(prompt.encode("utf-8", "replace"))
        if size > MAX_PROMPT_BYTES:
            return f"the prompt has {size} bytes, and Qwen Code reads only {MAX_PROMPT_BYTES}; shorten it"
        return None

    def launch(self, ask: Ask) -> Launch:
        """Start `qwen` with the prompt on standard input and settings in its home."""
        options = ask.options
        arguments = ["-o", "stream-json", "--chat-recording", "false"]
        if not any(argument.split("=")[0] == "--auth-type" for argument in options.arguments):
            # Otherwise it guesses from the environment, and asks when it cannot.
            arguments += ["--auth-type", "openai"]
        if options.project_files:
            # Trusted: settings of the workspace run their hooks and MCP servers, .env sets variables, QWEN.md is sent.
            arguments += ["--yolo"]
        else:
            arguments += ["--approval-mode", "default"]
            arguments += [word for tool in _ALLOWED_TOOLS for word in ("--allowed-tools", tool)]
        if ask.schema_file is not None:
            arguments += ["--json-schema", f"@{ask.schema_file}"]
        if options.max_turns is not None:
            arguments += ["--max-session-turns", str(options.max_turns)]
        if ask.model is not None:
            arguments += ["--model", ask.model]
        return Launch(
            arguments=(*arguments, *options.arguments),
            stdin=ask.prompt,
            environment={"QWEN_TELEMETRY_ENABLED": "0", "QWEN_CODE_SUPPRESS_YOLO_WARNING": "1"},
            files=_files(ask),
            folders=(_HOME,),
        )

    def reading(self, ask: Ask) -> Reading:
        """A fresh reading."""
        return QwenReading(ask)


def _files(ask: Ask) -> dict[str, str]:
    """Its settings. Some of its retries cannot be switched off: it asks seven times, at most, in about 80 seconds."""
    settings: JsonObject = {
        "model": {"generationConfig": {"maxRetries": 0}},
        # Otherwise it asks the model once more, for memories that nobody will read.
        "memory": {"enableManagedAutoMemory": False},
        "general": {"enableAutoUpdate": False},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "security": {"folderTrust": {"enabled": not ask.options.project_files}},
    }
    files = {f"{_HOME}/settings.json": json.dumps(settings, indent=1)}
    if not ask.options.project_files:
        files[f"{_HOME}/trustedFolders.json"] = json.dumps({str(ask.workspace): "DO_NOT_TRUST"})
    return files


class QwenReading:
    """What one `qwen` printed."""

    def __init__(self, ask: Ask) -> None:
        self._workspace = ask.workspace
        self._wants_value = ask.schema is not None
        self._messages = UsageByMessage()
        self._has_written = False
        self._retrying: Trouble | None = None
        self._result: JsonObject | None = None
        self._last_words: str | None = None

    @property
    def usage(self) -> Usage | None:
        """The totals of the result; until then, what the messages add up to."""
        if self._result is None:
            return self._messages.total
        said = object_at(self._result, "usage")
        total = _usage_in(said)
        if total != Usage():
            return total
        # A result that says 0 is right about a run in which the model never wrote a word.
        is_nothing = not self._has_written and count_at(said, "input_tokens") == count_at(said, "output_tokens") == 0
        return self._messages.total or (_counted(said) if is_nothing else None)

    def take(self, record: JsonObject) -> str | None:
        """Take one record."""
        match record.get("type"):
            case "assistant":
                message = object_at(record, "message")
                self._retrying = None
                self._has_written = self._has_written or not all(map(_is_api_error, blocks_of(message)))
                self._messages.take(text_at(message, "id"), _usage_in(object_at(message, "usage")))
                said = words_on_message(message, self._workspace)
            case "stream_event":
                said = words_on_block(object_at(record, "event", "content_block"), self._workspace)
            case "user":
                self._retrying, said = None, None
            case "system":
                if record.get("subtype") == "retry":
                    self._retrying = _retrying(object_at(record, "data"))
                said = _words_on_system(record)
            case "result":
                self._result, said = record, None
            case _:
                said = None
        if said is None or said == self._last_words:
            return None
        self._last_words = said
        return said

    def conclude(self, end: ProgramEnd) -> Verdict:
        """Success is exit 0, a result without error and, with a schema, `structured_result`."""
        result = self._result
        if result is None:
            return self._without_result(end)
        if result.get("is_error") is not False:
            return self._trouble(result, end)
        return after_a_result(end) or self._answer(result)

    def _answer(self, result: JsonObject) -> Verdict:
        text = text_at(result, "result") or ""
        if text.startswith(_API_ERROR) and _usage_in(object_at(result, "usage")) == Usage():
            # So did 0.15 end when the API failed. An answer that took no tokens was not written by a model.
            failure_class = class_of_text(text) or FailureClass.UNKNOWN
            return _failed(failure_class, result, REASONS[failure_class], text)
        value = result.get("structured_result")
        if self._wants_value and not isinstance(value, dict):
            reason = "ended well, and gave words instead of the structured output"
            return _failed(FailureClass.INVALID_OUTPUT, result, reason, text)
        if not self._wants_value and not text.strip():
            return _failed(FailureClass.INVALID_OUTPUT, result, "ended well and said nothing", text)
        return Answer(
            text=text, value=value if self._wants_value and isinstance(value, dict) else None, notes=_notes(result)
        )

    def _trouble(self, result: JsonObject, end: ProgramEnd) -> Trouble:
        said = text_at(result, "error", "message") or text_at(result, "error") or ""
        is_loop = _LOOP.search(said) is not None
        if self._wants_value and (is_loop or _NO_OUTPUT.search(said)):
            return _failed(FailureClass.INVALID_OUTPUT, result, "gave no output that fits the schema", said)
        failure_class = class_of_text(said)
        if failure_class is not None:
            return _failed(failure_class, result, REASONS[failure_class], said)
        if was_interrupted(end):
            return _failed(FailureClass.CANCELLED, result, REASONS[FailureClass.CANCELLED], said)
        if is_loop or end.exit in _LIMIT_EXITS:
            return _failed(FailureClass.LIMIT, result, REASONS[FailureClass.LIMIT], said)
        if _denied_tools(result):
            return _failed(FailureClass.DENIED, result, REASONS[FailureClass.DENIED], said)
        return _failed(FailureClass.UNKNOWN, result, "ended with an error", said or text_at(result, "subtype") or "")

    def _without_result(self, end: ProgramEnd) -> Trouble:
        if end.exit in _LIMIT_EXITS and not end.is_cancelled:
            reason = f"reached its limit of {_LIMIT_EXITS[end.exit]}"
            return Trouble(failure_class=FailureClass.LIMIT, reason=reason, evidence=last_line(end.errors) or how(end))
        return without_terminal_record(end, self._retrying)


def _retrying(data: JsonObject) -> Trouble | None:
    """Only a rate limit has a delay that is told. A stream that broke is begun again at once."""
    told = {key: data[key] for key in _TELLING_OF_RETRY if isinstance(data.get(key), str | int)}
    failure_class = class_of_text(text_at(data, "reason") or "")
    if failure_class is None and count_at(data, "delayMs") is not None:
        failure_class = FailureClass.RATE_LIMITED
    if failure_class is None:
        return None
    return Trouble(
        failure_class=failure_class, reason=REASONS[failure_class], evidence=evidence_line(compact_json(told))
    )


def _words_on_system(record: JsonObject) -> str | None:
    match record.get("subtype"):
        case "init":
            return words(f"started, {text_at(record, 'model') or 'model unknown'}")
        case "retry":
            attempt, most = count_at(record, "data", "attempt"), count_at(record, "data", "maxRetries")
            return "retrying" if attempt is None or most is None else f"retrying, attempt {attempt} of {most}"
        case _:
            return None


def _failed(failure_class: FailureClass, result: JsonObject, reason: str, said: str) -> Trouble:
    is_limited = failure_class is FailureClass.RATE_LIMITED
    return Trouble(
        failure_class=failure_class,
        reason=reason,
        evidence=evidence_line(said) or None,
        resets_at=epoch_in(said) if is_limited else None,
        retry_after_seconds=delay_in(said) if is_limited else None,
        notes=_notes(result),
    )


def _denied_tools(result: JsonObject) -> tuple[str, ...]:
    denials = objects_in(result.get("permission_denials"))
    return tuple(dict.fromkeys(text_at(denial, "tool_name") or "a tool" for denial in denials))


def _notes(result: JsonObject) -> tuple[str, ...]:
    denied = _denied_tools(result)
    return (words(f"it was not allowed to use {', '.join(denied)}"),) if denied else ()


def _usage_in(usage: JsonObject) -> Usage:
    """`input_tokens` holds the cached ones. Zeros stand where nothing was measured, even after an answer was begun."""
    found = _counted(usage)
    return found if found.input_tokens or found.output_tokens else Usage()


def _counted(usage: JsonObject) -> Usage:
    return Usage(
        input_tokens=count_at(usage, "input_tokens"),
        cached_input_tokens=count_at(usage, "cache_read_input_tokens"),
        output_tokens=count_at(usage, "output_tokens"),
    )


def _is_api_error(block: JsonObject) -> bool:
    return (text_at(block, "text") or "").startswith(_API_ERROR)
