"""One turn of an agent that speaks the Agent Client Protocol: what it said, and in words what it does.

Nothing here believes the agent: texts are cut, what is remembered is bounded. Does no I/O.
"""

import math
from pathlib import PurePath
from typing import Final, TypeAlias

from acp import schema

MAX_WORDS_CHARS: Final = 200
"""One line about what the agent does."""
MAX_TOOL_CALLS: Final = 1000
"""Tool calls whose words are remembered, for updates that do not repeat them."""

_PLACELESS_KINDS: Final = frozenset({"execute", "fetch", "think"})
"""Of these, the place is the folder in which they work, and the title says more."""

Update: TypeAlias = (
    schema.UserMessageChunk
    | schema.AgentMessageChunk
    | schema.AgentThoughtChunk
    | schema.ToolCallStart
    | schema.ToolCallProgress
    | schema.AgentPlanUpdate
    | schema.AgentPlanContentUpdate
    | schema.AgentPlanRemovedUpdate
    | schema.AvailableCommandsUpdate
    | schema.CurrentModeUpdate
    | schema.ConfigOptionUpdate
    | schema.SessionInfoUpdate
    | schema.UsageUpdate
)


def one_line(text: str) -> str:
    """`text` as one line of bounded length."""
    line = " ".join(text[: 4 * MAX_WORDS_CHARS].split())
    return line if len(line) <= MAX_WORDS_CHARS else line[: MAX_WORDS_CHARS - 1] + "…"


class Turn:
    """What the agent says and does between a prompt and the end of its work on it."""

    def __init__(self, workspace: PurePath) -> None:
        self._workspace = workspace
        self._messages: list[list[str]] = []
        self._message_id: str | None = None
        self._is_speaking = False
        self._tools: dict[str, str] = {}
        self._placed: set[str] = set()
        self.cost_usd: float | None = None
        """Of the whole session so far, as the agent says; None when it does not say, or not in US dollars."""

    @property
    def text(self) -> str:
        """The messages of the turn. What the agent only thinks, and what tools say, is no part of it."""
        return "\n\n".join("".join(chunks) for chunks in self._messages)

    def take(self, update: Update) -> str | None:
        """Take one update. Returns a line about what the agent does now, or None."""
        match update:
            case schema.AgentMessageChunk():
                return self._hear(update)
            case schema.AgentThoughtChunk():
                return "thinking"
            case schema.ToolCallStart() | schema.ToolCallProgress():
                self._is_speaking = False
                return self._tool_words(update)
            case schema.AgentPlanUpdate():
                return _plan_words(update.entries)
            case schema.UsageUpdate():
                cost = update.cost
                # Nothing is what agents say that do not know the price.
                if cost is not None and cost.currency == "USD" and cost.amount > 0 and math.isfinite(cost.amount):
                    self.cost_usd = cost.amount
                return None
            case _:
                return None

    def _hear(self, chunk: schema.AgentMessageChunk) -> str | None:
        if not isinstance(chunk.content, schema.TextContentBlock) or not chunk.content.text:
            return None
        is_new = not self._is_speaking or (chunk.message_id is not None and chunk.message_id != self._message_id)
        if is_new:
            self._messages.append([])
        self._is_speaking, self._message_id = True, chunk.message_id or self._message_id
        self._messages[-1].append(chunk.content.text)
        return "writing" if is_new else None

    def _tool_words(self, call: schema.ToolCallStart | schema.ToolCallProgress) -> str | None:
        known = self._tools.get(call.tool_call_id)
        words = self._learn(call)
        if call.status == "failed":
            return f"failed: {words or 'a tool'}"
        return words if words != known else None

    def action(self, call: schema.ToolCallUpdate) -> str:
        """What the tool call of a request does, in words. The request may name no more than its number."""
        return self._learn(call) or "a tool call without a name"

    def _learn(self, call: schema.ToolCall | schema.ToolCallUpdate) -> str | None:
        """What is known about a tool call: `edit: src/a.py`, or its title until it names a file. None: nothing."""
        number = call.tool_call_id
        words = self._place(call) or (None if number in self._placed else self._title(call))
        if words is not None and (number in self._tools or len(self._tools) < MAX_TOOL_CALLS):
            self._tools[number] = words
            if self._place(call) is not None:
                self._placed.add(number)
        return words or self._tools.get(number)

    def _place(self, call: schema.ToolCall | schema.ToolCallUpdate) -> str | None:
        if not call.locations or call.kind in _PLACELESS_KINDS:
            return None
        path = PurePath(call.locations[0].path)
        if path.is_relative_to(self._workspace):
            path = path.relative_to(self._workspace)
        return one_line(f"{call.kind or 'tool'}: {path}")

    def _title(self, call: schema.ToolCall | schema.ToolCallUpdate) -> str | None:
        title = one_line(call.title or "")
        kind = call.kind or "other"
        if not title or kind == "other" or title.lower().startswith(kind):
            return title or None
        return one_line(f"{kind}: {title}")


def _plan_words(entries: list[schema.PlanEntry]) -> str | None:
    if not entries:
        return None
    done = sum(entry.status == "completed" for entry in entries)
    now = next((entry.content for entry in entries if entry.status == "in_progress"), None)
    words = f"plan: {done} of {len(entries)} done"
    return words if now is None else one_line(f"{words}, now: {now}")
