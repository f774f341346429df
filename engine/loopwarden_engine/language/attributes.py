"""Reading attributes: what each built-in type shows to scripts. Whatever is not listed here does not exist for them.

Names were checked before (statically for `x.name`, in `getattr` for names that are data); this second rule looks at
the object. An object of a type that is not listed (a module, a frame, a function) has no attributes at all.
"""

import functools
import re
import types
from collections.abc import Callable, Mapping
from typing import Any, Final

from .classes import STAND_INS, ScriptClass
from .encoding import decode, encode
from .errors import is_readable
from .facades import Facade
from .sets import ItemsView, KeysView, OrderedFrozenSet, OrderedSet
from .text import without_internals

_Names = Mapping[str, Callable[..., object] | None]


def _keys(mapping: dict[object, object]) -> KeysView:
    return KeysView(_dict(mapping))


def _items(mapping: dict[object, object]) -> ItemsView:
    return ItemsView(_dict(mapping))


def _index(values: list[object], value: object, *bounds: int) -> int:
    try:
        return list.index(values, value, *bounds)
    except ValueError:
        # CPython 3.11 writes the address of a missing function into the message.
        raise ValueError("list.index(x): x not in list") from None


def _throw(generator: "types.GeneratorType[Any, Any, Any]", error: Any) -> object:
    # C makes an exception of a class later, and ends the whole process when `__init__` keeps raising its own class.
    thrown: object = types.GeneratorType.throw(generator, error() if isinstance(error, type) else error)
    return thrown


# These three import a module in C when first used, through the caller's `__import__`: a script's frame has none.
def _sub(pattern: re.Pattern[str], repl: str, string: str, count: int = 0) -> str:
    return re.Pattern.sub(pattern, repl, string, count)


def _subn(pattern: re.Pattern[str], repl: str, string: str, count: int = 0) -> tuple[str, int]:
    return re.Pattern.subn(pattern, repl, string, count)


def _expand(match: re.Match[str], template: str) -> str:
    return re.Match.expand(match, template)


def _dict(value: object) -> dict[object, object]:
    if not isinstance(value, dict):
        raise TypeError(f"a dict is needed, not {type(value).__name__}")
    return value


def _plain(names: str) -> dict[str, Callable[..., object] | None]:
    return dict.fromkeys(names.split())


_INT: Final = _plain(
    "as_integer_ratio bit_count bit_length conjugate denominator from_bytes imag is_integer numerator real to_bytes"
)
_SET: Final = _plain("copy difference intersection isdisjoint issubset issuperset symmetric_difference union")
_BYTES_AND_TEXT: Final = (
    "capitalize center count endswith expandtabs find index isalnum isalpha isascii isdigit islower isspace istitle "
    "isupper join ljust lower lstrip maketrans partition removeprefix removesuffix replace rfind rindex rjust "
    "rpartition rsplit rstrip split splitlines startswith strip swapcase title translate upper zfill "
)

# None: read as it is. A function: a method of ours in place of the type's own.
READABLE: Final[Mapping[type, _Names]] = {
    str: {**_plain(_BYTES_AND_TEXT + "casefold isdecimal isidentifier isnumeric isprintable"), "encode": encode},
    bytes: {**_plain(_BYTES_AND_TEXT + "fromhex hex"), "decode": decode},
    int: _INT,
    bool: _INT,
    float: _plain("as_integer_ratio conjugate fromhex hex imag is_integer real"),
    complex: _plain("conjugate imag real"),
    list: {**_plain("append clear copy count extend insert pop remove reverse sort"), "index": _index},
    tuple: _plain("count index"),
    range: _plain("count index start step stop"),
    slice: _plain("indices start step stop"),
    dict: {
        **_plain("clear copy fromkeys get pop popitem setdefault update values"),
        "items": _items,
        "keys": _keys,
    },
    OrderedSet: _SET
    | _plain("add clear difference_update discard intersection_update pop remove symmetric_difference_update update"),
    OrderedFrozenSet: _SET,
    KeysView: _plain("isdisjoint"),
    ItemsView: _plain("isdisjoint"),
    types.GeneratorType: {**_plain("close send"), "throw": _throw},
    re.Pattern: {
        **_plain("findall finditer flags fullmatch groups match pattern search split"),
        "sub": _sub,
        "subn": _subn,
    },
    re.Match: {
        **_plain("end endpos group groupdict groups lastgroup lastindex pos re regs span start string"),
        "expand": _expand,
    },
}

# Types that a script can name: `str.upper`, `dict.fromkeys`. (A script cannot name Generator, Pattern and Match.)
_NAMED_TYPES: Final[Mapping[type, type]] = {
    **{kind: kind for kind in (int, bool, float, complex, list, tuple, dict, range, OrderedSet, OrderedFrozenSet)},
    **STAND_INS,
}


def _unbound(kind: type, name: str) -> Callable[..., object]:
    """A method of a class of ours as a descriptor in C would be: only for objects of that very class.

    A Python function takes any object: `set.add` would change a frozenset.
    """
    method: Callable[..., object] = getattr(kind, name)

    @functools.wraps(method)
    def call(value: object, /, *arguments: object, **options: object) -> object:
        if type(value) is not kind:
            shown = type(value).__name__
            raise TypeError(f"descriptor {name!r} for {kind.__name__!r} objects doesn't apply to a {shown!r} object")
        return method(value, *arguments, **options)

    return call


_UNBOUND: Final[Mapping[tuple[type, str], Callable[..., object]]] = {
    (kind, name): _unbound(kind, name) for kind in (OrderedSet, OrderedFrozenSet) for name in READABLE[kind]
}
for _function in (_keys, _items, _index, _throw, _sub, _subn, _expand):
    _function.__name__ = _function.__qualname__ = _function.__name__.removeprefix("_")


def _absent() -> None:
    """Stands for a name that a type does not show."""


def read_attribute(value: object, name: str) -> object:
    """`value.name` in a script, for a name that passed `names.refused_attribute`. Raises AttributeError."""
    kind = type(value)
    names = READABLE.get(kind)
    if names is not None:
        method = names.get(name, _absent)
        if method is None:
            return getattr(value, name)
        if method is not _absent:
            return types.MethodType(method, value)
    elif type(kind) is ScriptClass and not issubclass(kind, BaseException):
        return getattr(value, name)
    elif kind is Facade:
        return value.member(name)  # type: ignore[attr-defined]
    elif isinstance(value, BaseException):
        return _of_exception(value, name)
    elif isinstance(value, type):
        return _of_class(value, name)
    raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}")


def _of_exception(error: BaseException, name: str) -> object:
    if name == "args":
        # Messages that C code wrote may name an address.
        arguments = BaseException.args.__get__(error)  # type: ignore[attr-defined]
        return tuple(without_internals(item) if type(item) is str else item for item in arguments)
    kind = type(error)
    if type(kind) is ScriptClass and (name in error.__dict__ or _made_by_script(kind, name)):
        return getattr(error, name)
    if is_readable(error, name):
        return getattr(error, name)
    raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}")


def _of_class(kind: type, name: str) -> object:
    if type(kind) is ScriptClass:
        if _made_by_script(kind, name):
            return getattr(kind, name)
    elif kind in _NAMED_TYPES:
        real = _NAMED_TYPES[kind]
        names = READABLE[real]
        if name in names:
            return names[name] or _UNBOUND.get((real, name)) or getattr(real, name)
    raise AttributeError(f"type object {kind.__name__!r} has no attribute {name!r}")


def _made_by_script(kind: type, name: str) -> bool:
    return any(name in parent.__dict__ for parent in kind.__mro__ if type(parent) is ScriptClass)
