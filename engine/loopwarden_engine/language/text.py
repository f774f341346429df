"""Text of values, the same in every run: no address, no order that depends on one, no hash seed.

Everything that turns a script's value into text comes here: `str`, `repr`, `ascii`, `format`, f-strings, `%`, and the
messages of exceptions. CPython's own formatting writes the address of a function or generator into a list's text.
"""

import re
import types
from typing import Any, Final

from .sets import ItemsView, KeysView, OrderedFrozenSet, OrderedSet

# C text of these shows the value and nothing else.
_SCALARS: Final = frozenset({str, int, float, bool, complex, bytes, types.NoneType, range, types.EllipsisType,
                             types.NotImplementedType, re.Pattern, re.Match})  # fmt: skip
_FORMATTABLE: Final = frozenset({str, int, float, bool, complex})
_DICT_VALUES: Final[type] = type({}.values())
_ERRNO_AND_TEXT: Final = 2
_OWN_MODULE: Final = re.compile(r"\bloopwarden_engine(?:\.\w+)+\.(?=\w)")
_ADDRESS: Final = re.compile(r" at 0x[0-9A-Fa-f]+")
_CODEC_ERRORS: Final = (UnicodeDecodeError, UnicodeEncodeError, UnicodeTranslateError)
_FUNCTIONS: Final = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.MethodWrapperType,
    types.WrapperDescriptorType,
)


def text_of(value: object) -> str:
    """What `str(value)` is in a script. An exception gives its message, everything else but strings its `repr`."""
    kind = type(value)
    if kind is str:
        return value  # type: ignore[return-value]
    if kind in _SCALARS:
        return str(value)
    if isinstance(value, BaseException):
        return exception_text(value)
    return repr_of(value)


def repr_of(value: object) -> str:
    """What `repr(value)` is in a script. A container that holds itself shows `[...]`.

    Raises RecursionError for very deep values, as Python does.
    """
    if type(value) in _SCALARS:
        return repr(value)
    return _compound(value, set())


def exception_text(error: BaseException) -> str:
    """The message of an exception, made from its arguments."""
    # The descriptor of BaseException: a script class may have given its instances another `args`.
    arguments: tuple[object, ...] = BaseException.args.__get__(error)  # type: ignore[attr-defined]
    if not arguments:
        text = ""
    elif len(arguments) == 1:
        text = repr_of(arguments[0]) if isinstance(error, KeyError) else text_of(arguments[0])
    elif isinstance(error, OSError) and len(arguments) == _ERRNO_AND_TEXT:
        text = f"[Errno {text_of(arguments[0])}] {text_of(arguments[1])}"
    elif isinstance(error, _CODEC_ERRORS):
        text = _codec_error_text(error)
    else:
        text = repr_of(arguments)
    return without_internals(text)


def _codec_error_text(error: UnicodeError) -> str:
    """The text that Python gives, without reading outside of the object.

    CPython believes the positions and, for bytes, even the type of the object, all of which a script may choose.
    """
    kind: Any = next(kind for kind in _CODEC_ERRORS if isinstance(error, kind))
    names = ("object", "start", "end", "reason", *(() if kind is UnicodeTranslateError else ("encoding",)))
    whole, start, end, reason, *encoding = (getattr(kind, name).__get__(error) for name in names)
    if whole is None:  # its __init__ never ran
        return ""
    verb = "translate" if kind is UnicodeTranslateError else "encode" if kind is UnicodeEncodeError else "decode"
    codec = f"'{text_of(encoding[0])}' codec " if encoding else ""
    unit, units, readable = ("byte", "bytes", bytes) if verb == "decode" else ("character", "characters", str)
    if end == start + 1 and type(whole) is readable and 0 <= start < len(whole):
        item = whole[start]
        shown = f"{unit} 0x{item:02x}" if type(item) is int else f"{unit} '{_escaped(ord(item))}'"
        return f"{codec}can't {verb} {shown} in position {start}: {text_of(reason)}"
    return f"{codec}can't {verb} {units} in position {start}-{end - 1}: {text_of(reason)}"


def _escaped(code: int) -> str:
    width = 2 if code <= 0xFF else 4 if code <= 0xFFFF else 8
    return "\\" + {2: "x", 4: "u", 8: "U"}[width] + f"{code:0{width}x}"


def without_internals(text: str) -> str:
    """Cut out of text that C code wrote where an object lies (` at 0x…`) and which module of ours defines it."""
    if " at 0x" in text:
        text = _ADDRESS.sub("", text)
    return _OWN_MODULE.sub("", text) if "loopwarden_engine." in text else text


def formatted(value: object, conversion: str, spec: str) -> str:
    """One part of an f-string: `conversion` is "", "s", "r" or "a". Raises TypeError or ValueError for a bad `spec`."""
    if conversion == "r":
        value = repr_of(value)
    elif conversion == "s":
        value = text_of(value)
    elif conversion == "a":
        value = ascii_of(value)
    if not spec:
        return text_of(value)
    if type(value) in _FORMATTABLE:
        return format(value, spec)
    raise TypeError(f"unsupported format string passed to {type(value).__name__}.__format__")


def ascii_of(value: object) -> str:
    """What `ascii(value)` is in a script."""
    return repr_of(value).encode("ascii", "backslashreplace").decode("ascii")


class _Rendered:
    """Stands for a value in C formatting code, which asks it for text instead of asking the value."""

    __slots__ = ("_value",)

    def __init__(self, value: object) -> None:
        self._value = value

    def __str__(self) -> str:
        """For %s."""
        return text_of(self._value)

    def __repr__(self) -> str:
        """For %r and %a."""
        return repr_of(self._value)


_Rendered.__name__ = _Rendered.__qualname__ = "object"  # it appears in messages such as "%d format: …, not object"


class _RenderedList(_Rendered):
    """A list has items, so C takes it for a mapping and lets a template ignore it."""

    __slots__ = ()

    def __getitem__(self, key: int) -> object:
        """For %(key)s, which a list refuses."""
        return _renderable(self._value[key])  # type: ignore[index]


def percent_formatted(template: str, values: object) -> str:
    """`template % values` for a string template."""
    if type(values) is tuple:
        return template % tuple(_renderable(value) for value in values)
    if type(values) is dict:
        return template % _RenderedDict(values)
    if type(values) is list:
        return template % _RenderedList(values)
    return template % _renderable(values)


class _RenderedDict(dict[object, object]):
    """A script's dict as the right side of `%`: its values, and itself as a whole, are rendered by us."""

    def __getitem__(self, key: object) -> object:
        """For %(key)s."""
        return _renderable(super().__getitem__(key))

    def __str__(self) -> str:
        """For %s and %r with the whole dict."""
        return repr_of(dict(self))

    __repr__ = __str__


_RenderedDict.__name__ = _RenderedDict.__qualname__ = "dict"


def _renderable(value: object) -> object:
    return value if type(value) in _SCALARS else _Rendered(value)


def _compound(value: object, open_ids: set[int]) -> str:
    kind = type(value)
    if kind in _SCALARS:
        return repr(value)
    if kind is list or kind is tuple or kind is dict or kind in _WRAPPED:
        if id(value) in open_ids:
            return "(...)" if kind is tuple else "[...]" if kind is list else "{...}" if kind is dict else "..."
        open_ids.add(id(value))
        try:
            return _container(value, open_ids)
        finally:
            open_ids.discard(id(value))
    if isinstance(value, slice):
        return "slice(" + ", ".join(_compound(part, open_ids) for part in (value.start, value.stop, value.step)) + ")"
    if isinstance(value, BaseException):
        return _exception_repr(value, open_ids)
    return _opaque(value)


_WRAPPED: Final = {
    OrderedSet: ("{", "}", "set()"),
    OrderedFrozenSet: ("frozenset({", "})", "frozenset()"),
    KeysView: ("dict_keys([", "])", "dict_keys([])"),
    ItemsView: ("dict_items([", "])", "dict_items([])"),
    _DICT_VALUES: ("dict_values([", "])", "dict_values([])"),
}


def _container(value: object, open_ids: set[int]) -> str:
    if isinstance(value, dict):
        pairs = [f"{_compound(key, open_ids)}: {_compound(item, open_ids)}" for key, item in list(value.items())]
        return "{" + ", ".join(pairs) + "}"
    items: list[object] = list(value)  # type: ignore[call-overload]
    if _SCALARS.issuperset(map(type, items)):
        parts = [repr(item) for item in items]
    else:
        parts = [_compound(item, open_ids) for item in items]
    if isinstance(value, list):
        return "[" + ", ".join(parts) + "]"
    if isinstance(value, tuple):
        return "(" + ", ".join(parts) + (",)" if len(parts) == 1 else ")")
    before, after, empty = _WRAPPED[type(value)]
    return before + ", ".join(parts) + after if parts else empty


def _exception_repr(error: BaseException, open_ids: set[int]) -> str:
    if id(error) in open_ids:
        return f"{type(error).__name__}(...)"
    open_ids.add(id(error))
    try:
        arguments = BaseException.args.__get__(error)  # type: ignore[attr-defined]
        shown = ", ".join(_compound(argument, open_ids) for argument in arguments)
        return without_internals(f"{type(error).__name__}({shown})")
    finally:
        open_ids.discard(id(error))


def _opaque(value: object) -> str:
    """Name a thing without content of its own: `<function f>`, `<class 'C'>`, `<C>`."""
    if isinstance(value, type):
        return f"<class '{value.__name__}'>"
    if isinstance(value, _FUNCTIONS):
        return f"<function {value.__name__}>"
    if isinstance(value, types.GeneratorType):
        return f"<generator {value.__name__}>"
    return f"<{type(value).__name__}>"
