"""Providers out of the settings: one entry of `[providers]`, or a preset, becomes a `Provider`.

Everything that would make its first agent fail for a reason known beforehand is refused here, before anything starts:
no credentials, an option that the program does not have, a file or a variable that is not there.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, assert_never

from loopwarden.failures import InvalidRequest
from loopwarden.provider import Provider
from loopwarden.provider_settings import (
    AcpSettings,
    AgentProgramName,
    AgentProgramSettings,
    CommandSettings,
    OpenAISettings,
    ProviderSettings,
    preset,
)
from loopwarden.providers.command import CommandProvider
from loopwarden.providers.dialect import Dialect, ProgramOptions
from loopwarden.providers.program import ProgramNotStarted, allowed_environment, find_program
from loopwarden.settings import Settings

_NO_CREDENTIAL: Final = ("_URL", "_MODEL")
"""How names of variables end that hold no credentials."""


def find_entry(name: str, settings: Settings) -> ProviderSettings:
    """The settings of a provider: the table of that name, else the preset. Raises `InvalidRequest`."""
    found = settings.providers.get(name) or preset(name)
    if found is None:
        known = ", ".join(sorted(settings.providers)) or "none"
        raise InvalidRequest(f"there is no provider {name[:100]!r}; the settings have: {known}")
    return found


def with_choices(
    name: str, given: ProviderSettings, *, pass_env: Sequence[str] = (), model: str | None = None
) -> ProviderSettings:
    """The settings of a provider with what a person adds to them for one run. Raises `InvalidRequest`."""
    changes: dict[str, object] = {}
    if pass_env:
        if isinstance(given, OpenAISettings):
            raise InvalidRequest(
                f"--pass-env is for programs, and the provider {name} is an endpoint; name its variable in api_key_env"
            )
        changes["pass_env"] = list(dict.fromkeys((*given.pass_env, *pass_env)))
    if model is not None:
        if isinstance(given, CommandSettings):
            raise InvalidRequest(f"--model cannot be given to the provider {name}: its argv chooses the model")
        changes["model"] = model
    return given.model_copy(update=changes) if changes else given


def make_provider(name: str, settings: Settings, given: ProviderSettings | None = None) -> Provider:
    """The provider of one entry of the settings, or of a preset. `given` takes the place of the entry.

    Reads the environment of this process. Raises `InvalidRequest` with a sentence that says what to do.
    """
    given = given if given is not None else find_entry(name, settings)
    match given:
        case CommandSettings():
            try:
                return CommandProvider(given.argv, env=given.env, pass_env=given.pass_env)
            except ValueError as error:
                raise _unusable(name, error) from None
        case AgentProgramSettings():
            return _agent_program(name, settings, given)
        case AcpSettings():
            return _acp(name, settings, given)
        case OpenAISettings():
            return _openai(name, settings, given)
        case _:
            assert_never(given)


def environment_notes(name: str, given: ProviderSettings) -> tuple[str, ...]:
    """What a person should know about the variables that a provider is to get."""
    if isinstance(given, OpenAISettings):
        return ()
    return tuple(
        f"the variable {variable}, which the provider {name} is to get, is not set"
        for variable in given.pass_env
        if variable not in os.environ and variable not in given.env
    )


def program_of(given: ProviderSettings) -> str | None:
    """The program of a provider, as the settings have it; None when it has none."""
    match given:
        case CommandSettings() | AcpSettings():
            return given.argv[0]
        case AgentProgramSettings():
            return given.program or make_dialect(given.type).program
        case OpenAISettings():
            return None
        case _:
            assert_never(given)


def locate_program(given: ProviderSettings) -> str | None:
    """The whole path of the program of a provider; None when it has none. Raises `ProgramNotStarted`."""
    program = program_of(given)
    if program is None or isinstance(given, OpenAISettings):
        return None
    return find_program(program, environment_of(given)["PATH"], "agent program")


def environment_of(given: CommandSettings | AgentProgramSettings | AcpSettings) -> Mapping[str, str]:
    """The allowlist and what the settings name, as of now."""
    return allowed_environment(os.environ, given.pass_env, given.env)


def refuse_missing_program(given: ProviderSettings) -> None:
    """A program that is not there is said before anything starts. Raises `InvalidRequest`."""
    try:
        locate_program(given)
    except ProgramNotStarted as error:
        raise InvalidRequest(str(error)) from None


# ---- agent programs


def make_dialect(program: AgentProgramName) -> Dialect:
    """The dialect of an agent program. Loaded when it is needed: most command lines need one of them at most."""
    match program:
        case "claude":
            from loopwarden.providers.dialects.claude import Claude  # noqa: PLC0415

            return Claude()
        case "codex":
            from loopwarden.providers.dialects.codex import Codex  # noqa: PLC0415

            return Codex()
        case "opencode":
            from loopwarden.providers.dialects.opencode import OpenCode  # noqa: PLC0415

            return OpenCode()
        case "qwen":
            from loopwarden.providers.dialects.qwen import Qwen  # noqa: PLC0415

            return Qwen()
        case "gemini":
            from loopwarden.providers.dialects.gemini import Gemini  # noqa: PLC0415

            return Gemini()
        case _:
            assert_never(program)


def program_options(given: AgentProgramSettings) -> ProgramOptions:
    """The options of an agent program as its dialect takes them."""
    return ProgramOptions(
        program=given.program,
        model=given.model,
        arguments=tuple(given.arguments),
        env=given.env,
        pass_env=tuple(given.pass_env),
        credential_files=given.credential_files,
        project_files=given.project_files,
        max_turns=given.max_turns,
        max_cost_usd=given.max_cost_usd,
    )


def missing_credentials(name: str, given: AgentProgramSettings) -> str | None:
    """Why this agent program would find no credentials, as a sentence; None when it may find some.

    Which variables of `pass_env` and `env` carry them is not asked, since with an endpoint of one's own any name can;
    the address of an endpoint and the name of a model are none.
    """
    may_carry = any(not variable.endswith(_NO_CREDENTIAL) for variable in given.env)
    if given.credential_files or may_carry or any(os.environ.get(variable) for variable in given.pass_env):
        return None
    if given.pass_env:
        names = ", ".join(given.pass_env)
        are = "is" if len(given.pass_env) == 1 else "are"
        return f"the provider {name} has no credentials: {names} {are} not set in the environment; set what it needs"
    usual = make_dialect(given.type).credential_variables
    example = f", such as --pass-env {usual[0]}" if usual else " by --pass-env NAME"
    return (
        f"the provider {name} has no credentials: name the variables to pass on{example}, "
        f"or set pass_env in [providers.{name}]"
    )


def _agent_program(name: str, settings: Settings, given: AgentProgramSettings) -> Provider:
    from loopwarden.providers.driver import ProgramProvider  # noqa: PLC0415 -- not for those who use none

    dialect, options = make_dialect(given.type), program_options(given)
    problem = dialect.problem(options)
    if problem is not None:
        raise _refusal(name, settings, (), problem)
    problem = missing_credentials(name, given)
    if problem is not None:
        raise InvalidRequest(problem)
    _refuse_missing_files(name, settings, given.credential_files)
    try:
        return ProgramProvider(dialect, options)
    except ValueError as error:
        raise _unusable(name, error) from None


def _refuse_missing_files(name: str, settings: Settings, files: Mapping[str, str]) -> None:
    for inside, file in files.items():
        path = Path(file)
        if path.is_file() and os.access(path, os.R_OK):
            continue
        problem = "cannot be read" if path.is_file() else "is not a file" if path.exists() else "does not exist"
        reason = f"{file} {problem}; log in with the program on this machine, or take the entry out"
        raise _refusal(name, settings, ("credential_files", inside), reason)


# ---- what speaks a protocol


def _acp(name: str, settings: Settings, given: AcpSettings) -> Provider:
    from loopwarden.providers.acp.provider import AcpProvider  # noqa: PLC0415 -- its SDK takes long to load

    _refuse_missing_files(name, settings, given.credential_files)
    try:
        return AcpProvider(
            given.argv,
            env=given.env,
            pass_env=given.pass_env,
            credential_files=given.credential_files,
            permissions=given.permissions,
            model=given.model,
            login=given.login,
        )
    except ValueError as error:
        raise _unusable(name, error) from None


def _openai(name: str, settings: Settings, given: OpenAISettings) -> Provider:
    from loopwarden.providers.openai.provider import OpenAIProvider  # noqa: PLC0415 -- httpx takes long to load

    key = None
    if given.api_key_env is not None:
        key = os.environ.get(given.api_key_env)
        if not key:
            reason = f"the variable {given.api_key_env} is not set; set it to the key of the endpoint"
            raise _refusal(name, settings, ("api_key_env",), reason)
    try:
        return OpenAIProvider(
            base_url=given.base_url,
            model=given.model,
            api_key=key,
            structured_output=given.structured_output,
            max_output_tokens=given.max_output_tokens,
            output_limit_name=given.output_limit_name,
            asks_usage=given.asks_usage,
            headers=given.headers,
            input_price_usd=given.input_price_usd,
            output_price_usd=given.output_price_usd,
            proxy_url=given.proxy_url,
            connect_timeout_seconds=given.connect_timeout_seconds,
        )
    except ValueError as error:
        raise _unusable(name, error) from None


def _unusable(name: str, error: ValueError) -> InvalidRequest:
    return InvalidRequest(f"the provider {name} of the settings cannot be used: {error}")


def _refusal(name: str, settings: Settings, key: tuple[str, ...], reason: str) -> InvalidRequest:
    """With file, key and line when the settings have the provider; a preset has no such place."""
    if name not in settings.providers:
        return InvalidRequest(f"the provider {name} cannot be used: {reason}")
    return settings.refusal(("providers", name, *key), reason)
