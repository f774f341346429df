"""What a script's names mean: the built-ins, the guards and the hooks, as fresh globals for one execution."""

import builtins
from collections.abc import Callable, Mapping
from typing import Final

from . import guards
from .attributes import read_attribute
from .classes import ScriptBytes, ScriptClass, ScriptStr
from .discarding import mark_discarded
from .errors import EXCEPTIONS
from .facades import FACADES, HOOK_MODULE, Facade
from .sets import OrderedFrozenSet, OrderedSet
from .text import ascii_of, formatted, repr_of, text_of

# Taken as they are: they compute with what they are given. Those that iterate or compare call the script's own
# functions and comparisons only.
_PURE: Final = (
    "abs all any bin bool callable chr complex dict divmod enumerate filter float hex int isinstance issubclass iter "
    "len list map max min next oct ord pow range reversed round slice sorted sum tuple zip "
    "None True False Ellipsis NotImplemented"
)


def script_format(value: object, spec: str = "", /) -> str:
    """`format` of a script."""
    if type(spec) is not str:
        raise TypeError(f"format() argument 2 must be str, not {type(spec).__name__}")
    return formatted(value, "", spec)


def script_repr(value: object, /) -> str:
    """`repr` of a script."""
    return repr_of(value)


def script_ascii(value: object, /) -> str:
    """`ascii` of a script."""
    return ascii_of(value)


_OWN: Final[Mapping[str, object]] = {
    "str": ScriptStr,
    "bytes": ScriptBytes,
    "set": OrderedSet,
    "frozenset": OrderedFrozenSet,
    "repr": script_repr,
    "ascii": script_ascii,
    "format": script_format,
    "getattr": guards.script_getattr,
    "hasattr": guards.script_hasattr,
}
for _function in (script_repr, script_ascii, script_format, guards.script_getattr, guards.script_hasattr):
    _function.__name__ = _function.__qualname__ = _function.__name__.removeprefix("script_")

# What rewritten code calls (see transformer.py), and what CPython's class statement calls.
_GUARDS: Final[Mapping[str, object]] = {
    "__build_class__": builtins.__build_class__,
    "__metaclass__": ScriptClass,
    "_getattr_": read_attribute,
    "_write_": guards.writable,
    "_augment_attribute_": guards.augment_attribute,
    "_augment_item_": guards.augment_item,
    "_mod_": guards.modulo,
    "_inplace_mod_": guards.inplace_modulo,
    "_text_": text_of,
    "_formatted_": formatted,
    "_set_": OrderedSet,
    "_mark_discarded_": mark_discarded,
    "_GeneratorExit_": GeneratorExit,
    "_Exception_": Exception,
}

BUILTINS: Final[Mapping[str, object]] = {
    **{name: getattr(builtins, name) for name in _PURE.split()},
    **EXCEPTIONS,
    **_OWN,
}


def script_namespace(hooks: Mapping[str, Callable[..., object]]) -> dict[str, object]:
    """Make globals in which a compiled script can run once.

    Every hook is a global name, and a member of the facade that `import loopwarden_engine` gives.
    """
    facades = {**FACADES, HOOK_MODULE: Facade(HOOK_MODULE, dict(hooks))}

    def fetch(module: str, name: str | None = None) -> object:
        facade = facades[module]
        if name is None:
            return facade
        try:
            return facade.member(name)
        except AttributeError:
            raise ImportError(f"cannot import {name!r} from {module!r} here") from None

    return {
        "__builtins__": {**BUILTINS, **_GUARDS, "_import_": fetch},
        "__name__": "script",
        **hooks,
    }
