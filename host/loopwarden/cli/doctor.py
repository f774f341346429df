"""`loopwarden doctor`: whether this machine can run loops, and under which settings."""

import asyncio
import os
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

from loopwarden.approvals import approval_of
from loopwarden.cli.approving import approval_json
from loopwarden.cli.deployment_host import approvals_of
from loopwarden.cli.loop_commands import as_command, shared_options
from loopwarden.cli.matrix import examine_walls
from loopwarden.cli.output import Output
from loopwarden.cli.provider_choice import refuse_unusable_provider
from loopwarden.cli.provider_words import variables_of, what_is_asked
from loopwarden.cli.store_health import StoreExamined, examine_store
from loopwarden.display import shown_line
from loopwarden.failures import EXIT_FAILED, StartRefused
from loopwarden.lock_file import Approval
from loopwarden.loops import Catalogue, FoundLoop, find_loops
from loopwarden.provider_settings import CommandSettings
from loopwarden.run_folder import RunFolderError, make_private_folder
from loopwarden.settings import Settings, load_settings
from loopwarden.walls import Wall, probe_walls
from loopwarden_engine.confinement import ARCHITECTURES

_MATRIX = (
    Annotated[
        bool, typer.Option("--matrix", help="Attack the operating-system wall, and show what each part of it stops.")
    ],
    False,
)


def doctor_command(config: Path | None) -> Callable[..., int]:
    """The command."""

    def run(**given: Any) -> int:
        output = Output(json=given["json"])
        return examine_walls(output) if given["matrix"] else examine(config, output)

    return as_command(run, {"matrix": _MATRIX, **shared_options("json", "config")})


def examine(config: Path | None, output: Output) -> int:
    """Look at everything, print it, and return 0 when runs can start here."""
    problems: list[str] = []
    are_usable = True
    try:
        settings = load_settings(config)
    except StartRefused as error:
        problems.append(error.message)
        # What is shipped, to look at the rest of the machine with; none of it is called in force.
        settings, are_usable = Settings(), False
    loops = _loops(settings, problems)
    walls = _walls(problems)
    if not settings.allow_weak_confinement:
        problems += _missing_walls(walls)
    try:
        make_private_folder(settings.state_folder)
    except RunFolderError as error:
        problems.append(str(error))
    in_force = settings if are_usable else None
    store = None if in_force is None else examine_store(in_force)
    problems += [] if store is None else store.problems
    exit_code = EXIT_FAILED if problems else 0
    output.show_object({**_as_object(in_force, loops, walls, problems, exit_code), "store": store and store.to_json()})
    output.show(_as_text(in_force, loops, walls, problems, store))
    return exit_code


def _catalogue(settings: Settings, problems: list[str]) -> Catalogue:
    try:
        if settings.default_provider is not None:
            refuse_unusable_provider(settings.default_provider, settings)
    except StartRefused as error:
        problems.append(f"the default provider {settings.default_provider}: {error.message}")
    try:
        catalogue = find_loops(settings)
    except StartRefused as error:
        problems.append(error.message)
        return Catalogue(loops={}, problems={})
    problems += catalogue.problems.values()
    return catalogue


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loop:
    """A loop that was found. `approval`: who approved it; `needs_approval`: without one it does not run here."""

    found: FoundLoop
    approval: Approval | None
    needs_approval: bool

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.found.name,
            "summary": self.found.summary,
            "origin": self.found.origin,
            "digest": self.found.script.digest,
            "needsApproval": self.needs_approval,
            "approval": None if self.approval is None else approval_json(self.approval),
        }

    def text(self) -> str:
        line = f"{self.found.name:<14} {self.found.summary}  ({self.found.origin})"
        if self.approval is not None:
            return f"{line}; approved by {self.approval.approved_by} on {self.approval.when}"
        return (
            f"{line}; NOT APPROVED, so it does not run here: see `loopwarden approve`" if self.needs_approval else line
        )


def _loops(settings: Settings, problems: list[str]) -> list[_Loop]:
    catalogue, approvals = _catalogue(settings, problems), approvals_of(settings)
    entries: tuple[Approval, ...] = ()
    try:
        entries = () if approvals is None else approvals.entries()
    except StartRefused as error:
        problems.append(error.message)
    return [
        _Loop(found=found, approval=approval_of(entries, found.script), needs_approval=approvals is not None)
        for found in catalogue.loops.values()
    ]


def _walls(problems: list[str]) -> list[Wall]:
    try:
        return asyncio.run(probe_walls())
    except StartRefused as error:
        problems.append(error.message)
        return []


def _missing_walls(walls: list[Wall]) -> list[str]:
    """The problems that walls are which do not stand, for settings that need them."""
    missing = [wall for wall in walls if wall.mandatory and not wall.stands]
    if not missing:
        return []
    processors = " or ".join(sorted(ARCHITECTURES))
    advice = (
        f"runs are refused without {'this wall' if len(missing) == 1 else 'these walls'}; use Linux 5.13 or newer with "
        f"seccomp and Landlock on {processors}, or set allow_weak_confinement in loopwarden.toml if the scripts are "
        "trusted"
    )
    return [*(f"the wall {wall.name} does not stand: {wall.detail}" for wall in missing), advice]


def _platform() -> dict[str, str]:
    return {
        "loopwarden": version("loopwarden"),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "user": "root" if os.geteuid() == 0 else f"uid {os.geteuid()}",
    }


def _as_object(
    settings: Settings | None,
    loops: list[_Loop],
    walls: list[Wall],
    problems: list[str],
    exit_code: int,
) -> dict[str, Any]:
    return {
        "exit": exit_code,
        "platform": _platform(),
        "walls": [
            {"name": wall.name, "stands": wall.stands, "mandatory": wall.mandatory, "detail": wall.detail}
            for wall in walls
        ],
        "settings": None if settings is None else settings.to_json(),
        "settingsDigest": None if settings is None else settings.digest,
        "loops": [loop.to_json() for loop in loops],
        "problems": problems,
    }


def _settings_lines(settings: Settings) -> list[str]:
    shown = settings.to_json()
    lines = [
        f"settings  {shown['file'] or 'no file: the shipped defaults'}",
        f"  digest                     {settings.digest}",
        f"  state folder               {shown['stateFolder']}",
    ]
    if settings.require_approved:
        alone = "" if settings.approve_shipped else ", also of the shipped loops (approve_shipped = false)"
        lines.append(f"  require_approved           what {shown['lock']} names{alone}")
    if settings.require_bound:
        lines.append("  require_bound              what cannot start more agents than it may")
    for name, provider in settings.providers.items():
        default = " (default)" if name == settings.default_provider else ""
        kind = "" if isinstance(provider, CommandSettings) else f"{provider.type}: "
        variables = variables_of(provider)
        environment = f"  environment: {', '.join(variables)}" if variables else ""
        lines.append(f"  provider {name + default:<17} {kind}{what_is_asked(provider)}{environment}")
    if settings.default_provider is not None and settings.default_provider not in settings.providers:
        lines.append(f"  provider {settings.default_provider + ' (default)':<17} known without settings")
    lines += [f"  {name:<26} {_limit(value)}" for name, value in asdict(settings.limits).items()]
    return lines


def _limit(value: float | None) -> str:
    """A limit as it is written in the file."""
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _as_text(
    settings: Settings | None,
    loops: list[_Loop],
    walls: list[Wall],
    problems: list[str],
    store: StoreExamined | None,
) -> str:
    lines = ["platform", *(f"  {name:<14} {value}" for name, value in _platform().items()), "", "walls"]
    for wall in walls:
        stands = "stands" if wall.stands else "MISSING" if wall.mandatory else "missing"
        lines.append(f"  {wall.name:<18} {stands:<8} {wall.detail}")
    lines += ["", *(["settings  cannot be used: see below"] if settings is None else _settings_lines(settings))]
    lines += [] if store is None else ["", "store", *(f"  {line}" for line in store.lines)]
    lines += ["", "loops"]
    lines += [f"  {loop.text()}" for loop in loops] or ["  none"]
    lines += ["", *(f"problem: {problem}" for problem in problems)] if problems else ["", _conclusion(walls)]
    return "\n".join(shown_line(line) for line in lines)


def _conclusion(walls: list[Wall]) -> str:
    """The last line when there is no problem. Walls may be missing then: the settings allow it."""
    missing = [wall.name for wall in walls if wall.mandatory and not wall.stands]
    if all(wall.stands for wall in walls):
        return "walls: all stand, runs can start here"
    if not missing:
        return "walls: all stand that a run needs, runs can start here"
    return f"runs can start here, without these walls: {', '.join(missing)} (allow_weak_confinement is set)"
