"""Where a key stands in a TOML text. `tomllib` gives values without places, so it is asked again, about beginnings.

The beginnings of a text (its first 1, 2, 3 … lines) that parse on their own grow into the whole text; the first of
them that holds a key ends with the value of that key. So the line is exact whatever the text looks like.
"""

import io
import tomllib
from collections.abc import Sequence


def line_of_key(text: str, path: Sequence[str | int]) -> int | None:
    """The line (from 1) on which the innermost part of `path` that the text has begins; None when it has none of it."""
    keys: list[str] = []
    for part in path:
        if not isinstance(part, str):
            break  # the items of an array are not looked for: their array is near enough
        keys.append(part)
    lines = list(io.StringIO(text, newline="\n"))
    while keys:
        line = _first_line(lines, keys)
        if line is not None:
            return line
        keys.pop()
    return None


def _first_line(lines: Sequence[str], keys: Sequence[str]) -> int | None:
    if not _holds(lines, len(lines), keys):
        return None
    # Holding the key is monotone over the beginnings that parse, so halving finds the first.
    without, within = 0, len(lines)
    while within - without > 1:
        middle = (without + within) // 2
        # Where one value spans many lines, the beginnings in its middle do not parse: look at those around it.
        for count in (*range(middle, without, -1), *range(middle + 1, within)):
            held = _holds(lines, count, keys)
            if held is not None:
                break
        else:
            break
        if held:
            within = count
        else:
            without = count
    return without + 1


def _holds(lines: Sequence[str], count: int, keys: Sequence[str]) -> bool | None:
    """Whether the first `count` lines hold the key; None when they do not parse on their own."""
    try:
        value: object = tomllib.loads("".join(lines[:count]))
    except tomllib.TOMLDecodeError:
        return None
    for key in keys:
        if not isinstance(value, dict) or key not in value:
            return False
        value = value[key]
    return True
