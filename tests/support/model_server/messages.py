"""The Anthropic Messages API, as claude speaks it: `POST …/v1/messages`."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, assert_never

from support.model_server.exchange import Asked, Encoded, Fail, ModelRequest, Said, Say, Structured, Tokens, UseTool
from support.model_server.pieces import as_json, as_stream, split_text, typed_event

STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "filtered": "refusal"}
ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


class Messages:
    """The format."""

    name = "messages"

    def takes(self, method: str, path: str) -> bool:
        """Any base URL will do."""
        return method == "POST" and path.endswith("/v1/messages")

    def read(self, path: str, query: str, body: Mapping[str, Any]) -> Asked:
        """What is asked."""
        messages = body["messages"]
        blocks = [block for message in messages if message["role"] == "user" for block in _blocks(message["content"])]
        choice = body.get("tool_choice") or {}
        return Asked(
            model=body.get("model"),
            wants_stream=bool(body.get("stream")),
            prompt="\n".join(_texts(blocks)),
            system="\n".join(_texts(_blocks(body.get("system") or ()))),
            tools=tuple(tool["name"] for tool in body.get("tools") or ()),
            forced_tool=choice.get("name"),
            tool_results=tuple(
                "\n".join(_texts(_blocks(block.get("content") or ())))
                for block in blocks
                if block["type"] == "tool_result"
            ),
        )

    def encode(self, request: ModelRequest, said: Said) -> Encoded:
        """What the model says."""
        match said:
            case Say():
                blocks, stop = [_text(said.text)], STOP_REASONS[said.finish]
            case Structured(value=value, tool=tool) if name := tool or request.asked.forced_tool:
                blocks, stop = [_tool_use(request, name, value)], "tool_use"
            case Structured(value=value):
                blocks, stop = [_text(json.dumps(value, ensure_ascii=False))], "end_turn"
            case UseTool():
                blocks = [_text(said.text)] if said.text else []
                blocks, stop = [*blocks, _tool_use(request, said.name, said.arguments)], "tool_use"
            case _:
                assert_never(said)
        message = {
            "id": f"msg_{request.number}",
            "type": "message",
            "role": "assistant",
            "model": request.asked.model,
            "content": blocks,
            "stop_reason": stop,
            "stop_sequence": None,
            "usage": _usage(said.tokens or Tokens(input=0, cached=0, output=0)),
        }
        if request.asked.wants_stream:
            return as_stream(*_events(message, said.parts if isinstance(said, Say) else 3))
        return as_json(message)

    def failure(self, fail: Fail) -> dict[str, Any]:
        """The error object; its type is what tells a plan limit from a busy minute."""
        error = {"type": fail.type or ERROR_TYPES.get(fail.status, "api_error"), "message": fail.message}
        return {"type": "error", "error": error, "request_id": "req_1"}

    def failure_piece(self, fail: Fail) -> bytes:
        """The error object as an event."""
        return typed_event(self.failure(fail))

    def aside(self, method: str, path: str) -> Encoded | None:
        """A count of tokens, and the look whether anybody is there."""
        if path.endswith("/v1/messages/count_tokens"):
            return as_json({"input_tokens": 1200})
        return as_json({}) if method == "HEAD" else None


def plan_limit(resets_at: int) -> Fail:
    """What a subscription answers when its five hours are used up until `resets_at`, in Unix time."""
    prefix = "anthropic-ratelimit-unified"
    return Fail(
        status=429,
        message="This request would exceed your account's rate limit. Please try again later.",
        headers={
            f"{prefix}-status": "rejected",
            f"{prefix}-reset": str(resets_at),
            f"{prefix}-representative-claim": "five_hour",
            f"{prefix}-5h-status": "rejected",
            f"{prefix}-5h-reset": str(resets_at),
            f"{prefix}-5h-utilization": "1.0",
            f"{prefix}-overage-status": "rejected",
            f"{prefix}-overage-disabled-reason": "org_level_disabled",
        },
    )


def _blocks(content: Any) -> list[dict[str, Any]]:
    return [_text(content)] if isinstance(content, str) else list(content)


def _texts(blocks: Iterable[Mapping[str, Any]]) -> list[str]:
    return [block["text"] for block in blocks if block["type"] == "text"]


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _tool_use(request: ModelRequest, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{request.number}", "name": name, "input": arguments}


def _usage(tokens: Tokens) -> dict[str, int]:
    """Here `input_tokens` are only those that no cache had."""
    return {
        "input_tokens": tokens.input - tokens.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": tokens.cached,
        "output_tokens": tokens.output,
    }


def _events(message: dict[str, Any], parts: int) -> Iterable[bytes]:
    begun = {"content": [], "stop_reason": None, "usage": message["usage"] | {"output_tokens": 1}}
    yield typed_event({"type": "message_start", "message": message | begun})
    for index, block in enumerate(message["content"]):
        if block["type"] == "text":
            empty, deltas = _text(""), [("text_delta", "text", piece) for piece in split_text(block["text"], parts)]
        else:
            written = json.dumps(block["input"], ensure_ascii=False)
            empty = block | {"input": {}}
            deltas = [("input_json_delta", "partial_json", piece) for piece in split_text(written, parts)]
        yield typed_event({"type": "content_block_start", "index": index, "content_block": empty})
        for kind, key, piece in deltas:
            yield typed_event({"type": "content_block_delta", "index": index, "delta": {"type": kind, key: piece}})
        yield typed_event({"type": "content_block_stop", "index": index})
    ending = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield typed_event({"type": "message_delta", "delta": ending, "usage": message["usage"]})
    yield typed_event({"type": "message_stop"})
