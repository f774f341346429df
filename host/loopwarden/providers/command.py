"""The `command` provider: any program that takes a prompt on standard input and prints a report.

No shell, the workspace as folder, an environment of an allowlist, output as bytes with caps. Whole arguments may be
placeholders: `{workspace}`, `{schema}` (the JSON Schema as text), `{schema_file}` (the path of a private file with it).
The program confines nothing: an agent has its user's rights.
"""

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loopwarden.provider import AgentFailed, AgentReply, AgentRequest, Capabilities, ProviderStartError
from loopwarden.providers.candidates import Found, NotFound, find_value
from loopwarden.providers.process import MARK_NAME, Ending, Program, SupervisedProcess
from loopwarden.providers.program import (
    ProgramNotStarted,
    absolute_name,
    allowed_environment,
    check_folder,
    find_program,
)
from loopwarden.schema import UnsupportedSchema, compile_schema
from loopwarden_engine.plain import JsonObject, compact_json

WORKSPACE: Final = "{workspace}"
SCHEMA: Final = "{schema}"
SCHEMA_FILE: Final = "{schema_file}"
PLACEHOLDERS: Final = (WORKSPACE, SCHEMA, SCHEMA_FILE)
TEMPORARY_FOLDERS: Final = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - mkdtemp makes private folders in them
LAST_LINE_CHARS: Final = 300
WHAT: Final = "agent program"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandPlan:
    """What a `CommandProvider` would start for a request. Names of environment variables only: values may be secret."""

    argv: tuple[str, ...]
    """As started, except that `{schema_file}` stands for a file that exists only while an agent runs."""
    program: str
    """The file that would run."""
    folder: str
    environment_names: tuple[str, ...]
    stdin_chars: int


class CommandProvider:
    """Runs a program per call. A non-zero exit, a signal, or output that is not UTF-8 is a failed child.

    Args:
        argv: The program and its arguments. A relative path is meant from the current folder, not from a workspace.
        env: Variables to add. Values given here win.
        pass_env: Names of variables that are passed on from the host's environment, on top of the allowlist.
        structured: False when the program does not answer with JSON; such a provider is unfit for loops that need it.

    Raises:
        ValueError: `argv` is no program with arguments, or a variable cannot be one.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        pass_env: Sequence[str] = (),
        structured: bool = True,
    ) -> None:
        self._argv = _checked_argv(argv)
        self._env = {
            _checked_name(name): _checked_text(value, f"the variable {name}") for name, value in (env or {}).items()
        }
        self._pass_env = tuple(_checked_name(name) for name in pass_env)
        self._capabilities = Capabilities(structured_output=structured, fresh_context=True)

    @property
    def argv(self) -> tuple[str, ...]:
        """The program and its arguments, placeholders not yet filled."""
        return self._argv

    @property
    def capabilities(self) -> Capabilities:
        """Structured output, unless told otherwise, and a fresh context: a new process per call."""
        return self._capabilities

    def describe(self, request: AgentRequest) -> CommandPlan:
        """Say what `reply` would start for `request`, and start nothing. Raises `ProviderStartError`."""
        try:
            folder = _folder_of(request)
            environment = self._environment()
            argv = self._filled(request, SCHEMA_FILE)
            program = find_program(argv[0], environment["PATH"], WHAT)
        except ProgramNotStarted as error:
            raise ProviderStartError(str(error)) from None
        return CommandPlan(
            argv=argv,
            program=program,
            folder=os.fspath(folder),
            environment_names=tuple(sorted({*environment, MARK_NAME})),
            stdin_chars=len(request.prompt),
        )

    async def reply(self, request: AgentRequest) -> AgentReply:
        """Run one agent. When cancelled: TERM, `request.grace_seconds`, KILL; nothing is left when this returns."""
        if request.model is not None:
            raise ProviderStartError(
                "a command provider cannot choose a model; leave model out, or name a provider whose argv chooses it"
            )
        with contextlib.ExitStack() as stack:
            try:
                folder = _folder_of(request)
                schema_file = stack.enter_context(_schema_file(request)) if SCHEMA_FILE in self._argv else ""
                program = self._program(request, folder, schema_file)
                process = await SupervisedProcess.start(program)
            except ProgramNotStarted as error:
                raise ProviderStartError(str(error)) from None
            try:
                ending = await process.wait()
            except asyncio.CancelledError:
                await process.end(request.grace_seconds)
                raise
        return _decode(request, ending)

    def _environment(self) -> dict[str, str]:
        return allowed_environment(os.environ, self._pass_env, self._env)

    def _program(self, request: AgentRequest, folder: Path, schema_file: str) -> Program:
        suffix = "" if request.attempt == 1 else f"-{request.attempt}"
        return Program(
            what=WHAT,
            argv=self._filled(request, schema_file),
            folder=folder,
            environment=self._environment(),
            stdin=request.prompt.encode(),
            grace_seconds=request.grace_seconds,
            max_output_bytes=request.max_output_bytes,
            output_file=request.folder / f"output{suffix}.txt" if request.folder else None,
            error_file=request.folder / f"error{suffix}.txt" if request.folder else None,
        )

    def _filled(self, request: AgentRequest, schema_file: str) -> tuple[str, ...]:
        return tuple(_fill(argument, request, schema_file) for argument in self._argv)


def _fill(argument: str, request: AgentRequest, schema_file: str) -> str:
    if argument not in PLACEHOLDERS:
        return argument
    if argument == WORKSPACE:
        if request.workspace is None:
            raise ProviderStartError(f"the argument {WORKSPACE} needs a workspace, and this run has none; give it one")
        return os.fspath(request.workspace)
    if request.schema is None:
        raise ProviderStartError(
            f"the argument {argument} needs a schema, and this call has none; "
            "give agent() a schema, or use another provider for calls without one"
        )
    return schema_file if argument == SCHEMA_FILE else compact_json(request.schema)


def _folder_of(request: AgentRequest) -> Path:
    if request.workspace is None:
        raise ProviderStartError("an agent program needs a workspace to run in, and this run has none; give it one")
    check_folder(request.workspace)
    return request.workspace


@contextlib.contextmanager
def _schema_file(request: AgentRequest) -> Iterator[str]:
    """A private file with the schema, outside of the workspace, for as long as the agent runs."""
    if request.schema is None:
        yield ""
        return
    folder = None
    try:
        folder = _private_folder(request.workspace)
        path = folder / "schema.json"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(compact_json(request.schema).encode())
    except OSError as error:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        reason = (error.strerror or "output error").lower()
        raise ProviderStartError(f"the schema could not be written to a temporary file: {reason}") from None
    try:
        yield os.fspath(path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _private_folder(workspace: Path | None) -> Path:
    for base in (tempfile.gettempdir(), *TEMPORARY_FOLDERS):
        if workspace is not None and Path(base).resolve().is_relative_to(workspace.resolve()):
            continue
        if Path(base).is_dir():
            return Path(tempfile.mkdtemp(prefix="loopwarden-", dir=base))
    raise ProviderStartError(
        "there is no folder for temporary files outside of the workspace; "
        "set TMPDIR to one, or give a workspace that does not hold everything"
    )


def _decode(request: AgentRequest, ending: Ending) -> AgentReply:
    """Make a reply of what the program left. Raises `AgentFailed`."""
    if ending.output_excess:
        raise AgentFailed(
            f"the agent program was ended: it printed more than {request.max_output_bytes} bytes", notes=ending.notes
        )
    if ending.problem is not None:
        raise AgentFailed(f"the agent program failed: {ending.problem}", notes=ending.notes)
    if ending.exit != 0:
        raise AgentFailed(f"the agent program {ending.how}{_last_words(ending)}", notes=ending.notes)
    try:
        text = ending.output.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        reason = f"the output of the agent program is not UTF-8 at byte {error.start}"
        raise AgentFailed(reason, notes=ending.notes) from None
    if request.schema is None:
        return AgentReply(text=text, notes=ending.notes)
    return _structured(text, request.schema, ending.notes)


def _structured(text: str, schema: JsonObject, notes: tuple[str, ...]) -> AgentReply:
    try:
        compiled = compile_schema(schema)
    except UnsupportedSchema as error:
        raise AgentFailed(f"the schema of the call cannot be enforced: {error}", notes=notes) from None
    match find_value(text, compiled):
        case Found(value=value, how=how):
            return AgentReply(text=text, value=value, notes=(how, *notes))
        case NotFound(reason=reason):
            raise AgentFailed(reason, notes=notes)


def _last_words(ending: Ending) -> str:
    for line in reversed(ending.errors.decode("utf-8", "replace").splitlines()):
        if line.strip():
            cut = line.strip()
            if len(cut) > LAST_LINE_CHARS:
                cut = cut[: LAST_LINE_CHARS - 1] + "…"
            return f"; last line of its error output: {cut}"
    return "; it printed nothing on its error output"


def _checked_argv(argv: Sequence[str]) -> tuple[str, ...]:
    if isinstance(argv, str) or not argv:
        raise ValueError("a command is a list of a program and its arguments; it needs at least the program")
    first, *rest = (_checked_text(argument, "an argument of the command") for argument in argv)
    if not first.strip() or first in PLACEHOLDERS:
        raise ValueError(f"a command begins with its program, not with {first!r}")
    return (absolute_name(first), *rest)


def _checked_text(text: object, what: str) -> str:
    if not isinstance(text, str) or "\0" in text:
        raise ValueError(f"{what} must be text without a zero character")
    return text


def _checked_name(name: object) -> str:
    if not isinstance(name, str) or not name or "=" in name or "\0" in name:
        raise ValueError(f"{name!r} cannot be the name of an environment variable")
    return name
