"""Finding the structured value in what an agent printed.

The rule: exactly one distinct outermost JSON object in the output that satisfies the schema is the value, wherever it
stands: bare, fenced, inside prose. None or several is a failed child whose reason says what was there.

"Outermost" means: not inside another JSON object. Text in braces that is no JSON does not count, so an object inside
`f() { return {"a": 1} }` is outermost. What is JSON but not plain data (a key twice, a number beyond the safe range) is
no candidate, and neither is anything inside it. "Distinct" is judged on canonical bytes: repeating a report is fine.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from loopwarden.schema import CompiledSchema
from loopwarden_engine.json_decoding import decode_object
from loopwarden_engine.plain import MAX_REPLY_VALUES, JsonObject, PlainDataError, canonical_bytes

MAX_STARTS: Final = 100_000
"""Places that may begin an object. The search is bounded: 16 MiB of braces must not hold up the host."""
MAX_WASTE: Final = 4
MAX_WASTED_CHARS: Final = 16 * 1024 * 1024
"""How much may be read in vain, for braces that turn out to hold no JSON: so often the output, and so much more."""
FIRST_WINDOW_CHARS: Final = 256
WINDOW_GROWTH: Final = 16
DEEP_WEIGHT: Final = 8
LONGEST_TOKEN_CHARS: Final = 16
"""A word, escape or number that a window cuts off is reported at most so far before its end."""
MAX_OBJECT_CHARS: Final = 4 * 1024 * 1024

_START: Final = re.compile(r'\{(?=[ \t\r\n]*["}])')
_FENCE_BEFORE: Final = re.compile(r"(?:```|~~~)[^\n`]*\r?\n\s*\Z")
_FENCE_AFTER: Final = re.compile(r"\s*(?:```|~~~)")
# Finds where an object ends, and nothing else: numbers stay text, so none is too long, and NaN is left to the strict
# decoder, which refuses the object as a whole.
_boundaries: Final = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The value, and in words how it stood in the output."""

    value: JsonObject
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotFound:
    """Why there is no value: one sentence. `candidates` counts the distinct objects that were looked at."""

    reason: str
    candidates: int


Finding: TypeAlias = Found | NotFound


class _TooManyBracesError(Exception):
    """The output is made so that looking for objects takes too long."""


def find_value(output: bytes | str, schema: CompiledSchema) -> Finding:
    """Find the one object in `output` that satisfies `schema`. Bytes are taken as UTF-8."""
    if isinstance(output, bytes):
        try:
            output = output.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            return NotFound(reason=f"the output is not UTF-8 at byte {error.start}", candidates=0)
    seen: dict[bytes, JsonObject] = {}
    fitting: dict[bytes, tuple[int, int]] = {}
    times = 0
    problem: str | None = None
    try:
        for start, end in _outermost_objects(output):
            try:
                value = _decode(output, start, end)
            except PlainDataError as error:
                problem = problem or f"it is not plain JSON: {error.reason}"
                continue
            key = canonical_bytes(value)
            if key not in seen:
                seen[key] = value
                mismatch = schema.validate(value)
                if mismatch is None:
                    fitting[key] = (start, end)
                else:
                    problem = problem or mismatch
            times += key in fitting
    except _TooManyBracesError:
        reason = "the output holds too many braces to search it for a JSON object; print the report, and little else"
        return NotFound(reason=reason, candidates=len(seen))
    if len(fitting) == 1:
        [(key, (start, end))] = fitting.items()
        return Found(value=seen[key], how=_how(output, start, end, times))
    return NotFound(reason=_why_not(len(fitting), len(seen), problem), candidates=len(seen))


def _outermost_objects(text: str) -> Iterator[tuple[int, int]]:
    position = 0
    wasted = 0
    for _ in range(MAX_STARTS):
        found = _START.search(text, position)
        if found is None:
            return
        start = found.start()
        end, read = _end_of_object(text, start)
        if end is None:
            wasted += read
            position = start + 1
        else:
            yield start, end
            position = end
        if wasted > MAX_WASTED_CHARS + MAX_WASTE * len(text):
            raise _TooManyBracesError
    if _START.search(text, position) is not None:
        raise _TooManyBracesError


def _end_of_object(text: str, start: int) -> tuple[int | None, int]:
    """Where the JSON object that begins at `start` ends, or None when it is none; and how much was read for that.

    Looks through windows that grow: a failed attempt costs its window (the decoder counts the lines up to its error),
    not the whole output.
    """
    window = FIRST_WINDOW_CHARS
    read = 0
    while True:
        part = text[start : start + window]
        read += len(part)
        try:
            return start + _boundaries.raw_decode(part)[1], read
        except json.JSONDecodeError as error:
            cut_off = error.msg.startswith("Unterminated") or error.pos > len(part) - LONGEST_TOKEN_CHARS
            if not cut_off or len(part) < window:
                return None, read
        except RecursionError:
            # Leaving a deep stack takes longer than reading the text.
            return None, read * DEEP_WEIGHT
        window *= WINDOW_GROWTH


def _decode(text: str, start: int, end: int) -> JsonObject:
    if end - start > MAX_OBJECT_CHARS:
        raise PlainDataError("JSON", f"it is longer than {MAX_OBJECT_CHARS} characters")
    return decode_object(text[start:end], max_values=MAX_REPLY_VALUES)


def _how(text: str, start: int, end: int, times: int) -> str:
    if not text[:start].strip("\ufeff \t\r\n") and not text[end:].strip():
        how = "the value was the whole output"
    elif _FENCE_BEFORE.search(text, max(0, start - 200), start) and _FENCE_AFTER.match(text, end):
        how = "the value stood in a code fence"
    else:
        how = "the value stood inside other text"
    return how if times == 1 else f"{how}, {times} times"


def _why_not(fitting: int, seen: int, problem: str | None) -> str:
    if fitting > 1:
        return f"the output holds {fitting} different JSON objects that satisfy the schema, and exactly one is needed"
    if problem is None:
        return "the output holds no JSON object"
    if seen <= 1:
        return f"the JSON object in the output is not usable: {problem}"
    return f"none of the {seen} JSON objects in the output satisfies the schema; the first: {problem}"
