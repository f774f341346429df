"""A bound in words that a person can check: constants folded, like terms added, factors in order.

Counts and integer arithmetic are kept as sums of terms: {factors: coefficient}, where factors are texts and the empty
tuple is the constant. Text is capped, because a table of nodes can describe one that doubles with every row.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any, Final, TypeAlias

from loopwarden_engine.bound_form import OPERATIONS

_Terms: TypeAlias = dict[tuple[str, ...], int]

_IDENTIFIER: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z")
_MAX_TERMS: Final = 24
_MAX_WORDS_CHARS: Final = 400
_MAX_CONDITIONS: Final = 3
_MAX_BITS: Final = 8_192
_MAX_WORK_CHARS: Final = 200_000
"""Of the texts that are put together on the way. What a script says takes a few thousand; a worker may say anything."""
_LEFT_OUT: Final = "…"


def bound_words(nodes: Sequence[Sequence[Any]]) -> str:
    """The text of the last of the (checked) nodes, and under which condition it is right.

    Numbers are read with their signs; a term that is added and comes out negative counts as 0.
    """
    terms: list[_Terms] = []
    sizes: list[int] = []
    work = 0
    for operation, *operands in nodes:
        places = [each for want, each in zip(_wanted(operation), operands, strict=False) if want in "cv"]
        work += sum(sizes[place] for place in places)
        if work > _MAX_WORK_CHARS:
            return _LEFT_OUT
        result = _node(operation, operands, terms)
        if len(result) > _MAX_TERMS or any(number.bit_length() > _MAX_BITS for number in result.values()):
            result = {(_LEFT_OUT,): 1}
        terms.append(result)
        sizes.append(sum(1 + len(factor) for factors in result for factor in ("", *factors)))
    return _words(terms[-1]) + _conditions(nodes, terms)


def _conditions(nodes: Sequence[Sequence[Any]], terms: Sequence[_Terms]) -> str:
    """What the words rest on: which arguments must not turn the end of a part of a list into another kind of end."""
    ends = ((operation, terms[operands[-1]]) for operation, *operands in nodes if operation in ("cut", "first", "rest"))
    conditions = (_condition(operation, end) for operation, end in ends if not set(end) <= {()})
    found = list(dict.fromkeys(condition for condition in conditions if condition is not None))
    if len(found) > _MAX_CONDITIONS:
        found[_MAX_CONDITIONS:] = [_LEFT_OUT]
    return f", where {' and '.join(found)}" if found else ""


def _condition(operation: str, end: _Terms) -> str | None:
    """When the words of `_first`, `_rest` and a cut would say too little. `x[:-k]` and `x[k:]` never do."""
    if operation == "rest":  # `x[-0:]` is all of x
        return f"{_words(_scaled(end, -1))} > 0" if _is_from_behind(end) else None
    return None if operation == "first" and _is_from_behind(end) else f"{_words(end)} >= 0"


def _wanted(operation: str) -> Iterable[str]:
    _, wanted = OPERATIONS[operation]
    return repeat(wanted[0]) if wanted.endswith("+") else wanted


def _node(operation: str, operands: list[Any], terms: list[_Terms]) -> _Terms:  # noqa: PLR0911 -- one for each kind
    if operation in ("count", "integer"):
        return _constant(int(operands[0]))
    if operation == "literal":
        value = operands[0]
        return _constant(value) if type(value) is int else {(_shown(value),): 1}
    if operation == "args":
        return {("args",): 1}
    if operation == "item":
        return {(_clipped(_subject(terms[operands[0]]) + _key(operands[1])),): 1}
    if operation == "get":
        subject, default = _subject(terms[operands[0]]), _words(terms[operands[2]])
        default = "" if default == "None" else f", {default}"
        return {(_clipped(f"{subject}.get({_shown(operands[1])}{default})"),): 1}
    given = [terms[place] for place in operands]
    if operation in _ARITHMETIC:
        return _ARITHMETIC[operation](given)
    return {(_clipped(_ATOMS[operation]([_words(each) for each in given])),): 1}


# ---- arithmetic


def _constant(number: int) -> _Terms:
    return {(): number} if number else {}


def _sum(given: list[_Terms]) -> _Terms:
    total: _Terms = {}
    for each in given:
        for factors, number in each.items():
            total[factors] = total.get(factors, 0) + number
    return {factors: number for factors, number in total.items() if number}


def _scaled(terms: _Terms, number: int) -> _Terms:
    return {factors: number * coefficient for factors, coefficient in terms.items()}


def _product(given: list[_Terms]) -> _Terms:
    if sum(not set(each) <= {()} for each in given) > _MAX_TERMS:
        return {(_LEFT_OUT,): 1}
    total: _Terms = {(): 1}
    for each in sorted(given, key=len):
        if len(total) * len(each) > _MAX_TERMS:
            total, each = {(f"({_words(total)})",): 1}, {(f"({_words(each)})",): 1}  # noqa: PLW2901 -- as one factor
        product: _Terms = {}
        for left, number in total.items():
            for right, coefficient in each.items():
                factors = tuple(sorted((*left, *right)))
                if len(factors) > _MAX_TERMS or number.bit_length() > _MAX_BITS:
                    return {(_LEFT_OUT,): 1}
                product[factors] = product.get(factors, 0) + number * coefficient
        total = product
    return total


def _range(given: list[_Terms]) -> _Terms:
    start, stop, step = given
    if set(step) != {()}:
        return {(_clipped(f"len(range({', '.join(map(_words, given))}))"),): 1}
    by = step[()]
    span = _sum([stop, _scaled(start, -1)] if by > 0 else [start, _scaled(stop, -1)])
    by = abs(by)
    if set(span) <= {()}:
        return _constant(max(0, -(-span.get((), 0) // by)))
    if by > 1:
        return {(f"ceil({_in_brackets(span)} / {by})",): 1}
    if any(number < 0 for number in span.values()):
        return _some(span)
    return span


def _extreme(name: str, choose: Callable[[Any], int], *, drops_zero: bool) -> Callable[[list[_Terms]], _Terms]:
    def of(given: list[_Terms]) -> _Terms:
        distinct = list({frozenset(each.items()): each for each in given}.values())
        constants = [each.get((), 0) for each in distinct if set(each) <= {()}]
        others = [each for each in distinct if not set(each) <= {()}]
        if constants:
            constant = choose(constants)
            if not others or (not drops_zero and name == "min" and constant == 0):
                return _constant(constant)
            if constant or not drops_zero:
                others.append(_constant(constant))
        if len(others) == 1:
            return others[0]
        return {(_clipped(f"{name}({', '.join(map(_words, others))})"),): 1}

    return of


def _quotient(sign: str) -> Callable[[list[_Terms]], _Terms]:
    def of(given: list[_Terms]) -> _Terms:
        return {(_clipped(f"({_in_brackets(given[0])} {sign} {_in_brackets(given[1])})"),): 1}

    return of


def _value_extreme(name: str) -> Callable[[list[_Terms]], _Terms]:
    def of(given: list[_Terms]) -> _Terms:
        return {(_clipped(f"{name}({', '.join(map(_words, given))})"),): 1}

    return of


def _first(given: list[_Terms]) -> _Terms:
    """The length of `x[:end]`."""
    count, end = given
    return _some(_sum(given)) if _is_from_behind(end) else _smaller(count, end)


def _rest(given: list[_Terms]) -> _Terms:
    """The length of `x[begin:]`."""
    count, begin = given
    taken = _scaled(begin, -1)
    return _smaller(count, taken) if _is_from_behind(begin) else _some(_sum([count, taken]))


def _is_from_behind(place: _Terms) -> bool:
    return _words(place).startswith("-")


def _some(terms: _Terms) -> _Terms:
    return {(_clipped(f"max(0, {_words(terms)})"),): 1}


def _smaller(count: _Terms, other: _Terms) -> _Terms:
    return {(_clipped(f"min({_words(count)}, {_words(other)})"),): 1}


_ARITHMETIC: Final[Mapping[str, Callable[[list[_Terms]], _Terms]]] = {
    "cut": lambda given: given[0],
    "sum": _sum,
    "product": _product,
    "max": _extreme("max", max, drops_zero=True),
    "min": _extreme("min", min, drops_zero=False),
    "range": _range,
    "first": _first,
    "rest": _rest,
    "add": _sum,
    "subtract": lambda given: _sum([given[0], _scaled(given[1], -1)]),
    "multiply": _product,
    "negate": lambda given: _scaled(given[0], -1),
    "divide": _quotient("//"),
    "modulo": _quotient("%"),
    "smallest": _value_extreme("min"),
    "largest": _value_extreme("max"),
}


# ---- everything else is one text


def _parts(words: list[str]) -> str:
    return f"ceil({words[0]} / {words[1]})" if " " not in words[0] else f"ceil(({words[0]}) / {words[1]})"


_ATOMS: Final[Mapping[str, Callable[[list[str]], str]]] = {
    "items": lambda words: f"len({words[0]})",
    "length": lambda words: f"len({words[0]})",
    "int": lambda words: f"int({words[0]})",
    "or": lambda words: f"({' or '.join(words)})",
    "parts": _parts,
}


def _subject(terms: _Terms) -> str:
    words = _words(terms)
    return words if set(terms) == {(words,)} else f"({words})"


def _key(key: str | int) -> str:
    if isinstance(key, str) and _IDENTIFIER.match(key):
        return f".{key}"
    return f"[{_shown(key)}]"


def _shown(value: object) -> str:
    if value is None or isinstance(value, bool):
        return str(value)
    return json.dumps(value)


def _in_brackets(terms: _Terms) -> str:
    words = _words(terms)
    return words if len(terms) <= 1 and not words.startswith("-") else f"({words})"


def _clipped(text: str) -> str:
    return text if len(text) <= _MAX_WORDS_CHARS else text[: _MAX_WORDS_CHARS - 1] + _LEFT_OUT


def _words(terms: _Terms) -> str:
    text = ""
    # The constant stands last.
    for factors, number in sorted(terms.items(), key=lambda term: not term[0]):
        size = abs(number)
        shown = str(size) if size < 10**30 else f"about 10**{math.floor((size.bit_length() - 1) * math.log10(2))}"
        product = " * ".join(([shown] if size != 1 or not factors else []) + list(factors))
        if text:
            text += (" - " if number < 0 else " + ") + product
        else:
            text = ("-" if number < 0 else "") + product
    return _clipped(text) or "0"
