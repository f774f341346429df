"""The Gemini API, as gemini speaks it: `POST …/models/NAME:streamGenerateContent` and `:generateContent`."""

import json
from collections.abc import Mapping
from typing import Any, assert_never

from support.model_server.chat_completions import event
from support.model_server.exchange import Asked, Encoded, Fail, ModelRequest, Said, Say, Structured, Tokens, UseTool
from support.model_server.pieces import as_json, as_stream, split_text

FINISH_REASONS = {"stop": "STOP", "length": "MAX_TOKENS", "filtered": "SAFETY"}
STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}
STREAM = ":streamGenerateContent"


class GenerateContent:
    """The format."""

    name = "generate-content"

    def takes(self, method: str, path: str) -> bool:
        """Any base URL will do."""
        return method == "POST" and path.endswith((":generateContent", STREAM))

    def read(self, path: str, query: str, body: Mapping[str, Any]) -> Asked:
        """What is asked."""
        parts = [part for turn in body["contents"] if turn.get("role", "user") == "user" for part in turn["parts"]]
        config = body.get("generationConfig") or {}
        tools = [tool for group in body.get("tools") or () for tool in group.get("functionDeclarations", ())]
        results = [part["functionResponse"]["response"] for part in parts if "functionResponse" in part]
        return Asked(
            model=path.rpartition("/")[2].partition(":")[0],
            wants_stream=path.endswith(STREAM),
            prompt="\n".join(part["text"] for part in parts if "text" in part),
            system="\n".join(part.get("text", "") for part in (body.get("systemInstruction") or {}).get("parts", ())),
            tools=tuple(tool["name"] for tool in tools),
            schema=config.get("responseJsonSchema") or config.get("responseSchema"),
            tool_results=tuple(str(result.get("output", result)) for result in results),
        )

    def encode(self, request: ModelRequest, said: Said) -> Encoded:
        """What the model says."""
        finish, count = "STOP", 3
        match said:
            case Say():
                parts, finish, count = [{"text": said.text}], FINISH_REASONS[said.finish], said.parts
            case Structured(value=value, tool=str(tool)):
                parts = [{"functionCall": {"name": tool, "args": value}}]
            case Structured(value=value):
                parts = [{"text": json.dumps(value, ensure_ascii=False)}]
            case UseTool():
                parts = [{"text": said.text}] if said.text else []
                parts.append({"functionCall": {"name": said.name, "args": said.arguments}})
            case _:
                assert_never(said)
        if not request.asked.wants_stream:
            return as_json(_answer(request, parts, finish, said.tokens))
        cut = [{"text": piece} for part in parts if "text" in part for piece in split_text(part["text"], count)]
        cut += [part for part in parts if "text" not in part]
        answers = [_answer(request, [part]) for part in cut[:-1]]
        answers.append(_answer(request, cut[-1:], finish, said.tokens))
        return as_stream(*map(event, answers))

    def failure(self, fail: Fail) -> dict[str, Any]:
        """The error object of Google's APIs; a `retry-after` stands in its details."""
        error: dict[str, Any] = {
            "code": fail.status,
            "message": fail.message,
            "status": fail.code or STATUSES.get(fail.status, "UNKNOWN"),
        }
        if "retry-after" in fail.headers:
            kind = "type.googleapis.com/google.rpc.RetryInfo"
            error["details"] = [{"@type": kind, "retryDelay": f"{fail.headers['retry-after']}s"}]
        return {"error": error}

    def failure_piece(self, fail: Fail) -> bytes:
        """The error object as an event."""
        return event(self.failure(fail))

    def aside(self, method: str, path: str) -> Encoded | None:
        """A count of tokens."""
        return as_json({"totalTokens": 1200}) if path.endswith(":countTokens") else None


def _answer(
    request: ModelRequest, parts: list[dict[str, Any]], finish: str | None = None, tokens: Tokens | None = None
) -> dict[str, Any]:
    candidate: dict[str, Any] = {"index": 0, "content": {"role": "model", "parts": parts}}
    if finish is not None:
        candidate["finishReason"] = finish
    answer = {"responseId": f"r{request.number}", "modelVersion": request.asked.model, "candidates": [candidate]}
    if tokens is not None:
        answer["usageMetadata"] = {
            "promptTokenCount": tokens.input,
            "cachedContentTokenCount": tokens.cached,
            "candidatesTokenCount": tokens.output,
            "totalTokenCount": tokens.input + tokens.output,
        }
    return answer
