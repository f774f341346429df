"""What the launcher imports before its first fork, and what it keeps out: a worker copies it, and opens no file.

Only the launcher imports this module, and before anything that imports `threading`.
"""

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

__all__ = ["preload"]

_MODULES: Final = (
    # What the standard library imports at first use.
    "ast",
    "encodings.ascii",
    "encodings.latin_1",
    "encodings.utf_8",
    "json",
    "linecache",
    "textwrap",
    "tokenize",
    "traceback",
    "unicodedata",
    "warnings",
    "loopwarden_engine.launcher",
)
_MODULES_WHERE_PRESENT: Final = ("_colorize", "_suggestions")
"""From Python 3.13 on."""


def preload(module: str, factory: str) -> Any:
    """Import everything that workers need; `factory` of `module`. Raises what importing raises."""
    # `multiprocess` does without dill when it is missing. A worker never pickles, and dill alone takes as long to
    # import as everything else together, and as long to copy at every fork.
    sys.modules["dill"] = None  # type: ignore[assignment]
    with _no_fork_hooks():
        for name in _MODULES:
            importlib.import_module(name)
        for name in _MODULES_WHERE_PRESENT:
            with suppress(ModuleNotFoundError):
                importlib.import_module(name)
        return getattr(importlib.import_module(module), factory)


@contextmanager
def _no_fork_hooks() -> Iterator[None]:
    """Keep `threading`, `random` and `logging` from registering what they do in each child.

    It mends what other threads leave behind, of which there are none, draws randomness, of which scripts see none, and
    costs a quarter of the time from fork to confined worker.
    """
    register = os.register_at_fork
    os.register_at_fork = _ignore
    try:
        yield
    finally:
        os.register_at_fork = register


def _ignore(**hooks: object) -> None:
    """Stands in for `os.register_at_fork`."""
