"""The parts of a conversation with an ACP agent that need no agent: permissions, words, usage, models, logins."""

from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import Any

import pytest
from acp import schema

from loopwarden.provider import ProviderStartError
from loopwarden.providers.acp.choice import find_login, find_model
from loopwarden.providers.acp.permissions import MAX_NAMED, PermissionDesk
from loopwarden.providers.acp.turn import MAX_TOOL_CALLS, MAX_WORDS_CHARS, Turn
from loopwarden.providers.acp.usage import tokens_of
from loopwarden.usage import Usage

ALLOW = [SimpleNamespace(option_id="a", kind="allow_once")]


def turn_after(*updates: dict[str, Any]) -> tuple[Turn, list[str | None]]:
    """A turn and the words that it gave for each update."""
    turn = Turn(PurePosixPath("/project"))
    words = []
    for update in updates:
        notification = schema.SessionNotification.model_validate({"sessionId": "s", "update": update})
        words.append(turn.take(notification.update))
    return turn, words


def call(number: str = "1", update: str = "tool_call_update", **fields: Any) -> dict[str, Any]:
    """An update about a tool call."""
    return {"sessionUpdate": update, "toolCallId": number, **fields}


def test_the_actions_that_notes_name_are_bounded() -> None:
    desk = PermissionDesk("allow")
    for number in range(MAX_NAMED + 3):
        assert desk.choose(ALLOW, f"action {number}", is_ending=False) == "a"
    [note] = desk.notes()
    assert note.startswith(f"{MAX_NAMED + 3} requests for permission allowed: action 0, action 1, ")
    assert note.endswith(f"action {MAX_NAMED - 1}, 3 others")


def test_a_permission_of_a_turn_that_is_ended_is_no_denial() -> None:
    desk = PermissionDesk("deny")
    assert desk.choose(ALLOW, "edit", is_ending=True) is None
    assert desk.denied == 0


@pytest.mark.parametrize(
    ("updates", "words"),
    [
        ([call(kind="edit", locations=[{"path": "/project/src/a.py"}])], ["edit: src/a.py"]),
        ([call(kind="edit", locations=[{"path": "/etc/passwd"}])], ["edit: /etc/passwd"]),
        ([call(locations=[{"path": "/project/a"}])], ["tool: a"]),
        ([call(kind="execute", title="make test", locations=[{"path": "/project"}])], ["execute: make test"]),
        ([call(kind="edit", title="Edit a")], ["Edit a"]),
        ([call(title="look around")], ["look around"]),
        ([call(status="failed")], ["failed: a tool"]),
        ([call(status="completed")], [None]),
        ([call(title="a"), call(title="a"), call(title="b")], ["a", None, "b"]),
        ([call(kind="edit", locations=[{"path": "/project/a"}]), call(title="project/a")], ["edit: a", None]),
        ([call(title="two\n\x0blines")], ["two lines"]),
        ([call(title="x" * 1000)], ["x" * (MAX_WORDS_CHARS - 1) + "…"]),
    ],
)
def test_tool_calls_in_words(updates: list[dict[str, Any]], words: list[str | None]) -> None:
    assert turn_after(*updates)[1] == words


def test_the_tool_calls_that_are_remembered_are_bounded() -> None:
    numbers = [str(number) for number in range(MAX_TOOL_CALLS + 1)]
    turn, _ = turn_after(*(call(number, title=f"call {number}") for number in numbers))
    assert turn.action(schema.ToolCallUpdate(tool_call_id=numbers[0])) == "call 0"
    assert turn.action(schema.ToolCallUpdate(tool_call_id=numbers[-1])) == "a tool call without a name"


def said(text: str, **fields: Any) -> dict[str, Any]:
    """A piece of a message."""
    return {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}, **fields}


@pytest.mark.parametrize(
    ("updates", "text"),
    [
        ([said("a"), said("b")], "ab"),
        ([said("a"), call(title="x"), said("b")], "a\n\nb"),
        ([said("a", messageId="1"), said("b", messageId="1"), said("c", messageId="2")], "ab\n\nc"),
        ([said("a", messageId="1"), said("b")], "ab"),
        ([said(""), call(title="x"), said("")], ""),
        ([{**said("you"), "sessionUpdate": "user_message_chunk"}, said("me")], "me"),
    ],
)
def test_messages_are_kept_apart_and_their_pieces_together(updates: list[dict[str, Any]], text: str) -> None:
    assert turn_after(*updates)[0].text == text


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        ((15, 10, 5, None, None, None), (10, None, 5)),
        ((115, 10, 5, 100, None, None), (110, 100, 5)),
        ((15, 10, 5, 4, None, None), (10, 4, 5)),
        ((118, 10, 5, 100, 3, None), (113, 100, 5)),
        ((17, 10, 5, None, None, 2), (10, None, 7)),
        ((15, 10, 5, None, None, 2), (10, None, 5)),
        ((117, 10, 5, 100, None, 2), (110, 100, 7)),
        ((20, 10, 5, 5, None, 5), (15, 5, 5)),
    ],
)
def test_the_sum_says_what_is_part_of_what(reported: tuple[int | None, ...], expected: tuple[int | None, ...]) -> None:
    names = ("totalTokens", "inputTokens", "outputTokens", "cachedReadTokens", "cachedWriteTokens", "thoughtTokens")
    usage = schema.Usage.model_validate(dict(zip(names, reported, strict=True)))
    total, cached, output = expected
    assert tokens_of(usage) == Usage(input_tokens=total, cached_input_tokens=cached, output_tokens=output)


def test_usage_that_cannot_be_is_unknown() -> None:
    usage = schema.Usage(total_tokens=10**30, input_tokens=10**30, output_tokens=0)
    assert tokens_of(usage) is None
    assert tokens_of(None) is None


def test_models_that_are_no_models_are_not_offered() -> None:
    answer = {"sessionId": "s", "models": {"availableModels": [7, {"modelId": 5}, {"modelId": "m", "name": None}]}}
    session = schema.NewSessionResponse.model_validate(answer)
    assert find_model("m", session, answer) == ("session/set_model", {"modelId": "m"})
    with pytest.raises(ProviderStartError, match="does not offer the model 'x'; it offers m"):
        find_model("x", session, answer)


def test_a_login_that_is_not_offered_is_not_used() -> None:
    offered = [schema.AuthMethodAgent(id="browser", name="By a browser")]
    assert find_login(offered, "key", frozenset()) is None
    assert find_login(offered, None, frozenset({"KEY"})) is None
    assert find_login(offered, "browser", frozenset()) == "browser"
