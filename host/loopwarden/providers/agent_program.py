"""What all providers that start a program have in common: where it runs, what is kept of it, its last words."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loopwarden.failure_class import FailureClass
from loopwarden.provider import AgentRequest, ProviderStartError
from loopwarden.providers.process import Ending
from loopwarden.providers.program import check_folder

WHAT: Final = "agent program"
LAST_LINE_CHARS: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandPlan:
    """What a provider would start for a request. Names of environment variables only: values may be secret."""

    argv: tuple[str, ...]
    """As started, except that words in braces stand for files and folders that exist only while an agent runs."""
    program: str
    """The file that would run."""
    folder: str
    environment_names: tuple[str, ...]
    stdin_chars: int


def workspace_of(request: AgentRequest) -> Path:
    """The folder that the program runs in. Raises `ProviderStartError`, or `ProgramNotStarted` when it is unusable."""
    if request.workspace is None:
        raise ProviderStartError("an agent program needs a workspace to run in, and this run has none; give it one")
    check_folder(request.workspace)
    return request.workspace


def stream_file(request: AgentRequest, name: str) -> Path | None:
    """Where a stream of this attempt is kept: `name.txt` for the first attempt, then `name-2.txt`."""
    if request.folder is None:
        return None
    return request.folder / (f"{name}.txt" if request.attempt == 1 else f"{name}-{request.attempt}.txt")


def problem_of(ending: Ending) -> tuple[FailureClass, str] | None:
    """Why the end says nothing about the agent, as a class and words that continue "the agent program"; else None."""
    if ending.problem is None:
        return None
    if ending.is_lease_over:
        return FailureClass.CANCELLED, f"was ended: {ending.problem}"
    return FailureClass.CRASHED, f"failed: {ending.problem}"


def last_line(text: str) -> str | None:
    """The last line that is not blank, cut to a length for a sentence; None when there is none."""
    for line in reversed(text.splitlines()):
        words = line.strip()
        if words:
            return words if len(words) <= LAST_LINE_CHARS else words[: LAST_LINE_CHARS - 1] + "…"
    return None


def last_words(ending: Ending) -> str:
    """A clause about the end of the error output."""
    line = last_line(ending.errors.decode("utf-8", "replace"))
    if line is None:
        return "; it printed nothing on its error output"
    return f"; last line of its error output: {line}"
