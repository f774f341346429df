"""What can be said about each provider without starting an agent: program, version, abilities, credentials, breaker."""

import asyncio
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from pydantic.alias_generators import to_camel

from loopwarden.breaker import BreakerState, read_breakers
from loopwarden.display import shown_line
from loopwarden.failures import StartRefused
from loopwarden.provider import Capabilities, ProviderStartError
from loopwarden.provider_settings import AGENT_PROGRAMS, AgentProgramSettings, OpenAISettings, ProviderSettings, preset
from loopwarden.providers.configured import (
    environment_notes,
    environment_of,
    locate_program,
    make_dialect,
    make_provider,
)
from loopwarden.providers.home import private_folder
from loopwarden.providers.process import Program, SupervisedProcess
from loopwarden.providers.program import ProgramNotStarted
from loopwarden.providers.supervision.removal import remove_tree
from loopwarden.settings import Settings

VERSION_TIMEOUT_SECONDS: Final = 10.0
_MAX_OUTPUT_BYTES: Final = 64 * 1024
_MAX_VERSION_CHARS: Final = 60
_VERSION: Final = re.compile(r"\d+\.\d+[0-9A-Za-z.+-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderFacts:
    """One provider of the settings, or a preset whose program was found."""

    name: str
    given: ProviderSettings
    is_preset: bool
    is_default: bool
    program: str | None
    """The whole path; None when it was not found, or when there is none."""
    version: str | None = None
    version_problem: str | None = None
    tested_version: str | None = None
    capabilities: Capabilities | None = None
    """None when the provider could not be made."""
    breaker: BreakerState | None = None
    problem: str | None = None
    """Why a run with this provider would be refused."""
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The form of `--json`. Of variables the names alone."""
        abilities = self.capabilities
        return {
            "name": self.name,
            "preset": self.is_preset,
            "default": self.is_default,
            "settings": self.given.to_json(),
            "program": self.program,
            "version": self.version,
            "versionProblem": self.version_problem,
            "testedVersion": self.tested_version,
            "capabilities": None if abilities is None else {to_camel(k): v for k, v in asdict(abilities).items()},
            "breaker": None if self.breaker is None else self.breaker.model_dump(by_alias=True, mode="json"),
            "problem": self.problem,
            "notes": list(self.notes),
        }


async def gather_facts(settings: Settings) -> list[ProviderFacts]:
    """The providers of the settings, then the presets whose programs are there. Versions are asked for together."""
    breakers = read_breakers(settings.state_folder)
    entries = [(name, given, False) for name, given in settings.providers.items()]
    for name in AGENT_PROGRAMS:
        found = preset(name)
        if name not in settings.providers and found is not None and _path(found) is not None:
            entries.append((name, found, True))
    return list(
        await asyncio.gather(
            *(_facts(name, given, settings, breakers, is_preset=is_preset) for name, given, is_preset in entries)
        )
    )


async def _facts(
    name: str, given: ProviderSettings, settings: Settings, breakers: Mapping[str, BreakerState], *, is_preset: bool
) -> ProviderFacts:
    path = _path(given)
    version: str | None = None
    version_problem: str | None = None
    capabilities: Capabilities | None = None
    tested: str | None = None
    if isinstance(given, AgentProgramSettings):
        dialect = make_dialect(given.type)
        capabilities, tested = dialect.capabilities, dialect.tested_version
        if path is not None:
            # Only of programs that are known to have the option: any other might take it for a prompt.
            version, version_problem = await _ask_version(path, environment_of(given)["PATH"])
    problem: str | None = None
    try:
        capabilities = make_provider(name, settings, given).capabilities
        locate_program(given)
    except StartRefused as refused:
        problem = refused.message
    except ProgramNotStarted as error:
        problem = str(error)
    return ProviderFacts(
        name=name,
        given=given,
        is_preset=is_preset,
        is_default=name == settings.default_provider,
        program=path,
        version=version,
        version_problem=version_problem,
        tested_version=tested,
        capabilities=capabilities,
        breaker=breakers.get(name) if given.policy.breaker is not None else None,
        problem=problem,
        notes=() if isinstance(given, OpenAISettings) else environment_notes(name, given),
    )


def _path(given: ProviderSettings) -> str | None:
    try:
        return locate_program(given)
    except ProgramNotStarted:
        return None


async def _ask_version(path: str, search_path: str) -> tuple[str | None, str | None]:
    """The version that a program gives for itself, and why there is none. In a home of its own, without credentials."""
    home: Path | None = None
    try:
        home = private_folder(None)
        program = Program(
            what="agent program",
            argv=(path, "--version"),
            folder=home,
            environment={"PATH": search_path, "HOME": str(home), "TMPDIR": str(home), "LANG": "C.UTF-8"},
            stdin=None,
            grace_seconds=1,
            max_output_bytes=_MAX_OUTPUT_BYTES,
        )
        return await _first_words(await SupervisedProcess.start(program))
    except (ProgramNotStarted, ProviderStartError) as error:
        return None, str(error)
    except OSError as error:
        return None, f"no private folder could be made for it: {(error.strerror or 'output error').lower()}"
    finally:
        if home is not None:
            remove_tree(home)


async def _first_words(process: SupervisedProcess) -> tuple[str | None, str | None]:
    try:
        async with asyncio.timeout(VERSION_TIMEOUT_SECONDS):
            ending = await process.wait()
    except TimeoutError:
        await process.end(1)
        return None, f"it did not give its version within {VERSION_TIMEOUT_SECONDS:g} s"
    except asyncio.CancelledError:
        await process.end(0)
        raise
    text = ending.output.decode("utf-8", "replace").strip()
    if ending.problem is not None or ending.exit != 0 or not text:
        return None, ending.problem or (f"with --version it {ending.how}" if ending.exit else "it printed no version")
    found = _VERSION.search(text)
    return (found[0] if found else shown_line(text.splitlines()[0]))[:_MAX_VERSION_CHARS], None


def file_is_there(file: str) -> bool:
    """True when a file of credentials can be read."""
    return os.access(file, os.R_OK)
