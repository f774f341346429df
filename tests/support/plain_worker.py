"""The host's end of a worker that executes plain Python (`support.plain_python`)."""

import asyncio
import contextlib
import json
import os
import select
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from loopwarden.launch_command import LaunchCommand
from loopwarden.launching import Launcher, WorkerLimits, WorkerProcess

TESTS = Path(__file__).parent.parent
TIMEOUT_SECONDS = 20
LIMITS = WorkerLimits(memory_bytes=512 * 1024 * 1024, cpu_seconds=30)


def command_of(module: str, factory: str) -> LaunchCommand:
    """A launcher whose workers come from a module of the tests."""
    return LaunchCommand(module=module, factory=factory, extra_folders=(str(TESTS),))


PLAIN = command_of("support.plain_python", "PlainPython")


async def tell(worker: WorkerProcess, code: str) -> None:
    """Send code that may never answer."""
    payload = code.encode()
    await asyncio.get_running_loop().sock_sendall(worker.channel, len(payload).to_bytes(4, "big") + payload)


async def ask(worker: WorkerProcess, code: str) -> Any:
    """The answer of a plain Python worker: a dict with `value` or `error`; None when it died instead."""
    received = b""
    try:
        await tell(worker, code)
        while len(received) < 4 or len(received) < 4 + int.from_bytes(received[:4], "big"):
            data = await asyncio.get_running_loop().sock_recv(worker.channel, 65536)
            if not data:
                return None
            received += data
    except ConnectionError:
        return None
    return json.loads(received[4:])


@asynccontextmanager
async def plain_launcher(**options: Any) -> AsyncIterator[Launcher]:
    launcher = await Launcher.start(lambda: None, **({"command": PLAIN} | options))
    try:
        yield launcher
    finally:
        await launcher.close()


@asynccontextmanager
async def plain_worker(launcher: Launcher) -> AsyncIterator[WorkerProcess]:
    worker = await launcher.fork(LIMITS)
    try:
        yield worker
    finally:
        worker.release()


async def wait_for_end(worker: WorkerProcess) -> int:
    return await asyncio.wait_for(asyncio.shield(worker.exited), TIMEOUT_SECONDS)


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(main(), 60)

    asyncio.run(bounded())


def open_descriptors(pid: int | str = "self") -> dict[str, str]:
    found = {}
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            found[name] = os.readlink(f"/proc/{pid}/fd/{name}")
    return found


def is_alive(pid: int) -> bool:
    """A zombie counts as alive: somebody still has to reap it."""
    return Path(f"/proc/{pid}").exists()


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class Ends:
    """Pidfds of processes, to wait for their ends without asking again and again."""

    def __init__(self, pids: list[int]) -> None:
        self._pidfds = [os.pidfd_open(pid) for pid in pids]

    def wait(self) -> None:
        try:
            for pidfd in self._pidfds:
                assert select.select([pidfd], [], [], TIMEOUT_SECONDS)[0], "a process lives on"
        finally:
            for pidfd in self._pidfds:
                os.close(pidfd)
