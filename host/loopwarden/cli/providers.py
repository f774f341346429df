"""`loopwarden providers`: which providers there are, what they can do, and whether they work."""

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from loopwarden.cli.loop_commands import as_command, shared_options
from loopwarden.cli.output import Output
from loopwarden.cli.probe import probe
from loopwarden.cli.provider_facts import ProviderFacts, file_is_there, gather_facts
from loopwarden.cli.provider_words import breaker_words, capability_words, policy_words, variables_of, what_is_asked
from loopwarden.display import shown_line
from loopwarden.provider_settings import AcpSettings, AgentProgramSettings, OpenAISettings
from loopwarden.providers.configured import make_dialect
from loopwarden.settings import load_settings

_MOST_NAMED = 3


def providers_command(config: Path | None) -> Callable[..., int]:
    """The command."""

    def run(**given: Any) -> int:
        output = Output(json=given["json"])
        settings = load_settings(config)
        pass_env = tuple(given["pass_env"] or ())
        if given["probe"] is not None:
            return probe(given["probe"], settings, output, pass_env=pass_env)
        if pass_env:
            raise typer.BadParameter("--pass-env belongs to --probe here; to list needs no variables")
        found = asyncio.run(gather_facts(settings))
        output.show_object({"exit": 0, "providers": [facts.to_json() for facts in found]})
        output.show(_text(found))
        return 0

    name = Annotated[
        str | None,
        typer.Option(
            "--probe",
            metavar="NAME",
            help="Ask this provider one small question; exit 0 when it answers. It may cost a little.",
            show_default=False,
        ),
    ]
    return as_command(run, {"probe": (name, None), **shared_options("pass_env", "json", "config")})


def _text(found: list[ProviderFacts]) -> str:
    if not found:
        return (
            "no provider is set up, and no agent program that is known was found in PATH; "
            "give any program after --, or set up a provider in loopwarden.toml"
        )
    lines: list[str] = []
    for facts in found:
        lines += [*([""] if lines else []), *_lines(facts)]
    return "\n".join(lines)


def _lines(facts: ProviderFacts) -> list[str]:
    origin = "known without settings" if facts.is_preset else "of the settings"
    default = ", the default" if facts.is_default else ""
    policy = facts.given.policy.to_policy()
    rows = [
        ("asks", what_is_asked(facts.given)),
        ("program", facts.program),
        ("version", _version(facts)),
        ("can", None if facts.capabilities is None else capability_words(facts.capabilities)),
        ("policy", policy_words(policy)),
        ("breaker", breaker_words(policy, facts.breaker, time.time())),
        ("credentials", _credentials(facts)),
        *(("note", note) for note in facts.notes),
        ("problem", facts.problem),
    ]
    head = f"{facts.name}  (type {facts.given.type}, {origin}{default})"
    return [shown_line(head), *(f"  {name:<12} {shown_line(value)}" for name, value in rows if value is not None)]


def _version(facts: ProviderFacts) -> str | None:
    if not isinstance(facts.given, AgentProgramSettings) or facts.program is None:
        return None
    tested = "untested" if facts.tested_version is None else f"tested: {facts.tested_version}"
    return f"{facts.version or f'not known: {facts.version_problem}'} ({tested})"


def _credentials(facts: ProviderFacts) -> str | None:
    """The names of what may carry credentials, and which of it is missing."""
    given = facts.given
    names = [
        name if name in getattr(given, "env", {}) or os.environ.get(name) else f"{name} (not set)"
        for name in variables_of(given)
    ]
    if isinstance(given, AgentProgramSettings | AcpSettings):
        names += [
            f"{inside} (from {file}{'' if file_is_there(file) else ', which is missing'})"
            for inside, file in given.credential_files.items()
        ]
    if names:
        return ", ".join(names)
    if isinstance(given, AgentProgramSettings):
        usual = make_dialect(given.type).credential_variables
        more = " or another" if len(usual) > _MOST_NAMED else ""
        return f"none named; usual: {' or '.join(usual[:_MOST_NAMED])}{more}"
    return "none" if isinstance(given, OpenAISettings) else None
