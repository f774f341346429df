"""The dialect of JSON Schema that Loopwarden accepts, and its translation into what the validator enforces.

Whatever is accepted is enforced; everything else is refused with the place and the keyword (design section 5). The
translation exists because JSON Schema takes 1.0 for an integer and 1 for 1.0, and we do not: where that matters, a
check of our own is put beside the keyword. Patterns and unique items go through checks of our own too: the first
because their work is counted, the second because 1 and 1.0 are different items.
What a schema may cost is measured in `schema_cost`.
"""

import re
from collections.abc import Callable
from typing import Final, TypeAlias

from loopwarden.schema_cost import MAX_PATTERN_CHARS, UnsupportedSchema, measure_value, pattern_work
from loopwarden_engine.plain import JsonObject, JsonValue, canonical_bytes

Handler: TypeAlias = "Callable[[JsonObject, JsonValue, str, JsonObject], None]"
"""Gets the schema that holds the keyword, the keyword's value, the place, and the translation to add to."""

MAX_NODES: Final = 1000
"""Subschemas and values that one schema may be written with. A host translates and compiles so many in 20 ms."""
MAX_PATTERN_WORK: Final = 2_000_000
"""Sum over all patterns: what is compiled has to be kept in memory."""
_NODES_PER_PATTERN: Final = 20
"""So much longer does it take to compile a pattern, and to find out how large it is."""
MAX_SHOWN_CHARS: Final = 100

KEEP_EXACT: Final = "loopwarden-exact"
KEEP_INTEGER: Final = "loopwarden-integer"
KEEP_PATTERN: Final = "loopwarden-pattern"
KEEP_UNIQUE: Final = "loopwarden-unique"

TYPE_NAMES: Final = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
NOTES: Final = frozenset({"title", "description", "default", "examples"})
COUNTS: Final = frozenset({"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"})
BOUNDS: Final = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
SMALLEST_BRANCHES: Final = {"oneOf": 2, "anyOf": 1, "allOf": 1}
_REFERENCE: Final = re.compile(r"#/\$defs/([A-Za-z0-9_.-]+)\Z")


class Dialect:
    """One schema being checked and translated. Raises `UnsupportedSchema` at the first thing that is not supported."""

    def __init__(self, schema: JsonObject) -> None:
        self._schema = schema
        self.nodes = 0
        """How many parts were counted. A pattern counts as several."""
        self.pattern_work = 0
        self._keywords: dict[str, Handler] = {
            "type": self._type, "properties": self._properties, "required": self._required,
            "additionalProperties": self._for_all("additionalProperties"), "items": self._for_all("items"),
            "enum": self._enum, "const": self._const,
            "$ref": self._reference, "$defs": self._definitions, "pattern": self._pattern, "uniqueItems": self._unique,
            **{name: self._branches(name) for name in SMALLEST_BRANCHES},
            **{name: self._count(name) for name in COUNTS},
            **{name: self._bound(name) for name in BOUNDS},
        }  # fmt: skip

    def translate(self) -> JsonObject:
        """Return the schema for the validator."""
        if self._schema.get("type") != "object":
            raise UnsupportedSchema("schema", 'a schema must be rooted in an object: its root needs "type": "object"')
        translated = self._translate(self._schema, "schema")
        assert isinstance(translated, dict)
        return translated

    def _count_nodes(self, number: int, path: str) -> None:
        self.nodes += number
        if self.nodes > MAX_NODES:
            raise UnsupportedSchema(path, f"the schema is too large: it has more than {MAX_NODES} parts")

    def _translate(self, schema: JsonValue, path: str) -> JsonValue:
        self._count_nodes(1, path)
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise UnsupportedSchema(path, "a schema must be an object, or true or false inside another schema")
        translated: JsonObject = {}
        for keyword, value in schema.items():
            if keyword in NOTES:
                self._note(keyword, value, path)
                continue
            handle = self._keywords.get(keyword)
            if handle is None:
                supported = ", ".join(sorted({*self._keywords, *NOTES}))
                raise UnsupportedSchema(path, f"the keyword {keyword[:100]!r} is not supported; supported: {supported}")
            handle(schema, value, path, translated)
        return translated

    # ---- one method for each family of keywords

    def _note(self, keyword: str, value: JsonValue, path: str) -> None:
        if keyword in ("title", "description") and not isinstance(value, str):
            raise UnsupportedSchema(path, f"{keyword!r} must be a text")
        if keyword == "examples" and not isinstance(value, list):
            raise UnsupportedSchema(path, "'examples' must be a list")
        self._count_nodes(measure_value(value).parts - 1, path)

    def _type(self, _: JsonObject, value: JsonValue, path: str, translated: JsonObject) -> None:
        names = value if isinstance(value, list) else [value]
        if not names or any(not isinstance(name, str) or name not in TYPE_NAMES for name in names):
            known = ", ".join(sorted(TYPE_NAMES))
            raise UnsupportedSchema(path, f"'type' must be one of {known}, or a list of them, not {_shown(value)}")
        if len(set(map(str, names))) != len(names):
            raise UnsupportedSchema(path, "'type' lists a name twice")
        translated["type"] = value
        if "integer" in names and "number" not in names:
            _require(translated, {"if": {"type": "number"}, "then": {KEEP_INTEGER: True}})

    def _properties(self, _: JsonObject, value: JsonValue, path: str, translated: JsonObject) -> None:
        if not isinstance(value, dict):
            raise UnsupportedSchema(path, "'properties' must be an object of schemas")
        translated["properties"] = {
            name: self._translate(schema, f"{path}.properties{_key(name)}") for name, schema in value.items()
        }

    def _required(self, schema: JsonObject, value: JsonValue, path: str, translated: JsonObject) -> None:
        declared = schema.get("properties", {})
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise UnsupportedSchema(path, "'required' must be a list of names")
        for name in value:
            if not isinstance(declared, dict) or name not in declared:
                raise UnsupportedSchema(path, f"'required' names {_shown(name)}, which 'properties' does not declare")
        if len(set(map(str, value))) != len(value):
            raise UnsupportedSchema(path, "'required' lists a name twice")
        translated["required"] = value

    def _for_all(self, keyword: str) -> Handler:
        def handle(_: JsonObject, value: JsonValue, path: str, translated: JsonObject) -> None:
            if isinstance(value, list):
                raise UnsupportedSchema(path, f"{keyword!r} must be one schema for all, not a list of schemas")
            translated[keyword] = self._translate(value, f"{path}.{keyword}")
            # Without "properties" beside it, the validator does not say which member is one too many.
            translated.setdefault("properties", {})

        return handle

    def _enum(self, _: JsonObject, value: JsonValue, path: str, translated: JsonObject) -> None:
        if not isinstance(value, list) or not value:
            raise UnsupportedSchema(path, "'enum' must be a list with at least one value")
        self._count_nodes(measure_value(value).parts, path)
        numbers: list[JsonValue] = [canonical_bytes(option).decode() for option in value if _is_number(option)]
        if not any(_exact(option) for option in value if not _is_number(option)):
            translated["enum"] = value
            if numbers:
                _require(translated, {"if": {"type": "number"}, "then": {KEEP_EXACT: numbers}})
        else:
            _require(translated, {"anyOf": [{"const": option, **_exact(option)} for option in value]})

    def _const(self, _: JsonObject, value: JsonValue, path: str, translated: JsonObject) -> None:
        self._count_nodes(measure_value(value).parts, path)
        _require(translated, {"const": value, **_exact(value)})

    def _branches(self, keyword: str) -> Handler:
        def handle(_: JsonObject, value: JsonValue, path: str, translated: JsonObject) -> None:
            smallest = SMALLEST_BRANCHES[keyword]
            if not isinstance(value, list) or len(value) < smallest:
                raise UnsupportedSchema(path, f"{keyword!r} must be a list of at least {smallest} schemas")
            branches = [self._translate(schema, f"{path}.{keyword}[{index}]") for index, schema in enumerate(value)]
            if keyword == "allOf":
                for branch in branches:
                    _require(translated, branch)
            else:
                translated[keyword] = branches

        return handle

    def _count(self, keyword: str) -> Handler:
        def handle(_: JsonObject, value: JsonValue, path: str, translated: JsonObject) -> None:
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise UnsupportedSchema(path, f"{keyword!r} must be an integer of at least 0, not {_shown(value)}")
            translated[keyword] = value

        return handle

    def _bound(self, keyword: str) -> Handler:
        def handle(_: JsonObject, value: JsonValue, path: str, translated: JsonObject) -> None:
            if not isinstance(value, int | float) or isinstance(value, bool):
                raise UnsupportedSchema(path, f"{keyword!r} must be a number, not {_shown(value)}")
            translated[keyword] = value

        return handle

    def _pattern(self, _: JsonObject, value: JsonValue, path: str, translated: JsonObject) -> None:
        if not isinstance(value, str):
            raise UnsupportedSchema(path, "'pattern' must be a text")
        self._count_nodes(_NODES_PER_PATTERN, path)
        if len(value) > MAX_PATTERN_CHARS:
            raise UnsupportedSchema(path, f"'pattern' is longer than {MAX_PATTERN_CHARS} characters")
        work = pattern_work(value)
        if work is None:
            raise UnsupportedSchema(
                path,
                f"the pattern {_shown(value)} cannot be enforced: it must be a regular expression "
                "without back-references and look-around, and without large repetitions",
            )
        self.pattern_work += work
        if self.pattern_work > MAX_PATTERN_WORK:
            raise UnsupportedSchema(path, "the patterns of the schema are too large together")
        _require(translated, {"if": {"type": "string"}, "then": {KEEP_PATTERN: value}})

    def _unique(self, _: JsonObject, value: JsonValue, path: str, translated: JsonObject) -> None:
        if not isinstance(value, bool):
            raise UnsupportedSchema(path, "'uniqueItems' must be true or false")
        if value:
            _require(translated, {"if": {"type": "array"}, "then": {KEEP_UNIQUE: True}})

    def _definitions(self, schema: JsonObject, value: JsonValue, path: str, translated: JsonObject) -> None:
        if schema is not self._schema:
            raise UnsupportedSchema(path, "'$defs' is supported at the root of the schema only")
        if not isinstance(value, dict):
            raise UnsupportedSchema(path, "'$defs' must be an object of schemas")
        translated["$defs"] = {
            name: self._translate(definition, f"{path}.$defs{_key(name)}") for name, definition in value.items()
        }

    def _reference(self, _: JsonObject, value: JsonValue, path: str, translated: JsonObject) -> None:
        found = _REFERENCE.match(value) if isinstance(value, str) else None
        if found is None:
            raise UnsupportedSchema(path, f"'$ref' must be '#/$defs/NAME' in the same schema, not {_shown(value)}")
        definitions = self._schema.get("$defs")
        if not isinstance(definitions, dict) or found.group(1) not in definitions:
            raise UnsupportedSchema(path, f"'$ref' names {value!r}, which '$defs' does not hold")
        translated["$ref"] = value


def _exact(value: JsonValue) -> JsonObject:
    """A schema that tells the numbers in `value` apart from equal ones of another kind; empty without numbers."""
    if _is_number(value):
        return {"if": {"type": "number"}, "then": {KEEP_EXACT: [canonical_bytes(value).decode()]}}
    if isinstance(value, list):
        items = [_exact(item) for item in value]
        return {"prefixItems": list(items)} if any(items) else {}
    if not isinstance(value, dict):
        return {}
    members = {name: found for name, item in value.items() if (found := _exact(item))}
    return {"properties": dict(members)} if members else {}


def _is_number(value: JsonValue) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _require(translated: JsonObject, schema: JsonValue) -> None:
    """Add a schema that must hold beside what stands there already."""
    required = translated.setdefault("allOf", [])
    assert isinstance(required, list)
    required.append(schema)


def _key(name: str) -> str:
    return f".{name}" if name.isidentifier() else f"[{name[:100]!r}]"


def _shown(value: JsonValue) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN_CHARS else text[: MAX_SHOWN_CHARS - 1] + "…"
