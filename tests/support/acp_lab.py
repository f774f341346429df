"""Asking the ACP agent of the tests, and reading what it heard."""

import contextlib
import json
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loopwarden.provider import AgentReply
from loopwarden.providers.acp.provider import AcpProvider
from loopwarden.providers.supervisors import SUPERVISORS
from support import census
from support.agents import carrying, request

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
PROGRAM = [sys.executable, "-E", "-s", "-S", os.fspath(Path(__file__).with_name("acp_agent.py"))]


@contextlib.contextmanager
def leaving_nothing(mark: str, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No process, no descriptor, and no complaint of the SDK, which would go to standard error with a stack trace."""
    # A supervisor that lives keeps their nursery, and with it a process and a descriptor.
    SUPERVISORS.close_when_idle()
    before = census.descendants(os.getpid()), census.descriptors()
    yield
    SUPERVISORS.close_when_idle()
    assert carrying("TEST_MARK", mark) == set()
    assert (census.descendants(os.getpid()), census.descriptors()) == before
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


class Lab:
    """One workspace, and agents whose processes carry `mark` in their environment."""

    def __init__(self, workspace: Path, mark: str) -> None:
        self.workspace = workspace
        self.env = {"TEST_MARK": mark}
        self.progress: list[str] = []
        self.signs = 0

    @property
    def is_up(self) -> bool:
        """True when the agent says that it is in the middle of its work."""
        return (self.workspace / "up").exists()

    def provider(self, mode: str, *arguments: str, **options: Any) -> AcpProvider:
        """The agent in a mode."""
        options = {"permissions": "allow", **options}
        return AcpProvider([*PROGRAM, mode, *arguments], env={**self.env, **options.pop("env", {})}, **options)

    async def ask(
        self, mode: str, *arguments: str, options: dict[str, Any] | None = None, **changes: Any
    ) -> AgentReply:
        """Ask an agent in a mode; `changes` are of the request."""
        fields = {"schema": SCHEMA, "progress": self.progress.append, "alive": self._sign, "grace_seconds": 5.0}
        asked = request(self.workspace, **(fields | changes))
        return await self.provider(mode, *arguments, **(options or {})).reply(asked)

    def heard(self, method: str | None = None) -> list[dict[str, Any]]:
        """The messages that the agent got."""
        lines = (self.workspace / "heard.jsonl").read_text(encoding="utf-8").splitlines()
        messages = [json.loads(line) for line in lines]
        return [message for message in messages if method is None or message.get("method") == method]

    def _sign(self) -> None:
        self.signs += 1
