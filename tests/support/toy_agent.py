"""Toy agents as shell scripts, and asks of them."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from loopwarden.provider import AgentFailed, AgentReply
from loopwarden.providers.dialect import ProgramOptions
from loopwarden.providers.driver import ProgramProvider
from support.agents import request
from support.toy_dialect import ToyDialect

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
END = '{"type": "end", "text": "done"}'


def put_agent(folder: Path, script: str) -> str:
    """A shell script as the agent program, which first reads its prompt."""
    program = folder / "toy-agent"
    program.write_text(f"#!/bin/sh\nprompt=$(cat)\n{script}\n")
    program.chmod(0o755)
    return os.fspath(program)


def toy(folder: Path, script: str, **options: Any) -> tuple[ProgramProvider, ToyDialect]:
    """A provider that runs the script, and its dialect."""
    dialect = ToyDialect()
    return ProgramProvider(dialect, ProgramOptions(program=put_agent(folder, script), **options)), dialect


def reply_of(place: Path, script: str, /, *, options: dict[str, Any] | None = None, **changes: Any) -> AgentReply:
    """What the script gives when it is asked once."""
    provider, _ = toy(place, script, **(options or {}))
    return asyncio.run(provider.reply(request(place, **changes)))


def failure_of(place: Path, script: str, /, **changes: Any) -> AgentFailed:
    """How the script fails when it is asked once."""
    with pytest.raises(AgentFailed) as caught:
        reply_of(place, script, **changes)
    return caught.value


def printing(*records: dict[str, Any]) -> str:
    """A script that prints these records."""
    return "\n".join(f"printf '%s\\n' '{json.dumps(record)}'" for record in records)
