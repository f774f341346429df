"""The conversation with one worker: process, channel, protocol and watchdog joined, and every way it can break named.

A session only reports. What an ending means for the run is decided in run.py, where the first ending wins.
"""

import asyncio
import signal
import time
from collections.abc import Callable
from typing import Final

from loopwarden.channel import WorkerChannel
from loopwarden.failures import Code, Failure
from loopwarden.launching import WorkerProcess
from loopwarden.limits import Limits
from loopwarden.watchdog import CpuLimit, Watchdog
from loopwarden_engine.messages import FromWorker, Idle, Start
from loopwarden_engine.plain import JsonObject, JsonValue
from loopwarden_engine.protocol import HostProtocol, ProtocolBreach

_SIGNAL_WORDS: Final[dict[int, str]] = {
    signal.SIGSYS: "it made a system call that a script has no use for",
    signal.SIGKILL: "it was killed from outside, or the machine ran out of memory",
    signal.SIGXCPU: "it used up its processor time",
    signal.SIGSEGV: "the interpreter crashed",
    signal.SIGABRT: "the interpreter gave up",
}
_SLICE_SECONDS: Final = 0.004
"""How long one turn of the event loop goes on with what one worker said: a flood must not hold up the other runs."""


class Session:
    """One worker, from `start` to its death."""

    def __init__(
        self,
        worker: WorkerProcess,
        limits: Limits,
        *,
        on_message: Callable[[FromWorker], None],
        on_broken: Callable[[Failure], None],
        on_drained: Callable[[], None],
        on_idle: Callable[[], None] | None = None,
    ) -> None:
        self.worker = worker
        self._limits = limits
        self._on_message = on_message
        self._on_broken = on_broken
        self._on_idle = on_idle
        self._protocol = HostProtocol(max_frame_bytes=limits.max_frame_bytes, max_narration=limits.max_narration)
        self._channel = WorkerChannel(
            worker.channel, on_data=self._received, on_closed=self._closed, on_drained=on_drained
        )
        self._watchdog = Watchdog(
            worker.pid,
            seconds_per_turn=limits.cpu_seconds_per_turn,
            seconds_per_run=limits.cpu_seconds_per_run,
            on_exceeded=self._cpu_exceeded,
        )
        self._loop = asyncio.get_running_loop()
        self._heard: FromWorker | None = None
        """Decoded, and not taken yet."""
        self._over = False

    @property
    def is_stuck(self) -> bool:
        """True while the worker does not take what was sent to it."""
        return self._channel.is_stuck

    @property
    def is_waiting(self) -> bool:
        """True while the worker has nothing to do: it consumed all that was sent to it."""
        return self._watchdog.is_between_turns

    def start(self, source: str, args: JsonObject, *, vet: bool = False) -> None:
        """Hand the worker its script and arguments. `vet`: its answer says what the script does with its hooks."""
        start = Start(
            source=source,
            args=args,
            max_items_per_call=self._limits.max_items_per_call,
            max_narration=self._limits.max_narration,
            max_frame_bytes=self._limits.max_frame_bytes,
            vet=vet,
        )
        self._channel.write(self._protocol.send_start(start))
        self._watchdog.begin_turn()

    def go(self) -> None:
        """Let the script run."""
        if not self._over:
            self._channel.write(self._protocol.send_go())
            self._watchdog.begin_turn()

    def compiled(self) -> None:
        """The compiling turn is over: the worker waits for `go`."""
        self._watchdog.end_turn()

    def reply(self, call_id: int, value: JsonValue, *, more_may_follow: bool) -> None:
        """Deliver the end of a call, at once or together with those that end in the same turn of the event loop."""
        if not self._over:
            data = self._protocol.send_reply(call_id, value)
            self._channel.write(data, more_may_follow=more_may_follow)
            self._watchdog.begin_turn()

    def close(self) -> None:
        """Hear nothing more from the worker, and kill it. Its descriptors go with it, whether or not somebody waits."""
        if self._over:
            return
        self._over = True
        self._heard = None
        self._watchdog.stop()
        self._channel.close()
        self._protocol.forget()
        self.worker.kill()
        self.worker.exited.add_done_callback(lambda _: self.worker.release())

    async def gone(self) -> None:
        """Wait until the process does not exist any more, then give its descriptors back."""
        # Shielded: a waiter that is cancelled would cancel the future that everybody else waits for.
        await asyncio.shield(self.worker.exited)
        self.worker.release()

    def _received(self, data: bytes) -> None:
        self._protocol.receive(data)
        self._hear()

    def _hear(self) -> None:
        began = time.monotonic()
        try:
            while not self._over and self._step():
                if time.monotonic() - began > _SLICE_SECONDS:
                    # Nothing is read until that is done, so what waits here stays small. Not in the very next turn:
                    # what is called soon goes before what other sockets and timers have become ready for.
                    self._channel.pause()
                    self._loop.call_soon(self._loop.call_soon, self._hear)
                    return
            self._channel.resume()
        except ProtocolBreach as breach:
            self._break(
                Code.PROTOCOL,
                f"the worker broke the protocol: {breach}. The script or its interpreter was hijacked",
            )

    def _step(self) -> bool:
        """Decode a message or a part of it, or take what was decoded: each may need a whole slice. False: no more."""
        message, self._heard = self._heard, None
        if message is None:
            self._heard = self._protocol.next_message()
            return self._heard is not None or self._protocol.is_decoding
        if not isinstance(message, Idle):
            self._on_message(message)
        elif self._protocol.all_replies_consumed:
            self._watchdog.end_turn()
            if self._on_idle is not None:
                self._on_idle()
        return True

    def _closed(self) -> None:
        self.worker.exited.add_done_callback(lambda exited: self._exited(exited.result()))
        # A worker that only closed its channel is of no use either; its exit then says "killed", so it is named here.
        self.worker.kill()

    def _exited(self, status: int) -> None:
        used = self._watchdog.used_seconds()
        if status == -signal.SIGXCPU or used >= self._limits.cpu_seconds_per_run:
            self._cpu_exceeded("cpuSecondsPerRun")
        elif status < 0:
            why = _SIGNAL_WORDS.get(-status, f"it died of signal {-status}")
            self._break(Code.WORKER_LOST, f"the worker process ended before the script did: {why}")
        else:
            self._break(Code.WORKER_LOST, f"the worker process ended before the script did, with exit {status}")

    def _cpu_exceeded(self, limit: CpuLimit) -> None:
        if limit == "cpuSecondsPerTurn":
            allowed = f"{self._limits.cpu_seconds_per_turn:g} s between two waits"
        else:
            allowed = f"{self._limits.cpu_seconds_per_run:g} s in all"
        self._break(Code.CPU_LIMIT, f"the script used more processor time than {limit} allows: {allowed}")

    def _break(self, code: Code, message: str) -> None:
        if not self._over:
            self._on_broken(Failure(code=code, message=message))
