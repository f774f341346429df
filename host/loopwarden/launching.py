"""The host's side of the launcher: start it, prove its walls, fork workers, notice its death, leave nothing behind."""

import asyncio
import itertools
import os
import re
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Self, assert_never

from loopwarden.failures import LaunchFailed
from loopwarden.launch_command import PRODUCTION, LaunchCommand, spawn_launcher
from loopwarden.wall_probe import MANDATORY_WALLS, PROBE_LIMITS, check_system, check_walls, prove_walls
from loopwarden.worker_process import WorkerProcess
from loopwarden_engine.confinement import STANDS, WorkerLimits
from loopwarden_engine.control import (
    ControlError,
    Exited,
    Failed,
    Forked,
    ForkRequest,
    LauncherReport,
    pack_request,
    receive_packet,
    send_packet,
    unpack_report,
)

__all__ = ["Launcher", "WorkerLimits", "WorkerProcess"]

_START_TIMEOUT_SECONDS: Final = 20.0
_FORK_TIMEOUT_SECONDS: Final = 20.0
_CLOSE_TIMEOUT_SECONDS: Final = 3.0
_PACKETS_PER_TURN: Final = 64
_ERROR_BYTES: Final = 4096
_ERROR_CHARS: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class _Awaited:
    """A worker that was asked for; `channel` is the host's end."""

    worker: asyncio.Future[WorkerProcess]
    channel: socket.socket


class Launcher:
    """A running launcher. Made by `start`, ended by `close`; belongs to one event loop and is not safe across threads.

    `walls` says of each wall that it stands, or why it does not: what the probes found, and what every worker gets.
    `wall_details` says of some what they cover on this machine.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], control: socket.socket, error_fd: int, on_lost: Callable[[], None]
    ) -> None:
        """Not for callers: use `start`."""
        self.walls: Mapping[str, str] = {}
        self.wall_details: Mapping[str, str] = {}
        self.pid = process.pid
        self._process = process
        self._pidfd = os.pidfd_open(process.pid)
        self._control = control
        self._error_fd = error_fd
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._awaited: dict[int, _Awaited] = {}
        self._workers: dict[int, WorkerProcess] = {}
        self._sending = asyncio.Lock()
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self._is_serving = False
        self._is_closing = False
        control.settimeout(0)
        self._loop.add_reader(control.fileno(), self._read_reports)
        self._loop.add_reader(self._pidfd, self._notice_end)

    @classmethod
    async def start(
        cls, on_lost: Callable[[], None], *, allow_weak_confinement: bool = False, command: LaunchCommand = PRODUCTION
    ) -> Self:
        """Start a launcher and send probe workers through the full cycle.

        `on_lost` is called once if the launcher ends before `close`. Raises `LaunchFailed`, and
        `ConfinementUnavailable` when a wall does not stand and `allow_weak_confinement` is false, or when this system
        has no means to confine or end a worker at all.
        """
        check_system()
        try:
            launcher = cls._spawn(on_lost, command)
        except OSError as error:
            raise LaunchFailed(
                f"The launcher could not be started: {error.strerror}. Free some memory or files, and try again."
            ) from None
        await launcher._come_up(allow_weak_confinement=allow_weak_confinement)  # noqa: SLF001 -- its own class
        return launcher

    async def _come_up(self, *, allow_weak_confinement: bool) -> None:
        try:
            async with asyncio.timeout(_START_TIMEOUT_SECONDS):
                report = await prove_walls(self._make_probe)
            check_walls(report.walls, allow_weak_confinement=allow_weak_confinement)
        except TimeoutError:
            reason = self._abort()
            raise LaunchFailed(
                f"The launcher was not ready within {_START_TIMEOUT_SECONDS:.0f} seconds. "
                "Try again when the machine is less busy.",
                details={"reason": reason} if reason else None,
            ) from None
        except BaseException:
            self._abort()
            raise
        self.walls = report.walls
        self.wall_details = report.details
        self._is_serving = True
        os.close(self._error_fd)

    @classmethod
    def _spawn(cls, on_lost: Callable[[], None], command: LaunchCommand) -> Self:
        """Everything that is opened here is closed here, or belongs to the launcher that is returned."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        error_fd, error_write_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            host_pidfd = os.pidfd_open(os.getpid())
            try:
                process = spawn_launcher(command, theirs.fileno(), host_pidfd, error_write_fd)
            finally:
                os.close(host_pidfd)
            try:
                return cls(process, ours, error_fd, on_lost)
            except BaseException:
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
                raise
        except BaseException:
            ours.close()
            os.close(error_fd)
            raise
        finally:
            theirs.close()
            os.close(error_write_fd)

    @property
    def alive(self) -> bool:
        """Whether workers can be forked."""
        return self._is_serving and not self._is_closing and not self._gone.done()

    async def fork(self, limits: WorkerLimits) -> WorkerProcess:
        """A new worker, on its way into its walls; it begins to serve its channel once they stand.

        The worker leaves at once when a wall that stood in the probe cannot be put up. Of one that did not stand, what
        can be had is put up all the same; only an identity is not half changed. Raises `LaunchFailed`.
        """
        if not self.alive:
            raise LaunchFailed("The launcher is not running any more. Start the run again.")
        standing = frozenset(name for name, state in self.walls.items() if state == STANDS)
        request = ForkRequest(
            id=next(self._numbers),
            limits=limits,
            walls=standing | MANDATORY_WALLS,
            required=standing,
            is_probe=False,
        )
        try:
            async with asyncio.timeout(_FORK_TIMEOUT_SECONDS):
                return await self._ask(request)
        except TimeoutError:
            raise LaunchFailed(
                f"The launcher did not make a worker within {_FORK_TIMEOUT_SECONDS:.0f} seconds. "
                "Try again when the machine is less busy."
            ) from None

    async def close(self) -> None:
        """Kill every worker, end the launcher, wait for both. May be called twice, and after the launcher was lost."""
        if not self._is_closing:
            self._is_closing = True
            for worker in self._workers.values():
                worker.kill()
            with suppress(OSError):
                self._control.shutdown(socket.SHUT_WR)
        await asyncio.wait([self._gone], timeout=_CLOSE_TIMEOUT_SECONDS)
        if not self._gone.done():
            self._kill_launcher()
        await self._gone
        orphans = [worker.exited for worker in self._workers.values()]
        if orphans:
            await asyncio.wait(orphans, timeout=_CLOSE_TIMEOUT_SECONDS)

    async def _make_probe(self, walls: frozenset[str]) -> WorkerProcess:
        return await self._ask(
            ForkRequest(id=next(self._numbers), limits=PROBE_LIMITS, walls=walls, required=frozenset(), is_probe=True)
        )

    async def _ask(self, request: ForkRequest) -> WorkerProcess:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.settimeout(0)
        awaited = _Awaited(worker=self._loop.create_future(), channel=ours)
        self._awaited[request.id] = awaited
        try:
            with theirs:
                await self._send(pack_request(request), theirs.fileno())
        except BaseException:
            del self._awaited[request.id]
            ours.close()
            raise
        # From here on the launcher's answer ends the wait; `_welcome` sees to a worker that nobody waits for any more.
        try:
            return await awaited.worker
        except asyncio.CancelledError:
            # Cancelled in the very moment in which the worker arrived: nobody else knows of it.
            if not awaited.worker.cancelled() and awaited.worker.exception() is None:
                awaited.worker.result().release()
            raise

    async def _send(self, packet: bytes, descriptor: int) -> None:
        async with self._sending:
            while True:
                try:
                    return send_packet(self._control, packet, [descriptor])
                except (BlockingIOError, InterruptedError):
                    await self._wait_writable()
                except OSError as error:
                    raise LaunchFailed(
                        f"The launcher cannot be reached: {error.strerror}. Start the run again."
                    ) from None

    async def _wait_writable(self) -> None:
        writable: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_writer(self._control.fileno(), _settle, writable)
        try:
            await asyncio.wait([writable, self._gone], return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not self._gone.done():
                self._loop.remove_writer(self._control.fileno())
        if self._gone.done():
            raise LaunchFailed("The launcher ended while a worker was asked for. Start the run again.")

    def _read_reports(self) -> None:
        for _ in range(_PACKETS_PER_TURN):
            try:
                packet, descriptors = receive_packet(self._control)
                if not packet:
                    raise ControlError("the launcher hung up")
                report = unpack_report(packet)
            except (BlockingIOError, InterruptedError):
                return
            except (OSError, ControlError):
                # A launcher that hangs up or talks nonsense is done; its pidfd reports the end.
                self._loop.remove_reader(self._control.fileno())
                self._kill_launcher()
                return
            self._take_report(report, descriptors)

    def _take_report(self, report: LauncherReport, descriptors: list[int]) -> None:
        match report:
            case Forked():
                self._welcome(report, descriptors)
            case Failed():
                awaited = self._awaited.pop(report.id, None)
                if awaited is not None:
                    self._refuse(
                        awaited,
                        f"A worker could not be made: {report.reason}. Free some memory or processes, and try again.",
                    )
            case Exited():
                worker = self._workers.pop(report.id, None)
                if worker is not None:
                    worker.finish(report.status)
            case _:
                assert_never(report)

    def _welcome(self, report: Forked, descriptors: list[int]) -> None:
        awaited = self._awaited.pop(report.id, None)
        if awaited is None or len(descriptors) != 1:
            # No worker that we asked for, or one that we cannot kill, because this process has no descriptor left for
            # its pidfd.
            for descriptor in descriptors:
                os.close(descriptor)
            if awaited is not None:
                self._refuse(
                    awaited, "A worker could not be taken over: too many open files. Raise the limit of open files."
                )
            return
        worker = WorkerProcess(pid=report.pid, pidfd=descriptors[0], channel=awaited.channel, walls=self.walls)
        self._workers[report.id] = worker
        if awaited.worker.done():
            worker.release()
        else:
            awaited.worker.set_result(worker)

    def _refuse(self, awaited: _Awaited, message: str) -> None:
        # Closing the channel is the end of a worker that was made all the same: it reads an end of file.
        awaited.channel.close()
        if not awaited.worker.done():
            awaited.worker.set_exception(LaunchFailed(message))

    def _notice_end(self) -> None:
        """The launcher is dead: reap it, and see to everybody who waits for something from it."""
        self._read_reports()
        error_text = self._dismantle()
        was_lost = self._is_serving and not self._is_closing
        details = f": {error_text}" if error_text else ""
        for awaited in self._awaited.values():
            self._refuse(
                awaited,
                f"The launcher ended{details}. Start again, and install loopwarden again if that does not help.",
            )
        self._awaited.clear()
        for worker in self._workers.values():
            worker.outlive_launcher()
        if was_lost:
            self._on_lost()

    def _dismantle(self) -> str:
        """Reap the process, close what is ours; what it said on standard error while it started."""
        self._loop.remove_reader(self._pidfd)
        self._loop.remove_reader(self._control.fileno())
        self._loop.remove_writer(self._control.fileno())
        self._process.wait()
        os.close(self._pidfd)
        self._control.close()
        self._gone.set_result(None)
        if self._is_serving:
            return ""
        error_text = _last_line(self._error_fd)
        os.close(self._error_fd)
        return error_text

    def _abort(self) -> str:
        """End a launcher that did not come up, at once; what it said.

        Waits only for a process that is killed already.
        """
        self._is_closing = True
        if self._gone.done():
            return ""
        for worker in self._workers.values():
            worker.release()
        for awaited in self._awaited.values():
            awaited.channel.close()
            awaited.worker.cancel()
        self._kill_launcher()
        return self._dismantle()

    def _kill_launcher(self) -> None:
        # It leaves too when the host hangs up, should the signal be forbidden or lost.
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        with suppress(OSError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _last_line(error_fd: int) -> str:
    """The last line of what a dying interpreter wrote, fit to be shown: short, printable, no folders."""
    try:
        text = os.read(error_fd, _ERROR_BYTES).decode(errors="replace")
    except BlockingIOError:
        return ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return ""
    without_folders = re.sub(r"/\S*/", "", lines[-1])
    return "".join(character if character.isprintable() else "?" for character in without_folders)[:_ERROR_CHARS]
