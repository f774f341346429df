"""A loop with a contract as another distribution ships it: a package on disk, found by an entry point."""

import importlib
import sys
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import pytest

from loopwarden import Script, loops

LOOP = '''"""Ask about each file."""

from loopwarden_engine import agent


def main(args):
    return [agent(f"look at {file}") for file in args["files"]]
'''
CONTRACT = '''from loopwarden import JsonObject, JsonValue, PlainContract

from votes_on_disk.rules import CALLS


class VotesContract(PlainContract):
    """Any arguments."""

    calls = CALLS
'''
PACKAGE = """from pathlib import Path

from pydantic import BaseModel

from loopwarden import Loop, Script
from votes_on_disk.contract import VotesContract


class Settings(BaseModel):
    nothing: bool = True


def build(settings):
    source = Path(__file__).with_name("loop.py").read_text(encoding="utf-8")
    return Script(name="votes", source=source, contract=VotesContract())


loop = Loop(name="votes", summary="votes", settings_model=Settings, build=build)
"""
NAME = "votes_on_disk"


class LoopOnDisk:
    """The package, which is imported anew at each look, as by a process that is started then."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder / NAME
        self.folder.mkdir(mode=0o700, parents=True)
        for name, text in (
            ("__init__.py", PACKAGE),
            ("loop.py", LOOP),
            ("contract.py", CONTRACT),
            ("rules.py", "CALLS = 3\n"),
        ):
            (self.folder / name).write_text(text)
        patch.syspath_prepend(str(folder))
        patch.setattr(sys, "dont_write_bytecode", True)  # a change within one second would not be seen
        patch.setattr(loops, "entry_points", self._entry_points)

    def _entry_points(self, *, group: str) -> list[EntryPoint]:
        self.forget()
        return [*entry_points(group=group), EntryPoint(name="votes", value=f"{NAME}:loop", group=loops.GROUP)]

    def forget(self) -> None:
        """Let the next import read the files again."""
        for name in [name for name in sys.modules if name.partition(".")[0] == NAME]:
            del sys.modules[name]
        importlib.invalidate_caches()

    def script(self) -> Script[Any, Any]:
        """The script, imported now."""
        self.forget()
        module = importlib.import_module(NAME)
        script: Script[Any, Any] = module.build(None)
        return script

    def change(self, name: str) -> None:
        """Change one byte of a file."""
        path = self.folder / name
        path.write_text(path.read_text() + "\n")
