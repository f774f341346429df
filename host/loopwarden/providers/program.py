"""Finding a program, and the environment that it gets. No shell, no settings from inside a workspace."""

import errno
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from loopwarden.failures import LoopwardenError

PASSED_NAMES: Final = ("PATH", "HOME", "LANG", "TERM")
_LOCALE_CATEGORIES: Final = (
    "ADDRESS ALL COLLATE CTYPE IDENTIFICATION MEASUREMENT MESSAGES MONETARY NAME NUMERIC PAPER TELEPHONE TIME"
)
PASSED_LOCALE_NAMES: Final = tuple(f"LC_{category}" for category in _LOCALE_CATEGORIES.split())
"""The categories of glibc's locale(7). Not every name that begins so: such names are used to carry other things."""


class ProgramNotStarted(LoopwardenError):
    """A program could not be started. The message is a sentence that names it and says what to do."""


class SupervisorLost(ProgramNotStarted):
    """The supervisor ended before it was ready, so nothing of the program was started. Another try may do better."""


def allowed_environment(
    source: Mapping[str, str], pass_names: Sequence[str], added: Mapping[str, str]
) -> dict[str, str]:
    """The environment of a program: the allowlist and `pass_names` out of `source`, then `added`."""
    names = (*PASSED_NAMES, *PASSED_LOCALE_NAMES, *pass_names)
    environment = {name: source[name] for name in names if name in source}
    environment.setdefault("PATH", os.defpath)
    environment.update(added)
    return environment


def absolute_name(name: str) -> str:
    """A program given by a relative path is meant from where the host runs, never from inside a workspace."""
    return os.path.abspath(name) if os.sep in name else name


def find_program(name: str, search_path: str, what: str) -> str:
    """Return the absolute path of the program `name`. `what` says in errors whose program it is.

    A bare name is searched in the absolute folders of `search_path`; relative ones are left out, since they would be
    looked up in the workspace, where agents write. Raises `ProgramNotStarted`.
    """
    if os.sep in name:
        path = absolute_name(name)
        problem = _problem(path)
        if problem is None:
            return path
        raise ProgramNotStarted(f"the {what} {name!r} {problem}")
    unusable: str | None = None
    for folder in search_path.split(os.pathsep):
        if not os.path.isabs(folder):
            continue
        path = os.path.join(folder, name)
        problem = _problem(path)
        if problem is None:
            return path
        if unusable is None and os.path.lexists(path):
            unusable = f"the {what} {path!r} {problem}"
    raise ProgramNotStarted(
        unusable or f"the {what} {name!r} was not found in PATH; check its name, or give its full path"
    )


def _problem(path: str) -> str | None:
    if not os.path.exists(path):
        return "does not exist; check its path"
    if not os.path.isfile(path):
        return "is not a file; give the path of a program"
    if not os.access(path, os.X_OK):
        return f"is not executable; run chmod +x {path}, or put its interpreter in front"
    return None


def check_folder(folder: Path) -> None:
    """Raises `ProgramNotStarted` when a program cannot run in `folder`."""
    if not folder.exists():
        raise ProgramNotStarted(f"the workspace {str(folder)!r} does not exist; create it, or give another one")
    if not folder.is_dir():
        raise ProgramNotStarted(f"the workspace {str(folder)!r} is not a folder; give the folder that holds the work")


def refusal_sentence(step: str, number: int, *, what: str, program: str, folder: str) -> str:
    """Say in words why the supervisor could not start a program: the step that failed and the error number."""
    reason = os.strerror(number).lower()
    if step == "folder":
        return f"the workspace {folder!r} cannot be entered: {reason}; check that it exists and who may enter it"
    if step != "program":
        return f"the {what} {program!r} could not be started: {reason}; try again when the machine is less busy"
    if number == errno.ENOENT:
        return f"the {what} {program!r} cannot run: the interpreter that it names does not exist; check its first line"
    if number == errno.ENOEXEC:
        return f"the {what} {program!r} is neither a program nor a script with a #! line; put its interpreter in front"
    if number == errno.E2BIG:
        return f"the {what} {program!r} cannot be started: its arguments are too long; pass long ones by a file"
    return f"the {what} {program!r} cannot be started: {reason}; check who may run it"
