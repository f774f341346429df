"""What a provider returned or raised, decoded: nothing that it claims is believed, nothing of it fails the host."""

from dataclasses import dataclass
from typing import Final

from loopwarden.failures import LoopwardenError
from loopwarden.provider import AgentReply
from loopwarden.schema import CompiledSchema
from loopwarden_engine.plain import MAX_REPLY_VALUES, JsonValue, PlainDataError, compact_json, copy_object

_ROOM_BYTES: Final = 256
"""What the frame of a reply needs beside the value."""
_MOST_BYTES_A_CHARACTER: Final = 6
"""What JSON in UTF-8 takes at the most: a control character, written as an escape."""

_MAX_WORDS_CHARS: Final = 4000
"""Of a reason or a note in the words of a provider. It is for a reader; what an agent printed is kept elsewhere."""
_MAX_NOTES: Final = 50


def provider_words(said: object) -> str:
    """What a provider said, as Unicode text of bounded length. Never raises, whatever it is."""
    try:
        text = str(said)
    except Exception:  # noqa: BLE001 -- the text of a foreign object is foreign code
        return f"({type(said).__name__}, which cannot be shown)"
    if len(text) > _MAX_WORDS_CHARS:
        text = text[: _MAX_WORDS_CHARS - 1] + "…"
    return text.encode("utf-8", "replace").decode("utf-8")


def provider_notes(notes: object) -> tuple[str, ...]:
    """The notes of a provider, each as Unicode text of bounded length."""
    if not isinstance(notes, tuple | list):
        return () if notes is None else (provider_words(notes),)
    if not notes:
        return ()
    return tuple(provider_words(note) for note in notes[:_MAX_NOTES])


def provider_error(error: BaseException) -> str:
    """An exception that a provider should not have raised, in words."""
    words = provider_words(error)
    return f"it raised {type(error).__name__}: {words}" if words else f"it raised {type(error).__name__}"


class ReplyUnusable(LoopwardenError):
    """The reply cannot be delivered. It is the agent's failure, or with `is_provider_fault` the provider's."""

    def __init__(
        self, reason: str, *, text: str = "", notes: tuple[str, ...] = (), is_provider_fault: bool = False
    ) -> None:
        super().__init__(reason)
        self.text = text
        self.notes = notes
        self.is_provider_fault = is_provider_fault


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedReply:
    """A reply that can be delivered, once `check_reply` finds that its value fits its schema."""

    text: str
    """What is kept for people: the text beside a structured value, else its compact JSON."""
    value: JsonValue
    """What is delivered."""
    notes: tuple[str, ...]


def decode_reply(reply: object, *, is_structured: bool, max_frame_bytes: int) -> DecodedReply:
    """Decode a reply to a call with a schema (`is_structured`) or without. Raises `ReplyUnusable`."""
    if isinstance(reply, str):
        reply = AgentReply(text=reply)
    elif isinstance(reply, dict):
        reply = AgentReply(value=reply)
    if not isinstance(reply, AgentReply):
        raise ReplyUnusable(
            f"it returned {type(reply).__name__} where a text, an object or an AgentReply is due",
            is_provider_fault=True,
        )
    if not is_structured:
        return DecodedReply(text=reply.text, value=_text(reply, max_frame_bytes), notes=reply.notes)
    value, compact = _structured(reply, max_frame_bytes)
    return DecodedReply(text=_text_to_keep(reply) or compact, value=value, notes=reply.notes)


def check_reply(reply: DecodedReply, schema: CompiledSchema) -> None:
    """Check a structured value against the schema of its call. Raises `ReplyUnusable`."""
    problem = schema.validate(reply.value)
    if problem is not None:
        raise ReplyUnusable(
            f"the structured value does not fit the schema: {problem}", text=reply.text, notes=reply.notes
        )


def _text(reply: AgentReply, max_frame_bytes: int) -> str:
    text = reply.text
    if type(text) is not str:
        raise ReplyUnusable("the text of the reply is not a text", notes=reply.notes)
    if not text and reply.value is not None:
        raise ReplyUnusable("the agent gave a structured value, but the call has no schema", notes=reply.notes)
    if len(text) > max_frame_bytes:  # Before it is encoded: that takes its time with what an agent may print in hours.
        raise ReplyUnusable(_too_large(len(text), max_frame_bytes), text=text, notes=reply.notes)
    try:
        size = 0 if text.isascii() else len(text.encode("utf-8"))
        if len(text) * _MOST_BYTES_A_CHARACTER + _ROOM_BYTES > max_frame_bytes:
            size = len(compact_json(text).encode("utf-8"))
    except UnicodeEncodeError:
        raise ReplyUnusable("the text of the reply holds a lone surrogate", notes=reply.notes) from None
    if size + _ROOM_BYTES > max_frame_bytes:
        raise ReplyUnusable(_too_large(size, max_frame_bytes), text=text, notes=reply.notes)
    return text


def _text_to_keep(reply: AgentReply) -> str:
    """The text beside a structured value: for people only, so what is no text is left out."""
    return reply.text.encode("utf-8", "replace").decode("utf-8") if isinstance(reply.text, str) else ""


def _structured(reply: AgentReply, max_frame_bytes: int) -> tuple[JsonValue, str]:
    """The value, and its compact JSON."""
    if reply.value is None:
        raise ReplyUnusable("the agent gave no structured value", text=_text_to_keep(reply), notes=reply.notes)
    try:
        value = copy_object(reply.value, "value", max_chars=max_frame_bytes, max_values=MAX_REPLY_VALUES)
    except PlainDataError as error:
        raise ReplyUnusable(
            f"the structured value is not plain JSON: {error}", text=_text_to_keep(reply), notes=reply.notes
        ) from None
    compact = compact_json(value)
    size = len(compact.encode("utf-8"))
    if size + _ROOM_BYTES > max_frame_bytes:
        raise ReplyUnusable(_too_large(size, max_frame_bytes), text=_text_to_keep(reply), notes=reply.notes)
    return value, compact


def _too_large(size: int, max_frame_bytes: int) -> str:
    return f"the reply takes {size} bytes or more; at most {max_frame_bytes} can be delivered"
