"""One worker as the host holds it: a process to kill, a channel to talk through, an end to wait for."""

import asyncio
import os
import signal
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from loopwarden.failures import ConfinementUnavailable
from loopwarden_engine.confinement import WALLS
from loopwarden_engine.control import WALL_STATUS_FIRST

__all__ = ["WorkerProcess"]

_RELEASED: Final = -1


class WorkerProcess:
    """A confined, single-use process. Whoever got it from `Launcher.fork` owes it one `release`.

    `channel` is the host's end, a stream socket that does not block. `exited` gives the exit status once the process
    is gone and reaped: minus the signal's number when it was killed. `walls` is what stands around it, by the names
    of `loopwarden_engine.confinement.WALLS`: exact, because a worker that lacks one of the walls that stood in the
    probe leaves before it runs anything.
    """

    __slots__ = ("_exit_reader", "channel", "exited", "pid", "pidfd", "walls")

    def __init__(self, *, pid: int, pidfd: int, channel: socket.socket, walls: Mapping[str, str]) -> None:
        self.pid = pid
        self.pidfd = pidfd
        self.channel = channel
        self.walls = dict(walls)
        self.exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._exit_reader = False

    def kill(self) -> None:
        """Kill the process now.

        Harmless when it is dead, or released. Raises `OSError` in the probe at most.
        """
        if self.pidfd == _RELEASED:
            return
        try:
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        except ProcessLookupError:
            return

    def release(self) -> None:
        """Close channel and pidfd; a worker that still lives is killed first. May be called twice."""
        if self.pidfd == _RELEASED:
            return
        if not self.exited.done():
            with suppress(OSError):
                self.kill()
        self._stop_watching()
        self.channel.close()
        os.close(self.pidfd)
        self.pidfd = _RELEASED

    def refusal(self) -> ConfinementUnavailable | None:
        """After the exit: why, when the worker left because one of its walls could not be put up; else None."""
        wall_number = self.exited.result() - WALL_STATUS_FIRST
        if not 0 <= wall_number < len(WALLS):
            return None
        wall = WALLS[wall_number]
        return ConfinementUnavailable(
            f"The wall {wall!r} could not be put up around the worker, although it stood in the probe. "
            "Run `loopwarden doctor`.",
            details={"wall": wall},
        )

    def finish(self, status: int) -> None:
        """The launcher's report of the end."""
        self._stop_watching()
        if not self.exited.done():
            self.exited.set_result(status)

    def outlive_launcher(self) -> None:
        """Nobody is left to report the end: kill, and watch the pidfd instead.

        The kernel has sent its own kill already.
        """
        if self.exited.done():
            return
        if self.pidfd == _RELEASED:
            self.exited.set_result(-signal.SIGKILL)
            return
        self.kill()
        self._exit_reader = True
        asyncio.get_running_loop().add_reader(self.pidfd, self.finish, -signal.SIGKILL)

    def _stop_watching(self) -> None:
        if self._exit_reader:
            self._exit_reader = False
            self.exited.get_loop().remove_reader(self.pidfd)
