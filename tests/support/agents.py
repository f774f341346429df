"""Requests for providers, and the processes that agents leave or should not leave."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loopwarden.provider import AgentRequest
from loopwarden.providers.command import CommandProvider
from loopwarden.providers.supervisors import SUPERVISORS

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


def parents() -> dict[int, int]:
    """Every process and its parent."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            found[int(name)] = int(Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()[1])
    return found


def processes_below(root: int) -> set[int]:
    """The descendants of a process, zombies too."""
    table = parents()
    below = {root}
    while more := {pid for pid, parent in table.items() if parent in below} - below:
        below |= more
    return below - {root}


def descendants() -> set[int]:
    """Our own: a mark can be lost, a parent cannot. The nursery is not counted while no agent lives: see `census`."""
    SUPERVISORS.close_when_idle()
    return processes_below(os.getpid())


def state(pid: int) -> bytes:
    """The letter of the process table: T is stopped, Z is ended and not reaped."""
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]


def is_supervisor(pid: int) -> bool:
    """Say whether a process is the supervisor of an agent."""
    try:
        return Path(f"/proc/{pid}/comm").read_bytes() == b"lw-supervisor\n"
    except OSError:
        return False


def supervisors() -> set[int]:
    """The supervisors that this process started."""
    return {pid for pid in descendants() if is_supervisor(pid)}


# Each leaves something behind, which says that it is there by making a file in the workspace.
SLEEP = "sleep 600"
IGNORE_TERM = "trap '' TERM HUP INT;"
LEFT_BEHIND = {
    "in its group": f"({SLEEP}) & touch up;",
    "in its group and deaf": f"({IGNORE_TERM} touch up; {SLEEP}; {SLEEP}) &",
    "in its own session": f"setsid sh -c 'touch up; {SLEEP}' &",
    "in its own session and deaf": f'setsid sh -c "{IGNORE_TERM} touch up; {SLEEP}; {SLEEP}" &',
    "a daemon": f'( (setsid sh -c "{IGNORE_TERM} touch up; {SLEEP}; {SLEEP}" &) & );',
    "stopped": "sh -c 'touch up; kill -STOP $$' &",
    "without its environment": f"setsid env -i PATH=$PATH sh -c 'touch up; {SLEEP}' &",
    "a process whose first thread is gone": (
        f"setsid {sys.executable} -c 'import ctypes, threading, time;"
        "threading.Thread(target=time.sleep, args=(600,)).start();"
        'open("up", "w").close(); ctypes.CDLL(None).pthread_exit(None)\' &'
    ),
}


def provider(script: str, mark: str) -> CommandProvider:
    """A shell script as the agent, whose processes carry `mark` in their environment."""
    return CommandProvider(["sh", "-c", script], env={"TEST_MARK": mark})
