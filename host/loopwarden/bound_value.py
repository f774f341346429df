"""The number that a bound is with given args. One pass over the nodes; every node is computed once."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from loopwarden_engine.plain import JsonObject

_MAX_BITS: Final = 8_192
"""Of one number. A table of a few hundred rows could describe one that fills the memory."""
_MAX_INTEGER_TEXT: Final = 40


class _Raises:
    """Stands for a value that cannot be computed because the script raises there."""


class _Doubt:
    """Stands for a value, or a count, of which nothing is said."""


_RAISES: Final = _Raises()
_DOUBT: Final = _Doubt()


def evaluated(nodes: Sequence[Sequence[Any]], args: JsonObject) -> int | None:
    """What the last of the (checked) nodes counts with `args`; None when that cannot be said."""
    results: list[Any] = []
    for operation, *operands in nodes:
        result = _node(operation, operands, results, args)
        if isinstance(result, int) and result.bit_length() > _MAX_BITS:
            result = _DOUBT
        results.append(result)
    return None if results[-1] is _DOUBT else results[-1]


def _node(operation: str, operands: list[Any], results: list[Any], args: JsonObject) -> Any:  # noqa: PLR0911 -- one a kind
    if operation == "args":
        return args
    if operation == "literal":
        return operands[0]
    if operation in ("count", "integer"):
        return int(operands[0])
    if operation == "item":
        return _item(results[operands[0]], operands[1])
    if operation == "get":
        return _get(results[operands[0]], operands[1], results[operands[2]])
    given = [results[place] for place in operands]
    if operation in _COUNTS:
        return _COUNTS[operation](given)
    if operation == "or":
        return _first_true(given)
    for value in given:  # in the order in which the script computes them
        if value is _RAISES or value is _DOUBT:
            return value
    return _VALUES[operation](*given)


# ---- counts: an int or _DOUBT


def _has_doubt(given: list[Any]) -> bool:
    return any(each is _DOUBT for each in given)


def _sum(counts: list[Any]) -> Any:
    return _DOUBT if _has_doubt(counts) else sum(counts)


def _product(counts: list[Any]) -> Any:
    if 0 in counts:
        return 0
    if _has_doubt(counts) or sum(count.bit_length() for count in counts) > _MAX_BITS:
        return _DOUBT
    return math.prod(counts)


def _max(counts: list[Any]) -> Any:
    return _DOUBT if _has_doubt(counts) else max(counts)


def _min(counts: list[Any]) -> Any:
    known = [count for count in counts if count is not _DOUBT]
    return min(known) if known else _DOUBT


def _items(given: list[Any]) -> Any:
    (value,) = given
    if value is _DOUBT:
        return _DOUBT
    return len(value) if isinstance(value, list | tuple | dict | str) else 0


def _range(given: list[Any]) -> Any:
    if _has_doubt(given):
        return _DOUBT
    if not all(isinstance(value, int) for value in given) or given[2] == 0:
        return 0  # range() raises
    start, stop, step = given
    # len() of a range cannot say what does not fit into a word.
    span = stop - start if step > 0 else start - stop
    return max(0, -(-span // abs(step)))


def _first(given: list[Any]) -> Any:
    count, end = given
    if count is _DOUBT or end is _DOUBT:
        return count
    if end is None:
        return count
    if not isinstance(end, int):
        return 0
    return min(count, end) if end >= 0 else max(0, count + end)


def _rest(given: list[Any]) -> Any:
    count, begin = given
    if count is _DOUBT or begin is _DOUBT:
        return count
    if begin is None:
        return count
    if not isinstance(begin, int):
        return 0
    return max(0, count - begin) if begin >= 0 else min(count, -begin)


def _parts(given: list[Any]) -> Any:
    count, size = given
    if count is _DOUBT or size is _DOUBT:
        return count
    return -(-count // size) if isinstance(size, int) and size > 0 else 0


def _cut(given: list[Any]) -> Any:
    (end,) = given
    if end is _DOUBT or end is None or (isinstance(end, int) and end < 0):
        return _DOUBT
    return int(end) if isinstance(end, int) else 0


_COUNTS: Final[Mapping[str, Callable[[list[Any]], Any]]] = {
    "sum": _sum,
    "product": _product,
    "max": _max,
    "min": _min,
    "items": _items,
    "range": _range,
    "first": _first,
    "rest": _rest,
    "parts": _parts,
    "cut": _cut,
}

# ---- values: what the script's expression gives, or _RAISES, or _DOUBT


def _item(value: Any, key: str | int) -> Any:
    if value is _RAISES or value is _DOUBT:
        return value
    try:
        return value[key]
    except (KeyError, IndexError, TypeError):
        return _RAISES


def _get(value: Any, key: str, default: Any) -> Any:
    if value is _RAISES or value is _DOUBT:
        return value
    if default is _RAISES or default is _DOUBT:
        return default
    return value.get(key, default) if isinstance(value, dict) else _RAISES


def _first_true(given: list[Any]) -> Any:
    for value in given:
        if value is _RAISES or value is _DOUBT or value:
            return value
    return given[-1]


def _length(value: Any) -> Any:
    return len(value) if isinstance(value, list | tuple | dict | str) else _RAISES


def _int(value: Any) -> Any:
    if isinstance(value, str):
        if len(value) > _MAX_INTEGER_TEXT:
            return _DOUBT
        try:
            return int(value)
        except ValueError:
            return _RAISES
    if isinstance(value, float) and not math.isfinite(value):
        return _RAISES
    return int(value) if isinstance(value, int | float) else _RAISES


def _negate(value: Any) -> Any:
    return -value if isinstance(value, int | float) else _RAISES


def _arithmetic(compute: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def of(left: Any, right: Any) -> Any:
        # Of floats nothing is said: range() takes none. Texts and lists can be added and multiplied too.
        if not (isinstance(left, int) and isinstance(right, int)):
            return _DOUBT
        if left.bit_length() + right.bit_length() > _MAX_BITS:
            return _DOUBT
        try:
            return compute(left, right)
        except ZeroDivisionError:
            return _RAISES

    return of


def _least_or_greatest(choose: Callable[[list[Any]], Any]) -> Callable[..., Any]:
    def of(*values: Any) -> Any:
        return choose(list(values)) if all(isinstance(value, int) for value in values) else _DOUBT

    return of


_VALUES: Final[Mapping[str, Callable[..., Any]]] = {
    "length": _length,
    "int": _int,
    "negate": _negate,
    "add": _arithmetic(lambda left, right: left + right),
    "subtract": _arithmetic(lambda left, right: left - right),
    "multiply": _arithmetic(lambda left, right: left * right),
    "divide": _arithmetic(lambda left, right: left // right),
    "modulo": _arithmetic(lambda left, right: left % right),
    "smallest": _least_or_greatest(min),
    "largest": _least_or_greatest(max),
}
