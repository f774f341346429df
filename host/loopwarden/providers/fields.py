"""Reading fields of records that nobody vouches for: what is missing or of another type reads as nothing."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from loopwarden_engine.plain import JsonObject, JsonValue

MAX_COUNT: Final = 2**53 - 1
MAX_WORDS_CHARS: Final = 120
_MILLISECONDS_FROM: Final = 100_000_000_000


def object_at(value: JsonValue, *keys: str) -> JsonObject:
    """The object under `keys`, one below the other; an empty one when it is not there."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def text_at(value: JsonValue, *keys: str) -> str | None:
    """The text under `keys`, or None."""
    found = object_at(value, *keys[:-1]).get(keys[-1])
    return found if isinstance(found, str) else None


def count_at(value: JsonValue, *keys: str) -> int | None:
    """The count under `keys`: an integer that is not negative, or None."""
    found = object_at(value, *keys[:-1]).get(keys[-1])
    if isinstance(found, bool) or not isinstance(found, int):
        return None
    return found if 0 <= found <= MAX_COUNT else None


def number_at(value: JsonValue, *keys: str) -> float | None:
    """The number under `keys`: finite and not negative, or None."""
    found = object_at(value, *keys[:-1]).get(keys[-1])
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    return float(found) if 0 <= found <= MAX_COUNT else None


def time_at(value: JsonValue, *keys: str) -> float | None:
    """The Unix time under `keys`, in seconds, also when it is given in milliseconds; None when there is none."""
    found = number_at(value, *keys)
    return None if found is None else found / 1000 if found >= _MILLISECONDS_FROM else found


def objects_in(value: JsonValue) -> Iterator[JsonObject]:
    """The objects of a list; nothing when it is none."""
    if isinstance(value, list):
        yield from (item for item in value if isinstance(item, dict))


def texts_in(value: JsonValue) -> tuple[str, ...]:
    """The texts of a list; nothing when it is none."""
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


def sum_of(*counts: int | None) -> int | None:
    """The sum of what is known; None when nothing is."""
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def without_surrogates(text: str) -> str:
    """JSON can hold half of a surrogate pair, which no file takes."""
    return text.encode("utf-8", "replace").decode()


def words(text: str) -> str:
    """`text` as one short line for people who watch."""
    line = " ".join(without_surrogates(text[: 4 * MAX_WORDS_CHARS]).split())
    return line if len(line) <= MAX_WORDS_CHARS else line[: MAX_WORDS_CHARS - 1] + "…"


def tool_words(tool: str, parameters: JsonObject, workspace: Path | None = None) -> str:
    """A tool and what it is used on: "Bash: npm test", "Write: src/a.py". Files are named from `workspace` on."""
    for name in _TELLING_PARAMETERS:
        told = parameters.get(name)
        if isinstance(told, str) and told.strip():
            return words(f"{tool}: {told if workspace is None else told.removeprefix(f'{workspace}/')}")
    return words(tool)


_TELLING_PARAMETERS: Final = (
    "command", "file_path", "filePath", "absolute_path", "path", "notebook_path", "pattern", "query", "url",
    "description", "prompt",
)  # fmt: skip
