"""The `acp` provider: any agent that speaks the Agent Client Protocol over its standard streams.

One process and one session per call. The agent works by itself in the workspace and is offered no files and no
terminals of the host; its requests for permission are answered by a policy that the deployment states. The schema is
asked for by the prompt. The SDK of the protocol is loaded when the first such provider is made, not with the host: it
takes longer to load than all of it.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from loopwarden.provider import AgentReply, AgentRequest, Capabilities, ProviderStartError
from loopwarden.providers.acp.permissions import PERMISSION_POLICIES, PermissionDesk, PermissionPolicy
from loopwarden.providers.agent_program import WHAT, CommandPlan, stream_file, workspace_of
from loopwarden.providers.command_line import checked_argv, checked_names, checked_variables
from loopwarden.providers.driver import HOME
from loopwarden.providers.home import AgentHome, is_inside
from loopwarden.providers.mark import MARK_NAME
from loopwarden.providers.process import Program, SupervisedProcess
from loopwarden.providers.program import ProgramNotStarted, allowed_environment, find_program
from loopwarden.providers.quiet import LifeSigns
from loopwarden.providers.redaction import Secrets
from loopwarden.providers.verdict import ProgramAttempt, conclude_at_home

CAPABILITIES: Final = Capabilities(structured_output=True, fresh_context=True, streams=True, converses=True)
"""Tokens and cost are an unstable part of the protocol: reported when an agent says them, never promised."""
TITLE: Final = "the agent program"


class AcpProvider:
    """Runs an agent per call and talks to it.

    Args:
        argv: The program and its arguments. A relative path is meant from the current folder, not from a workspace.
        permissions: How its requests for permission are answered: "allow" chooses to allow once, and always only where
            once is not offered; "deny" chooses to reject.
        env: Variables to add. Values given here win.
        pass_env: Names of variables that are passed on from the host's environment, on top of the allowlist.
        credential_files: Files to copy into the agent's home: path below the home -> path on this machine.
        model: The model, unless the call names one: a number or name that the agent offers. None: its own default.
        login: The method of logging in to use when the agent demands one. None: one whose variables are set.

    Raises:
        ValueError: `argv` is no program with arguments, a variable cannot be one, or there is no such policy.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        permissions: PermissionPolicy = "allow",
        env: Mapping[str, str] | None = None,
        pass_env: Sequence[str] = (),
        credential_files: Mapping[str, str] | None = None,
        model: str | None = None,
        login: str | None = None,
    ) -> None:
        from loopwarden.providers.acp import talk  # noqa: F401, PLC0415 -- loads the SDK, before any event loop runs

        if permissions not in PERMISSION_POLICIES:
            raise ValueError(f"permissions must be one of {', '.join(PERMISSION_POLICIES)}, not {permissions!r}")
        self._argv = checked_argv(argv)
        self._env = checked_variables(env)
        self._pass_env = checked_names(pass_env)
        self._credential_files = dict(credential_files or {})
        for name in self._credential_files:
            if not is_inside(name):
                raise ValueError(f"credential_files: {name!r} does not lie below the home of the agent")
        self._permissions: PermissionPolicy = permissions
        self._model = model
        self._login = login

    @property
    def argv(self) -> tuple[str, ...]:
        """The program and its arguments."""
        return self._argv

    @property
    def capabilities(self) -> Capabilities:
        """Structured output by prompt, a fresh context, progress, and an agent that can be spoken to."""
        return CAPABILITIES

    def describe(self, request: AgentRequest) -> CommandPlan:
        """Say what `reply` would start for `request`, and start nothing. Raises `ProviderStartError`."""
        try:
            folder = workspace_of(request)
            environment = self._environment(Path(HOME), Path(HOME, "tmp"))
            program = find_program(self._argv[0], environment["PATH"], WHAT)
        except ProgramNotStarted as error:
            raise ProviderStartError(str(error)) from None
        return CommandPlan(
            argv=self._argv,
            program=program,
            folder=os.fspath(folder),
            environment_names=tuple(sorted({*environment, MARK_NAME})),
            stdin_chars=len(request.prompt),
        )

    async def reply(self, request: AgentRequest) -> AgentReply:
        """Run one agent. When cancelled: `session/cancel`, then TERM, KILL within `request.grace_seconds`.

        Nothing is left when this returns. A cancelled agent that left usage or the reason of its trouble raises
        `AgentFailed` with them.
        """
        secrets = Secrets.given(self._given_variables(), self._credential_files.values())
        return await secrets.kept(request, self._reply)

    async def _reply(self, request: AgentRequest) -> AgentReply:
        try:
            folder = workspace_of(request).resolve()
            return await conclude_at_home(AgentHome.make(request), lambda home: self._run(request, folder, home))
        except ProgramNotStarted as error:
            raise ProviderStartError(str(error)) from None

    async def _run(self, request: AgentRequest, folder: Path, home: AgentHome) -> ProgramAttempt:
        """Talk to an agent until nothing is left of it, also when cancelled meanwhile."""
        home.fill({}, (), self._credential_files)
        # Loaded by now; named here, since this module must not load the SDK.
        from loopwarden.providers.acp.conclusion import TalkReading  # noqa: PLC0415
        from loopwarden.providers.acp.session import AcpSession  # noqa: PLC0415
        from loopwarden.providers.acp.talk import SessionChoices, Talk  # noqa: PLC0415
        from loopwarden.providers.acp.wire import AgentWire  # noqa: PLC0415

        desk = PermissionDesk(self._permissions)
        with LifeSigns(request) as signs:
            wire = AgentWire(signs.sign)
            program = self._program(request, folder, home, on_output=wire.feed, on_errors=lambda _: signs.sign())
            process = await SupervisedProcess.start(program)
            wire.write = process.write
            session = AcpSession(wire, folder, desk, signs.does)
            talk = Talk(process, wire, session, request)
            choices = SessionChoices(
                model=request.model or self._model, login=self._login, variables=frozenset(program.environment)
            )
            outcome, ending = await talk.hold(choices)
        return ProgramAttempt(
            title=TITLE,
            schema=request.schema,
            reading=TalkReading(
                outcome=outcome, how=ending.how, hung_up=talk.hung_up, denied=desk.denied, usage=session.usage
            ),
            reader=wire.reader,
            # How an agent ends once its input is closed, or the host ended it, says nothing about its answer.
            ending=replace(ending, exit=0, signal=None),
            max_output_bytes=request.max_output_bytes,
            cancelled=talk.cancelled,
            notes=(*talk.notes, *ending.notes),
        )

    def _program(
        self,
        request: AgentRequest,
        folder: Path,
        home: AgentHome,
        *,
        on_output: Callable[[bytes], None],
        on_errors: Callable[[bytes], None],
    ) -> Program:
        return Program(
            what=WHAT,
            argv=self._argv,
            folder=folder,
            environment=self._environment(home.path, home.temporary),
            stdin=b"",
            keep_stdin_open=True,
            grace_seconds=request.grace_seconds,
            max_output_bytes=request.max_output_bytes,
            keep_output=False,
            on_output=on_output,
            on_errors=on_errors,
            output_file=stream_file(request, "output"),
            error_file=stream_file(request, "error"),
            private_folders=home.folders,
            lease=request.lease,
        )

    def _environment(self, home: Path, temporary: Path) -> dict[str, str]:
        """The environment of the agent. What the settings give wins over the private folders, as for other programs."""
        private = {"HOME": os.fspath(home), "TMPDIR": os.fspath(temporary)}
        return allowed_environment(os.environ, (), {**private, **self._given_variables()})

    def _given_variables(self) -> dict[str, str]:
        """What the settings give to the agent."""
        passed = {name: os.environ[name] for name in self._pass_env if name in os.environ}
        return {**passed, **self._env}
