"""What one test has: a program with its deployment, a model, a workspace, and nothing else of the machine."""

import contextlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from agents.brain import DONE, RalphBrain
from agents.deployments import table
from loopwarden.provider import AgentReply
from loopwarden.provider_settings import AgentProgramSettings
from loopwarden.providers.configured import make_dialect, program_options
from loopwarden.providers.driver import ProgramProvider
from loopwarden_scripts.ralph.report import REPORT_SCHEMA
from support.agents import carrying, request
from support.command_line import Home
from support.model_server import ModelServer

OBJECTIVE: Final = f"Make the file {DONE}."
PROMPT: Final = f"One round of work.\n\n# Round 1\n\n{OBJECTIVE}"
"""What the model of these tests knows a round by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Use it while its server runs."""

    program: str
    home: Home
    brain: RalphBrain
    server: ModelServer
    mark: str

    @property
    def workspace(self) -> Path:
        """Where the agents work."""
        return self.home.workspace

    @property
    def processes(self) -> set[int]:
        """What runs of this test's agents."""
        return carrying("TEST_MARK", self.mark)

    @property
    def running(self) -> Counter[str]:
        """Those processes by name."""
        names: Counter[str] = Counter()
        for pid in self.processes:
            with contextlib.suppress(OSError):  # It ended meanwhile.
                names[Path(f"/proc/{pid}/comm").read_text().strip()] += 1
        return names

    def table(self, login: Mapping[str, str] | None = None) -> dict[str, Any]:
        """The program's table of the settings. `login` are the variables by which it logs in; None: an API key."""
        return table(self.program, self.server.url, self.mark, login)

    def provider(self, login: Mapping[str, str] | None = None, **changes: Any) -> ProgramProvider:
        """The provider that such a table gives, with `changes` of its entries."""
        given = AgentProgramSettings.model_validate(self.table(login) | changes)
        return ProgramProvider(make_dialect(given.type), program_options(given))

    async def ask(self, provider: ProgramProvider) -> AgentReply:
        """One attempt of round 1, without a host."""
        asked = request(
            self.workspace, prompt=PROMPT, schema=REPORT_SCHEMA, timeout_seconds=170.0, idle_seconds=170.0,
            grace_seconds=2.0, max_output_bytes=16 * 1024 * 1024,
        )  # fmt: skip
        return await provider.reply(asked)
