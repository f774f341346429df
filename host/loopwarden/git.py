"""Running git on a repository that agents can write: what its configuration names is not executed.

An agent that worked in the repository before may have written its hooks and its `.git/config`. So for every command:

    hooks                no hook runs, whoever configured it
    file system monitor  off
    filters (LFS)        run as this user or this machine configured them (`git lfs install` does that); what only the
                         repository defines or redefines does not run, and files stay as they are stored
    network              none: objects that a partial clone lacks are not fetched; only a filter may use the network
    submodules           not entered

A filter that does run reads the configuration of the repository by itself. Programs that git-lfs would start because
of it are masked too. This guards against accidents and plants, not against an agent that is still at work: it has the
rights of its user, and could write the configuration of that user as well.
"""

import asyncio
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from loopwarden.display import shown_line
from loopwarden.failures import LoopwardenError
from loopwarden.providers.process import Ending, Program, SupervisedProcess
from loopwarden.providers.program import ProgramNotStarted, allowed_environment, find_program
from loopwarden.workspace import lies_inside

GRACE_SECONDS: Final = 5.0
"""For git to take its lock files away when it is ended."""
MAX_OUTPUT_BYTES: Final = 16 * 1024 * 1024
MAX_SAID_CHARS: Final = 300

_FIXED: Final = (("core.hooksPath", os.devnull), ("core.fsmonitor", "false"), ("submodule.recurse", "false"))
_ENVIRONMENT: Final = {
    "LC_ALL": "C",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    # No such protocol, so no remote can be asked, whatever protocol.*.allow of the repository says.
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
}
_STARTS_PROGRAMS: Final = re.compile(
    r"filter\..|credential\.|core\.(sshcommand|askpass|gitproxy)|lfs\.(customtransfer\.|extension\.|standalonetransfer)"
)
_OF_PERSON_OR_MACHINE: Final = frozenset({"system", "global"})


class GitFailed(LoopwardenError):
    """Git could not be run, or refused. The message is a sentence part that continues "…: "."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Git:
    """Git with the environment for one repository. Make it with `open`."""

    program: str
    environment: Mapping[str, str] = field(repr=False)
    timeout_seconds: float
    """How long one command may take."""
    masked_filters: tuple[str, ...] = ()
    """Filters that only the repository's own configuration defines, so that they do not run."""

    @classmethod
    async def open(cls, folder: Path, *, timeout_seconds: float) -> "Git":
        """Find git and read what it must not execute in the repository of `folder`. Raises `GitFailed`."""
        names = ("XDG_CONFIG_HOME",)  # git's configuration of the person lies there, or in HOME
        environment = allowed_environment(os.environ, names, _ENVIRONMENT)
        try:
            program = find_program("git", environment["PATH"], "program")
        except ProgramNotStarted as error:
            raise GitFailed(str(error)) from None
        if lies_inside(Path(program), folder):
            raise GitFailed(f"the program {program} lies inside the workspace, where an agent could change it")
        plain = cls(
            program=program, environment=environment | _settings(_FIXED), timeout_seconds=timeout_seconds
        )  # fmt: skip
        settings = _listed(await plain.run("config", "--list", "-z", "--show-scope", folder=folder))
        if ("command", "core.hookspath", os.devnull) not in settings:
            raise GitFailed("it is too old to be told what not to execute; use git 2.31 or newer")
        masks, filters = _masks(settings)
        return cls(
            program=program, environment=environment | _settings((*_FIXED, *masks)),
            timeout_seconds=timeout_seconds, masked_filters=filters,
        )  # fmt: skip

    async def run(self, *arguments: str, folder: Path) -> bytes:
        """Run one command in `folder` and return its output. Raises `GitFailed` when it does not end with exit 0."""
        ending = await self.end_of(*arguments, folder=folder)
        if ending.exit != 0:
            raise GitFailed(_said(ending))
        return ending.output

    async def succeeds(self, *arguments: str, folder: Path) -> bool:
        """Run one command that answers by its exit: 0 or 1. Raises `GitFailed` for anything else."""
        ending = await self.end_of(*arguments, folder=folder)
        if ending.exit not in {0, 1}:
            raise GitFailed(_said(ending))
        return ending.exit == 0

    async def end_of(self, *arguments: str, folder: Path) -> Ending:
        """Run one command to its end. Being cancelled ends it. Raises `GitFailed` when its exit is not known."""
        program = Program(
            what="program", argv=(self.program, *arguments), folder=folder, environment=self.environment, stdin=None,
            grace_seconds=GRACE_SECONDS, max_output_bytes=MAX_OUTPUT_BYTES,
        )  # fmt: skip
        try:
            process = await SupervisedProcess.start(program)
        except ProgramNotStarted as error:
            raise GitFailed(str(error)) from None
        try:
            async with asyncio.timeout(self.timeout_seconds):
                ending = await process.wait()
        except TimeoutError:
            await process.end(GRACE_SECONDS)
            raise GitFailed(f"git {arguments[0]} took longer than {self.timeout_seconds:g} seconds") from None
        except asyncio.CancelledError:
            await process.end(GRACE_SECONDS)
            raise
        if ending.output_excess:
            raise GitFailed(f"git {arguments[0]} printed more than {MAX_OUTPUT_BYTES} bytes")
        if ending.problem is not None or ending.exit is None:
            raise GitFailed(f"git {arguments[0]} {ending.problem or ending.how}")
        return ending


def _settings(settings: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """Settings that win over all files. By the environment, since a name on the command line cannot hold "="."""
    variables = {"GIT_CONFIG_COUNT": str(len(settings))}
    for index, (key, value) in enumerate(settings):
        variables |= {f"GIT_CONFIG_KEY_{index}": key, f"GIT_CONFIG_VALUE_{index}": value}
    return variables


def _listed(output: bytes) -> list[tuple[str, str, str]]:
    """Scope, key and value of every setting, in the order in which git reads them."""
    words = [os.fsdecode(word) for word in output.split(b"\0")[:-1]]
    settings = []
    for scope, setting in zip(words[::2], words[1::2], strict=True):
        key, separator, value = setting.partition("\n")
        settings.append((scope, key, value if separator else "true"))
    return settings


def _masks(settings: list[tuple[str, str, str]]) -> tuple[list[tuple[str, str]], tuple[str, ...]]:
    """Settings that put person's and machine's values in place of the repository's, and the filters lost by that."""
    trusted: dict[str, list[str]] = {}
    suspect: dict[str, None] = {}
    hooks: dict[str, None] = {}
    for scope, key, value in settings:
        if key.startswith("hook.") and key.count(".") > 1:
            hooks[key.rpartition(".")[0]] = None
        if scope in _OF_PERSON_OR_MACHINE:
            trusted.setdefault(key, []).append(value)
        elif scope != "command" and _STARTS_PROGRAMS.match(key):
            suspect[key] = None
    masks = [(f"{hook}.enabled", "false") for hook in hooks]
    filters: dict[str, None] = {}
    for key in suspect:
        # The empty value first: it ends lists such as that of credential helpers, and is false and no program.
        masks += [(key, ""), *((key, value) for value in trusted.get(key, []))]
        driver = key.rpartition(".")[0]
        if key.startswith("filter.") and not trusted.keys() & {f"{driver}.smudge", f"{driver}.process"}:
            filters[driver.removeprefix("filter.")] = None
    return masks, tuple(filters)


def _said(ending: Ending) -> str:
    """What git gave as its reason: one line of its error output."""
    text = ending.errors.decode("utf-8", "replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return f"git {ending.how} and gave no reason"
    reasons = [line for line in lines if line.startswith(("fatal:", "error:"))]
    said = (reasons or lines)[-1].removeprefix("fatal:").removeprefix("error:").strip()
    if "dubious ownership" in said:
        said += f"; if you trust it, run `{lines[-1]}`"
    return "git says: " + shown_line(said, MAX_SAID_CHARS)
