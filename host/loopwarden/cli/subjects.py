"""What `vet` and `approve` look at: a script's file, a loop's folder, or an installed loop by its name.

Nothing of a file or folder is imported or run: its source is text, and the code of its contract is digested by path.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from loopwarden.cli.output import Output
from loopwarden.cli.request import is_file_name
from loopwarden.code_digest import LOOP_FILE, NO_CONTRACT, ContractCode, approved_form, folder_code
from loopwarden.contract import PlainContract
from loopwarden.display import shown_line
from loopwarden.failures import InvalidRequest, StartRefused
from loopwarden.loops import Catalogue, find_loops
from loopwarden.script import Script, read_source
from loopwarden.settings import Settings, load_settings

PATHS_HELP: Final = "A script's file, a loop's folder, or the name of an installed loop."


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One script to look at."""

    place: str
    """Where its lines are: the file as it was named, or the name of an installed loop."""
    script: Script[Any, Any]
    code: ContractCode
    """As a lock names the code of its contract."""

    @property
    def is_folder_of_contract(self) -> bool:
        """It has a contract that was not imported: nobody can ask it."""
        return type(self.script.contract) is PlainContract and self.code.digest != NO_CONTRACT


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """One word of the command line that is no script."""

    place: str
    problem: str


class Finder:
    """Finds subjects under the settings; those that cannot be used are said once, and the shipped ones hold instead."""

    def __init__(self, config: Path | None, output: Output, *, needs_settings: bool = False) -> None:
        """Raises `InvalidRequest` for settings that cannot be used, if `needs_settings`."""
        try:
            self.settings = load_settings(config)
        except StartRefused as refused:
            if needs_settings:
                raise
            output.say(f"note: the shipped settings hold, since yours cannot be used: {shown_line(refused.message)}")
            self.settings = Settings()
        self._output = output
        self._catalogue: Catalogue | None = None

    @property
    def catalogue(self) -> Catalogue:
        """The installed loops."""
        if self._catalogue is None:
            try:
                self._catalogue = find_loops(self.settings)
            except StartRefused as refused:
                self._output.say(f"note: loops have their shipped settings: {shown_line(refused.message)}")
                self._catalogue = find_loops(Settings())
        return self._catalogue

    def find(self, words: Sequence[str]) -> list[Subject | Unreadable]:
        """One result for each word."""
        return [self._find(word) for word in words]

    def installed(self) -> list[Subject]:
        """All installed loops."""
        return [self._installed(name) for name in self.catalogue.loops]

    def _find(self, word: str) -> Subject | Unreadable:
        try:
            path = Path(word)
            has_loop = bool(_loop_folders(path))
            if is_file_name(word) or path.name in ("", "..") or (has_loop and word not in self.catalogue.loops):
                return _at(path)
            if not has_loop and path.is_dir() and word not in {**self.catalogue.loops, **self.catalogue.problems}:
                return _at(path)
            installed = self._installed(word)
            if has_loop and not _is_same(installed, _at(path)):
                reason = (
                    f"the installed loop and the folder here differ; write ./{word} for the folder, or call this from "
                    "another folder for the installed one"
                )
                return Unreadable(place=word, problem=reason)
            return installed
        except StartRefused as refused:
            return Unreadable(place=word, problem=refused.message)
        except (OSError, ValueError) as error:
            reason = (getattr(error, "strerror", None) or "the path cannot be used").lower()
            return Unreadable(place=word, problem=f"it cannot be read: {reason}")

    def _installed(self, name: str) -> Subject:
        found = self.catalogue.loop(name)
        place = name if found.path is None else str(found.path)
        return Subject(place=place, script=found.script, code=approved_form(found.script.contract, found.script.digest))


def _at(path: Path) -> Subject:
    """Raises `StartRefused`, OSError."""
    if path.is_dir():
        folders = _loop_folders(path)
        if not folders:
            raise InvalidRequest(f"the folder {path} holds no {LOOP_FILE}; give the paths of its scripts")
        if len(folders) > 1:
            several = ", ".join(str(folder) for folder in folders)
            raise InvalidRequest(f"the folder {path} holds several loops; name one of them: {several}")
        return _folder(folders[0])
    if path.name == LOOP_FILE and (path.parent / "contract.py").exists():
        return _folder(path.parent)
    script = Script.from_file(path)
    return Subject(place=str(path), script=script, code=ContractCode(digest=NO_CONTRACT))


def _is_same(one: Subject, other: Subject) -> bool:
    """Nobody has to say which of them is meant."""
    return (one.script.digest, one.code) == (other.script.digest, other.code)


def _loop_folders(path: Path) -> list[Path]:
    """The folder itself, or the packages with a loop of a project, as `loopwarden new` makes one."""
    if (path / LOOP_FILE).is_file():
        return [path]
    if not (path / "pyproject.toml").is_file():
        return []
    return sorted(file.parent for pattern in ("*", "src/*") for file in path.glob(f"{pattern}/{LOOP_FILE}"))


def _folder(folder: Path) -> Subject:
    file = folder / LOOP_FILE
    script = Script(name=folder.resolve().name, source=read_source(file), contract=PlainContract())
    return Subject(place=str(file), script=script, code=folder_code(folder, script.digest))


def script_args(script: Script[Any, Any], args: Any) -> Any:
    """What `main(args)` gets for the arguments of a request. Raises `StartRefused`."""
    contract = script.contract
    try:
        return contract.script_args(contract.decode_args(args), None)
    except StartRefused:
        raise
    except Exception as error:
        raise InvalidRequest(
            f"the contract of the loop {script.name!r} failed with {type(error).__name__} at these arguments"
        ) from error
