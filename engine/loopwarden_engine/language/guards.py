"""The functions that rewritten code calls: attribute reads, writes, augmented assignment, `%`, and `getattr`."""

import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

from .attributes import read_attribute
from .classes import ScriptClass
from .names import refused_attribute
from .text import percent_formatted

_MISSING: Final = object()


def script_getattr(value: object, name: str, default: object = _MISSING, /) -> object:
    """`getattr` of a script: the rules of `value.name`, for a name that is data."""
    if type(name) is not str:
        raise TypeError(f"attribute name must be string, not {type(name).__name__!r}")
    try:
        refusal = refused_attribute(name)
        if refusal is not None:
            raise AttributeError(refusal[0])
        return read_attribute(value, name)
    except AttributeError:
        if default is _MISSING:
            raise
        return default


def script_hasattr(value: object, name: str, /) -> bool:
    """`hasattr` of a script."""
    return script_getattr(value, name, _MISSING_VALUE) is not _MISSING_VALUE


_MISSING_VALUE: Final = object()


def writable(target: Any) -> Any:
    """Pass a container or object whose items or attributes may be written; raise TypeError for anything else.

    Lists, dicts, instances of script classes and script classes themselves: all of these belong to the script. Names
    are checked statically, so a class cannot get special methods this way. Hooks, facades and built-in types stay.
    """
    kind = type(target)
    if kind is list or kind is dict or type(kind) is ScriptClass or kind is ScriptClass:
        return target
    raise TypeError(f"{kind.__name__!r} object cannot be changed by a script")


def modulo(left: Any, right: Any) -> Any:
    """`left % right`, with text formatted by us."""
    if type(left) is str:
        return percent_formatted(left, right)
    if type(left) is bytes:
        raise TypeError("bytes cannot be formatted with %: build text and encode it")
    return left % right


def inplace_modulo(left: Any, right: Any) -> Any:
    """`left %= right`: no type of a script changes itself for it."""
    return modulo(left, right)


_IN_PLACE: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "+": operator.iadd, "-": operator.isub, "*": operator.imul, "/": operator.itruediv, "//": operator.ifloordiv,
    "%": inplace_modulo, "**": operator.ipow, "@": operator.imatmul, "<<": operator.ilshift, ">>": operator.irshift,
    "|": operator.ior, "^": operator.ixor, "&": operator.iand,
}  # fmt: skip


def augment_attribute(target: Any, name: str, symbol: str) -> Callable[[Any], None]:
    """Read `target.name` now; the function returned takes the operand, computes in place and writes back."""
    old = read_attribute(target, name)

    def store(operand: Any) -> None:
        setattr(writable(target), name, _IN_PLACE[symbol](old, operand))

    return store


def augment_item(target: Any, key: Any, symbol: str) -> Callable[[Any], None]:
    """Read `target[key]` now; the function returned takes the operand, computes in place and writes back."""
    old = target[key]

    def store(operand: Any) -> None:
        writable(target)[key] = _IN_PLACE[symbol](old, operand)

    return store
