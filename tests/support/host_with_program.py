"""A host with one misbehaving agent. argv: mode, mark, cap in bytes, and the folders for program, workspace and agent.

Prints how it ended, and by how many MB its memory grew at the most.
"""

import asyncio
import sys
from pathlib import Path

from loopwarden.provider import AgentFailed
from support.agents import request
from support.toy_dialect import misbehaving


def peak_mb() -> int:
    """The most memory that this process ever had."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) // 1024


mode, mark, cap, program, workspace, folder = sys.argv[1:]
asked = request(Path(workspace), folder=Path(folder), grace_seconds=0.1, max_output_bytes=int(cap))
before = peak_mb()
how = "answered"
try:
    asyncio.run(misbehaving(Path(program), mode, mark).reply(asked))
except AgentFailed as failed:
    how = failed.reason
sys.stdout.write(f"{how}\n{peak_mb() - before}\n")
