"""The built-in exception classes that scripts see, and what an exception shows of itself.

Only subclasses of Exception: what ends a worker or a branch (GreenletExit, SystemExit, KeyboardInterrupt,
GeneratorExit) has no name in a script, so no handler of a script can hold it up.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from .text import exception_text


def _with_our_text(kind: Any) -> Any:
    """A subclass under the same name. Its text is ours whoever asks for it, C code that writes a message included.

    CPython's own text of these three reads memory at the positions that the script wrote into the exception.
    """
    return type(kind.__name__, (kind,), {"__str__": exception_text, "__module__": kind.__module__})


TextDecodeError: Final[type[UnicodeDecodeError]] = _with_our_text(UnicodeDecodeError)
TextEncodeError: Final[type[UnicodeEncodeError]] = _with_our_text(UnicodeEncodeError)
TextTranslateError: Final[type[UnicodeTranslateError]] = _with_our_text(UnicodeTranslateError)

_OFFERED: Final = (
    Exception, ArithmeticError, AssertionError, AttributeError, BufferError, EOFError, FloatingPointError,
    ImportError, ModuleNotFoundError, IndexError, KeyError, LookupError, MemoryError, NameError, NotImplementedError,
    OSError, BlockingIOError, BrokenPipeError, ChildProcessError, ConnectionAbortedError, ConnectionError,
    ConnectionRefusedError, ConnectionResetError, FileExistsError, FileNotFoundError, InterruptedError,
    IsADirectoryError, NotADirectoryError, PermissionError, ProcessLookupError, TimeoutError,
    OverflowError, RecursionError, ReferenceError, RuntimeError, StopIteration, SyntaxError, SystemError, TypeError,
    UnboundLocalError, UnicodeError, TextDecodeError, TextEncodeError, TextTranslateError, ValueError,
    ZeroDivisionError, Warning, UserWarning, DeprecationWarning, RuntimeWarning,
)  # fmt: skip

# `BaseException` means Exception in a script: catching it works as an author expects of catching "everything", and
# raising it ends the run as an ordinary script error.
EXCEPTIONS: Final[Mapping[str, type[Exception]]] = {
    **{offered.__name__: offered for offered in _OFFERED},
    "BaseException": Exception,
    "EnvironmentError": OSError,
    "IOError": OSError,
}

EXCEPTION_BASES: Final[frozenset[type]] = frozenset(_OFFERED)

# Besides `args`. Absent on purpose: `obj`, `name`, `path` and the like, which hand out live objects of the engine.
_READABLE: Final[tuple[tuple[type[Exception], frozenset[str]], ...]] = (
    (StopIteration, frozenset({"value"})),
    (OSError, frozenset({"errno", "strerror"})),
    (UnicodeError, frozenset({"encoding", "object", "start", "end", "reason"})),
    (json.JSONDecodeError, frozenset({"msg", "doc", "pos", "lineno", "colno"})),
    (re.error, frozenset({"msg", "pattern", "pos", "lineno", "colno"})),
)


def is_readable(error: BaseException, name: str) -> bool:
    """Whether an exception's own (not script-made) attribute `name` holds plain data for scripts to read."""
    return any(name in names for kind, names in _READABLE if isinstance(error, kind))
