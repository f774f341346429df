"""Which names and attribute names a script may write: one rule for the static check and for the run-time guards."""

from collections.abc import Mapping
from typing import Final

# The special methods a script class may define (RestrictedPython's own list). Nothing else with underscores is a name.
SPECIAL_METHODS: Final = frozenset({
    "__init__", "__contains__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__",
})  # fmt: skip

# What frames, code, generators, coroutines, tracebacks, greenlets and old functions call their insides.
_INTROSPECTION_PREFIXES: Final = ("gi_", "cr_", "ag_", "f_", "co_", "tb_", "gr_", "func_", "im_")

_ATTRIBUTE_HINTS: Final[Mapping[str, str]] = {
    "format": "use an f-string",
    "format_map": "use an f-string",
    "mro": "keep what you need to know about a class in an attribute of your own",
    "with_traceback": "raise the exception with `raise ... from ...`",
    "add_note": "put the text into the exception's message",
}

# Built-ins that every use of the name is refused for, also as a name of the script's own: a reader who vets the
# script must not have to ask which one is meant. (`super` also makes the compiler bind hidden cells.)
ALWAYS_REFUSED: Final[Mapping[str, str]] = {
    "print": "use log() to tell observers something",
    "type": "use isinstance()",
    "super": "call a function of your own instead of the parent's method",
    "property": "write a method and call it",
    "id": "compare with `is`, or keep a counter of your own",
    "hash": "use the value itself as a dict key",
}

_NO_REACH: Final = "a script reaches nothing but its arguments and its hooks"
# Refused unless the script binds the name itself (`input = args["input"]` is an honest line).
REFUSED_BUILTINS: Final[Mapping[str, str]] = {
    "open": "an agent can read and write files; " + _NO_REACH,
    "input": "take what you need from args; " + _NO_REACH,
    "eval": "write the code out",
    "exec": "write the code out",
    "compile": "write the code out",
    "globals": "use names, or a dict of your own",
    "locals": "use names, or a dict of your own",
    "vars": "use names, or a dict of your own",
    "dir": "use a dict when names are data",
    "setattr": "write `x.name = value`, or use a dict when names are data",
    "delattr": "write `del x.name`, or use a dict when names are data",
    "object": "use a class of your own; for a marker, an empty list compared with `is` will do",
    "staticmethod": "write a plain function",
    "classmethod": "write a plain function that makes the object",
    "memoryview": "use bytes",
    "bytearray": "use bytes or a list of integers",
    "help": "read the documentation of the language",
    "exit": "return from main, or raise an exception",
    "quit": "return from main, or raise an exception",
    "breakpoint": "use log() to see values",
    "aiter": "use iter()",
    "anext": "use next()",
    "KeyboardInterrupt": "catch Exception",
    "SystemExit": "catch Exception, and end with return or an exception of your own",
    "GeneratorExit": "use try/finally in the generator",
    "BaseExceptionGroup": "raise a single exception",
    "ExceptionGroup": "raise a single exception",
}


def refused_name(name: str) -> tuple[str, str] | None:
    """Say why `name` may not be bound or read as a variable, as (message, hint); None when it may."""
    if name in ALWAYS_REFUSED:
        return f"the name {name!r} is not allowed", ALWAYS_REFUSED[name]
    if name.startswith("_") and name != "_":
        return f"the name {name!r} is not allowed: it starts with an underscore", "choose a name without the underscore"
    if name.endswith("__roles__"):
        return f"the name {name!r} is not allowed: it ends with __roles__", "choose another name"
    return None


def refused_keyword(name: str) -> tuple[str, str] | None:
    """Say why `name` may not be passed as a keyword argument; None when it may. Keywords such as `id=` bind nothing."""
    return None if name in ALWAYS_REFUSED else refused_name(name)


def refused_attribute(name: str) -> tuple[str, str] | None:
    """Say why the attribute `name` may not be read, written or deleted, as (message, hint); None when it may."""
    if name.startswith("_") and name != "_":
        return (
            f"the attribute {name!r} is not allowed: it starts with an underscore",
            "use a public attribute or a dict",
        )
    if name in _ATTRIBUTE_HINTS:
        return f"the attribute {name!r} is not allowed", _ATTRIBUTE_HINTS[name]
    if name.startswith(_INTROSPECTION_PREFIXES):
        return (
            f"the attribute {name!r} is not allowed: such names belong to frames, code and generators",
            "choose another name",
        )
    if name.endswith("__roles__"):
        return f"the attribute {name!r} is not allowed: it ends with __roles__", "choose another name"
    return None
