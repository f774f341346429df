"""From what a person asked to what will be done: everything is resolved and checked before anything starts."""

import os
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from loopwarden.checks import WHAT as CHECK_PROGRAM
from loopwarden.checks import Check
from loopwarden.cli.caps import deployment_limits, find_overrides, first_line
from loopwarden.cli.provider_choice import NO_PROVIDER, Chosen, choose_providers, refuse_unmet_policy
from loopwarden.cli.request import Request
from loopwarden.display import plural, shown_line
from loopwarden.failures import InvalidRequest
from loopwarden.launch_record import LaunchRecord
from loopwarden.limits import LimitOverrides, Limits
from loopwarden.providers.program import ProgramNotStarted, absolute_name, allowed_environment, find_program
from loopwarden.settings import Settings
from loopwarden.workspace import lies_inside, refuse_inside, resolve_workspace

SCRATCH_PREFIX: Final = "loopwarden-workspace-"
"""Of the names of empty folders that are made for agents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What will be done."""

    request: Request
    settings: Settings
    workspace: Path | None
    """None: agents get an empty folder of their own, see `scratch_workspace`."""
    chosen: Chosen
    checks: tuple[Check, ...]
    overrides: LimitOverrides
    limits: Limits
    """The limits in force, overrides included."""
    max_agents: int
    first_line: str
    notes: tuple[str, ...] = ()

    @property
    def record(self) -> LaunchRecord:
        """The choices that `continue` takes over. Relative paths are resolved: it may be typed in another folder."""
        request = self.request
        program, arguments = request.program[:1], request.program[1:]
        return LaunchRecord(
            loop=None if request.target.file is not None else request.target.name,
            script_file=None if request.target.file is None else os.path.abspath(request.target.file),
            provider=None if request.program or self.chosen.name == NO_PROVIDER else self.chosen.name,
            program=[*map(absolute_name, program), *arguments],
            checks=[shlex.join(check.argv) for check in self.checks],
            agent_timeout_seconds=request.agent_timeout_seconds,
            deadline_seconds=request.deadline_seconds,
            max_total_agents=request.max_total_agents,
            max_extra_attempts=request.max_extra_attempts,
            max_cost_usd=request.max_cost_usd,
            pass_env=list(request.pass_env),
            model=request.model,
            share_workspace=request.share_workspace,
            isolation=request.isolation,
        )


def prepare(request: Request, settings: Settings) -> Prepared:
    """Resolve a request under the settings. Raises a subclass of `StartRefused`."""
    workspace, notes = _workspace(request)
    if workspace is not None:
        _refuse_ours_inside(workspace, request, settings)
    chosen = choose_providers(request, settings)
    overrides = find_overrides(request, settings)
    limits = deployment_limits(request, settings).lowered(overrides)
    refuse_unmet_policy(chosen, limits)
    checks = tuple(_check(text) for text in request.checks)
    for check in checks:
        _refuse_missing_check(check, workspace)
    max_agents = _max_agents(request, limits)
    in_force = replace(limits, max_total_agents=max_agents).resolved(has_store=settings.store.kind != "none")
    return Prepared(
        request=request,
        settings=settings,
        workspace=workspace,
        chosen=chosen,
        checks=checks,
        overrides=overrides,
        limits=replace(limits, max_extra_attempts=in_force.max_extra_attempts),
        max_agents=max_agents,
        first_line=first_line(request.target.name, max_agents, limits),
        notes=(
            *request.notes,
            *notes,
            *chosen.notes,
            *_repeats_note(request, chosen),
            *_program_note(chosen, workspace),
            *_check_notes(checks, workspace),
        ),
    )


def _max_agents(request: Request, limits: Limits) -> int:
    """How many agents the run can start. Raises a subclass of `StartRefused`."""
    contract = request.target.script.contract
    of_loop = contract.max_total_agents(contract.decode_args(request.args))
    if of_loop is not None and of_loop > limits.max_total_agents:
        raise InvalidRequest(
            f"this run could start {plural(of_loop, 'agent')}, above the ceiling of this deployment, "
            f"{limits.max_total_agents} (max_total_agents); ask for fewer rounds, or have the operator raise it",
            details={"limit": "max_total_agents", "asked": of_loop, "ceiling": limits.max_total_agents},
        )
    return limits.max_total_agents if of_loop is None else of_loop


@contextmanager
def scratch_workspace() -> Iterator[Path]:
    """An empty private folder for agents; taken away afterwards, unless they left something in it."""
    try:
        folder = Path(tempfile.mkdtemp(prefix=SCRATCH_PREFIX))
    except OSError as error:
        reason = (error.strerror or "output error").lower()
        raise InvalidRequest(f"an empty folder for agents cannot be made: {reason}; give --workspace") from None
    try:
        yield folder.resolve()
    finally:
        with suppress(OSError):
            folder.rmdir()


def _workspace(request: Request) -> tuple[Path | None, tuple[str, ...]]:
    if request.workspace is not None:
        return resolve_workspace(request.workspace), ()
    try:
        here = Path.cwd()
    except OSError:
        raise InvalidRequest("the current folder does not exist any more; give --workspace") from None
    if request.target.file is not None and request.target.file.resolve().is_relative_to(here):
        note = (
            "the script lies in the current folder, so agents work in an empty folder instead; --workspace chooses one"
        )
        return None, (note,)
    return resolve_workspace(here), ()


def _refuse_ours_inside(workspace: Path, request: Request, settings: Settings) -> None:
    refuse_inside(workspace, settings.path, "the settings file")
    refuse_inside(workspace, settings.lock, "the lock of approved scripts")
    refuse_inside(workspace, request.target.file, "the script")
    refuse_inside(workspace, settings.state_folder, "the state folder")
    for folder in settings.script_folders:
        refuse_inside(workspace, folder, "the script folder")
    for path, what in request.protected:
        refuse_inside(workspace, path, what)


def _repeats_note(request: Request, chosen: Chosen) -> tuple[str, ...]:
    if not request.max_extra_attempts or any(policy.repeats for policy in chosen.policies.values()):
        return ()
    note = (
        "no provider has a policy that asks again, so --max-extra-attempts changes nothing; "
        "a policy stands under [providers.NAME.policy] in loopwarden.toml"
    )
    return (note,)


def _program_note(chosen: Chosen, workspace: Path | None) -> tuple[str, ...]:
    if chosen.program is not None and _is_in_workspace(chosen.program, workspace):
        return ("the agent program lies in the workspace, so agents can change it between rounds",)
    return ()


def _refuse_missing_check(check: Check, workspace: Path | None) -> None:
    """A check that is not there is said before anything starts, unless agents may be meant to write it."""
    if _is_in_workspace(check.argv[0], workspace):
        return
    try:
        find_program(check.argv[0], allowed_environment(os.environ, (), {})["PATH"], CHECK_PROGRAM)
    except ProgramNotStarted as error:
        raise InvalidRequest(str(error)) from None


def _check_notes(checks: tuple[Check, ...], workspace: Path | None) -> tuple[str, ...]:
    inside = dict.fromkeys(check.argv[0] for check in checks if _is_in_workspace(check.argv[0], workspace))
    return tuple(
        f"the check {shown_line(program)} lies in the workspace, where an agent could change it" for program in inside
    )


def _is_in_workspace(program: str, workspace: Path | None) -> bool:
    path = Path(program)
    return workspace is not None and path.is_absolute() and lies_inside(path, workspace)


def _check(text: str) -> Check:
    try:
        text.encode("utf-8")
        return Check.parse(text)
    except UnicodeEncodeError:
        raise InvalidRequest("--check is not UTF-8 text") from None
    except ValueError as error:
        raise InvalidRequest(f"--check {text[:200]!r} cannot be used: {error}") from None
