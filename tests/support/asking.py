"""Asking the openai provider once, against a model server whose brain a test brings."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from loopwarden import AgentFailed, AgentReply
from loopwarden.providers.openai.provider import OpenAIProvider
from support.agents import request
from support.model_server import Brain, ModelServer

KEY = "sk-test-4711-secret"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "word": {"type": "string"}},
    "required": ["n", "word"],
    "additionalProperties": False,
}
VALUE = {"n": 1, "word": "grün 🌱"}


@dataclass(slots=True, kw_only=True)
class Asked:
    """What became of one ask."""

    reply: AgentReply | None = None
    failed: AgentFailed | None = None
    signs: int = 0
    """Signs of life."""
    words: list[str] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    """The requests that the server got."""
    headers: list[dict[str, str]] = field(default_factory=list)


def provider_at(url: str, **options: Any) -> OpenAIProvider:
    """A provider for a server of a test."""
    return OpenAIProvider(**({"base_url": f"{url}/v1", "model": "model-1", "api_key": KEY} | options))


async def ask(provider: OpenAIProvider, **changes: Any) -> Asked:
    """Ask once."""
    asked = Asked()

    def alive() -> None:
        asked.signs += 1

    made = request(None, **({"progress": asked.words.append, "alive": alive} | changes))
    try:
        asked.reply = await provider.reply(made)
    except AgentFailed as failed:
        asked.failed = failed
    return asked


def ask_once(runner: asyncio.Runner, brain: Brain, *, options: dict[str, Any] | None = None, **changes: Any) -> Asked:
    """Start a server, ask it once, and end it."""
    with ModelServer(brain) as server:
        asked = runner.run(ask(provider_at(server.url, **(options or {})), **changes))
        asked.bodies = [dict(one.body) for one in server.requests]
        asked.headers = [dict(one.headers) for one in server.requests]
    return asked


def reply_of(asked: Asked) -> AgentReply:
    """The reply that has to be there."""
    assert asked.reply is not None, asked.failed
    return asked.reply


def failure_of(asked: Asked) -> AgentFailed:
    """The failure that has to be there."""
    assert asked.failed is not None, asked.reply
    return asked.failed
