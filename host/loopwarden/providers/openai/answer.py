"""The answer of a model, put together from chat completion records: the pieces of a stream, or one whole.

What the model thought aloud (`reasoning_content`, `reasoning`, parts of other types) is measured, never part of the
answer. Only the first choice counts: no other is asked for. A field of another type than the format says breaks the
answer: skipped, it would make a shorter one that looks whole.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from loopwarden.failures import LoopwardenError
from loopwarden.providers.fields import count_at, text_at
from loopwarden.usage import Usage
from loopwarden_engine.plain import JsonObject, JsonValue

MessageKey: TypeAlias = Literal["delta", "message"]
"""Where a record has its message: `delta` holds a piece of it, `message` all."""
THINKING_KEYS: Final = ("reasoning_content", "reasoning")
MAX_TOOL_CALLS: Final = 128
MAX_NAME_CHARS: Final = 256
"""Of a tool, and of the id of a call."""


class AnswerBroken(LoopwardenError):
    """What the endpoint sent is no chat completion. The message continues "the endpoint …"."""


class AnswerTooLong(LoopwardenError):
    """The endpoint sent more than the request allows. The message continues "the endpoint …"."""


class ErrorInAnswer(LoopwardenError):
    """The endpoint sent an error where a piece of the answer is due."""

    def __init__(self, record: JsonObject) -> None:
        super().__init__("an error inside of the answer")
        self.record = record


@dataclass(slots=True, eq=False)
class ToolCall:
    """One call of a tool, as far as it has arrived."""

    name: str = ""
    parts: list[str] = field(default_factory=list)

    @property
    def arguments(self) -> str:
        """The arguments as JSON text."""
        return "".join(self.parts)


class Answer:
    """An answer that grows with every record."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._room_bytes = max_bytes
        self._text: list[str] = []
        self._refusal: list[str] = []
        self._calls: dict[int | str, ToolCall] = {}
        self.finish_reason: str | None = None
        """Why the model ended, in the endpoint's word; None: it has not ended."""
        self.model: str | None = None
        """The model that answers, as the endpoint calls it."""
        self.usage: Usage | None = None
        """Without cost."""
        self.written_chars = 0
        self.thought_chars = 0

    @property
    def text(self) -> str:
        """What the model said. May hold lone surrogates when the endpoint sent such."""
        return _joined(self._text)

    @property
    def refusal(self) -> str:
        """In which words the model refused; empty when it did not."""
        return _joined(self._refusal)

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The calls of tools, in the order in which they began."""
        return list(self._calls.values())

    def take(self, record: JsonObject, key: MessageKey) -> bool:
        """Take one record. Returns whether it came from the model, so that it is a sign of life.

        Raises `AnswerBroken`, `AnswerTooLong`, `ErrorInAnswer`.
        """
        if record.get("error") or record.get("object") == "error":
            raise ErrorInAnswer(record)
        self.model = text_at(record, "model") or self.model
        usage = _usage(record)
        self.usage = usage or self.usage
        choices = record.get("choices")
        if choices is None:
            return usage is not None
        for choice in _objects(choices, "choices"):
            if choice.get("error"):
                raise ErrorInAnswer(choice)
            if choice.get("index") in (0, None):
                self._take_choice(choice, key)
        return bool(choices) or usage is not None

    def _take_choice(self, choice: JsonObject, key: MessageKey) -> None:
        message = choice.get(key)
        if message is not None:
            if not isinstance(message, dict):
                raise AnswerBroken(f"sent a {key} that is not an object")
            self._take_message(message)
        finish_reason = choice.get("finish_reason")
        if finish_reason is not None and not isinstance(finish_reason, str):
            raise AnswerBroken("sent a finish_reason that is not a text")
        self.finish_reason = self.finish_reason or finish_reason or None

    def _take_message(self, message: JsonObject) -> None:
        content = message.get("content")
        if isinstance(content, list):
            for part in content:
                self._take_part(part)
        else:
            self._write(self._text, content, "content")
        self._write(self._refusal, message.get("refusal"), "refusal")
        for position, call in enumerate(_objects(message.get("tool_calls"), "tool_calls")):
            self._take_call(call, position)
        for key in THINKING_KEYS:
            self.thought_chars += len(text_at(message, key) or "")

    def _take_part(self, part: JsonValue) -> None:
        if not isinstance(part, dict):
            self._write(self._text, part, "content")
        elif part.get("type") == "text":
            self._write(self._text, part.get("text"), "content")
        elif part.get("type") == "refusal":
            self._write(self._refusal, part.get("refusal"), "refusal")

    def _take_call(self, call: JsonObject, position: int) -> None:
        index = call.get("index")
        # Endpoints that send calls as a whole leave out the index; the id tells such calls apart.
        key = index if isinstance(index, int) else (text_at(call, "id") or "")[:MAX_NAME_CHARS] or position
        function = call.get("function")
        if not isinstance(function, dict):
            raise AnswerBroken("sent a tool call without a function")
        if key not in self._calls and len(self._calls) == MAX_TOOL_CALLS:
            raise AnswerTooLong(f"sent more than {MAX_TOOL_CALLS} tool calls")
        found = self._calls.setdefault(key, ToolCall())
        found.name = found.name or (text_at(function, "name") or "")[:MAX_NAME_CHARS]
        arguments = function.get("arguments")
        if isinstance(arguments, dict):
            arguments = json.dumps(arguments)
        self._write(found.parts, arguments, "arguments")

    def _write(self, target: list[str], piece: JsonValue, what: str) -> None:
        if piece is None or piece == "":
            return
        if not isinstance(piece, str):
            raise AnswerBroken(f"sent something else than a text as {what}")
        if self.finish_reason is not None:
            raise AnswerBroken("went on after the end of its answer")
        self._room_bytes -= len(piece.encode("utf-8", "surrogatepass"))
        if self._room_bytes < 0:
            raise AnswerTooLong(f"sent an answer of more than {self._max_bytes:,} bytes")
        target.append(piece)
        self.written_chars += len(piece)


def _joined(pieces: list[str]) -> str:
    """The pieces as one text. A character that was cut into two escapes, each in its own piece, is whole again."""
    text = "".join(pieces)
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def _objects(value: JsonValue, what: str) -> Iterator[JsonObject]:
    if value is None:
        return
    if not isinstance(value, list):
        raise AnswerBroken(f"sent {what} that are not a list")
    for item in value:
        if not isinstance(item, dict):
            raise AnswerBroken(f"sent {what} that are not objects")
        yield item


def _usage(record: JsonObject) -> Usage | None:
    input_tokens = count_at(record, "usage", "prompt_tokens")
    output_tokens = count_at(record, "usage", "completion_tokens")
    if input_tokens is None and output_tokens is None:
        return None
    cached = count_at(record, "usage", "prompt_tokens_details", "cached_tokens")
    if cached is None:  # DeepSeek's name for it.
        cached = count_at(record, "usage", "prompt_cache_hit_tokens")
    return Usage(input_tokens=input_tokens, cached_input_tokens=cached, output_tokens=output_tokens)
