"""A host with one agent, to be killed by a test: argv is workspace, mark, and the program of the agent."""

import asyncio
import sys
from pathlib import Path

from loopwarden.providers.command import CommandProvider
from support.agents import request

workspace, mark, *argv = sys.argv[1:]
provider = CommandProvider(argv, env={"TEST_MARK": mark})
asyncio.run(provider.reply(request(Path(workspace), grace_seconds=0.1)))
