"""Asking for a structured value by words, for backends that take no JSON Schema. The host checks what comes back."""

from typing import Final

from loopwarden_engine.plain import JsonObject, compact_json

_INSTRUCTION: Final = (
    "Answer with exactly one JSON object that satisfies this JSON Schema, and nothing else, "
    "no other words and no code fence:"
)


def with_schema(prompt: str, schema: JsonObject) -> str:
    """Return `prompt`, followed by the instruction to answer with one JSON object that satisfies `schema`.

    The instruction comes last: models hold best to what they read last, and above a long prompt it would be buried.
    """
    return f"{prompt}\n\n{_INSTRUCTION}\n{compact_json(schema)}\n"
