"""The modules a script may import, as read-only collections of pure functions.

A facade is not a module: it has no submodules, no classes that make encoders or parsers, and its members cannot be
replaced. Functions that take callbacks or options leading elsewhere are wrapped so that those are refused.
"""

import json
import math
import re
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

Replacement = str | Callable[[re.Match[str]], str]


class Facade:
    """A module as a script sees it: `members` by name."""

    __slots__ = ("_members", "_name")

    def __init__(self, name: str, members: Mapping[str, object]) -> None:
        self._name = name
        self._members = members

    def member(self, name: str) -> object:
        """The member `name`. Raises AttributeError."""
        try:
            return self._members[name]
        except KeyError:
            raise AttributeError(f"module {self._name!r} has no attribute {name!r} in a script") from None


Facade.__name__ = Facade.__qualname__ = "module"
Facade.__module__ = "builtins"  # for messages that C code writes


def loads(text: str) -> object:
    """`json.loads` without its hooks."""
    if type(text) is not str:
        raise TypeError(f"the JSON object must be str, not {type(text).__name__}")
    return json.loads(text)


def dumps(
    value: object,
    *,
    indent: int | str | None = None,
    sort_keys: bool = False,
    ensure_ascii: bool = True,
    separators: tuple[str, str] | None = None,
    allow_nan: bool = True,
) -> str:
    """`json.dumps` without its hooks."""
    return json.dumps(
        value,
        indent=indent,
        sort_keys=sort_keys,
        ensure_ascii=ensure_ascii,
        separators=separators,
        allow_nan=allow_nan,
    )


_FLAGS: Final = {
    "A": re.ASCII, "ASCII": re.ASCII, "I": re.IGNORECASE, "IGNORECASE": re.IGNORECASE, "M": re.MULTILINE,
    "MULTILINE": re.MULTILINE, "S": re.DOTALL, "DOTALL": re.DOTALL, "U": re.UNICODE, "UNICODE": re.UNICODE,
    "X": re.VERBOSE, "VERBOSE": re.VERBOSE, "NOFLAG": re.NOFLAG,
}  # fmt: skip
# DEBUG writes to standard output and LOCALE reads the machine's locale.
_KNOWN_FLAGS: Final = sum({int(flag) for flag in _FLAGS.values()})
_CACHED_PATTERNS: Final = 256
_patterns: Final[dict[tuple[str, int], re.Pattern[str]]] = {}


def compile_pattern(pattern: str | re.Pattern[str], flags: int = 0) -> re.Pattern[str]:
    """`re.compile` for text patterns. Raises `re.error`, and ValueError for a flag that is not offered."""
    if isinstance(pattern, re.Pattern):
        if flags:
            raise ValueError("cannot process flags argument with a compiled pattern")
        return pattern
    if type(pattern) is not str:
        raise TypeError(f"a pattern must be str, not {type(pattern).__name__}")
    if type(flags) is not int or flags & ~_KNOWN_FLAGS:
        raise ValueError("unknown flags: scripts have re.A, re.I, re.M, re.S, re.U and re.X")
    key = (pattern, flags)
    compiled = _patterns.get(key)
    if compiled is None:
        with warnings.catch_warnings():
            # A warning would be shown with a line of source, and looking that up opens a file.
            warnings.simplefilter("ignore")
            compiled = re.compile(pattern, flags)
        if len(_patterns) >= _CACHED_PATTERNS:
            _patterns.clear()
        _patterns[key] = compiled
    return compiled


compile_pattern.__name__ = compile_pattern.__qualname__ = "compile"


def search(pattern: str | re.Pattern[str], string: str, flags: int = 0) -> re.Match[str] | None:
    """`re.search`."""
    return compile_pattern(pattern, flags).search(string)


def match(pattern: str | re.Pattern[str], string: str, flags: int = 0) -> re.Match[str] | None:
    """`re.match`."""
    return compile_pattern(pattern, flags).match(string)


def fullmatch(pattern: str | re.Pattern[str], string: str, flags: int = 0) -> re.Match[str] | None:
    """`re.fullmatch`."""
    return compile_pattern(pattern, flags).fullmatch(string)


def sub(pattern: str | re.Pattern[str], repl: Replacement, string: str, count: int = 0, flags: int = 0) -> str:
    """`re.sub`."""
    return compile_pattern(pattern, flags).sub(repl, string, count)


def subn(
    pattern: str | re.Pattern[str], repl: Replacement, string: str, count: int = 0, flags: int = 0
) -> tuple[str, int]:
    """`re.subn`."""
    return compile_pattern(pattern, flags).subn(repl, string, count)


def split(pattern: str | re.Pattern[str], string: str, maxsplit: int = 0, flags: int = 0) -> list[str | None]:
    """`re.split`."""
    return compile_pattern(pattern, flags).split(string, maxsplit)


def findall(pattern: str | re.Pattern[str], string: str, flags: int = 0) -> list[object]:
    """`re.findall`."""
    return compile_pattern(pattern, flags).findall(string)


def finditer(pattern: str | re.Pattern[str], string: str, flags: int = 0) -> Iterator[re.Match[str]]:
    """`re.finditer`."""
    return compile_pattern(pattern, flags).finditer(string)


# The functions of textwrap call methods of what they are given, with tables of their own: only text may get there.
def wrap(text: str, width: int = 70, **options: Any) -> list[str]:
    """`textwrap.wrap`."""
    return textwrap.wrap(_text(text), width, **_plain_options(options))


def fill(text: str, width: int = 70, **options: Any) -> str:
    """`textwrap.fill`."""
    return textwrap.fill(_text(text), width, **_plain_options(options))


def shorten(text: str, width: int, **options: Any) -> str:
    """`textwrap.shorten`."""
    return textwrap.shorten(_text(text), width, **_plain_options(options))


def dedent(text: str) -> str:
    """`textwrap.dedent`."""
    return textwrap.dedent(_text(text))


def indent(text: str, prefix: str, predicate: Callable[[str], bool] | None = None) -> str:
    """`textwrap.indent`."""
    return textwrap.indent(_text(text), _text(prefix), predicate)


def _text(value: str) -> str:
    if type(value) is not str:
        raise TypeError(f"text must be str, not {type(value).__name__}")
    return value


def _plain_options(options: dict[str, Any]) -> dict[str, Any]:
    for name, value in options.items():
        if value is not None and type(value) not in (str, int, bool):
            raise TypeError(f"{name} must be a plain value, not {type(value).__name__}")
    return options


def _named(*functions: Callable[..., object]) -> dict[str, object]:
    return {function.__name__: function for function in functions}


_MATH: Final = (
    "acos acosh asin asinh atan atan2 atanh cbrt ceil comb copysign cos cosh degrees dist e erf erfc exp exp2 expm1 "
    "fabs factorial floor fmod frexp fsum gamma gcd hypot inf isclose isfinite isinf isnan isqrt lcm ldexp lgamma log "
    "log10 log1p log2 modf nan nextafter perm pi pow prod radians remainder sin sinh sqrt tan tanh tau trunc ulp"
)

MODULES: Final[Mapping[str, Mapping[str, object]]] = {
    "json": {**_named(loads, dumps), "JSONDecodeError": json.JSONDecodeError},
    "math": {name: getattr(math, name) for name in _MATH.split()},
    "re": {
        **_named(compile_pattern, search, match, fullmatch, sub, subn, split, findall, finditer, re.escape),
        **{name: int(flag) for name, flag in _FLAGS.items()},
        "error": re.error,
    },
    "textwrap": _named(dedent, fill, indent, shorten, wrap),
}

# The hooks, under the name that editors know them by.
HOOK_MODULE: Final = "loopwarden_engine"
HOOK_NAMES: Final = ("agent", "log", "parallel", "phase", "pipeline")
FACADES: Final[Mapping[str, Facade]] = {name: Facade(name, members) for name, members in MODULES.items()}


def importable_names(module: str) -> frozenset[str] | None:
    """The names that `from module import …` may fetch; None when the module is not offered."""
    if module == HOOK_MODULE:
        return frozenset(HOOK_NAMES)
    members = MODULES.get(module)
    return None if members is None else frozenset(members)
