"""Building the table of nodes that a bound is (see `bound_form`), and what stands where there is none."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NewType, TypeAlias

from loopwarden_engine.bound_form import (
    MAX_DIGITS,
    MAX_NODES,
    MAX_OPERANDS,
    MAX_REASON_CHARS,
    MAX_REASONS,
    MAX_TEXT_CHARS,
    OPERATIONS,
)
from loopwarden_engine.plain import MAX_SAFE_INTEGER, JsonValue

Node = NewType("Node", int)
"""A row of the table."""

_MAX_BITS: Final = int(MAX_DIGITS * math.log2(10)) - 8


@dataclass(frozen=True, slots=True)
class Unknown:
    """No bound. `reasons`: what makes it so, as lines and sentences, the first first."""

    reasons: tuple[tuple[int, str], ...]

    def joined(self, other: "Unknown") -> "Unknown":
        """The reasons of both."""
        merged = dict.fromkeys((*self.reasons, *other.reasons))
        return Unknown(tuple(merged)[:MAX_REASONS])


Count: TypeAlias = Node | Unknown


def unknown(line: int, message: str) -> Unknown:
    """No bound, because of this line."""
    return Unknown(((line, message[:MAX_REASON_CHARS]),))


class Formula:
    """A table that grows. Equal rows are one row."""

    def __init__(self) -> None:
        self._rows: list[tuple[JsonValue, ...]] = []
        self._places: dict[tuple[object, ...], Node] = {}
        self.zero = self.count(0)
        self.one = self.count(1)

    def row(self, operation: str, *operands: JsonValue) -> Node:
        """The row of an operation. Operands are those that `bound_form.OPERATIONS` names."""
        key = (operation, *((type(operand), operand) for operand in operands))
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = Node(len(self._rows))
            self._rows.append((operation, *operands))
        return place

    def operation(self, node: Node) -> str:
        """The operation of a row."""
        return str(self._rows[node][0])

    def operands(self, node: Node) -> tuple[JsonValue, ...]:
        """The operands of a row."""
        return self._rows[node][1:]

    # ---- counts

    def count(self, number: int) -> Node:
        """A natural number."""
        return self.row("count", number if number <= MAX_SAFE_INTEGER else str(number))

    def constant(self, node: Node) -> int | None:
        """The number of a constant count."""
        operation, *operands = self._rows[node]
        return int(operands[0]) if operation == "count" else None  # type: ignore[arg-type]

    def _bounded(self, number: int) -> Count:
        if number.bit_length() > _MAX_BITS:
            return unknown(1, "the number of agents has too many digits")
        return self.count(number)

    def sum(self, parts: Iterable[Count]) -> Count:
        """All of them together."""
        known: list[Node] = []
        constant = 0
        missing: Unknown | None = None
        for part in parts:
            if isinstance(part, Unknown):
                missing = part if missing is None else missing.joined(part)
            elif (number := self.constant(part)) is not None:
                constant += number
            else:
                known.append(part)
        if missing is not None:
            return missing
        total = self._bounded(constant)
        if not known or isinstance(total, Unknown):
            return total
        if constant:
            known.append(total)
        return known[0] if len(known) == 1 else self.row("sum", *known)

    def product(self, parts: Sequence[Count]) -> Count:
        """Each as often as the others say. Nothing times whatever is nothing."""
        if self.zero in parts:
            return self.zero
        known: list[Node] = []
        constant = 1
        missing: Unknown | None = None
        for part in parts:
            if isinstance(part, Unknown):
                missing = part if missing is None else missing.joined(part)
            elif (number := self.constant(part)) is not None:
                constant *= number
            else:
                known.append(part)
        if missing is not None:
            return missing
        total = self._bounded(constant)
        if not known or isinstance(total, Unknown):
            return total
        if constant != 1:
            known.append(total)
        return known[0] if len(known) == 1 else self.row("product", *known)

    def max(self, parts: Iterable[Count]) -> Count:
        """The largest: one of them happens, nobody knows which."""
        known: list[Node] = []
        constant = 0
        missing: Unknown | None = None
        for part in parts:
            if isinstance(part, Unknown):
                missing = part if missing is None else missing.joined(part)
            elif (number := self.constant(part)) is not None:
                constant = max(constant, number)
            elif part not in known:
                known.append(part)
        if missing is not None:
            return missing
        total = self.count(constant)
        if not known:
            return total
        if constant:
            known.append(total)
        return known[0] if len(known) == 1 else self.row("max", *known)

    def min(self, parts: Iterable[Count]) -> Count:
        """The smallest that is known; unknown when none is."""
        parts = list(parts)
        known = list(dict.fromkeys(part for part in parts if not isinstance(part, Unknown)))
        if not known:
            return parts[0]
        numbers = [self.constant(part) for part in known]
        if all(number is not None for number in numbers):
            return self.count(min(number for number in numbers if number is not None))
        return known[0] if len(known) == 1 else self.row("min", *known)

    def items(self, value: Node) -> Node:
        """How often a loop over a value goes round."""
        operation, *operands = self._rows[value]
        if operation == "literal":
            text = operands[0]
            return self.count(len(text)) if isinstance(text, str) else self.zero
        return self.row("items", value)

    def range(self, start: Node, stop: Node, step: Node) -> Node:
        """The length of a range."""
        numbers = [self.number(value) for value in (start, stop, step)]
        for value, number in zip((start, stop, step), numbers, strict=True):
            if number is None and self.operation(value) == "literal":
                return self.zero  # not even a number: range() raises
        first, last, by = numbers
        if first is not None and last is not None and by is not None:
            span = 0 if by == 0 else (last - first if by > 0 else first - last)
            return self.count(max(0, -(-span // abs(by)))) if by else self.zero
        return self.row("range", start, stop, step)

    def parts(self, count: Node, size: Node) -> Node:
        """Into how many parts of this size so many items can be cut."""
        known, by = self.constant(count), self.number(size)
        if by == 1:
            return count
        if known is not None and by is not None:
            return self.count(-(-known // by)) if by > 0 else self.zero
        return self.row("parts", count, size)

    # ---- values

    def literal(self, value: JsonValue) -> Node | None:
        """A constant; None for one that is too long to be sent."""
        if isinstance(value, str) and (
            len(value) > MAX_TEXT_CHARS or any("\ud800" <= char <= "\udfff" for char in value)
        ):
            return None
        if type(value) is int and not -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER:
            return self.row("integer", str(value)) if value.bit_length() <= _MAX_BITS else None
        return self.row("literal", value)

    def number(self, node: Node) -> int | None:
        """The number of a constant value, a truth value included."""
        operation, *operands = self._rows[node]
        if operation == "integer":
            return int(operands[0])  # type: ignore[arg-type]
        if operation == "literal" and isinstance(operands[0], int):
            return int(operands[0])
        return None

    def arithmetic(self, operation: str, left: Node, right: Node) -> Node | None:
        """`add`, `subtract`, `multiply`, `divide` or `modulo`; None for a result that is too long to be sent."""
        first, second = self.number(left), self.number(right)
        if first is None or second is None or (operation in ("divide", "modulo") and second == 0):
            return self.row(operation, left, right)
        if operation == "add":
            return self.literal(first + second)
        if operation == "subtract":
            return self.literal(first - second)
        if operation == "multiply":
            return self.literal(first * second)
        return self.literal(first // second if operation == "divide" else first % second)

    # ---- for the wire

    def table(self, last: Node) -> list[JsonValue] | None:
        """The rows that `last` is made of, renumbered; None when they are too many."""
        needed: set[int] = set()
        pending: list[int] = [last]
        while pending:
            place = pending.pop()
            if place not in needed:
                needed.add(place)
                pending.extend(self._below(place))
        if len(needed) > MAX_NODES or sum(len(self._rows[place]) - 1 for place in needed) > MAX_OPERANDS:
            return None
        order = {place: index for index, place in enumerate(sorted(needed))}
        return [self._sent(place, order) for place in sorted(needed)]

    def _below(self, place: int) -> list[int]:
        operation, *operands = self._rows[place]
        return [operand for want, operand in zip(_wanted(str(operation), operands), operands, strict=True)
                if want in "cv" and isinstance(operand, int)]  # fmt: skip

    def _sent(self, place: int, order: dict[int, int]) -> JsonValue:
        operation, *operands = self._rows[place]
        wanted = _wanted(str(operation), operands)
        return [operation, *(order[operand] if want in "cv" else operand  # type: ignore[index]
                             for want, operand in zip(wanted, operands, strict=True))]  # fmt: skip


def _wanted(operation: str, operands: Sequence[JsonValue]) -> str:
    wanted = OPERATIONS[operation][1]
    return wanted[0] * len(operands) if wanted.endswith("+") else wanted
