"""What must be the same for a replay to be exact: the interpreter, the language policy, the contract of the loop."""

import functools
import importlib.metadata
import inspect
import sys
from pathlib import Path
from typing import Any, Final

import loopwarden_engine
from loopwarden.contract import Contract
from loopwarden.journal.entries import ReplayVersion
from loopwarden_engine.plain import digest

_RUNTIME: Final = ("execution.py", "hook_rules.py", "hooks.py", "plain.py", "scheduler.py", "language/*.py")
"""What decides what a script does: the files of the engine that run it."""


@functools.cache
def replay_version() -> ReplayVersion:
    """The version of this host."""
    assert loopwarden_engine.__file__ is not None
    folder = Path(loopwarden_engine.__file__).parent
    files = sorted(path for pattern in _RUNTIME for path in folder.glob(pattern))
    return ReplayVersion(
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        restricted_python=importlib.metadata.version("RestrictedPython"),
        policy=_digest(files, folder),
    )


def contract_digest(contract: Contract[Any, Any]) -> str:
    """Digest of the code behind a contract: its class, and the Python files of the package that it stands in.

    A contract of Loopwarden's own, or one without a file (typed into a console), counts by its name alone.
    """
    kind = type(contract)
    name = f"{kind.__module__}.{kind.__qualname__}"
    try:
        file = inspect.getsourcefile(kind)
    except TypeError:
        file = None
    if file is None or kind.__module__.partition(".")[0] == "loopwarden":
        return digest(name.encode("utf-8"))
    path = Path(file)
    files = sorted(path.parent.glob("*.py")) if (path.parent / "__init__.py").exists() else [path]
    return digest(f"{name}\n{_digest(files, path.parent)}".encode())


def _digest(files: list[Path], folder: Path) -> str:
    parts = [f"{path.relative_to(folder)} {digest(path.read_bytes())}" for path in files]
    return digest("\n".join(parts).encode())
