"""One forked worker, seen from both sides of the fork: made by `multiprocess`, watched by pidfd, left by `os._exit`."""

import gc
import json
import os
import signal
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

from multiprocess.context import ForkProcess
from multiprocess.popen_fork import Popen

from loopwarden_engine.confinement import WALLS, ConfinementError, confine
from loopwarden_engine.control import WALL_STATUS_FIRST, ForkRequest

if TYPE_CHECKING:
    from loopwarden_engine.confinement.trials import Trials

__all__ = ["CHANNEL_FD", "ForkedWorker", "MakeWorker", "Worker"]


class Worker(Protocol):
    """What lives in a worker process."""

    def serve(self) -> None:
        """Work until the end, confined."""


MakeWorker = Callable[[int], Worker]
"""Makes a worker from its channel's descriptor, before confinement: wrapping one takes calls forbidden later."""

CHANNEL_FD: Final = 3
"""The one descriptor of every worker: a fixed number, so that one filter fits all."""

_BROKEN_STATUS: Final = 70


class _WatchedPopen(Popen):  # type: ignore[misc]
    """Watches the child by a pidfd: `multiprocess` gives it a pipe to hold, but ours closes every descriptor.

    That also leaves no pipe behind when the fork fails.
    """

    def _launch(self, process_obj: Any) -> None:
        self.pid = os.fork()
        if self.pid == 0:
            process_obj.live()
        try:
            self.sentinel = os.pidfd_open(self.pid)
        except OSError:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            raise


class ForkedWorker(ForkProcess):  # type: ignore[misc]
    """A worker process. `start` forks it and raises `OSError` when that fails; `sentinel` is its pidfd."""

    def __init__(self, request: ForkRequest, channel: socket.socket, make_worker: MakeWorker) -> None:
        super().__init__(name=f"worker-{request.id}")
        self.request = request
        self._channel = channel
        self._make_worker = make_worker
        self._launcher_pid = os.getpid()

    @staticmethod
    def _Popen(process_obj: Any) -> Popen:  # noqa: N802 -- the name is multiprocess's
        return _WatchedPopen(process_obj)

    def live(self) -> NoReturn:
        """The worker's whole life, in place of the bookkeeping of `multiprocess`.

        That serves later forks, which will be forbidden, and at the end needs calls that are forbidden too.
        """
        status = _BROKEN_STATUS
        try:
            gc.disable()
            _move_channel(self._channel.detach())
            if self.request.is_probe:
                _Probe(self.request, self._launcher_pid).serve()
            else:
                worker = self._make_worker(CHANNEL_FD)
                _confine(self.request, self._launcher_pid)
                worker.serve()
            status = 0
        except ConfinementError as error:
            status = WALL_STATUS_FIRST + WALLS.index(error.wall)
        finally:
            os._exit(status)

    def kill_now(self) -> bool:
        """Kill the worker; False when the kernel does not let us. One that is dead already counts as killed."""
        try:
            signal.pidfd_send_signal(self.sentinel, signal.SIGKILL)
        except ProcessLookupError:
            return True
        except OSError:
            return False
        return True

    def reap(self) -> int:
        """Wait for the end; the exit status, minus the signal's number when killed. Closes the pidfd."""
        self.join()
        status: int | None = self.exitcode
        assert status is not None, "joined, so it has ended"
        pidfd = self.sentinel
        self.close()
        os.close(pidfd)
        return status


class _Probe:
    """Puts up its walls, tries them, tells the host as one line of JSON, then waits until the host hangs up or kills.

    `{"walls": {wall: "stands" or why not}, "details": {wall: what it covers here}}`. When the host sends a byte
    instead, it makes a call that its filter forbids, to show how that ends.
    """

    def __init__(self, request: ForkRequest, launcher_pid: int) -> None:
        from loopwarden_engine.confinement.trials import Trials  # noqa: PLC0415 -- no other worker has a use for it

        self._channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=CHANNEL_FD)
        trials = Trials(CHANNEL_FD, request.limits)
        walls = _confine(request, launcher_pid, trials)
        self._report = {"walls": walls, "details": trials.details}

    def serve(self) -> None:
        self._channel.sendall(json.dumps(self._report).encode() + b"\n")
        if self._channel.recv(1):
            os.getpid()


def _confine(request: ForkRequest, launcher_pid: int, trials: "Trials | None" = None) -> dict[str, str]:
    return confine(
        CHANNEL_FD,
        request.limits,
        required=request.required,
        walls=request.walls,
        parent_pid=launcher_pid,
        trials=trials,
    )


def _move_channel(descriptor: int) -> None:
    if descriptor != CHANNEL_FD:
        os.dup2(descriptor, CHANNEL_FD)
