"""Schemas of structured values, enforced by the host whatever a provider claims.

`compile_schema` refuses what cannot be enforced in bounded time (`UnsupportedSchema`); `CompiledSchema.validate` says
in one sentence what is wrong with a value.
"""

from collections import OrderedDict
from typing import Final, Never

import jsonschema_rs
from jsonschema_rs import Draft202012Validator, RegexOptions

from loopwarden.schema_cost import (
    MAX_PATTERN_STEPS,
    MAX_STEPS,
    SchemaCost,
    UnsupportedSchema,
    measure_schema,
    measure_value,
    pattern_work,
)
from loopwarden.schema_dialect import KEEP_EXACT, KEEP_INTEGER, KEEP_PATTERN, KEEP_UNIQUE, Dialect
from loopwarden_engine.plain import JsonObject, JsonValue, PlainDataError, canonical_bytes, copy_object

__all__ = ["CompiledSchema", "UnsupportedSchema", "compile_plain", "compile_schema"]

MAX_MESSAGE_CHARS: Final = 300
_MAX_CACHED_NODES: Final = 10_000
"""Subschemas of all cached schemas together: each takes up to 3 KiB once it is compiled."""
_NODES_PER_SCHEMA: Final = 20
_KEY_BYTES_PER_NODE: Final = 3000
_MANY_STEPS: Final = MAX_STEPS // 12
_MUCH_PATTERN_WORK: Final = 1000
_WORK_PER_NODE: Final = 10_000
"""Of a pattern. One of 128,000 takes 40 KiB once it is compiled."""


class CompiledSchema:
    """A schema that can be enforced. Made by `compile_schema`."""

    def __init__(self, schema: JsonObject) -> None:
        dialect = Dialect(schema)
        translated = dialect.translate()
        self.weight: Final = _NODES_PER_SCHEMA + dialect.nodes + dialect.pattern_work // _WORK_PER_NODE
        """What it takes in memory, in subschemas."""
        self._cost: SchemaCost = measure_schema(schema)
        self._pattern_work = dialect.pattern_work
        self._meter = _Meter()
        try:
            self._validator = Draft202012Validator(
                translated,
                pattern_options=RegexOptions(),
                retriever=_refuse_retrieval,
                keywords=_own_checks(self._meter),
            )
        except (ValueError, jsonschema_rs.ReferencingError) as error:
            raise UnsupportedSchema("schema", f"the schema is not valid: {_cut(str(error).splitlines()[0])}") from None

    def takes_long(self, parts: int) -> bool:
        """Whether checking a value of so many parts, and texts of a few KiB, may take milliseconds."""
        return self._cost.steps(parts) > _MANY_STEPS or self._pattern_work > _MUCH_PATTERN_WORK

    def validate(self, value: JsonValue) -> str | None:
        """Return None when plain data `value` satisfies the schema, else one sentence that names the place."""
        size = measure_value(value)
        if self._cost.steps(size.parts) > MAX_STEPS:
            return f"the value is too large to be checked against its schema: it has {size.parts} parts"
        self._meter.reset()
        valid = self._validator.is_valid(value)
        if self._meter.exhausted:
            return "the value is too large to be checked against the patterns of its schema"
        if valid:
            return None
        if self._meter.left < MAX_PATTERN_STEPS // 2 or not self._cost.is_explained(size):
            return "the value does not satisfy the schema; it is too large to say where"
        self._meter.reset()
        try:
            self._validator.validate(value)
        except jsonschema_rs.ValidationError as error:
            return f"{_place(error.instance_path)}: {_cut(error.message)}"
        return "the value does not satisfy the schema"


def compile_schema(schema: object) -> CompiledSchema:
    """Check and compile a schema. Raises `UnsupportedSchema`, which names the place and the keyword."""
    if not isinstance(schema, dict):
        raise _no_object(schema)
    try:
        plain = copy_object(schema, "schema")
    except PlainDataError as error:
        raise UnsupportedSchema(error.path, error.reason) from None
    return _cache.get(plain)


def compile_plain(schema: JsonValue) -> CompiledSchema:
    """As `compile_schema`, for what is known to be plain data: it is not copied, which takes long when it is large."""
    if not isinstance(schema, dict):
        raise _no_object(schema)
    return _cache.get(schema)


def _no_object(schema: object) -> UnsupportedSchema:
    return UnsupportedSchema("schema", f"a schema must be a JSON object, not {type(schema).__name__}")


class _Cache:
    """The schemas that were used last, as many as may be kept in memory."""

    def __init__(self) -> None:
        self._schemas: OrderedDict[bytes, CompiledSchema] = OrderedDict()
        self._weight = 0

    def get(self, schema: JsonObject) -> CompiledSchema:
        key = canonical_bytes(schema)
        found = self._schemas.get(key)
        if found is not None:
            self._schemas.move_to_end(key)
            return found
        compiled = self._schemas[key] = CompiledSchema(schema)
        self._weight += compiled.weight + len(key) // _KEY_BYTES_PER_NODE
        while self._weight > _MAX_CACHED_NODES:
            key, oldest = self._schemas.popitem(last=False)
            self._weight -= oldest.weight + len(key) // _KEY_BYTES_PER_NODE
        return compiled


_cache = _Cache()


class _Meter:
    """Counts what the patterns of a schema do to one value."""

    __slots__ = ("exhausted", "left")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.left = MAX_PATTERN_STEPS
        self.exhausted = False

    def take(self, steps: int) -> bool:
        self.left -= steps
        if self.left < 0:
            self.exhausted = True
        return not self.exhausted


class _IntegerCheck:
    """1.0 is no integer."""

    def __init__(self, _: object, __: object, ___: object) -> None:
        pass

    def validate(self, instance: object) -> None:
        if type(instance) is not int:
            raise ValueError(f"{instance!r} is not an integer")


class _ExactCheck:
    """1 is not 1.0, and 0.0 is not -0.0: numbers are compared by their canonical bytes."""

    def __init__(self, _: object, expected: object, __: object) -> None:
        assert isinstance(expected, list)
        self._expected = frozenset(map(str, expected))
        self._shown = " or ".join(map(str, expected))

    def validate(self, instance: object) -> None:
        if canonical_bytes(instance).decode() not in self._expected:
            raise ValueError(f"{instance!r} is not {self._shown}")


class _UniqueCheck:
    """No two items have the same canonical bytes."""

    def __init__(self, _: object, __: object, ___: object) -> None:
        pass

    def validate(self, instance: object) -> None:
        assert isinstance(instance, list)
        seen: dict[str | bytes, int] = {}
        for index, item in enumerate(instance):
            # Text stays text, so that it cannot equal the canonical bytes of anything else.
            key = item if isinstance(item, str) else _canonical_key(item)
            first = seen.setdefault(key, index)
            if first != index:
                raise ValueError(f"items {first} and {index} are the same")


def _canonical_key(item: object) -> bytes:
    """As `canonical_bytes`, without its cost for scalars. `repr` writes a finite number as JSON does."""
    return canonical_bytes(item) if isinstance(item, dict | list) else repr(item).encode()


def _own_checks(meter: _Meter) -> dict[str, type]:
    class PatternCheck:
        """A text matches a pattern, as far as the meter allows."""

        def __init__(self, _: object, pattern: object, __: object) -> None:
            self._pattern = str(pattern)
            self._work = pattern_work(self._pattern) or MAX_PATTERN_STEPS
            self._validator = Draft202012Validator({"pattern": self._pattern}, pattern_options=RegexOptions())

        def validate(self, instance: object) -> None:
            if not meter.take(self._work * (len(instance) + 64)):  # type: ignore[arg-type]
                raise ValueError("too much work")
            if not self._validator.is_valid(instance):
                raise ValueError(f"the text does not match the pattern {self._pattern!r}")

    return {KEEP_INTEGER: _IntegerCheck, KEEP_EXACT: _ExactCheck, KEEP_UNIQUE: _UniqueCheck, KEEP_PATTERN: PatternCheck}


def _refuse_retrieval(uri: str, /) -> Never:
    raise ValueError(f"references are not retrieved: {uri}")


def _place(path: list[str | int]) -> str:
    place = "value"
    for part in path:
        place += f"[{part}]" if isinstance(part, int) else f".{part}" if part.isidentifier() else f"[{part!r}]"
    return place if len(place) <= MAX_MESSAGE_CHARS else place[: MAX_MESSAGE_CHARS - 1] + "…"


def _cut(text: str) -> str:
    return text if len(text) <= MAX_MESSAGE_CHARS else text[: MAX_MESSAGE_CHARS - 1] + "…"
