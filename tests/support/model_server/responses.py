"""The OpenAI Responses API, as codex speaks it: `POST …/responses`."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, assert_never

from support.model_server.exchange import Asked, Encoded, Fail, ModelRequest, Said, Say, Structured, Tokens, UseTool
from support.model_server.pieces import as_json, as_stream, split_text, typed_event

CALL_OUTPUTS = ("function_call_output", "custom_tool_call_output")


class Responses:
    """The format."""

    name = "responses"

    def takes(self, method: str, path: str) -> bool:
        """Any base URL will do."""
        return method == "POST" and path.endswith("/responses")

    def read(self, path: str, query: str, body: Mapping[str, Any]) -> Asked:
        """What is asked."""
        items = body["input"]
        if isinstance(items, str):
            items = [{"type": "message", "role": "user", "content": items}]
        messages = [item for item in items if item.get("type", "message") == "message"]
        system = [_text(message["content"]) for message in messages if message["role"] in ("system", "developer")]
        choice = body.get("tool_choice")
        text_format = (body.get("text") or {}).get("format") or {}
        return Asked(
            model=body.get("model"),
            wants_stream=bool(body.get("stream")),
            prompt="\n".join(_text(message["content"]) for message in messages if message["role"] == "user"),
            system="\n".join([body.get("instructions") or "", *system]),
            tools=tuple(_offered(body)),
            forced_tool=choice.get("name") if isinstance(choice, dict) else None,
            schema=text_format.get("schema"),
            tool_results=tuple(_text(item["output"]) for item in items if item.get("type") in CALL_OUTPUTS),
        )

    def encode(self, request: ModelRequest, said: Said) -> Encoded:
        """What the model says."""
        parts = said.parts if isinstance(said, Say) else 3
        incomplete = None
        match said:
            case Say():
                items = [_message(request, said.text)]
                incomplete = {"length": "max_output_tokens", "filtered": "content_filter"}.get(said.finish)
            case Structured(value=value, tool=tool) if name := tool or request.asked.forced_tool:
                items = [_call(request, name, value)]
            case Structured(value=value):
                items = [_message(request, json.dumps(value, ensure_ascii=False))]
            case UseTool():
                items = [_message(request, said.text)] if said.text else []
                items.append(_call(request, said.name, said.arguments))
            case _:
                assert_never(said)
        response = {
            "id": f"resp_{request.number}",
            "object": "response",
            "created_at": 1_700_000_000,
            "model": request.asked.model,
            "status": "incomplete" if incomplete else "completed",
            "incomplete_details": {"reason": incomplete} if incomplete else None,
            "error": None,
            "output": items,
            "usage": None if said.tokens is None else _usage(said.tokens),
        }
        if request.asked.wants_stream:
            return as_stream(*_numbered(_events(response, parts)))
        return as_json(response)

    def failure(self, fail: Fail) -> dict[str, Any]:
        """The usual error object."""
        return {"error": {"message": fail.message, "type": fail.type, "param": None, "code": fail.code}}

    def failure_piece(self, fail: Fail) -> bytes:
        """The end of a response that failed."""
        error = {"code": fail.code or "server_error", "message": fail.message}
        response = {"id": "resp_failed", "object": "response", "status": "failed", "error": error, "output": []}
        return typed_event({"type": "response.failed", "response": response})

    def aside(self, method: str, path: str) -> Encoded | None:
        """Nothing: the list of models is the same as with chat completions."""
        return None


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)


def _offered(body: Mapping[str, Any]) -> dict[str, str]:
    """The tools on offer and their kinds. Newer models are told of them by an item of the input, in name spaces."""
    tools = list(body.get("tools") or ())
    for item in body["input"]:
        if isinstance(item, dict) and item.get("type") == "additional_tools":
            tools += item["tools"]
    spaces = [tool for tool in tools if tool["type"] == "namespace"]
    tools += [tool for space in spaces for tool in space["tools"]]
    return {tool["name"]: tool["type"] for tool in tools if "name" in tool and tool["type"] != "namespace"}


def _message(request: ModelRequest, text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {
        "type": "message",
        "id": f"msg_{request.number}",
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }


def _call(request: ModelRequest, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A function takes an object; a custom tool takes one text, which stands under `input`."""
    call = {"id": f"fc_{request.number}", "call_id": f"call_{request.number}", "name": name, "status": "completed"}
    if _offered(request.body).get(name) == "custom":
        return {"type": "custom_tool_call", **call, "input": arguments["input"]}
    return {"type": "function_call", **call, "arguments": json.dumps(arguments, ensure_ascii=False)}


def _usage(tokens: Tokens) -> dict[str, Any]:
    return {
        "input_tokens": tokens.input,
        "input_tokens_details": {"cached_tokens": tokens.cached},
        "output_tokens": tokens.output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": tokens.input + tokens.output,
    }


def _events(response: dict[str, Any], parts: int) -> Iterable[dict[str, Any]]:
    begun = response | {"status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
    yield {"type": "response.created", "response": begun}
    for index, item in enumerate(response["output"]):
        where = {"item_id": item["id"], "output_index": index}
        match item["type"]:
            case "message":
                key, kind, text = "content", "output_text", item["content"][0]["text"]
                where["content_index"] = 0
            case "function_call":
                key, kind, text = "arguments", "function_call_arguments", item["arguments"]
            case _:
                key, kind, text = "input", "custom_tool_call_input", item["input"]
        empty = item | {"status": "in_progress", key: [] if key == "content" else ""}
        yield {"type": "response.output_item.added", "output_index": index, "item": empty}
        for piece in split_text(text, parts):
            yield {"type": f"response.{kind}.delta", **where, "delta": piece}
        yield {"type": f"response.{kind}.done", **where, "text" if key == "content" else key: text}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": f"response.{response['status']}", "response": response}


def _numbered(events: Iterable[dict[str, Any]]) -> Iterable[bytes]:
    for number, event in enumerate(events):
        yield typed_event({**event, "sequence_number": number})
