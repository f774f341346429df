"""What the openai provider asks: the body, the headers, the address."""

import asyncio
import json
from typing import Any

import pytest

from loopwarden.providers.openai.request import is_strict
from loopwarden.usage import Usage
from support.asking import KEY, SCHEMA, VALUE, ask, ask_once, provider_at, reply_of
from support.model_server import ModelServer, Say, Structured, always

MODES = ("json_schema", "tool", "text")
USAGE = Usage(input_tokens=1200, cached_input_tokens=200, output_tokens=30)


def test_a_text_call_asks_one_user_message_as_a_stream(runner: asyncio.Runner) -> None:
    asked = ask_once(runner, always(Say(text="Grüße 🌱")), prompt="Sag hallo.")
    reply = reply_of(asked)
    assert (reply.text, reply.value, reply.notes, reply.usage) == ("Grüße 🌱", None, (), USAGE)
    assert asked.bodies == [
        {
            "model": "model-1",
            "messages": [{"role": "user", "content": "Sag hallo."}],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ]
    headers = asked.headers[0]
    assert (headers["authorization"], headers["accept-encoding"]) == (f"Bearer {KEY}", "identity")
    assert (headers["content-type"], headers["user-agent"]) == ("application/json", "loopwarden")


@pytest.mark.parametrize("mode", MODES)
def test_each_way_of_asking_for_a_value_gives_it(runner: asyncio.Runner, mode: str) -> None:
    asked = ask_once(runner, always(Structured(value=VALUE)), options={"structured_output": mode}, schema=SCHEMA)
    assert reply_of(asked).value == VALUE
    assert reply_of(asked).usage == USAGE
    [body] = asked.bodies
    prompt = body["messages"][0]["content"]
    named = {"name": "report", "schema": SCHEMA, "strict": True}
    assert body.get("response_format") == (
        {"type": "json_schema", "json_schema": named} if mode == "json_schema" else None
    )
    assert [tool["function"]["parameters"] for tool in body.get("tools", [])] == ([SCHEMA] if mode == "tool" else [])
    forced = {"type": "function", "function": {"name": "report"}}
    assert body.get("tool_choice") == (forced if mode == "tool" else None)
    assert (prompt == "do it") == (mode != "text")
    assert prompt.startswith("do it")
    assert (json.dumps(SCHEMA, separators=(",", ":")) in prompt) == (mode == "text")


def test_the_model_of_the_call_wins(runner: asyncio.Runner) -> None:
    asked = ask_once(runner, always(Say(text="a")), model="model-2")
    assert asked.bodies[0]["model"] == "model-2"
    assert reply_of(asked).notes == ()


def test_options_stand_in_the_request(runner: asyncio.Runner) -> None:
    options: dict[str, Any] = {
        "max_output_tokens": 77,
        "asks_usage": False,
        "api_key": None,
        "headers": {"X-Team": "blue"},
    }
    asked = ask_once(runner, always(Say(text="a")), options=options)
    assert asked.bodies[0] | {"messages": []} == {"model": "model-1", "messages": [], "stream": True, "max_tokens": 77}
    assert asked.headers[0]["x-team"] == "blue"
    assert "authorization" not in asked.headers[0]
    options = {"max_output_tokens": 77, "output_limit_name": "max_completion_tokens"}
    asked = ask_once(runner, always(Say(text="a")), options=options)
    assert (asked.bodies[0]["max_completion_tokens"], "max_tokens" in asked.bodies[0]) == (77, False)


@pytest.mark.parametrize(
    ("base", "path", "query"),
    [
        ("", "/chat/completions", ""),
        ("/", "/chat/completions", ""),
        ("/v1/", "/v1/chat/completions", ""),
        ("/v1/chat/completions", "/v1/chat/completions", ""),
        ("/a%20b/v1?api-version=7", "/a%20b/v1/chat/completions", "api-version=7"),
    ],
)
def test_the_address_is_completed(runner: asyncio.Runner, base: str, path: str, query: str) -> None:
    with ModelServer(always(Say(text="a"))) as server:
        provider = provider_at(server.url, base_url=server.url + base)
        assert runner.run(ask(provider)).reply is not None
        assert (server.requests[0].path, server.requests[0].query) == (path, query)
        assert query not in repr(provider) or not query


OBJECT: dict[str, Any] = {"type": "object", "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        (SCHEMA, True),
        ({**OBJECT, "properties": {}, "required": []}, True),
        (OBJECT, True),
        ({**OBJECT, "properties": {"a": {"type": "array", "items": SCHEMA}}, "required": ["a"]}, True),
        ({**OBJECT, "properties": {"a": {"anyOf": [SCHEMA, {"type": "null"}]}}, "required": ["a"]}, True),
        ({**OBJECT, "properties": {"a": {"$ref": "#/$defs/x"}}, "required": ["a"], "$defs": {"x": SCHEMA}}, True),
        ({}, False),
        ({"type": "object"}, False),
        ({"type": "array", "items": SCHEMA}, False),
        ({**SCHEMA, "required": ["n"]}, False),
        ({**SCHEMA, "additionalProperties": True}, False),
        ({**SCHEMA, "anyOf": [SCHEMA]}, False),
        ({**OBJECT, "properties": {"a": {"type": "string", "pattern": "a"}}, "required": ["a"]}, False),
        ({**OBJECT, "properties": {"a": {"type": "array", "items": {"type": "object"}}}, "required": ["a"]}, False),
        ({**OBJECT, "properties": {"a": {"anyOf": [{"type": "object"}]}}, "required": ["a"]}, False),
        ({**OBJECT, "properties": {"a": {"$ref": "#/$defs/x"}}, "required": ["a"], "$defs": {"x": {"not": {}}}}, False),
        ({**OBJECT, "properties": {"a": True}, "required": ["a"]}, False),
        ({**OBJECT, "properties": {"a": {"type": ["object", "null"]}}, "required": ["a"]}, False),
    ],
)
def test_strict_is_asked_for_when_the_schema_keeps_its_rules(schema: dict[str, Any], strict: bool) -> None:
    assert is_strict(schema) is strict


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({}, (True, True, False)),
        ({"structured_output": "tool", "input_price_usd": 1}, (True, True, False)),
        ({"structured_output": "text", "input_price_usd": 1, "output_price_usd": 0}, (False, True, True)),
        ({"asks_usage": False, "input_price_usd": 1, "output_price_usd": 0}, (True, False, False)),
    ],
)
def test_capabilities_say_what_holds(options: dict[str, Any], facts: tuple[bool, bool, bool]) -> None:
    can = provider_at("http://127.0.0.1:1", **options).capabilities
    assert (can.native_schema, can.tokens_known, can.cost_known) == facts
    assert (can.structured_output, can.fresh_context, can.streams) == (True, True, True)
