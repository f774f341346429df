"""The loops that this machine has: those that installed distributions ship, and the scripts of the script folders.

A distribution ships a loop by an entry point of the group `loopwarden.scripts` that names a `Loop`. A script folder of
the settings holds `NAME.py`: a script of one's own, without a contract. A name that two places claim is nobody's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from loopwarden.failures import InvalidRequest, ScriptRejected
from loopwarden.ownership import why_untrusted
from loopwarden.script import Loop, Script
from loopwarden.settings import Settings
from loopwarden.table_problem import describe_problem

GROUP: Final = "loopwarden.scripts"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundLoop:
    """A loop that can be run by its name."""

    name: str
    summary: str
    origin: str
    """Where it comes from, as a phrase."""
    path: Path | None
    """The file, when it is a script of a script folder."""
    script: Script[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """All loops by name, and what is wrong with those that cannot be used."""

    loops: Mapping[str, FoundLoop]
    problems: Mapping[str, str]
    """By name: a sentence."""

    def loop(self, name: str) -> FoundLoop:
        """The loop of that name. Raises `InvalidRequest` with a sentence."""
        if name in self.problems:
            raise InvalidRequest(self.problems[name])
        if name in self.loops:
            return self.loops[name]
        known = ", ".join(sorted(self.loops)) or "none"
        raise InvalidRequest(
            f"there is no loop {name[:100]!r}; installed: {known}. "
            "For a script of your own give its path, ending in .py"
        )


def find_loops(settings: Settings) -> Catalogue:
    """Find every loop. Raises `InvalidRequest` when `[loops.NAME]` in the settings does not fit its loop."""
    found: dict[str, FoundLoop] = {}
    problems: dict[str, str] = {}
    for name, candidates in _candidates(settings).items():
        if len(candidates) > 1:
            places = " and ".join(sorted(origin for origin, _ in candidates))
            problems[name] = f"the loop {name} comes from {places}; remove one of them"
            continue
        origin, source = candidates[0]
        try:
            found[name] = _load(name, origin, source, settings)
        except _BrokenLoopError as error:
            problems[name] = str(error)
    for name in settings.loops:
        if name not in found and name not in problems:
            known = ", ".join(sorted(found)) or "none"
            raise settings.refusal(("loops", name), f"there is no loop of this name; installed: {known}")
    for scope, given in settings.scopes.items():
        for name in given.loops:
            if name not in found and name not in problems:  # a typo would leave runs without their budget
                known = ", ".join(sorted(found)) or "none"
                reason = f"there is no loop {name[:100]!r}; installed: {known}"
                raise settings.refusal(("scopes", scope, "loops"), reason)
    return Catalogue(loops=found, problems=problems)


class _BrokenLoopError(Exception):
    """One loop cannot be used; the others can."""


def _candidates(settings: Settings) -> dict[str, list[tuple[str, EntryPoint | Path]]]:
    candidates: dict[str, list[tuple[str, EntryPoint | Path]]] = {}
    # The same distribution can be listed twice (an editable install and its folder on the path): that is no conflict.
    for entry in dict.fromkeys(entry_points(group=GROUP)):
        origin = _origin(entry)
        known = candidates.setdefault(entry.name, [])
        if all(not (isinstance(other, EntryPoint) and other.value == entry.value) for _, other in known):
            known.append((origin, entry))
    for folder in settings.script_folders:
        try:
            scripts = [path for path in folder.iterdir() if path.suffix == ".py"]
        except OSError as error:
            reason = (error.strerror or "input error").lower()
            raise settings.refusal(("script_folders",), f"{folder} cannot be read: {reason}") from None
        for path in sorted(scripts):
            if not path.name.startswith(("_", ".")):
                candidates.setdefault(path.stem, []).append((f"the script folder {folder}", path))
    return candidates


def _origin(entry: EntryPoint) -> str:
    if entry.dist is None:
        return "an unnamed distribution"
    return f"the distribution {entry.dist.name} {entry.dist.version}"


def _load(name: str, origin: str, source: EntryPoint | Path, settings: Settings) -> FoundLoop:
    given = settings.loops.get(name)
    if isinstance(source, Path):
        if given is not None:
            raise settings.refusal(("loops", name), "a script of a script folder has no settings")
        summary = f"Your own script {source.name}."
        return FoundLoop(name=name, summary=summary, origin=origin, path=source, script=_own(source))
    try:
        loop = source.load()
    except Exception as error:  # code of another distribution: whatever it raises, the other loops still work
        raise _BrokenLoopError(
            f"the loop {name} of {origin} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(loop, Loop):
        raise _BrokenLoopError(f"the loop {name} of {origin} is a {type(loop).__name__}, not a Loop; tell its authors")
    try:
        options = loop.settings_model.model_validate(dict(given or {}))
    except ValidationError as error:
        place, reason = describe_problem(error, loop.settings_model)
        if given is None:
            raise _BrokenLoopError(
                f"the loop {name} of {origin} has broken defaults: {reason}; tell its authors"
            ) from None
        raise settings.refusal(("loops", name, *_written(place, given)), reason) from None
    except Exception as error:  # as above
        raise _BrokenLoopError(
            f"the settings of the loop {name} of {origin} cannot be checked: {type(error).__name__}: {error}"
        ) from error
    try:
        script = loop.build(options)
    except Exception as error:  # as above
        raise _BrokenLoopError(
            f"the loop {name} of {origin} cannot be built: {type(error).__name__}: {error}"
        ) from error
    return FoundLoop(name=name, summary=loop.summary, origin=origin, path=None, script=script)


def _written(place: tuple[str | int, ...], given: Mapping[str, Any]) -> tuple[str | int, ...]:
    """A rule about several keys has no place of its own; it is shown at the first key that was written."""
    return place or tuple(given)[:1]


def _own(path: Path) -> Script[Any, Any]:
    try:
        untrusted = why_untrusted(path)
    except (OSError, RuntimeError) as error:
        reason = (getattr(error, "strerror", None) or "the path cannot be used").lower()
        raise _BrokenLoopError(f"the script {path} cannot be read: {reason}") from None
    if untrusted is not None:
        raise _BrokenLoopError(f"the script {path} cannot be trusted: {untrusted}")
    try:
        return Script.from_file(path)
    except ScriptRejected as error:
        raise _BrokenLoopError(error.message) from None
