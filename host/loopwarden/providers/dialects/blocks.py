"""Messages in the shape of Anthropic's Messages API, as claude and qwen print them: content blocks, and usage."""

from collections.abc import Iterator
from pathlib import Path

from loopwarden.providers.fields import object_at, objects_in, text_at, tool_words
from loopwarden.usage import Usage
from loopwarden_engine.plain import JsonObject

_WORDS_OF_TEXT = {"text": "writing", "thinking": "thinking", "redacted_thinking": "thinking"}


def blocks_of(message: JsonObject) -> Iterator[JsonObject]:
    """The content blocks of a message."""
    yield from objects_in(message.get("content"))


def words_on_block(block: JsonObject, workspace: Path) -> str | None:
    """What the agent does in this block, for people who watch."""
    kind = text_at(block, "type")
    if kind in ("tool_use", "server_tool_use"):
        return tool_words(text_at(block, "name") or "a tool", object_at(block, "input"), workspace)
    return None if kind is None else _WORDS_OF_TEXT.get(kind)


def words_on_message(message: JsonObject, workspace: Path) -> str | None:
    """What the agent does in the last block of the message that tells."""
    told = [words for block in blocks_of(message) if (words := words_on_block(block, workspace)) is not None]
    return told[-1] if told else None


class UsageByMessage:
    """Adds up the usage of messages, each once: its numbers come several times, and grow while it is written."""

    def __init__(self) -> None:
        self._usages: dict[str, Usage] = {}

    @property
    def total(self) -> Usage | None:
        """What all messages used; None when nothing is known."""
        total = Usage()
        for usage in self._usages.values():
            total += usage
        return None if total == Usage() else total

    def take(self, message_id: str | None, usage: Usage) -> None:
        """The numbers of a message, or what is known of them. Without its id they cannot be counted once."""
        if message_id is None:
            return
        known = self._usages.get(message_id, Usage())
        self._usages[message_id] = Usage(
            input_tokens=_higher(known.input_tokens, usage.input_tokens),
            cached_input_tokens=_higher(known.cached_input_tokens, usage.cached_input_tokens),
            output_tokens=_higher(known.output_tokens, usage.output_tokens),
        )


def _higher(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return max(one, other)
