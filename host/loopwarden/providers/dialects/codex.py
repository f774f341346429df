"""OpenAI Codex: `codex exec --json`, measured with 0.171.0.

    thread.started, turn.started                     it begins
    item.started, item.updated, item.completed       a command, a file change, a message of the agent
    error                                            an error that it may still get over ("Reconnecting...")
    turn.completed {usage}, turn.failed {error}      how the turn ended

The answer is the last `agent_message`. Codex hands the schema to the model and does not check what comes back; errors
are texts without a code. An `item.completed` of type `error` is a warning, also in runs that succeed.
"""

import re
from dataclasses import replace
from pathlib import Path
from typing import Final

from loopwarden.failure_class import FailureClass
from loopwarden.provider import Capabilities
from loopwarden.providers.dialect import Answer, Ask, Launch, ProgramEnd, ProgramOptions, Reading, Trouble, Verdict
from loopwarden.providers.dialects.endings import how, was_interrupted, without_terminal_record
from loopwarden.providers.dialects.troubles import trouble, trouble_of_error, without_lines
from loopwarden.providers.error_words import evidence_line
from loopwarden.providers.fields import count_at, object_at, objects_in, text_at, words
from loopwarden.usage import Usage
from loopwarden_engine.plain import JsonObject

MAX_PROMPT_CHARS: Final = 1_048_576
"""What it accepts; above it ends with `input_too_large`."""
_HOME: Final = ".codex"
_MAX_WARNINGS: Final = 3
_USUAL_LINES: Final = re.compile(
    r"^WARNING: proceeding, even though we could not create PATH aliases|^Reading additional input from stdin"
    r"|^warning: Untrusted project-local configuration|ERROR codex_api::endpoint::responses_websocket"
)
_OWN_WORDS: Final = (
    (re.compile(r"^(?:interrupted|turn aborted)", re.IGNORECASE), FailureClass.CANCELLED),
    (re.compile(r"^budget reached", re.IGNORECASE), FailureClass.LIMIT),
    (re.compile(r"ran out of room in the model", re.IGNORECASE), FailureClass.PROMPT_TOO_LONG),
    (re.compile(r"^To use Codex with your ChatGPT plan, upgrade", re.IGNORECASE), FailureClass.BILLING),
    (re.compile(r"Incomplete response returned", re.IGNORECASE), FailureClass.INVALID_OUTPUT),
)
"""Messages of Codex itself that no other program prints. They decide before the common words."""
_EXIT_OF_INT: Final = 1
# In its text format the whole conversation stands on standard error, and there an agent may say anything.
_TRANSCRIPT: Final = re.compile(r"^OpenAI Codex v\S+\n-{4,}$", re.MULTILINE)
_TRANSCRIPT_ERROR: Final = re.compile(r"^ERROR: .*$", re.MULTILINE)
_SHELL: Final = re.compile(r"""^(?:/\S*/)?(?:ba|z|da)?sh -l?c (['"])(.*)\1$""", re.DOTALL)


class Codex:
    """Codex starts with its own home and no sandbox: the host confines the agent, or nobody does."""

    name: str = "codex"
    title: str = "Codex"
    program: str = "codex"
    tested_version: str | None = "0.171.0"
    capabilities: Capabilities = Capabilities(
        structured_output=True, native_schema=True, fresh_context=True, streams=True, tokens_known=True
    )
    credential_variables: tuple[str, ...] = ("CODEX_API_KEY", "CODEX_ACCESS_TOKEN")

    def problem(self, options: ProgramOptions) -> str | None:
        """Codex has no cap on turns, and does not say what a turn costs."""
        if options.max_turns is not None:
            return "Codex has no limit of turns; leave max_turns out, and let agentTimeoutSeconds bound an attempt"
        if options.max_cost_usd is not None:
            return "Codex does not say what it costs, so a cap on money cannot be kept; leave max_cost_usd out"
        return None

    def prompt_problem(self, prompt: str) -> str | None:
        """More than 1,048,576 characters are refused by Codex itself."""
        if len(prompt) > MAX_PROMPT_CHARS:
            return f"the prompt has {len(prompt)} characters, and Codex takes at most {MAX_PROMPT_CHARS}; shorten it"
        return None

    def launch(self, ask: Ask) -> Launch:
        """Start `codex exec` with the prompt on standard input, and an own CODEX_HOME, which has to exist."""
        arguments = ["exec", "--json", "--skip-git-repo-check", "--ephemeral"]
        arguments += ["--dangerously-bypass-approvals-and-sandbox"]
        arguments += ["-c", "check_for_update_on_startup=false", "-c", "analytics.enabled=false"]
        if ask.options.project_files:
            # Trust is looked up in the user's configuration, so that cannot be ignored here; it is private and fresh.
            arguments += ["--trust"]
        else:
            # Neither AGENTS.md nor skills of the workspace are told to the model. `-o` is not needed: the answer is a
            # record, too.
            arguments += ["--ignore-user-config", "--ignore-rules"]
            arguments += ["-c", "project_doc_max_bytes=0", "-c", "skills.include_instructions=false"]
        if ask.schema_file is not None:
            arguments += ["--output-schema", str(ask.schema_file)]
        if ask.model is not None:
            arguments += ["-m", ask.model]
        return Launch(
            arguments=(*arguments, *ask.options.arguments, "-"),
            stdin=ask.prompt,
            environment={"CODEX_HOME": str(ask.home / _HOME)},
            folders=(_HOME,),
        )

    def reading(self, ask: Ask) -> Reading:
        """A fresh reading."""
        return CodexReading(ask.workspace)


class CodexReading:
    """What one `codex exec` printed."""

    def __init__(self, workspace: Path) -> None:
        self._workspace = f"{workspace}/"
        self._usage: Usage | None = None
        self._answer: str | None = None
        self._has_begun = False
        self._is_completed = False
        self._failure: Trouble | None = None
        self._retrying: Trouble | None = None
        self._warnings: list[str] = []
        self._last_words: str | None = None

    @property
    def usage(self) -> Usage | None:
        """Of the last `turn.completed`: its counters go on over the thread."""
        return self._usage

    def take(self, record: JsonObject) -> str | None:
        """Take one record."""
        match record.get("type"):
            case "turn.started":
                self._has_begun = True
                self._answer, self._is_completed, self._failure, self._retrying = None, False, None, None
            case "turn.completed":
                self._is_completed = True
                self._usage = _usage_in(object_at(record, "usage")) or self._usage
            case "turn.failed":
                self._failure = self._failure_in(record)
            case "error":
                return self._take_error(text_at(record, "message") or "")
            case "item.started" | "item.updated" | "item.completed":
                return self._take_item(object_at(record, "item"), is_complete=record.get("type") == "item.completed")
            case _:
                pass
        return None

    def conclude(self, end: ProgramEnd) -> Verdict:
        """Success is exit 0, `turn.completed` and a message of the agent."""
        if self._failure is not None:
            return self._failure
        if self._is_completed and end.exit == 0:
            if self._answer is not None and self._answer.strip():
                return Answer(text=self._answer, notes=tuple(self._warnings))
            if self._retrying is not None:
                return self._retrying
            return trouble(FailureClass.INVALID_OUTPUT, None, "ended its turn without an answer")
        retrying = self._retrying
        if retrying is not None and retrying.failure_class is FailureClass.UNKNOWN and was_interrupted(end):
            retrying = None
        heard = without_lines(end, _USUAL_LINES)
        if _TRANSCRIPT.search(heard.errors):
            heard = replace(heard, errors="\n".join(_TRANSCRIPT_ERROR.findall(heard.errors)))
        if self._has_begun and retrying is None and end.exit == _EXIT_OF_INT and not heard.errors.strip():
            # So it ends on SIGINT: in the middle of a turn, without a word. Every failure of its own has words.
            return trouble(FailureClass.CANCELLED, how(end))
        return without_terminal_record(heard, retrying)

    def _take_error(self, message: str) -> str | None:
        if not message.strip():
            return None
        self._retrying = _trouble_in(message)
        return self._new(words(message))

    def _failure_in(self, record: JsonObject) -> Trouble:
        message = text_at(record, "error", "message")
        found = _trouble_in(message or "turn.failed")
        said_before = self._retrying
        if found.failure_class is FailureClass.UNKNOWN and said_before is not None:
            is_told = said_before.failure_class is not FailureClass.UNKNOWN or message is None
            return said_before if is_told else found
        return found

    def _take_item(self, item: JsonObject, *, is_complete: bool) -> str | None:
        kind = text_at(item, "type")
        if kind == "error":
            warning = evidence_line(text_at(item, "message") or "")
            if is_complete and warning and len(self._warnings) < _MAX_WARNINGS:
                self._warnings.append(f"it warned: {warning}")
            return self._new(words(warning))
        if kind is not None:
            # It goes on, so whatever it was retrying is over.
            self._retrying = None
        if kind == "agent_message":
            if is_complete:
                text = text_at(item, "text")
                self._answer = self._answer if text is None else text
            return None
        return self._new(self._words_on(kind, item))

    def _words_on(self, kind: str | None, item: JsonObject) -> str | None:
        match kind:
            case "command_execution":
                command = text_at(item, "command") or ""
                inner = _SHELL.match(command)
                return words(f"shell: {inner[2] if inner else command}")
            case "file_change":
                paths = [path for change in objects_in(item.get("changes")) if (path := text_at(change, "path"))]
                more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
                return words(f"write: {paths[0].removeprefix(self._workspace)}{more}") if paths else "write"
            case "mcp_tool_call":
                return words(f"{text_at(item, 'server') or 'mcp'}: {text_at(item, 'tool') or 'a tool'}")
            case "web_search":
                return words(f"search: {text_at(item, 'query') or ''}")
            case _:
                return None

    def _new(self, said: str | None) -> str | None:
        """`said`, unless it was said just before: an item is announced at its start and again at its end."""
        if not said or said == self._last_words:
            return None
        self._last_words = said
        return said


def _trouble_in(message: str) -> Trouble:
    for pattern, failure_class in _OWN_WORDS:
        if pattern.search(message):
            return trouble(failure_class, message)
    return trouble_of_error(message)


def _usage_in(record: JsonObject) -> Usage | None:
    """`input_tokens` holds the cached ones, `output_tokens` the reasoning."""
    found = Usage(
        input_tokens=count_at(record, "input_tokens"),
        cached_input_tokens=count_at(record, "cached_input_tokens"),
        output_tokens=count_at(record, "output_tokens"),
    )
    return None if found == Usage() else found
