"""What a provider returned, decoded: nothing that it claims is believed."""

from typing import Final

from loopwarden.failures import LoopwardenError
from loopwarden.provider import AgentReply
from loopwarden.schema import CompiledSchema
from loopwarden_engine.plain import JsonValue, PlainDataError, compact_json, copy_object

_ROOM_BYTES: Final = 256
"""What the frame of a reply needs beside the value."""


class ReplyUnusable(LoopwardenError):
    """The reply cannot be delivered. It is the agent's failure, or with `is_provider_fault` the provider's."""

    def __init__(
        self, reason: str, *, text: str = "", notes: tuple[str, ...] = (), is_provider_fault: bool = False
    ) -> None:
        super().__init__(reason)
        self.text = text
        self.notes = notes
        self.is_provider_fault = is_provider_fault


def decode_reply(
    reply: object, schema: CompiledSchema | None, max_frame_bytes: int
) -> tuple[str, JsonValue, tuple[str, ...]]:
    """Return (text to keep, value to deliver, notes). Raises `ReplyUnusable`."""
    if isinstance(reply, str):
        reply = AgentReply(text=reply)
    elif isinstance(reply, dict):
        reply = AgentReply(value=reply)
    if not isinstance(reply, AgentReply):
        raise ReplyUnusable(
            f"it returned {type(reply).__name__} where a text, an object or an AgentReply is due",
            is_provider_fault=True,
        )
    if schema is None:
        return reply.text, _text(reply, max_frame_bytes), reply.notes
    value = _structured(reply, schema, max_frame_bytes)
    return reply.text or compact_json(value), value, reply.notes


def _text(reply: AgentReply, max_frame_bytes: int) -> str:
    text = reply.text
    if type(text) is not str:
        raise ReplyUnusable("the text of the reply is not a text", notes=reply.notes)
    if not text and reply.value is not None:
        raise ReplyUnusable("the agent gave a structured value, but the call has no schema", notes=reply.notes)
    try:
        size = len(compact_json(text).encode("utf-8"))
    except UnicodeEncodeError:
        raise ReplyUnusable("the text of the reply holds a lone surrogate", notes=reply.notes) from None
    if size + _ROOM_BYTES > max_frame_bytes:
        raise ReplyUnusable(_too_large(size, max_frame_bytes), text=text, notes=reply.notes)
    return text


def _structured(reply: AgentReply, schema: CompiledSchema, max_frame_bytes: int) -> JsonValue:
    if reply.value is None:
        raise ReplyUnusable("the agent gave no structured value", text=reply.text, notes=reply.notes)
    try:
        value = copy_object(reply.value, "value", max_chars=max_frame_bytes)
    except PlainDataError as error:
        raise ReplyUnusable(
            f"the structured value is not plain JSON: {error}", text=reply.text, notes=reply.notes
        ) from None
    size = len(compact_json(value).encode("utf-8"))
    if size + _ROOM_BYTES > max_frame_bytes:
        raise ReplyUnusable(_too_large(size, max_frame_bytes), text=reply.text, notes=reply.notes)
    problem = schema.validate(value)
    if problem is not None:
        raise ReplyUnusable(
            f"the structured value does not fit the schema: {problem}",
            text=reply.text or compact_json(value),
            notes=reply.notes,
        )
    return value


def _too_large(size: int, max_frame_bytes: int) -> str:
    return f"the reply takes {size} bytes; at most {max_frame_bytes} can be delivered"
