"""A stand-in for launcher and worker: the test itself is the worker, and may send anything at any time."""

import asyncio
import os
import socket
import subprocess
from collections.abc import Mapping

from loopwarden import Host
from loopwarden.launching import WorkerLimits
from loopwarden.worker_process import WorkerProcess
from loopwarden_engine.framing import FrameReader, frame
from loopwarden_engine.message_decoding import decode_from_host
from loopwarden_engine.messages import (
    FromHost,
    FromWorker,
    Go,
    Idle,
    Ready,
    Reply,
    Start,
    encode_from_worker,
)


class Peer:
    """The worker's end of a channel, in the hands of a test."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self._reader = FrameReader(64 * 1024 * 1024)

    def send(self, *messages: FromWorker) -> None:
        """Say something that is well formed."""
        self.send_bytes(b"".join(frame(encode_from_worker(message)) for message in messages))

    def send_bytes(self, data: bytes) -> None:
        """Say anything."""
        self.end.setblocking(True)
        try:
            self.end.sendall(data)
        except OSError:
            return  # The host has hung up: what was to be said is not heard, which the test sees by the outcome.
        finally:
            self.end.setblocking(False)

    async def receive(self) -> FromHost:
        """The next message of the host."""
        loop = asyncio.get_running_loop()
        while (payload := self._reader.next_frame()) is None:
            data = await asyncio.wait_for(loop.sock_recv(self.end, 65536), 10)
            assert data, "the host hung up"
            self._reader.feed(data)
        return decode_from_host(payload)

    async def begin(self) -> Start:
        """Be a good worker until the script may run; returns the start message."""
        start = await self.receive()
        assert isinstance(start, Start)
        self.send(Ready("stand-in"))
        return start

    async def go(self) -> None:
        """Wait for go."""
        assert isinstance(await self.receive(), Go)

    async def reply(self, consumed: int) -> Reply:
        """Say idle and wait for the next reply."""
        self.send(Idle(consumed))
        message = await self.receive()
        assert isinstance(message, Reply)
        return message


class StandInLauncher:
    """In place of `Launcher`: each worker is a process that sleeps, its channel a `Peer`."""

    alive = True

    def __init__(self) -> None:
        self.walls: Mapping[str, str] = {}
        self.peers: asyncio.Queue[Peer] = asyncio.Queue()
        self._sleepers: list[subprocess.Popen[bytes]] = []

    async def fork(self, limits: WorkerLimits, required: frozenset[str] | None = None) -> WorkerProcess:
        """A new stand-in worker."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.setblocking(False)
        theirs.setblocking(False)
        sleeper = subprocess.Popen(["sleep", "1000"])
        self._sleepers.append(sleeper)
        worker = WorkerProcess(pid=sleeper.pid, pidfd=os.pidfd_open(sleeper.pid), channel=ours, walls={})
        watch = os.pidfd_open(sleeper.pid)
        loop = asyncio.get_running_loop()

        def ended() -> None:
            loop.remove_reader(watch)
            os.close(watch)
            worker.finish(sleeper.wait())

        loop.add_reader(watch, ended)
        self.peers.put_nowait(Peer(theirs))
        return worker

    async def close(self) -> None:
        """Nothing is left: each run has killed its worker."""
        for sleeper in self._sleepers:
            assert sleeper.poll() is not None


def with_stand_in(host: Host) -> StandInLauncher:
    """Give `host` stand-in workers instead of real ones."""
    launcher = StandInLauncher()
    host._launcher = launcher  # type: ignore[assignment]
    return launcher
