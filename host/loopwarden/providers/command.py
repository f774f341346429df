"""The `command` provider: any program that takes a prompt on standard input and prints a report.

No shell, the workspace as folder, an environment of an allowlist, output as bytes with caps. Whole arguments may be
placeholders: `{workspace}`, `{schema}` (the JSON Schema as text), `{schema_file}` (the path of a private file with it).
The program confines nothing: an agent has its user's rights.
"""

import asyncio
import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from loopwarden.failure_class import FailureClass
from loopwarden.provider import AgentFailed, AgentReply, AgentRequest, Capabilities, ProviderStartError
from loopwarden.providers.agent_program import (
    WHAT,
    CommandPlan,
    last_words,
    problem_of,
    stream_file,
    workspace_of,
)
from loopwarden.providers.candidates import Found, NotFound, find_value
from loopwarden.providers.command_line import checked_argv, checked_names, checked_variables
from loopwarden.providers.home import SCHEMA_NAME, private_folder, write_private
from loopwarden.providers.mark import MARK_NAME
from loopwarden.providers.process import Ending, Program, SupervisedProcess
from loopwarden.providers.program import (
    ProgramNotStarted,
    allowed_environment,
    find_program,
)
from loopwarden.providers.redaction import Secrets
from loopwarden.providers.supervision.removal import remove_tree
from loopwarden.schema import UnsupportedSchema, compile_schema
from loopwarden_engine.plain import JsonObject, compact_json

WORKSPACE: Final = "{workspace}"
SCHEMA: Final = "{schema}"
SCHEMA_FILE: Final = "{schema_file}"
PLACEHOLDERS: Final = (WORKSPACE, SCHEMA, SCHEMA_FILE)


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
        self._argv = checked_argv(argv, PLACEHOLDERS)
        self._env = checked_variables(env)
        self._pass_env = checked_names(pass_env)
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
            folder = workspace_of(request)
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
        passed = {name: os.environ[name] for name in self._pass_env if name in os.environ}
        return await Secrets.given({**passed, **self._env}).kept(request, self._reply)

    async def _reply(self, request: AgentRequest) -> AgentReply:
        with contextlib.ExitStack() as stack:
            try:
                folder = workspace_of(request)
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
        return Program(
            what=WHAT,
            argv=self._filled(request, schema_file),
            folder=folder,
            environment=self._environment(),
            stdin=request.prompt.encode(),
            grace_seconds=request.grace_seconds,
            max_output_bytes=request.max_output_bytes,
            output_file=stream_file(request, "output"),
            error_file=stream_file(request, "error"),
            lease=request.lease,
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


@contextlib.contextmanager
def _schema_file(request: AgentRequest) -> Iterator[str]:
    """A private file with the schema, outside of the workspace, for as long as the agent runs."""
    if request.schema is None:
        yield ""
        return
    folder = None
    try:
        folder = private_folder(request.workspace)
        path = folder / SCHEMA_NAME
        write_private(path, compact_json(request.schema).encode())
    except OSError as error:
        if folder is not None:
            remove_tree(folder)
        reason = (error.strerror or "output error").lower()
        raise ProviderStartError(f"the schema could not be written to a temporary file: {reason}") from None
    try:
        yield os.fspath(path)
    finally:
        remove_tree(folder)


def _decode(request: AgentRequest, ending: Ending) -> AgentReply:
    """Make a reply of what the program left. Raises `AgentFailed`."""
    crashed, invalid = FailureClass.CRASHED, FailureClass.INVALID_OUTPUT
    notes = ending.notes
    if ending.output_excess:
        reason = f"the agent program was ended: it printed more than {request.max_output_bytes} bytes"
        raise AgentFailed(reason, failure_class=invalid, notes=notes)
    problem = problem_of(ending)
    if problem is not None:
        failure_class, words = problem
        raise AgentFailed(f"the agent program {words}", failure_class=failure_class, notes=notes)
    if ending.exit != 0:
        reason = f"the agent program {ending.how}{last_words(ending)}"
        raise AgentFailed(reason, failure_class=crashed, notes=notes)
    try:
        text = ending.output.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        reason = f"the output of the agent program is not UTF-8 at byte {error.start}"
        raise AgentFailed(reason, failure_class=invalid, notes=notes) from None
    if request.schema is None:
        return AgentReply(text=text, notes=notes)
    return _structured(text, request.schema, notes)


def _structured(text: str, schema: JsonObject, notes: tuple[str, ...]) -> AgentReply:
    try:
        compiled = compile_schema(schema)
    except UnsupportedSchema as error:
        raise AgentFailed(f"the schema of the call cannot be enforced: {error}", notes=notes) from None
    match find_value(text, compiled):
        case Found(value=value, how=how):
            return AgentReply(text=text, value=value, notes=(how, *notes))
        case NotFound(reason=reason):
            raise AgentFailed(reason, failure_class=FailureClass.INVALID_OUTPUT, notes=notes)
