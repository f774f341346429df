"""Requests for providers, and the processes that agents leave or should not leave."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loopwarden.provider import AgentRequest

REAL_SECONDS = 15.0


def request(workspace: Path | None, **changes: Any) -> AgentRequest:
    """A request as the broker would make it."""
    fields: dict[str, Any] = {
        "run_id": "run-1",
        "seq": 1,
        "attempt": 1,
        "prompt": "do it",
        "label": "do it",
        "phase": None,
        "schema": None,
        "model": None,
        "workspace": workspace,
        "folder": None,
        "timeout_seconds": 60.0,
        "idle_seconds": 60.0,
        "grace_seconds": 0.15,
        "max_output_bytes": 1024 * 1024,
        "idempotency_key": "key",
        "progress": lambda line: None,
    }
    return AgentRequest(**(fields | changes))


def carrying(name: str, value: str) -> set[int]:
    """The live processes that were started with this environment variable."""
    wanted = f"{name}={value}".encode()
    found = set()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                state = Path(f"/proc/{entry}/stat").read_bytes().rpartition(b")")[2].split()[0]
                if state not in b"ZX" and wanted in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"):
                    found.add(int(entry))
    return found


def kill_all(pids: set[int]) -> None:
    """End what a failed test left."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def wait_until(holds: Callable[[], bool]) -> bool:
    """Look again until `holds`, or the time is over. Return whether it held."""
    end = time.monotonic() + REAL_SECONDS
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


async def until(holds: Callable[[], bool]) -> None:
    """As `wait_until` on the event loop. Fails when the time is over."""
    end = time.monotonic() + REAL_SECONDS
    while not holds():
        assert time.monotonic() < end, "it did not come to pass in time"
        await asyncio.sleep(0.005)
