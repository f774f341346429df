"""The launcher: a small, preloaded process without environment that forks one worker per run and reports its end.

Started by `loopwarden.launching`, which also says with which interpreter options, and finds the packages. It has one
thread and one poll loop. It holds no source, no argument and no secret of any run, because every later worker copies
its memory. It leaves, and takes its workers along, when its socket closes or the host is gone.
"""

import errno
import gc
import os
import resource
import select
import signal
import socket
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NoReturn

from loopwarden_engine import confinement
from loopwarden_engine.control import (
    ControlError,
    Exited,
    Failed,
    Forked,
    ForkRequest,
    LauncherReport,
    pack_report,
    receive_packet,
    send_packet,
    unpack_request,
)
from loopwarden_engine.forked_worker import CHANNEL_FD, ForkedWorker, MakeWorker

__all__ = ["Launcher", "LauncherRefused", "run_launcher"]

_PASSING_ERRORS: Final = (errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM)
"""Too much on its way at this moment; reading by the host makes room."""
_PAUSE_SECONDS: Final = 0.005


class LauncherRefused(Exception):
    """The launcher cannot do its work in this process; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outgoing:
    """A report that waits; `descriptors` are its own, closed once it is sent."""

    packet: bytes
    descriptors: tuple[int, ...]


class Launcher:
    """The poll loop.

    `control` is a SOCK_SEQPACKET socket to the host, `host_pidfd` becomes readable when the host is gone.
    """

    def __init__(self, control: socket.socket, host_pidfd: int, make_worker: MakeWorker) -> None:
        self._control = control
        self._control_fd = control.fileno()
        self._host_pidfd = host_pidfd
        self._make_worker = make_worker
        self._workers: dict[int, ForkedWorker] = {}  # by pidfd
        self._outbox: deque[_Outgoing] = deque()
        self._is_host_slow = False
        self._poll = select.epoll()

    def run(self) -> NoReturn:
        """Serve until the host hangs up or is gone; then kill and reap every worker and leave."""
        self._control.settimeout(0)
        self._poll.register(self._control_fd, select.EPOLLIN)
        self._poll.register(self._host_pidfd, select.EPOLLIN)
        try:
            while self._take_turn():
                pass
        finally:
            self._leave()

    def _take_turn(self) -> bool:
        """Handle what is ready; False once the host is gone."""
        for descriptor, _ in self._poll.poll():
            if descriptor == self._host_pidfd:
                return False
            if descriptor in self._workers:
                if not self._reap(descriptor):
                    return False
            elif descriptor == self._control_fd and not (self._flush() if self._is_host_slow else self._receive()):
                return False
        return True

    def _receive(self) -> bool:
        """Take one packet; False when the host hung up or talks nonsense: it cannot be the host that we know then."""
        try:
            packet, descriptors = receive_packet(self._control)
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            return False
        if not packet:
            return False
        try:
            request = unpack_request(packet)
        except ControlError:
            return False
        if len(descriptors) != 1:
            # The kernel drops a descriptor for which there is no number left.
            return self._report(Failed(id=request.id, reason="the launcher has no descriptor left for a channel"))
        return self._fork(request, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=descriptors[0]))

    def _fork(self, request: ForkRequest, channel: socket.socket) -> bool:
        with channel:
            worker = ForkedWorker(request, channel, self._make_worker)
            try:
                worker.start()
                descriptor = os.dup(worker.sentinel)
            except (OSError, MemoryError) as error:
                if worker.pid is not None and worker.kill_now():
                    worker.reap()
                reason = error.strerror if isinstance(error, OSError) and error.strerror else "not enough memory"
                return self._report(Failed(id=request.id, reason=reason))
        pid = worker.pid
        assert pid is not None, "started, so it has one"
        pidfd: int = worker.sentinel
        self._workers[pidfd] = worker
        self._poll.register(pidfd, select.EPOLLIN)
        return self._report(Forked(id=request.id, pid=pid), descriptor)

    def _reap(self, pidfd: int) -> bool:
        worker = self._workers.pop(pidfd)
        # Unregistered before it is closed: a worker that was just forked may hold a copy, which would keep it in the
        # poll set.
        self._poll.unregister(pidfd)
        return self._report(Exited(id=worker.request.id, status=worker.reap()))

    def _report(self, report: LauncherReport, *descriptors: int) -> bool:
        self._outbox.append(_Outgoing(packet=pack_report(report), descriptors=descriptors))
        return self._flush()

    def _flush(self) -> bool:
        """Send what waits; False when the host hung up.

        While something waits nothing is received, so that a host that floods us fills its own socket and not our
        memory.
        """
        while self._outbox:
            outgoing = self._outbox[0]
            try:
                send_packet(self._control, outgoing.packet, outgoing.descriptors)
            except (BlockingIOError, InterruptedError):
                return self._wait_for_host(is_slow=True)
            except OSError as error:
                if error.errno not in _PASSING_ERRORS:
                    return False
                time.sleep(_PAUSE_SECONDS)
                return self._wait_for_host(is_slow=True)
            self._outbox.popleft()
            for descriptor in outgoing.descriptors:
                os.close(descriptor)
        return self._wait_for_host(is_slow=False)

    def _wait_for_host(self, *, is_slow: bool) -> bool:
        if is_slow != self._is_host_slow:
            self._is_host_slow = is_slow
            self._poll.modify(self._control_fd, select.EPOLLOUT if is_slow else select.EPOLLIN)
        return True

    def _leave(self) -> NoReturn:
        for worker in [worker for worker in self._workers.values() if worker.kill_now()]:
            worker.reap()
        os._exit(0)


def run_launcher(make_worker: MakeWorker) -> NoReturn:
    """Become the launcher: `sys.argv` holds the control descriptor and the host's pidfd.

    `make_worker` makes what lives in each worker. Raises `LauncherRefused` when this process cannot be one; what goes
    wrong before the loop starts ends on standard error, which is a pipe to the host until then.
    """
    control_fd, host_pidfd = int(sys.argv[1]), int(sys.argv[2])
    if sys.flags.hash_randomization:
        raise LauncherRefused("hash randomization is on, so runs could not be repeated")
    _settle_signals()
    _raise_descriptor_limit()
    confinement.prepare(CHANNEL_FD)
    control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fileno=control_fd)
    _forget_surroundings()
    gc.collect()
    gc.freeze()
    Launcher(control, host_pidfd, make_worker).run()


def _settle_signals() -> None:
    """Whatever the host ignores or blocks: a terminal's signals are the host's business, children are ours."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGXCPU):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _raise_descriptor_limit() -> None:
    """One pidfd per worker: as many as may be."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _forget_surroundings() -> None:
    """Leave nothing of this machine in memory that a worker copies, and no stream that it could trip over.

    Writing to standard error would kill a worker; without a stream Python keeps silent. The interpreter itself adds
    LC_CTYPE to an empty environment.
    """
    os.environ.clear()
    del sys.argv[1:]
    sys.stdin = sys.stdout = sys.stderr = None
    sys.__stdin__ = sys.__stdout__ = sys.__stderr__ = None  # type: ignore[misc]
    descriptor = os.open(os.devnull, os.O_RDWR)
    os.dup2(descriptor, 2)
    os.close(descriptor)
