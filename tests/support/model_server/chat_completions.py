"""Chat completions, as the openai provider, opencode and qwen speak them: `POST …/chat/completions`."""

import json
from collections.abc import Mapping
from typing import Any, assert_never

from support.model_server.exchange import Asked, Encoded, Fail, ModelRequest, Said, Say, Structured, Tokens, UseTool
from support.model_server.pieces import as_json, as_stream, split_text

FINISH = {"stop": "stop", "length": "length", "filtered": "content_filter"}


class ChatCompletions:
    """The format."""

    name = "chat-completions"

    def takes(self, method: str, path: str) -> bool:
        """Any base URL will do."""
        return method == "POST" and path.endswith("/chat/completions")

    def read(self, path: str, query: str, body: Mapping[str, Any]) -> Asked:
        """What is asked."""
        messages = body["messages"]
        choice = body.get("tool_choice")
        response_format = body.get("response_format") or {}
        return Asked(
            model=body.get("model"),
            wants_stream=bool(body.get("stream")),
            prompt="\n".join(_text(message) for message in messages if message["role"] == "user"),
            system="\n".join(_text(message) for message in messages if message["role"] in ("system", "developer")),
            tools=tuple(tool["function"]["name"] for tool in body.get("tools") or ()),
            forced_tool=choice["function"]["name"] if isinstance(choice, dict) else None,
            schema=response_format.get("json_schema", {}).get("schema"),
            tool_results=tuple(_text(message) for message in messages if message["role"] == "tool"),
        )

    def encode(self, request: ModelRequest, said: Said) -> Encoded:
        """What the model says."""
        match said:
            case Say():
                message, finish = {"content": said.text, "reasoning_content": said.thinking}, FINISH[said.finish]
                parts = said.parts
            case Structured(value=value, tool=tool) if name := tool or request.asked.forced_tool:
                message, finish, parts = _tool_call(request, name, value), "tool_calls", 3
            case Structured(value=value):
                message, finish, parts = {"content": json.dumps(value, ensure_ascii=False)}, "stop", 3
            case UseTool():
                message = _tool_call(request, said.name, said.arguments) | {"content": said.text}
                finish, parts = "tool_calls", 3
            case _:
                assert_never(said)
        if request.asked.wants_stream:
            return _stream(request, message, finish, said.tokens, parts)
        return _single(request, message, finish, said.tokens)

    def failure(self, fail: Fail) -> dict[str, Any]:
        """The usual error object."""
        return {"error": {"message": fail.message, "type": fail.type, "param": None, "code": fail.code}}

    def failure_piece(self, fail: Fail) -> bytes:
        """The error object as an event."""
        return event(self.failure(fail))

    def aside(self, method: str, path: str) -> Encoded | None:
        """A list of models."""
        if method == "GET" and path.endswith("/models"):
            body = {"object": "list", "data": [{"id": "model-1", "object": "model", "owned_by": "tests"}]}
            return as_json(body)
        return None


def event(data: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return content or ""


def _tool_call(request: ModelRequest, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {"tool_calls": [{"id": f"call_{request.number}", "type": "function", "function": function}]}


def _envelope(request: ModelRequest, kind: str) -> dict[str, Any]:
    model = request.asked.model
    return {"id": f"chatcmpl-{request.number}", "object": kind, "created": 1_700_000_000, "model": model}


def _usage(tokens: Tokens) -> dict[str, Any]:
    return {
        "prompt_tokens": tokens.input,
        "completion_tokens": tokens.output,
        "total_tokens": tokens.input + tokens.output,
        "prompt_tokens_details": {"cached_tokens": tokens.cached},
    }


def _single(request: ModelRequest, message: dict[str, Any], finish: str, tokens: Tokens | None) -> Encoded:
    whole = {"role": "assistant", "content": None, **message}
    body = _envelope(request, "chat.completion") | {
        "choices": [{"index": 0, "message": whole, "finish_reason": finish}]
    }
    if tokens is not None:
        body["usage"] = _usage(tokens)
    return as_json(body)


def _stream(request: ModelRequest, message: dict[str, Any], finish: str, tokens: Tokens | None, parts: int) -> Encoded:
    envelope = _envelope(request, "chat.completion.chunk")

    def chunk(delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
        return event(envelope | {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]})

    pieces = [chunk({"role": "assistant", "content": ""})]
    pieces += [chunk({"reasoning_content": text}) for text in split_text(message.get("reasoning_content", ""), parts)]
    pieces += [chunk({"content": text}) for text in split_text(message.get("content", ""), parts)]
    for index, call in enumerate(message.get("tool_calls", ())):
        function = call["function"]
        first = {"index": index, **call, "function": {"name": function["name"], "arguments": ""}}
        pieces.append(chunk({"tool_calls": [first]}))
        for text in split_text(function["arguments"], parts):
            pieces.append(chunk({"tool_calls": [{"index": index, "function": {"arguments": text}}]}))
    pieces.append(chunk({}, finish))
    if tokens is not None and (request.body.get("stream_options") or {}).get("include_usage"):
        pieces.append(event(envelope | {"choices": [], "usage": _usage(tokens)}))
    pieces.append(b"data: [DONE]\n\n")
    return as_stream(*pieces)
