"""From what a person asked to what will be done: everything is resolved and checked before anything starts."""

import os
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from loopwarden.checks import WHAT as CHECK_PROGRAM
from loopwarden.checks import Check
from loopwarden.display import duration, plural, shown_line
from loopwarden.failures import InvalidRequest
from loopwarden.launch_record import LaunchRecord
from loopwarden.limits import LimitOverrides, Limits
from loopwarden.provider import AgentReply, AgentRequest, Capabilities, Provider, ProviderStartError
from loopwarden.providers.command import CommandProvider
from loopwarden.providers.program import ProgramNotStarted, absolute_name, allowed_environment, find_program
from loopwarden.receipt import Receipt
from loopwarden.script import Script
from loopwarden.settings import COMMAND_LINE_PROVIDER, ProviderSettings, Settings
from loopwarden.workspace import lies_inside, refuse_inside, resolve_workspace
from loopwarden_engine.plain import JsonObject

USUAL_DEADLINE_SECONDS: Final = 8 * 3600.0
"""What a run from the command line may take unless the settings or `--deadline` say otherwise."""

_NO_PROVIDER: Final = "none"
_HOW_TO_NAME_A_PROGRAM: Final = (
    "give the program of the agent after --, such as `-- claude -p`, or set up a provider in loopwarden.toml"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is to be run."""

    name: str
    script: Script[Any, Any]
    file: Path | None
    """The file of a script of one's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a person asked for, as typed values."""

    target: Target
    args: JsonObject
    workspace: Path | None
    """None: the current folder; an empty one when the script itself lies in the current folder."""
    checks: tuple[str, ...] = ()
    agent_timeout_seconds: float | None = None
    deadline_seconds: float | None = None
    max_total_agents: int | None = None
    provider: str | None = None
    program: tuple[str, ...] = ()
    continues: Receipt | None = None
    protected: tuple[tuple[Path, str], ...] = ()
    """More files that must not lie in the workspace, each with a phrase for it."""
    taken_over: frozenset[str] = frozenset()
    """The fields above that nobody typed: they come from the run that is continued."""
    notes: tuple[str, ...] = ()
    """What a person should know before the run, each fit to be shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What will be done."""

    request: Request
    settings: Settings
    workspace: Path | None
    """None: agents get an empty folder of their own, see `scratch_workspace`."""
    providers: Mapping[str, Provider]
    provider: str
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
            provider=None if request.program or self.provider == _NO_PROVIDER else self.provider,
            program=[*map(absolute_name, program), *arguments],
            checks=[shlex.join(check.argv) for check in self.checks],
            agent_timeout_seconds=request.agent_timeout_seconds,
            deadline_seconds=request.deadline_seconds,
            max_total_agents=request.max_total_agents,
        )


def prepare(request: Request, settings: Settings) -> Prepared:
    """Resolve a request under the settings. Raises a subclass of `StartRefused`."""
    workspace, notes = _workspace(request)
    if workspace is not None:
        _refuse_ours_inside(workspace, request, settings)
    providers, provider = _providers(request, settings)
    _refuse_missing_program(providers[provider], settings.providers.get(provider))
    overrides = _overrides(request, settings)
    limits = settings.limits.lowered(overrides)
    checks = tuple(_check(text) for text in request.checks)
    for check in checks:
        _refuse_missing_check(check, workspace)
    contract = request.target.script.contract
    args = contract.decode_args(request.args)
    of_loop = contract.max_total_agents(args)
    if of_loop is not None and of_loop > limits.max_total_agents:
        raise InvalidRequest(
            f"this run could start {plural(of_loop, 'agent')}, above the ceiling of this deployment, "
            f"{limits.max_total_agents} (max_total_agents); ask for fewer rounds, or have the operator raise it",
            details={"limit": "max_total_agents", "asked": of_loop, "ceiling": limits.max_total_agents},
        )
    max_agents = limits.max_total_agents if of_loop is None else of_loop
    return Prepared(
        request=request,
        settings=settings,
        workspace=workspace,
        providers=providers,
        provider=provider,
        checks=checks,
        overrides=overrides,
        limits=limits,
        max_agents=max_agents,
        first_line=_first_line(request.target.name, max_agents, limits),
        notes=request.notes + notes + _program_note(providers[provider], workspace) + _check_notes(checks, workspace),
    )


@contextmanager
def scratch_workspace() -> Iterator[Path]:
    """An empty private folder for agents; taken away afterwards, unless they left something in it."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="loopwarden-workspace-"))
    except OSError as error:
        reason = (error.strerror or "output error").lower()
        raise InvalidRequest(f"an empty folder for agents cannot be made: {reason}; give --workspace") from None
    try:
        yield folder.resolve()
    finally:
        with suppress(OSError):
            folder.rmdir()


def _first_line(name: str, max_agents: int, limits: Limits) -> str:
    repeats = f" (and {plural(limits.max_extra_attempts, 'repeat')})" if limits.max_extra_attempts else ""
    return (
        f"{name}: at most {plural(max_agents, 'agent')}{repeats}, {duration(limits.run_deadline_seconds)}, no cost cap"
    )


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
    refuse_inside(workspace, request.target.file, "the script")
    refuse_inside(workspace, settings.state_folder, "the state folder")
    for folder in settings.script_folders:
        refuse_inside(workspace, folder, "the script folder")
    for path, what in request.protected:
        refuse_inside(workspace, path, what)


class _NoProvider:
    """Stands in when a script of one's own is run without any agent program: it may do without."""

    capabilities = Capabilities(structured_output=True, fresh_context=True)

    async def reply(self, request: AgentRequest) -> AgentReply:  # noqa: ARG002 -- the shape of a provider
        raise ProviderStartError(f"no agent can be started: {_HOW_TO_NAME_A_PROGRAM}")


def _providers(request: Request, settings: Settings) -> tuple[dict[str, Provider], str]:
    providers: dict[str, Provider] = {name: _command(name, given) for name, given in settings.providers.items()}
    if request.program:
        if request.provider is not None:
            raise InvalidRequest("--provider and a program after -- were both given; give one of them")
        providers[COMMAND_LINE_PROVIDER] = _program(request.program)
        return providers, COMMAND_LINE_PROVIDER
    name = request.provider if request.provider is not None else settings.default_provider
    if name is not None:
        if name not in providers:
            known = ", ".join(sorted(providers)) or "none"
            raise InvalidRequest(f"there is no provider {name[:100]!r}; the settings have: {known}")
        return providers, name
    if providers:
        known = ", ".join(sorted(providers))
        raise InvalidRequest(
            f"choose a provider by --provider NAME ({known}), or set default_provider in loopwarden.toml"
        )
    if request.target.file is None:
        raise InvalidRequest(f"there is no agent to start; {_HOW_TO_NAME_A_PROGRAM}")
    return {_NO_PROVIDER: _NoProvider()}, _NO_PROVIDER


def _command(name: str, given: ProviderSettings) -> CommandProvider:
    try:
        return CommandProvider(given.argv, env=given.env, pass_env=given.pass_env)
    except ValueError as error:
        raise InvalidRequest(f"the provider {name} of the settings cannot be used: {error}") from None


def _program(program: tuple[str, ...]) -> CommandProvider:
    for argument in program:
        try:
            argument.encode("utf-8")
        except UnicodeEncodeError:
            raise InvalidRequest("an argument after -- is not UTF-8 text") from None
    try:
        return CommandProvider(program)
    except ValueError as error:
        raise InvalidRequest(f"the program after -- cannot be used: {error}") from None


def refuse_unusable_provider(name: str, settings: Settings) -> None:
    """Refuse a provider of the settings whose program cannot be started. Raises `InvalidRequest`."""
    given = settings.providers[name]
    _refuse_missing_program(_command(name, given), given)


def _refuse_missing_program(provider: Provider, given: ProviderSettings | None) -> None:
    """A program that is not there is said before anything starts."""
    if not isinstance(provider, CommandProvider):
        return
    pass_env, env = (given.pass_env, given.env) if given is not None else ([], {})
    search_path = allowed_environment(os.environ, pass_env, env)["PATH"]
    try:
        find_program(provider.argv[0], search_path, "agent program")
    except ProgramNotStarted as error:
        raise InvalidRequest(str(error)) from None


def _program_note(provider: Provider, workspace: Path | None) -> tuple[str, ...]:
    if isinstance(provider, CommandProvider) and _is_in_workspace(provider.argv[0], workspace):
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


def _overrides(request: Request, settings: Settings) -> LimitOverrides:
    limits = settings.limits
    deadline = request.deadline_seconds
    if deadline is None and "run_deadline_seconds" not in settings.limits_given:
        deadline = min(USUAL_DEADLINE_SECONDS, limits.run_deadline_seconds)
    for option, name, ceiling in (
        ("--deadline", "deadline_seconds", limits.run_deadline_seconds),
        ("--agent-timeout", "agent_timeout_seconds", limits.agent_timeout_seconds),
    ):
        _refuse_above(option, getattr(request, name), ceiling, is_taken_over=name in request.taken_over)
    total = request.max_total_agents
    if total is not None and total > limits.max_total_agents:
        raise InvalidRequest(
            f"--max-total-agents {total} is above the ceiling of this deployment, {limits.max_total_agents}; "
            f"ask for at most {limits.max_total_agents}"
        )
    return LimitOverrides(
        max_total_agents=total, agent_timeout_seconds=request.agent_timeout_seconds, run_deadline_seconds=deadline
    )


def _refuse_above(option: str, asked: float | None, ceiling: float, *, is_taken_over: bool) -> None:
    if asked is None or asked <= ceiling:
        return
    above = f"{duration(asked)}, above the ceiling of this deployment, {duration(ceiling)}"
    if is_taken_over:
        raise InvalidRequest(f"the run that is continued had {option} {above}; give {option} with at most that")
    raise InvalidRequest(f"{option} is {above}; ask for at most that")
