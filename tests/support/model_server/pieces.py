"""What the streaming formats share: server-sent events that are named by their type, and texts in several pieces."""

import json
from collections.abc import Mapping
from typing import Any

from support.model_server.exchange import Encoded


def typed_event(data: Mapping[str, Any]) -> bytes:
    """One server-sent event; its name is its `type`."""
    return f"event: {data['type']}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


def split_text(text: str, parts: int) -> list[str]:
    """Cut a text into at most `parts` pieces, none of them empty."""
    size = max(1, -(-len(text) // parts))
    return [text[start : start + size] for start in range(0, len(text), size)]


def as_json(body: Mapping[str, Any]) -> Encoded:
    """One JSON body."""
    return Encoded(content_type="application/json", pieces=(json.dumps(body, ensure_ascii=False).encode(),))


def as_stream(*pieces: bytes) -> Encoded:
    """A stream of events."""
    return Encoded(content_type="text/event-stream", pieces=pieces)
