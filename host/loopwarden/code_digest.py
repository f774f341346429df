"""Digest of the code behind a contract: every Python file of the loop's package.

That is the nearest package around the contract that holds a `loop.py`; without one, the package that it stands in.
An import can be written in more ways than a reader of imports can follow, so nothing is read: all files count. What
runs is what was imported, so the digest is taken when the first script with the contract is made, and remembered.

An approval names the source of a script beside the code of its contract. There the `loop.py` of the package is left
out when it holds exactly that source, byte for byte: so a reviewer sees whether trusted code changed, or the script
alone, and nothing that runs is without a digest.
"""

import functools
import inspect
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from loopwarden.contract import Contract, PlainContract
from loopwarden.regular_file import open_regular_file
from loopwarden_engine.plain import digest

LOOP_FILE: Final = "loop.py"
"""The script of a loop, in its package."""
NO_CONTRACT: Final = "none"
"""What stands for the digest of a contract where a script has none."""

_SUFFIXES: Final = (".py", ".pyc", ".so")
"""What Python imports from a folder. `__pycache__` holds only what it made of the files beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractCode:
    """The code of a contract, as far as it can be told which code that is."""

    digest: str | None
    """None: there is no file, as for a class that was typed into a console, or it is Loopwarden's own."""
    problem: str | None = None
    """Why the digest does not cover all of the code, as a clause; then nobody can approve it."""
    loop: str | None = None
    """Digest of the bytes of the `loop.py` at the top of the package; None: there is none."""
    besides_loop: str | None = None
    """Digest of the others, which says that there is a `loop.py`, and not what it holds. None: there is none."""

    def beside(self, source: str) -> "ContractCode":
        """The code that the digest `source` of a script does not cover already.

        A `loop.py` that holds anything else than this very source counts: a contract could import it.
        """
        is_covered = self.loop is not None and self.loop == source
        return ContractCode(digest=self.besides_loop if is_covered else self.digest, problem=self.problem)


def contract_code(contract: Contract[Any, Any]) -> ContractCode:
    """The code of a contract as it was when the first script with it was made."""
    return _code_of(type(contract))


def approved_form(contract: Contract[Any, Any], source: str) -> ContractCode:
    """As a lock names it beside the source with the digest `source`: `NO_CONTRACT` for a script without a contract."""
    if type(contract) is PlainContract:
        return ContractCode(digest=NO_CONTRACT)
    return contract_code(contract).beside(source)


@functools.cache
def _code_of(kind: type[Contract[Any, Any]]) -> ContractCode:
    if kind.__module__.partition(".")[0] == "loopwarden":
        return ContractCode(digest=None, problem="its contract is part of Loopwarden itself")
    try:
        file = inspect.getsourcefile(kind)
        if file is None:
            raise OSError
        path = Path(file)
        if (path.parent / "__init__.py").exists():
            return package_code(_loop_package(path.parent))
        problem = None if "." not in kind.__module__ else _without_init(path.parent)
        return ContractCode(digest=files_digest([path], path.parent), problem=problem)
    except (TypeError, OSError):
        return ContractCode(digest=None, problem="the file with the code of its contract cannot be read")


def _loop_package(folder: Path) -> Path:
    """The package of the loop whose contract stands in the package `folder`."""
    for package in (folder, *folder.parents):
        if not (package / "__init__.py").exists():
            break
        if (package / LOOP_FILE).exists():
            return package
    return folder


def folder_code(folder: Path, source: str) -> ContractCode:
    """The code of the contract of a loop's folder, without importing it; as `approved_form`. Raises OSError."""
    if not (folder / "contract.py").exists():
        return ContractCode(digest=NO_CONTRACT)
    if not (folder / "__init__.py").exists():
        return ContractCode(digest=None, problem=_without_init(folder))
    return package_code(folder).beside(source)


def package_code(folder: Path) -> ContractCode:
    """The code of a package: all that can be imported from its folder and those below. Raises OSError."""
    files: list[Path] = []
    problem: str | None = None

    def fail(error: OSError) -> None:
        raise error

    for here, folders, names in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if name != "__pycache__"]
        linked = [name for name in folders if Path(here, name).is_symlink()]
        if linked:
            problem = problem or f"the package of its contract holds a link to a folder, {linked[0]!r}"
        odd = [name for name in names if "\n" in name]
        if odd:
            problem = problem or f"the package of its contract holds a file with an impossible name, {odd[0]!r}"
        files += [Path(here, name) for name in names if name.endswith(_SUFFIXES)]
    parts = _digests(files, folder)  # each file is read once: both digests are of the same bytes
    loop = parts.get(LOOP_FILE)
    besides = None if loop is None else _together({**parts, LOOP_FILE: "is the source"})
    return ContractCode(digest=_together(parts), problem=problem, loop=loop, besides_loop=besides)


def files_digest(files: Sequence[Path], folder: Path) -> str:
    """Digest of files by their names below a folder. Raises OSError."""
    return _together(_digests(files, folder))


def _digests(files: Sequence[Path], folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): digest(_content(path)) for path in files}


def _together(parts: Mapping[str, str]) -> str:
    text = "\n".join(f"{name} {parts[name]}" for name in sorted(parts))
    return digest(text.encode("utf-8", "surrogateescape"))


def _content(path: Path) -> bytes:
    with open_regular_file(path) as file:
        return file.read()


def _without_init(folder: Path) -> str:
    return f"the folder {folder.name!r} of its contract has no __init__.py, so nobody can tell which files belong to it"
