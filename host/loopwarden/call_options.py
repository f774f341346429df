"""What a call asks for, decoded on the host: the rules of `agent()`'s prompt and options (design section 5)."""

import re
from dataclasses import dataclass
from typing import Final

from loopwarden.contract import CallFacts
from loopwarden.failures import Code, Failure, LoopwardenError
from loopwarden.schema import UnsupportedSchema, compile_plain
from loopwarden.visible import is_visible
from loopwarden_engine.hook_rules import MAX_TITLE_CHARS, OPTIONS
from loopwarden_engine.messages import Call
from loopwarden_engine.plain import JsonObject, canonical_bytes, digest

LABEL_CHARS: Final = 48
_LINE: Final = re.compile("[^\n\r\v\f\x1c-\x1e\x85\u2028\u2029]*")
"""Up to what `str.splitlines` takes for the end of a line."""


class CallRefused(LoopwardenError):
    """The call cannot be accepted; `failure` ends the run."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedCall:
    """A call in the host's own terms."""

    facts: CallFacts
    label: str
    """The label as shown: the option, else made from the prompt."""
    written: Call
    """The call as the script wrote it."""

    @property
    def digest(self) -> str:
        """SHA-256 over prompt and options as written: with the key, what identifies a call in a replay."""
        return digest(canonical_bytes({"prompt": self.written.prompt, "options": self.written.options}))


def decode_call(call: Call, current_phase: str | None) -> DecodedCall:
    """Decode what a worker sent. Raises `CallRefused`."""
    options = call.options
    for name in options:
        if name not in OPTIONS:
            raise _refusal(
                Code.UNSUPPORTED_OPTION,
                f"agent() has no option {name[:100]!r}; the options are {', '.join(OPTIONS)}",
                call,
            )
    if not is_visible(call.prompt):
        raise _refusal(Code.INVALID_ARGUMENT, "agent() needs a prompt with at least one visible character", call)
    label = _name(call, options, "label", MAX_TITLE_CHARS)
    phase = _name(call, options, "phase", MAX_TITLE_CHARS)
    facts = CallFacts(
        seq=call.id,
        prompt=call.prompt,
        label=label,
        phase=phase if phase is not None else current_phase,
        schema=_schema(call, options),
        provider=_name(call, options, "provider", MAX_TITLE_CHARS),
        model=_name(call, options, "model", MAX_TITLE_CHARS),
    )
    return DecodedCall(
        facts=facts,
        label=label if label is not None else default_label(call.prompt),
        written=call,
    )


def default_label(prompt: str) -> str:
    """The first non-empty line of the prompt, trimmed, cut to 48 characters."""
    # Everything that ends a line counts as space. Splitting a prompt of a million empty lines would hold up the host.
    text = prompt.lstrip()
    head = text[:LABEL_CHARS]
    line = _LINE.match(head).group()  # type: ignore[union-attr]  # matches everything, be it empty
    if line == head and head[-1:].isspace():
        line = _LINE.match(text).group()  # type: ignore[union-attr]  # is there more than space to come in this line?
    return line.rstrip()[:LABEL_CHARS]


def _name(call: Call, options: JsonObject, name: str, max_chars: int) -> str | None:
    value = options.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise _refusal(Code.INVALID_ARGUMENT, f"agent(): {name} must be a text, not {type(value).__name__}", call)
    if not 1 <= len(value) <= max_chars:
        raise _refusal(
            Code.INVALID_ARGUMENT, f"agent(): {name} must have 1 to {max_chars} characters, not {len(value)}", call
        )
    return value


def _schema(call: Call, options: JsonObject) -> JsonObject | None:
    schema = options.get("schema")
    if schema is None:
        return None
    try:
        # Only to see whether it can be. What is compiled takes much memory, and many calls may wait.
        compile_plain(schema)
    except UnsupportedSchema as error:
        raise _refusal(Code.UNSUPPORTED_SCHEMA, f"agent(): {error}", call) from None
    assert isinstance(schema, dict)
    return schema


def _refusal(code: Code, message: str, call: Call) -> CallRefused:
    return CallRefused(Failure(code=code, message=message, line=call.line or None))
