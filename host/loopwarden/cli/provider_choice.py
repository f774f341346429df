"""Which providers a run gets: the chosen one, its fallback, and the others of the settings, which a script may name."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from loopwarden.cli.request import Request
from loopwarden.failures import InvalidRequest, StartRefused
from loopwarden.limits import Limits
from loopwarden.policy import Policy
from loopwarden.provider import AgentReply, AgentRequest, Capabilities, Provider, ProviderStartError
from loopwarden.provider_settings import AGENT_PROGRAMS, CommandSettings, ProviderSettings
from loopwarden.providers.command import CommandProvider
from loopwarden.providers.configured import (
    environment_notes,
    find_entry,
    make_provider,
    program_of,
    refuse_missing_program,
    with_choices,
)
from loopwarden.providers.program import absolute_name
from loopwarden.settings import COMMAND_LINE_PROVIDER, Settings

NO_PROVIDER: Final = "none"
_HOW_TO_NAME_A_PROGRAM: Final = (
    "choose an agent program, such as `--provider claude`, give any program after --, such as `-- my-agent --print`, "
    "or set up a provider in loopwarden.toml"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The providers of a run, ready to be asked."""

    name: str
    """The one that calls get which name none."""
    providers: Mapping[str, Provider]
    policies: Mapping[str, Policy]
    given: ProviderSettings | None = None
    """What the chosen one was made of; None when nothing was chosen."""
    program: str | None = None
    """The program of the chosen one as it was given, a relative path made whole; None when it has none."""
    notes: tuple[str, ...] = ()


class _Absent:
    """Stands in for a provider that cannot be used, until a script asks for it: most runs need one provider alone."""

    capabilities = Capabilities(structured_output=True, fresh_context=True)

    def __init__(self, reason: str) -> None:
        self._reason = reason

    async def reply(self, request: AgentRequest) -> AgentReply:  # noqa: ARG002 -- the shape of a provider
        raise ProviderStartError(self._reason)


def choose_providers(request: Request, settings: Settings) -> Chosen:
    """Resolve `--provider`, the program after `--`, or the default of the settings.

    Raises a subclass of `StartRefused`: what the run needs is made and looked for here, before anything starts.
    """
    if request.program:
        return _program_after_dashes(request, settings)
    name = _name(request, settings)
    if name is None:
        _refuse_without_a_provider(request)
        return Chosen(name=NO_PROVIDER, providers={NO_PROVIDER: absent_provider()}, policies={})
    given = with_choices(name, find_entry(name, settings), pass_env=request.pass_env, model=request.model)
    needed = {name: given}
    if given.policy.fallback is not None:
        needed[given.policy.fallback] = find_entry(given.policy.fallback, settings)
    for entry in needed.values():
        refuse_missing_program(entry)
    program = program_of(given)
    return Chosen(
        name=name,
        providers=_with_others({key: make_provider(key, settings, entry) for key, entry in needed.items()}, settings),
        policies=_policies(request, settings),
        given=given,
        program=None if program is None else absolute_name(program),
        notes=tuple(note for key, entry in needed.items() for note in environment_notes(key, entry)),
    )


def absent_provider() -> Provider:
    """Stands for the provider of a run that was given none."""
    return _Absent(f"no agent can be started: {_HOW_TO_NAME_A_PROGRAM}")


def refuse_unmet_policy(chosen: Chosen, limits: Limits) -> None:
    """A policy that repeats needs the number that says how often in all. Raises `InvalidRequest`."""
    policy = chosen.policies.get(chosen.name)
    if policy is None or not policy.repeats or limits.max_extra_attempts:
        return
    raise InvalidRequest(
        f"the policy of the provider {chosen.name} asks again after failures, and nobody said how often in all; give "
        "--max-extra-attempts N (0: never), or set max_extra_attempts under [limits]"
    )


def refuse_unusable_provider(name: str, settings: Settings) -> None:
    """Refuse a provider that could not start an agent as it is set up. Raises `InvalidRequest`."""
    given = find_entry(name, settings)
    refuse_missing_program(given)
    make_provider(name, settings, given)


def _name(request: Request, settings: Settings) -> str | None:
    name = request.provider if request.provider is not None else settings.default_provider
    if name is None and settings.providers:
        known = ", ".join(sorted(settings.providers))
        raise InvalidRequest(
            f"choose a provider by --provider NAME ({known}), or set default_provider in loopwarden.toml"
        )
    if name is not None and name not in settings.providers and name not in AGENT_PROGRAMS:
        known = ", ".join(sorted(settings.providers)) or "none"
        presets = ", ".join(AGENT_PROGRAMS)
        raise InvalidRequest(
            f"there is no provider {name[:100]!r}; the settings have: {known}; known without settings: {presets}"
        )
    return name


def _refuse_without_a_provider(request: Request) -> None:
    if request.target.file is None:
        raise InvalidRequest(f"there is no agent to start; {_HOW_TO_NAME_A_PROGRAM}")
    for option, value in (("--pass-env", request.pass_env), ("--model", request.model)):
        if value:
            raise InvalidRequest(f"{option} needs an agent to give it to; {_HOW_TO_NAME_A_PROGRAM}")


def _program_after_dashes(request: Request, settings: Settings) -> Chosen:
    name = COMMAND_LINE_PROVIDER
    if request.provider is not None:
        raise InvalidRequest("--provider and a program after -- were both given; give one of them")
    if request.model is not None:
        raise InvalidRequest("--model is for providers; a program after -- is told its model by its own arguments")
    for argument in request.program:
        try:
            argument.encode("utf-8")
        except UnicodeEncodeError:
            raise InvalidRequest("an argument after -- is not UTF-8 text") from None
    try:
        provider = CommandProvider(request.program, pass_env=request.pass_env)
        given = CommandSettings(type="command", argv=list(request.program), pass_env=list(request.pass_env))
    except ValueError as error:
        raise InvalidRequest(f"the program after -- cannot be used: {error}") from None
    refuse_missing_program(given)
    return Chosen(
        name=name,
        providers=_with_others({name: provider}, settings),
        policies=_policies(request, settings),
        given=given,
        program=provider.argv[0],
        notes=environment_notes(name, given),
    )


def _with_others(needed: Mapping[str, Provider], settings: Settings) -> dict[str, Provider]:
    """The providers that are needed, and the others of the settings: a script may ask for one by its name."""
    providers = dict(needed)
    for name, given in settings.providers.items():
        if name in providers:
            continue
        try:
            providers[name] = make_provider(name, settings, given)
        except StartRefused as refused:
            providers[name] = _Absent(refused.message)
    return providers


def _policies(request: Request, settings: Settings) -> dict[str, Policy]:
    policies = {name: given.policy.to_policy() for name, given in settings.providers.items()}
    if request.max_extra_attempts == 0:  # somebody wants none of the repeats; the breakers stay
        return {name: Policy(breaker=policy.breaker) for name, policy in policies.items()}
    return policies
