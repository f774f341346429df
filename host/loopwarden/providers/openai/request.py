"""The body of a request: in which of three ways the answer is held to a schema."""

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, assert_never

from loopwarden.providers.schema_prompt import with_schema
from loopwarden_engine.plain import JsonObject, JsonValue

StructuredOutput: TypeAlias = Literal["json_schema", "tool", "text"]
OutputLimitName: TypeAlias = Literal["max_tokens", "max_completion_tokens"]

NAME: Final = "report"
"""Of the schema, and of the tool."""
TOOL_DESCRIPTION: Final = "Give your answer. Call it exactly once."
_STRICT_KEYWORDS: Final = frozenset(
    {"type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf", "$ref", "$defs"}
    | {"title", "description"}
)
"""What every strict implementation takes. Others (patterns, bounds) differ between models: the host checks those."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How this endpoint wants to be asked."""

    structured_output: StructuredOutput
    max_output_tokens: int | None
    output_limit_name: OutputLimitName
    asks_usage: bool


def request_body(style: Style, *, prompt: str, model: str, schema: JsonObject | None) -> JsonObject:
    """One user message, streamed. No other sampling parameter is set: the endpoint's defaults hold."""
    if schema is not None and style.structured_output == "text":
        prompt = with_schema(prompt, schema)
    body: JsonObject = {"model": model, "messages": [{"role": "user", "content": prompt}], "stream": True}
    if style.asks_usage:
        body["stream_options"] = {"include_usage": True}
    if style.max_output_tokens is not None:
        body[style.output_limit_name] = style.max_output_tokens
    if schema is not None:
        body |= _hold(style.structured_output, schema)
    return body


def _hold(structured_output: StructuredOutput, schema: JsonObject) -> JsonObject:
    match structured_output:
        case "json_schema":
            named: JsonObject = {"name": NAME, "schema": schema, "strict": is_strict(schema)}
            return {"response_format": {"type": "json_schema", "json_schema": named}}
        case "tool":
            function: JsonObject = {"name": NAME, "description": TOOL_DESCRIPTION, "parameters": schema}
            choice: JsonObject = {"type": "function", "function": {"name": NAME}}
            return {"tools": [{"type": "function", "function": function}], "tool_choice": choice}
        case "text":
            return {}
        case _:
            assert_never(structured_output)


def is_strict(schema: JsonObject) -> bool:
    """Say whether `schema` keeps the rules of OpenAI's strict mode, so that `strict` can be asked for.

    The root is an object, every object closes itself with `additionalProperties: false` and requires all of its
    properties, and no keyword beyond the common ones is used. Sent otherwise, `strict` gets the request refused.
    """
    return schema.get("type") == "object" and "anyOf" not in schema and _keeps_rules(schema)


def _keeps_rules(schema: JsonValue) -> bool:
    if not isinstance(schema, dict) or not set(schema) <= _STRICT_KEYWORDS:
        return False
    properties = schema.get("properties", {})
    if not isinstance(properties, dict):
        return False
    kind = schema.get("type")
    if kind == "object" or (isinstance(kind, list) and "object" in kind) or properties:
        required = schema.get("required", [])
        if schema.get("additionalProperties") is not False or not isinstance(required, list):
            return False
        if set(map(str, required)) != set(properties):
            return False
    inner = [*properties.values()]
    for key in ("items", "anyOf", "$defs"):
        found = schema.get(key)
        if key == "items":
            inner += [found] if key in schema else []
        elif isinstance(found, list):
            inner += found
        elif isinstance(found, dict):
            inner += found.values()
    return all(map(_keeps_rules, inner))
