"""What must be the same for a replay to be exact: the interpreter, the language policy, the contract of the loop."""

import functools
import importlib.metadata
import sys
from pathlib import Path
from typing import Any, Final

import loopwarden_engine
from loopwarden.code_digest import contract_code, files_digest
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
    files = [path for pattern in _RUNTIME for path in folder.glob(pattern)]
    return ReplayVersion(
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        restricted_python=importlib.metadata.version("RestrictedPython"),
        policy=files_digest(files, folder),
    )


def contract_digest(contract: Contract[Any, Any]) -> str:
    """Digest of the code behind a contract: its class, and the Python files of the package that it stands in.

    A contract of Loopwarden's own, or one without a file (typed into a console), counts by its name alone.
    """
    kind = type(contract)
    name = f"{kind.__module__}.{kind.__qualname__}"
    code = contract_code(contract).digest
    return digest((name if code is None else f"{name}\n{code}").encode())
