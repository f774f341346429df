"""One attempt of one attack: a worker behind chosen walls, its order, its answer, and what it obtained."""

import array
import asyncio
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from loopwarden.attack_evidence import Evidence, Heard
from loopwarden.attack_stage import Scene, Stage
from loopwarden.failures import LaunchFailed
from loopwarden.launch_command import find_package_folders
from loopwarden.launching import Launcher
from loopwarden.machine_state import has_capability
from loopwarden.worker_process import WorkerProcess
from loopwarden_engine.attacks.catalogue import Attack
from loopwarden_engine.confinement import WALLS, WorkerLimits
from loopwarden_engine.control import WALL_STATUS_FIRST, ForkRequest

__all__ = ["AttackLauncher", "Attempt", "Outcome", "attempt_attack"]

_LIMITS: Final = WorkerLimits(memory_bytes=512 * 1024 * 1024, cpu_seconds=10)
_TIMEOUT_SECONDS: Final = 30.0
_GRACE_SECONDS: Final = 20.0
"""How long to look for what a worker says that it did, on a machine with much to do. It comes, or it is known that it
cannot come any more, or the attack stays unclear: what is only late was not stopped."""
_TICK_SECONDS: Final = 0.005
_RECEIVE_BYTES: Final = 65_536
_ATTACHED_BYTES: Final = 512
_MESSAGE_CHARS: Final = 120
_CREDENTIALS: Final = struct.Struct("3i")  # struct ucred: pid, uid, gid
_SO_PASSCRED: Final = 16
_SCM_CREDENTIALS: Final = 2
_NEEDING_PERMIT: Final = frozenset({"landlock", "seccomp"})

_CHILD: Final = """\
import sys
sys.path += sys.argv[2:]
from loopwarden_engine.attacks.worker import Attacker
Attacker(int(sys.argv[1])).serve()
"""


class Outcome(StrEnum):
    """What came of an attempt."""

    OBTAINED = "obtained"
    STOPPED = "stopped"
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What came of it; `answer` in a few words how the worker ended or what it said, `errno` when it said one."""

    outcome: Outcome
    answer: str
    errno: int | None


class AttackLauncher(Launcher):
    """A launcher whose workers carry out attacks, and which can leave walls out. Runs never get one."""

    async def fork_behind(self, walls: frozenset[str]) -> WorkerProcess:
        """A worker behind exactly these walls; it leaves when one of them cannot be put up. Raises `LaunchFailed`."""
        return await self._ask(
            ForkRequest(id=next(self._numbers), limits=_LIMITS, walls=walls, required=walls, is_probe=False)
        )


async def attempt_attack(
    launcher: AttackLauncher, stage: Stage, attack: Attack, walls: frozenset[str] | None
) -> Attempt:
    """Make one attempt behind `walls`; None: in a child of this process that was started without any care.

    Raises `LaunchFailed`, also when the worker cannot be seen: then it would seem to obtain nothing.
    """
    try:
        scene = stage.scene(attack, launcher.pid)
    except OSError as error:
        return Attempt(outcome=Outcome.STOPPED, answer=f"not made: {error.strerror}", errno=error.errno)
    try:
        if walls is None:
            return await _attempt_in_child(stage, scene, attack)
        worker = await launcher.fork_behind(walls)
        try:
            talk = _Talk(stage, scene, attack, worker.pid, worker.channel)
            is_lone = bool(walls & _NEEDING_PERMIT) and "no_new_privileges" not in walls
            return await talk.run(worker.exited, permit=is_lone and not has_capability("sys-admin"))
        finally:
            worker.release()
            await worker.exited
    finally:
        scene.close()


async def _attempt_in_child(stage: Stage, scene: Scene, attack: Attack) -> Attempt:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(0)
        theirs.set_inheritable(True)
        try:
            process = _start_child(theirs.fileno())
        except OSError as error:
            return Attempt(outcome=Outcome.STOPPED, answer=f"not started: {error.strerror}", errno=error.errno)
        theirs.close()
        exited: asyncio.Future[int] = asyncio.ensure_future(asyncio.to_thread(process.wait))
        try:
            assert process.stdin is not None
            process.stdin.write(stage.secret.encode())
            process.stdin.close()
            return await _Talk(stage, scene, attack, process.pid, ours).run(exited, permit=False)
        finally:
            process.kill()
            await exited


def _start_child(channel_fd: int) -> subprocess.Popen[bytes]:
    """What nobody should do: everything of this process is handed on. Raises `OSError`."""
    return subprocess.Popen(
        [sys.executable, "-P", "-s", "-S", "-c", _CHILD, str(channel_fd), *find_package_folders()],
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        close_fds=False,
    )


class _Talk:
    """The conversation with one worker over its channel."""

    def __init__(self, stage: Stage, scene: Scene, attack: Attack, pid: int, channel: socket.socket) -> None:
        self._stage = stage
        self._scene = scene
        self._attack = attack
        self._pid = pid
        self._channel = channel
        self._heard = Heard()
        self._unfinished: dict[int, bytes] = {}
        self._loop = asyncio.get_running_loop()

    async def run(self, exited: asyncio.Future[int], *, permit: bool) -> Attempt:
        """Give the order, wait for the walls, let it begin, and look. `permit`: see `Attacker`."""
        self._channel.setsockopt(socket.SOL_SOCKET, _SO_PASSCRED, 1)
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                self._send_order(permit=permit)
                while not self._heard.lines:
                    if not await self._listen():
                        return self._attempt(Outcome.UNCLEAR, await exited)
                evidence = Evidence(self._attack, self._stage, self._scene, self._pid, self._heard)
                if not evidence.sees_worker and await self._listen():
                    raise LaunchFailed(
                        "What an attack obtains cannot be seen here: /proc hides processes. Mount it without hidepid, "
                        "or run this as root."
                    )
                self._channel.send(_GO[: 1 if self._attack.evidence in _OTHERS_SPEAK else None])
                outcome, has_ended = await self._watch(evidence)
                status = await exited if has_ended else None
                if outcome is Outcome.STOPPED and status == -signal.SIGKILL:
                    # No wall kills like this; somebody else did.
                    outcome = Outcome.UNCLEAR
                return self._attempt(outcome, status)
        except TimeoutError:
            return Attempt(outcome=Outcome.UNCLEAR, answer="no end in time", errno=None)
        except ConnectionError:
            return self._attempt(Outcome.UNCLEAR, await exited)
        finally:
            for descriptor in self._heard.descriptors:
                os.close(descriptor)

    def _send_order(self, *, permit: bool) -> None:
        code = self._attack.before + self._attack.code
        named = {name: number for name, number in self._scene.descriptors.items() if name in code}
        order = {
            "attack": self._attack.id,
            "facts": self._scene.facts,
            "descriptors": list(named),
            "permit": permit,
        }
        attached = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", named.values()))] if named else []
        self._channel.sendmsg([json.dumps(order).encode() + b"\n"], attached, socket.MSG_NOSIGNAL)

    async def _watch(self, evidence: Evidence) -> tuple[Outcome, bool]:
        """Whether the attack obtains something, until it is over; and whether the worker has ended."""
        give_up: float | None = None
        while True:
            is_open = await self._listen()
            if evidence.is_there():
                return Outcome.OBTAINED, not is_open
            if not is_open:
                return Outcome.STOPPED, True
            if self._is_over(evidence):
                now = self._loop.time()
                if self._was_refused() or evidence.is_decided():
                    is_open = await self._listen()
                    return Outcome.OBTAINED if evidence.is_there() else Outcome.STOPPED, not is_open
                give_up = give_up or now + _GRACE_SECONDS
                if now >= give_up:
                    return Outcome.UNCLEAR, False

    def _is_over(self, evidence: Evidence) -> bool:
        if self._attack.evidence == "root":
            return self._heard.answer is not None or evidence.has_other_program()
        return self._heard.answer is not None

    def _was_refused(self) -> bool:
        return self._heard.answer is not None and "error" in self._heard.answer

    async def _listen(self) -> bool:
        """Take what arrives within a moment; False once nobody can send any more."""
        arrived: asyncio.Future[None] = self._loop.create_future()
        descriptor = self._channel.fileno()
        self._loop.add_reader(descriptor, _settle, arrived)
        timer = self._loop.call_later(_TICK_SECONDS, _settle, arrived)
        try:
            await arrived
        finally:
            timer.cancel()
            self._loop.remove_reader(descriptor)
        if self._attack.evidence == "urgent":
            # Before anything else: an ordinary read drops the byte.
            with suppress(OSError):
                self._heard.urgent += self._channel.recv(1, socket.MSG_OOB)
        while True:
            try:
                data, attached, _, _ = self._channel.recvmsg(_RECEIVE_BYTES, _ATTACHED_BYTES, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return True
            except ConnectionError:
                return False
            if not data:
                return False
            self._take(data, self._take_attached(attached))

    def _take_attached(self, attached: list[tuple[int, int, bytes]]) -> int:
        sender = self._pid
        for level, kind, data in attached:
            if level != socket.SOL_SOCKET:
                continue
            if kind == _SCM_CREDENTIALS:
                sender = _CREDENTIALS.unpack(data)[0]
            elif kind == socket.SCM_RIGHTS:
                received = array.array("i")
                received.frombytes(data[: len(data) - len(data) % received.itemsize])
                self._heard.descriptors += received
        return sender

    def _take(self, data: bytes, sender: int) -> None:
        self._heard.senders.add(sender)
        self._heard.everything += data
        *lines, self._unfinished[sender] = (self._unfinished.get(sender, b"") + data).split(b"\n")
        self._heard.lines += [(sender, line) for line in lines]
        if sender != self._pid:
            return
        for line in lines:
            with suppress(ValueError):
                answer = json.loads(line)
                if isinstance(answer, dict) and answer.keys() & {"out", "error"}:
                    self._heard.answer = answer

    def _attempt(self, outcome: Outcome, status: int | None) -> Attempt:
        answer: Mapping[str, Any] = self._heard.answer or {}
        error_number = answer.get("errno")
        if self._attack.evidence == "kernel" and type(answer.get("out")) is int:
            error_number = answer["out"] or None
        if "error" in answer:
            said = str(answer["error"])
        elif error_number is not None:
            said = os.strerror(error_number)
        elif answer:
            said = f"answered {answer['out']}"
        elif status is not None:
            said = _describe_status(status)
        else:
            said = "said nothing"
        return Attempt(outcome=outcome, answer=said[:_MESSAGE_CHARS], errno=error_number)


_GO: Final = b"go\n"
"""The worker reads the first byte; the others are there for attacks that receive."""
_OTHERS_SPEAK: Final = frozenset({"process", "program"})
"""Evidence by another process or program, which stays until something arrives."""


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _describe_status(status: int) -> str:
    wall_number = status - WALL_STATUS_FIRST
    if 0 <= wall_number < len(WALLS):
        return f"the wall {WALLS[wall_number]} could not be put up"
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return f"ended with status {status}"
