"""A loop package as `loopwarden new` writes it: a small loop that works at once, to be rewritten by its author.

The files are templates beside this module. `$name`, `$module` and `$version` are filled in; nothing of this machine
goes into them.
"""

import keyword
import re
import shutil
import sys
from collections.abc import Collection, Mapping
from importlib import resources
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Final

from loopwarden.failures import InvalidRequest

MAX_NAME_CHARS: Final = 50

_NAME: Final = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*")
_FILES: Final[Mapping[str, str]] = {
    "pyproject.toml.in": "pyproject.toml",
    "package.py.in": "src/$module/__init__.py",
    "loop.py.in": "src/$module/loop.py",
    "contract.py.in": "src/$module/contract.py",
    "README.md.in": "src/$module/README.md",
    "py.typed.in": "src/$module/py.typed",
    "test_loop.py.in": "tests/test_$module.py",
}
"""Template to the file that is made of it."""


_NEEDED: Final = frozenset(
    {"contract", "hatchling", "hypothesis", "loop", "loopwarden", "loopwarden_engine", "loopwarden_scripts"}
    | {"pydantic", "pytest", "src", "tests"}
)
"""Modules of the package itself, and what it and its tests import, installed here or not."""


def module_name(name: str) -> str:
    """The Python name of the loop `name`."""
    return name.replace("-", "_")


def refuse_name(name: str, taken: Collection[str]) -> None:
    """Raise `InvalidRequest` with a sentence unless a new loop can have this name. `taken`: loops of this machine."""
    if len(name) > MAX_NAME_CHARS or _NAME.fullmatch(name) is None:
        raise InvalidRequest(
            f"{name[:100]!r} cannot be the name of a loop; give at most {MAX_NAME_CHARS} small letters, digits and "
            "single - or _ between them, a letter first, such as review-answers"
        )
    module = module_name(name)
    for other in taken:
        if module_name(other) == module:
            raise InvalidRequest(f"there is a loop {other!r} on this machine already; choose another name")
    if keyword.iskeyword(module) or keyword.issoftkeyword(module):
        raise InvalidRequest(f"{name!r} is a word of Python's own; choose another name")
    if module in _NEEDED or module in sys.stdlib_module_names or _is_installed(module):
        raise InvalidRequest(f"{name!r} would hide the Python module {module}; choose another name")


def write_loop_package(name: str, folder: Path) -> list[Path]:
    """Write the package of the loop `name` into the folder `folder`/`name`, new or empty; return its files in order.

    Raises `InvalidRequest` when that holds anything, is no folder, or cannot be written; then nothing of it is left.
    """
    words = {"name": name, "module": module_name(name), "version": version("loopwarden")}
    target = folder / name
    is_new = _make_folder(target)
    templates = resources.files("loopwarden") / "templates"
    written = []
    try:
        for template, place in _FILES.items():
            path = target / Template(place).substitute(words)
            path.parent.mkdir(parents=True, exist_ok=True)
            text = templates.joinpath(template).read_text(encoding="utf-8")
            path.write_text(Template(text).substitute(words), encoding="utf-8")
            written.append(path)
    except OSError as error:
        for made in [target] if is_new else list(target.iterdir()):  # all of it made here, a moment ago
            shutil.rmtree(made, ignore_errors=True) if made.is_dir() else made.unlink(missing_ok=True)
        raise InvalidRequest(f"{target} cannot be written: {_reason(error)}") from None
    return written


def _make_folder(target: Path) -> bool:
    """Whether it was made; False when it is there, and empty. Raises `InvalidRequest`."""
    try:
        target.mkdir()
    except FileExistsError:
        if target.is_dir() and not any(target.iterdir()):
            return False
        raise InvalidRequest(f"{target} exists already; nothing was written. Choose another name or folder") from None
    except OSError as error:
        raise InvalidRequest(f"{target} cannot be made: {_reason(error)}") from None
    return True


def _is_installed(module: str) -> bool:
    """A folder without a module in it, such as one of the current folder, hides nothing."""
    spec = find_spec(module)
    return spec is not None and spec.origin is not None


def _reason(error: OSError) -> str:
    return (error.strerror or "output error").lower()
