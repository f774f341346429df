"""What the demo needs: a fresh copy of its workspace, the program that plays the agent, and the check."""

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Final

from loopwarden.failures import LoopwardenError

OBJECTIVE: Final = "Make every test of this package pass by repairing the code under shop/. Do not change the tests."
CHECK: Final = (sys.executable, "-B", "-m", "unittest", "discover", "-s", "tests", "-t", ".")

_DATA: Final = resources.files("loopwarden.demo")
_SUFFIX: Final = ".txt"
"""The files of the workspace are stored as text: no tool that looks at our own sources takes them for such."""


class DemoError(LoopwardenError):
    """The workspace of the demo cannot be made. The message is a sentence."""


@contextmanager
def workspace_copy(*, keep: bool = False) -> Iterator[Path]:
    """A fresh copy of the demo's workspace in a private temporary folder. Raises `DemoError`."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="loopwarden-demo-")).resolve()
        with resources.as_file(_DATA / "workspace") as source:
            for path in sorted(source.rglob("*" + _SUFFIX)):
                copy = folder / path.relative_to(source).with_suffix("")
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(path.read_bytes())
    except OSError as error:
        reason = (error.strerror or "output error").lower()
        raise DemoError(
            f"the workspace of the demo cannot be made: {reason}; set TMPDIR to a folder with space"
        ) from None
    try:
        yield folder
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def agent_argv(*, lies: bool) -> tuple[str, ...]:
    """The program that plays the agent. With `lies` it reports completion and does nothing."""
    with resources.as_file(_DATA / "agent.py") as path:
        return (sys.executable, str(path), *(("--lie",) if lies else ()))
