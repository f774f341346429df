"""One launcher for many hosts: starting it costs 80 ms, a worker 4 ms, and hundreds of cases need a host each."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from loopwarden import Host
from loopwarden.launching import Launcher, WorkerLimits
from loopwarden.worker_process import WorkerProcess


class LentLauncher:
    """A launcher that a host may use but not close."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher

    @property
    def alive(self) -> bool:
        """True until the launcher died."""
        return self._launcher.alive

    async def fork(self, limits: WorkerLimits) -> WorkerProcess:
        """As the launcher's."""
        return await self._launcher.fork(limits)

    async def close(self) -> None:
        """Leave it to its owner."""

    def lend_to(self, host: Host) -> None:
        """Let `host` use this launcher from its first run on."""
        host._launcher = self  # type: ignore[assignment]


@contextmanager
def lent_launcher(runner: asyncio.Runner) -> Iterator[LentLauncher]:
    """A launcher on the event loop of `runner`, closed at the end."""

    def lost() -> None:
        raise AssertionError("the launcher died")

    launcher = runner.run(Launcher.start(lost))
    try:
        yield LentLauncher(launcher)
    finally:
        runner.run(launcher.close())
