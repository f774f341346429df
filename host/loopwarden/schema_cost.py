"""What enforcing a schema may cost, bounded before it is paid: no schema and no value may hold up the host.

A schema is measured as if all references were written out. `width` is how much is asked of one part of a value at
most: all subschemas that apply to it at once, heavier ones counted more than once. A value with n parts then costs at
most n * width steps, and a step takes at most 25 nanoseconds (measured with jsonschema-rs 0.61). Both are done on the
event loop, since the validator keeps the interpreter to itself while it works: so neither a schema nor a value may take
more than some 25 milliseconds.
References are followed for that, so recursion is refused: a recursive schema with two branches takes time exponential
in the depth of the value.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from jsonschema_rs import Draft202012Validator, RegexOptions, ValidationError

from loopwarden_engine.plain import JsonObject, JsonValue

MAX_EXPANDED: Final = 5000
"""Subschemas when all references are written out."""
MAX_EXPANDED_DEPTH: Final = 200
"""The validator descends on the stack of the host."""
MAX_VISITS: Final = 12_000
"""Looks that measuring one schema may take, at 1.3 microseconds each."""
MAX_STEPS: Final = 1_200_000
"""Steps that checking one value may take: 30 milliseconds at worst."""
MAX_PATTERN_CHARS: Final = 1000
MAX_PATTERN_STEPS: Final = 110_000_000
"""Work of patterns on one value, in characters times size of the pattern: at most 0.3 nanoseconds each."""

MAX_EXPLAINED_STEPS: Final = MAX_STEPS // 2
MAX_EXPLAINED_BRANCHES: Final = 2000
"""Failures that the validator may have to list to say what is wrong: it makes an object of each, in 10 µs."""
MAX_EXPLAINED_CHARS: Final = 4_000_000
"""The validator repeats the value for each branch that failed; beyond this, only the fact is reported."""

MAX_PATH_CHARS: Final = 200

_PATTERN_SIZES: Final = (250, 500, 1000, 2000, 4000, 8000, 16_000, 32_000, 64_000, 128_000)
_BELOW: Final = frozenset({"additionalProperties", "items", "properties"})
"""Keywords whose schemas apply to the parts of a part."""
_INTEGER_WEIGHT: Final = 20
_CALLBACK_WEIGHT: Final = 45
_UNIQUE_WEIGHT: Final = 60
_OPTION_WEIGHT: Final = 3
_CHARS_PER_PART: Final = 256


class UnsupportedSchema(ValueError):
    """A schema cannot be enforced. `path` is the place, `reason` names the keyword and says what is possible."""

    def __init__(self, path: str, reason: str) -> None:
        if len(path) > MAX_PATH_CHARS:
            path = path[: MAX_PATH_CHARS - 1] + "…"
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaCost:
    """The cost of a schema per part of a value."""

    width: int
    branches: int
    """What may fail for one part of a value at once; 0 in a schema without alternatives, where the first ends it."""
    unique: int
    """How often items must be unique, over the whole schema: each takes a look at every part below."""

    def steps(self, parts: int) -> int:
        """The most steps that checking a value with so many parts may take."""
        return parts * (self.width + _UNIQUE_WEIGHT * self.unique)

    def is_explained(self, size: "ValueSize") -> bool:
        """Say whether there is time to find out what is wrong with a value of this size."""
        return (
            self.steps(size.parts) <= MAX_EXPLAINED_STEPS
            and self.branches * size.parts <= MAX_EXPLAINED_BRANCHES
            and self.branches * size.chars <= MAX_EXPLAINED_CHARS
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueSize:
    """How large a value is. A long text counts as several parts."""

    parts: int
    chars: int


def measure_value(value: JsonValue) -> ValueSize:
    """Measure a value."""
    parts = chars = 0
    waiting: list[JsonValue] = [value]
    while waiting:
        item = waiting.pop()
        parts += 1
        chars += 4
        if isinstance(item, str):
            chars += len(item)
            parts += len(item) // _CHARS_PER_PART
        elif isinstance(item, list):
            waiting += item
        elif isinstance(item, dict):
            names = sum(map(len, item))
            chars += names
            parts += names // _CHARS_PER_PART
            waiting += item.values()
    return ValueSize(parts=parts, chars=chars)


@lru_cache(maxsize=512)
def pattern_work(pattern: str) -> int | None:
    """How much a pattern may take per character: the size of its program. None when it cannot be enforced.

    The engine matches in time linear in text times program, so the size bounds the time.
    """
    for size in _PATTERN_SIZES:
        try:
            Draft202012Validator({"pattern": pattern}, pattern_options=RegexOptions(size_limit=size))
        except ValidationError:
            continue
        return size
    return None


def measure_schema(schema: JsonObject) -> SchemaCost:
    """Measure a schema of the dialect. Raises `UnsupportedSchema` when it is recursive or too large written out."""
    definitions = schema.get("$defs", {})
    assert isinstance(definitions, dict)
    order = _definitions_in_order(definitions)
    sizes: dict[str, _Expanded] = {}
    for name in order:
        sizes[name] = _expanded(definitions[name], sizes, f"schema.$defs.{name}")
    whole = _expanded({key: value for key, value in schema.items() if key != "$defs"}, sizes, "schema")
    applying = _Width(definitions).of([schema])
    return SchemaCost(width=applying.width, branches=applying.branches, unique=whole.unique)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Expanded:
    count: int
    depth: int
    unique: int


def _expanded(schema: JsonValue, sizes: dict[str, _Expanded], path: str) -> _Expanded:
    count = 1
    depth = 0
    unique = 0
    parts = [_expanded(child, sizes, path) for child in _children(schema)]
    name = _referred(schema)
    if name is not None:
        parts.append(sizes[name])
    for part in parts:
        count += part.count
        depth = max(depth, part.depth)
        unique += part.unique
    if isinstance(schema, dict) and schema.get("uniqueItems") is True:
        unique += 1
    if count > MAX_EXPANDED or depth >= MAX_EXPANDED_DEPTH:
        raise UnsupportedSchema(
            path,
            f"the schema is too large with its references written out: at most {MAX_EXPANDED} parts, "
            f"nested at most {MAX_EXPANDED_DEPTH} deep",
        )
    return _Expanded(count=count, depth=depth + 1, unique=unique)


def _definitions_in_order(definitions: JsonObject) -> list[str]:
    """The names of the definitions, each after those that it refers to. Raises for a circle."""
    needs = {name: set(_references(definition)) for name, definition in definitions.items()}
    missing = {name: len(needed) for name, needed in needs.items()}
    needed_by: dict[str, list[str]] = {name: [] for name in definitions}
    for name, needed in needs.items():
        for other in needed:
            needed_by[other].append(name)
    order = [name for name, number in missing.items() if number == 0]
    for name in order:  # grows while it is read
        for other in needed_by[name]:
            missing[other] -= 1
            if missing[other] == 0:
                order.append(other)
    if len(order) < len(definitions):
        name = next(name for name, number in missing.items() if number)
        reason = f"{name!r} leads into a circle of references; recursive schemas are not supported"
        raise UnsupportedSchema("schema.$defs", reason)
    return order


def _references(schema: JsonValue) -> Iterator[str]:
    name = _referred(schema)
    if name is not None:
        yield name
    for child in _children(schema):
        yield from _references(child)


def _referred(schema: JsonValue) -> str | None:
    reference = schema.get("$ref") if isinstance(schema, dict) else None
    return reference.removeprefix("#/$defs/") if isinstance(reference, str) else None


def _children(schema: JsonValue) -> Iterator[JsonValue]:
    if not isinstance(schema, dict):
        return
    properties = schema.get("properties")
    if isinstance(properties, dict):
        yield from properties.values()
    for keyword in ("additionalProperties", "items"):
        if keyword in schema:
            yield schema[keyword]
    for keyword in ("oneOf", "anyOf", "allOf"):
        branches = schema.get(keyword)
        if isinstance(branches, list):
            yield from branches


@dataclass(frozen=True, slots=True, kw_only=True)
class _Applying:
    width: int
    branches: int


class _Width:
    """How much a schema asks of one part of a value at most."""

    def __init__(self, definitions: JsonObject) -> None:
        self._definitions = definitions
        self._visits = 0

    def of(self, schemas: list[JsonValue], *, is_alternative: bool = False) -> _Applying:
        applied = self._applied(schemas)
        width = sum(map(_weight, applied))
        options = sum(map(_options, applied))
        is_alternative = is_alternative or options > 0 or any("anyOf" in one or "oneOf" in one for one in applied)
        branches = len(applied) + options if is_alternative else 0
        for children in self._below([schema for schema in applied if not _BELOW.isdisjoint(schema)]):
            below = self.of(children, is_alternative=is_alternative)
            width = max(width, below.width)
            branches = max(branches, below.branches)
        return _Applying(width=width, branches=branches)

    def _applied(self, schemas: list[JsonValue]) -> list[JsonObject]:
        """All object schemas that a part which meets `schemas` is held against."""
        applied: list[JsonObject] = []
        waiting = list(schemas)
        while waiting:
            schema = waiting.pop()
            self._visits += 1
            if self._visits > MAX_VISITS:
                raise UnsupportedSchema("schema", "the schema is too large: too many parts apply at the same place")
            if not isinstance(schema, dict):
                continue
            applied.append(schema)
            for keyword in ("oneOf", "anyOf", "allOf"):
                branches = schema.get(keyword)
                if isinstance(branches, list):
                    waiting += branches
            name = _referred(schema)
            if name is not None:
                waiting.append(self._definitions[name])
        return applied

    def _below(self, applied: list[JsonObject]) -> Iterator[list[JsonValue]]:
        """The schemas that the parts of a part meet: the items, each named member, and any other member."""
        if items := [schema["items"] for schema in applied if "items" in schema]:
            yield items
        others = [(_properties(schema), schema.get("additionalProperties")) for schema in applied]
        rest = [other for _, other in others]
        if any(isinstance(other, dict) for other in rest):
            yield rest
        for name in {name for properties, _ in others for name in properties}:
            yield [properties.get(name, other) for properties, other in others]


def _properties(schema: JsonObject) -> JsonObject:
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}


def _options(schema: JsonObject) -> int:
    """Values that are listed one by one, as alternatives: those that may hold numbers further in."""
    options = schema.get("enum")
    listed = options if isinstance(options, list) else []
    return len(listed) if any(isinstance(option, list | dict) for option in listed) else 0


def _weight(schema: JsonObject) -> int:
    weight = 1 + len(schema) // 2
    kinds = schema.get("type")
    if kinds == "integer" or (isinstance(kinds, list) and "integer" in kinds):
        weight += _INTEGER_WEIGHT
    if "pattern" in schema:
        weight += _CALLBACK_WEIGHT
    options = schema.get("enum")
    listed = options if isinstance(options, list) else []
    if not all(isinstance(option, str) for option in listed):
        weight += _OPTION_WEIGHT * len(listed)
    if "const" in schema or listed:
        weight += _CALLBACK_WEIGHT * (not all(isinstance(option, str) for option in [schema.get("const", ""), *listed]))
    return weight
