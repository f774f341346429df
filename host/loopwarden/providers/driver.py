"""One driver for all agent command-line programs: process, streams, private home, and the verdict.

What differs between programs is their `Dialect`. Rules kept here: the prompt goes to standard input, which is then
closed; the program gets a home of its own and an environment of an allowlist; its output is read as it comes, with
caps; and success needs every witness: a terminal record and a clear error flag (both known to the dialect), a payload
that satisfies the schema, and an exit of 0.
"""

import asyncio
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from loopwarden.failure_class import FailureClass
from loopwarden.provider import AgentFailed, AgentReply, AgentRequest, Capabilities, ProviderStartError
from loopwarden.providers.agent_program import WHAT, CommandPlan, stream_file, workspace_of
from loopwarden.providers.command_line import checked_argv, checked_names, checked_variables
from loopwarden.providers.dialect import Ask, Dialect, Launch, ProgramOptions, Reading
from loopwarden.providers.home import AgentHome, is_inside
from loopwarden.providers.mark import MARK_NAME
from loopwarden.providers.overdue import OverdueWatch
from loopwarden.providers.process import Ending, Program, SupervisedProcess
from loopwarden.providers.program import ProgramNotStarted, SupervisorLost, allowed_environment, find_program
from loopwarden.providers.quiet import LifeSigns
from loopwarden.providers.records import RecordReader
from loopwarden.providers.redaction import Secrets
from loopwarden.providers.verdict import ProgramAttempt, conclude_at_home, has_answered, reading_fault
from loopwarden_engine.plain import JsonObject

HOME: Final = "{home}"
SCHEMA_FILE: Final = "{schema_file}"
XDG_FOLDERS: Final = {
    "XDG_CONFIG_HOME": ".config",
    "XDG_DATA_HOME": ".local/share",
    "XDG_STATE_HOME": ".local/state",
    "XDG_CACHE_HOME": ".cache",
}
"""Where the XDG base directory specification puts them by default, below HOME."""


class ProgramProvider:
    """Runs an agent program per call.

    Args:
        dialect: What is special about the program.
        options: What the deployment says about it.

    Raises:
        ValueError: The options cannot be kept with this program.
    """

    def __init__(self, dialect: Dialect, options: ProgramOptions | None = None) -> None:
        options = options or ProgramOptions()
        problem = dialect.problem(options)
        if problem is not None:
            raise ValueError(problem)
        for name in options.credential_files:
            if not is_inside(name):
                raise ValueError(f"credential_files: {name!r} does not lie below the home of the agent")
        checked_variables(options.env)
        checked_names(options.pass_env)
        self._program = checked_argv((options.program or dialect.program, *options.arguments))[0]
        self._dialect = dialect
        self._options = options

    @property
    def dialect(self) -> Dialect:
        """What is special about the program."""
        return self._dialect

    @property
    def options(self) -> ProgramOptions:
        """What the deployment says about it."""
        return self._options

    @property
    def capabilities(self) -> Capabilities:
        """What the program can do."""
        return self._dialect.capabilities

    def describe(self, request: AgentRequest) -> CommandPlan:
        """Say what `reply` would start for `request`, and start nothing. Raises `ProviderStartError`."""
        try:
            ask = self._ask(request, Path(HOME), None if request.schema is None else Path(SCHEMA_FILE))
            launch = self._dialect.launch(ask)
            environment = self._environment(ask.home, Path(HOME, "tmp"), launch.environment)
            program = find_program(self._program, environment["PATH"], WHAT)
        except ProgramNotStarted as error:
            raise ProviderStartError(str(error)) from None
        return CommandPlan(
            argv=(self._program, *launch.arguments),
            program=program,
            folder=os.fspath(ask.workspace),
            environment_names=tuple(sorted({*environment, MARK_NAME})),
            stdin_chars=len(launch.stdin),
        )

    async def reply(self, request: AgentRequest) -> AgentReply:
        """Run one agent. When cancelled: TERM, `request.grace_seconds`, KILL; nothing is left when this returns.

        A cancelled agent that left usage or the reason of its trouble raises `AgentFailed` with them.
        """
        try:
            workspace_of(request)
        except ProgramNotStarted as error:
            raise ProviderStartError(str(error)) from None
        problem = _model_problem(request.model)
        if problem is not None:
            raise ProviderStartError(problem)
        secrets = Secrets.given(self._given_variables(), self._options.credential_files.values())
        return await secrets.kept(request, self._reply)

    async def _reply(self, request: AgentRequest) -> AgentReply:
        return await conclude_at_home(AgentHome.make(request), lambda home: self._run(request, home))

    async def _run(self, request: AgentRequest, home: AgentHome) -> ProgramAttempt:
        """Run the program to its end, also when cancelled meanwhile."""
        title = self._dialect.title
        ask = self._ask(request, home.path, home.schema_file)
        launch = self._dialect.launch(ask)
        problem = self._dialect.prompt_problem(launch.stdin)
        if problem is not None:
            raise AgentFailed(f"{title} was not started: {problem}", failure_class=FailureClass.PROMPT_TOO_LONG)
        home.fill(launch.files, launch.folders, self._options.credential_files)
        reading = self._dialect.reading(ask)
        with LifeSigns(request) as signs:
            listener = Listener(title, reading, signs)
            program = self._process(request, ask, launch, home, listener)
            try:
                try:
                    ending, cancelled = await _run_watched(program, listener)
                except SupervisorLost:
                    ending, cancelled = await _run_watched(program, listener)
            except ProgramNotStarted as error:
                raise ProviderStartError(str(error)) from None
            listener.finish()
        return ProgramAttempt(
            title=title,
            schema=request.schema,
            reading=reading,
            reader=listener.reader,
            ending=ending,
            max_output_bytes=request.max_output_bytes,
            cancelled=cancelled,
            is_overdue=listener.was_overdue,
            notes=(*listener.reader.counts.notes(), *ending.notes),
        )

    def _ask(self, request: AgentRequest, home: Path, schema_file: Path | None) -> Ask:
        caps = [cap for cap in (self._options.max_cost_usd, request.max_cost_usd) if cap is not None]
        return Ask(
            prompt=request.prompt,
            schema=request.schema,
            schema_file=schema_file,
            model=request.model or self._options.model,
            workspace=workspace_of(request),
            home=home,
            max_cost_usd=min(caps, default=None),
            is_root=os.geteuid() == 0,
            options=self._options,
        )

    def _process(
        self, request: AgentRequest, ask: Ask, launch: Launch, home: AgentHome, listener: "Listener"
    ) -> Program:
        return Program(
            what=WHAT,
            argv=(self._program, *launch.arguments),
            folder=ask.workspace,
            environment=self._environment(ask.home, home.temporary, launch.environment),
            stdin=launch.stdin.encode(),
            grace_seconds=request.grace_seconds,
            max_output_bytes=request.max_output_bytes,
            keep_output=False,
            on_output=listener.hear_output,
            on_errors=listener.hear_errors,
            output_file=stream_file(request, "output"),
            error_file=stream_file(request, "error"),
            private_folders=home.folders,
            lease=request.lease,
        )

    def _environment(self, home: Path, temporary: Path, of_dialect: Mapping[str, str]) -> dict[str, str]:
        """The environment of the program. Later ones win, and what the settings give wins over all."""
        private = {"HOME": os.fspath(home), "TMPDIR": os.fspath(temporary)}
        private |= {name: os.fspath(home / folder) for name, folder in XDG_FOLDERS.items()}
        return allowed_environment(os.environ, (), {**private, **of_dialect, **self._given_variables()})

    def _given_variables(self) -> dict[str, str]:
        """What the settings give to the program."""
        passed = {name: os.environ[name] for name in self._options.pass_env if name in os.environ}
        return {**passed, **self._options.env}


class Listener:
    """Hears one program: gives its records to the reading, and tells what the agent does."""

    def __init__(self, title: str, reading: Reading, signs: LifeSigns) -> None:
        self.reader = RecordReader()
        self._title = title
        self._reading = reading
        self._signs = signs
        self._watch: OverdueWatch | None = None

    def watch(self, end: Callable[[], None]) -> OverdueWatch:
        """Have `end` called when the program has given its answer and does not end."""
        self._watch = OverdueWatch(lambda: has_answered(self._reading), end)
        return self._watch

    @property
    def was_overdue(self) -> bool:
        """The program was ended for that."""
        return self._watch is not None and self._watch.has_ended_it

    def hear_output(self, data: bytes) -> None:
        """Take a piece of standard output. Raises `AgentFailed` when the reading cannot deal with it."""
        self._signs.sign()
        if self._watch is not None:
            self._watch.sign()
        self._take(self.reader.feed(data))

    def hear_errors(self, _: bytes) -> None:
        """A piece of standard error is a sign of life and nothing else."""
        self._signs.sign()

    def finish(self) -> None:
        """The streams ended."""
        self._take(self.reader.finish())

    def _take(self, records: list[JsonObject]) -> None:
        for record in records:
            try:
                words = self._reading.take(record)
            except Exception as error:
                raise reading_fault(self._title, error) from error
            if words is not None:
                self._signs.does(words)


async def _run_watched(program: Program, listener: Listener) -> tuple[Ending, asyncio.CancelledError | None]:
    """Run a program to its end, also when cancelled meanwhile. Raises `ProgramNotStarted`."""
    process = SupervisedProcess.begin(program)
    watch = listener.watch(lambda: process.ask_for_end(program.grace_seconds))
    try:
        ending, cancelled = await _until_end(process, program.grace_seconds)
    finally:
        watch.close()
    if process.refusal is not None and cancelled is None:
        raise process.refusal
    return ending, cancelled


async def _until_end(process: SupervisedProcess, grace_seconds: float) -> tuple[Ending, asyncio.CancelledError | None]:
    """Wait for the end. A cancellation meanwhile ends the program, and is returned; a second one cuts the grace."""
    try:
        return await process.wait(), None
    except asyncio.CancelledError as error:
        cancelled = error
    while True:
        try:
            return await process.end(grace_seconds), cancelled
        except asyncio.CancelledError:
            grace_seconds = 0


def _model_problem(model: str | None) -> str | None:
    """Scripts name models, and the name becomes an argument of a program: it must not become an option."""
    if model is not None and (model.startswith("-") or not model.isprintable() or not model.strip()):
        return f"{model[:100]!r} cannot be the name of a model; name one that the program knows"
    return None
