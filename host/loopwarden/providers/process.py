"""One program under a supervisor, seen from the host: start, streams, end.

Driven by callbacks of the event loop, without a thread and without a task of its own: cancelling tasks, as
`asyncio.run` does with all of them when it ends, cannot interrupt the clean-up.

    start      the supervisor starts the program, or says why it cannot
    wait       ends when nothing that descends from the program is left
    end        asks the supervisor for the end; a supervisor that does not answer in time is killed

After every end, also a normal one, a mark in the environment finds what the supervisor could not: see `Mark`.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loopwarden.lease_view import LeaseView
from loopwarden.providers.mark import MARK_NAME, Mark
from loopwarden.providers.order import Order
from loopwarden.providers.program import ProgramNotStarted, SupervisorLost, find_program, refusal_sentence
from loopwarden.providers.renewals import Renewals
from loopwarden.providers.streams import (
    InputNotTaken,
    InputStream,
    KeptFile,
    OutputStream,
    no_input,
    pipe_from,
    pipe_to,
)
from loopwarden.providers.supervisors import SUPERVISORS

SUPERVISOR_MARGIN_SECONDS: Final = 5.0
"""How long after the grace a supervisor may take until it is held for stuck."""
LEASE_LOST: Final = "the host lost the lease of the run"
SWEEP_SECONDS: Final = 0.01
MAX_SWEEPS: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What to start, and what to keep of it."""

    what: str
    """Whose program it is, for errors: "agent program", "check"."""
    argv: Sequence[str]
    folder: Path
    environment: Mapping[str, str]
    stdin: bytes | None
    """None is an empty stream."""
    keep_stdin_open: bool = False
    """For a conversation: after `stdin`, which is not None then, the stream stays open for `write` until `close_stdin`
    or the end."""
    grace_seconds: float
    """Between TERM and KILL, for what outlives the program, and when the host dies."""
    max_output_bytes: int
    """More than that on standard output ends the program at once. Of standard error, that much is kept."""
    merge_errors: bool = False
    """Both streams as one, in the order of writing."""
    keep_output: bool = True
    """Hold the whole output in memory, not only its end."""
    on_output: Callable[[bytes], None] | None = None
    """Is given standard output as it arrives, up to the cap, all of it before `wait` returns. What it raises ends the
    program, and is raised by `wait` when nothing of it is left."""
    on_errors: Callable[[bytes], None] | None = None
    """The same for standard error."""
    output_file: Path | None = None
    error_file: Path | None = None
    private_folders: Sequence[Path] = ()
    """To be removed when nothing of the program is left, also when the host is gone by then."""
    lease: LeaseView | None = None
    """Ends the program when it is over, also while the host is stopped or asleep with its machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a program ended. When this exists, nothing that descends from it is left, unless `problem` says so."""

    exit: int | None
    signal: int | None
    left: int
    """Processes that outlived the program and were ended."""
    seconds: float
    output: bytes
    output_excess: bool
    errors: bytes
    """The end of standard error."""
    notes: tuple[str, ...]
    problem: str | None
    """Why the exit is not known, or says nothing about the program."""
    is_lease_over: bool = False
    """The host lost the lease, which ended the program, or kept it from being started. `problem` says so, too."""

    @property
    def how(self) -> str:
        """`ended with exit 3`, or `was ended by signal SIGKILL`."""
        if self.signal is None:
            return f"ended with exit {self.exit}"
        try:
            return f"was ended by signal {signal.Signals(self.signal).name}"
        except ValueError:
            return f"was ended by signal {self.signal}"


class SupervisedProcess:
    """One program and its supervisor. Make it with `start`; then `wait` or `end` must see its end."""

    def __init__(self, program: Program, path: str) -> None:
        self._program = program
        self._path = path
        self._mark = Mark()
        self._escaped: set[int] = set()
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[Ending] = self._loop.create_future()
        self._order = memoryview(_order(program, path, self._mark.value))
        self._renewals = Renewals(program.lease)
        self._heard = bytearray()
        self._report: dict[str, object] = {}
        self._end_asked_at: float | None = None
        self._give_up: asyncio.TimerHandle | None = None
        self._stdin: InputStream | None = None
        self._outputs: list[OutputStream] = []
        self._handle: int | None = None
        """A pidfd of the supervisor, once it has said its first word."""
        self.pid: int | None = None
        self.refusal: ProgramNotStarted | None = None
        """Why nothing was started, once that is known."""
        self._launch()

    @classmethod
    async def start(cls, program: Program) -> "SupervisedProcess":
        """Start a program. Raises `ProgramNotStarted`; when cancelled, leaves nothing behind."""
        try:
            return await cls._start(program)
        except SupervisorLost:
            return await cls._start(program)

    @classmethod
    async def _start(cls, program: Program) -> "SupervisedProcess":
        process = cls.begin(program)
        try:
            await process.started()
        except asyncio.CancelledError:
            # It may well run already: only the word that it does has not been heard yet.
            await process.end(program.grace_seconds)
            raise
        return process

    @classmethod
    def begin(cls, program: Program) -> "SupervisedProcess":
        """Begin to start a program. Raises `ProgramNotStarted`; what is found out later is `refusal` after `wait`."""
        if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
            raise ProgramNotStarted(f"the {program.what} cannot be started: ending all of its processes needs Linux")
        path = find_program(program.argv[0], program.environment.get("PATH", os.defpath), program.what)
        try:
            process = cls(program, path)
        except OSError as error:
            reason = (error.strerror or "system error").lower()
            raise ProgramNotStarted(f"the {program.what} {program.argv[0]!r} could not be started: {reason}") from None
        return process

    async def started(self) -> None:
        """Wait until the program runs. Raises `ProgramNotStarted`, when nothing of it is left."""
        await asyncio.wait([self._started])
        if self.refusal is not None:
            await asyncio.wait([self._ended])
            raise self.refusal

    async def wait(self) -> Ending:
        """Wait for the end. Cancelling the caller does not end the program: see `end`."""
        await asyncio.wait([self._ended])
        return self._ended.result()

    async def end(self, grace_seconds: float) -> Ending:
        """End the program: TERM, `grace_seconds`, KILL. Return when nothing of it is left.

        A cancellation while this waits cuts the grace short and is raised when nothing is left.
        """
        self.ask_for_end(grace_seconds)
        cancelled: asyncio.CancelledError | None = None
        while not self._ended.done():
            try:
                await asyncio.wait([self._ended])
            except asyncio.CancelledError as error:
                cancelled = error
                self.ask_for_end(0)
        if cancelled is not None:
            raise cancelled
        return self._ended.result()

    def ask_for_end(self, grace_seconds: float) -> None:
        """Begin what `end` does, and do not wait for it. May be called again, with a shorter grace."""
        if self._ended.done() or self._socket.fileno() < 0:
            return
        asked_at = self._loop.time()
        self._end_asked_at = self._end_asked_at or asked_at
        try:
            if self._order:
                # Nothing was started yet. Half an order and then the end of the stream: the supervisor leaves.
                self._loop.remove_writer(self._socket)
                self._order = memoryview(b"")
                self._socket.shutdown(socket.SHUT_WR)
            else:
                self._socket.send(f"end {grace_seconds}\n".encode())
        except OSError:
            grace_seconds = 0
        give_up_at = asked_at + grace_seconds + SUPERVISOR_MARGIN_SECONDS
        if self._give_up is None or give_up_at < self._give_up.when():
            if self._give_up is not None:
                self._give_up.cancel()
            self._give_up = self._loop.call_at(give_up_at, self._kill_supervisor)

    def write(self, data: bytes) -> None:
        """Send `data` to a program whose input was kept open. Never waits.

        Raises `InputNotTaken` when the program closed its input, ended, or leaves too much unread.
        """
        if self._stdin is None:
            raise InputNotTaken("has no input stream")
        self._stdin.write(data)

    def close_stdin(self) -> None:
        """End the input of the program after what still waits to be read. May be called again."""
        if self._stdin is not None:
            self._stdin.end()

    # ---- starting

    def _launch(self) -> None:
        """Start the supervisor with the streams of the program as its own. Raises OSError and leaves nothing open."""
        program = self._program
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            self._socket, far = socket.socketpair()
            theirs.callback(far.close)
            ours.callback(self._socket.close)
            stdin_reader, stdin_writer = pipe_to(theirs, ours) if program.stdin is not None else (no_input(theirs), -1)
            output_writer, output_reader = pipe_from(theirs, ours)
            if program.merge_errors:
                errors_writer, errors_reader = output_writer, -1
            else:
                errors_writer, errors_reader = pipe_from(theirs, ours)
            SUPERVISORS.ask([stdin_reader, output_writer, errors_writer, far.fileno()])
            ours.pop_all()
        self._socket.settimeout(0)
        self._open_streams(stdin_writer, output_reader, errors_reader)
        self._loop.add_reader(self._socket, self._hear)
        self._loop.add_writer(self._socket, self._send_order)

    def _open_streams(self, stdin_writer: int, output_reader: int, errors_reader: int) -> None:
        program = self._program
        if program.stdin is not None:
            self._stdin = InputStream(stdin_writer, program.stdin, stays_open=program.keep_stdin_open)
        self._output = OutputStream(
            output_reader, max_bytes=program.max_output_bytes, whole=program.keep_output,
            file=KeptFile(program.output_file) if program.output_file else None,
            on_data=program.on_output, on_stop=lambda: self.ask_for_end(0),
        )  # fmt: skip
        self._outputs.append(self._output)
        self._errors: OutputStream | None = None
        if errors_reader >= 0:
            self._errors = OutputStream(
                errors_reader, max_bytes=program.max_output_bytes, whole=False,
                file=KeptFile(program.error_file) if program.error_file else None,
                on_data=program.on_errors, on_stop=lambda: self.ask_for_end(0), stop_on_excess=False,
            )  # fmt: skip
            self._outputs.append(self._errors)

    def _send_order(self) -> None:
        try:
            self._order = self._order[self._socket.send(self._order) :]
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._order = memoryview(b"")
        if not self._order:
            self._loop.remove_writer(self._socket)
            self._renewals.follow(self._socket)

    # ---- listening

    def _hear(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._socket, 65536, 1)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data, descriptors = b"", []
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
            self._handle = descriptor
            self._loop.add_reader(descriptor, self._supervisor_ended)
        if not data:
            self._loop.remove_reader(self._socket)
            if self._handle is None:
                # It never was, or died before its first word.
                self._supervisor_is_gone()
            return
        self._heard += data
        *lines, rest = bytes(self._heard).split(b"\n")
        self._heard = bytearray(rest)
        for line in lines:
            with contextlib.suppress(ValueError):
                self._take_report(json.loads(line))

    def _take_report(self, report: dict[str, object]) -> None:
        self._report |= report
        if "started" in report:
            self.pid = int(str(report["started"]))
            if not self._started.done():
                self._started.set_result(None)

    def _supervisor_ended(self) -> None:
        assert self._handle is not None
        self._loop.remove_reader(self._handle)
        os.close(self._handle)
        self._hear()
        self._supervisor_is_gone()

    def _supervisor_is_gone(self) -> None:
        if self._socket.fileno() < 0:
            return
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._renewals.close()
        self._socket.close()
        SUPERVISORS.ended()
        if self._give_up is not None:
            self._give_up.cancel()
        if "refused" in self._report:
            self._finish(())
        else:
            self._sweep(MAX_SWEEPS)

    def _sweep(self, rounds_left: int) -> None:
        """Look by the mark until nothing is found: among all when nobody looked after the descendants."""
        found = self._mark.kill_carriers(among_all=not self._report.keys() & {"exit", "signal"})
        self._escaped.update(found)
        if found and rounds_left:
            self._loop.call_later(SWEEP_SECONDS, self._sweep, rounds_left - 1)
        else:
            self._finish(found)

    def _finish(self, unkillable: Sequence[int]) -> None:
        if self._stdin is not None:
            self._stdin.finish()
        for stream in self._outputs:
            stream.finish()
        fault = next((stream.fault for stream in self._outputs if stream.fault is not None), None)
        if fault is None:
            self._ended.set_result(self._ending(unkillable))
        else:
            self._ended.set_exception(fault)
        if not self._started.done():
            self.refusal = self._refusal()
            self._started.set_result(None)

    def _refusal(self) -> ProgramNotStarted | None:
        if not self._report:  # the first word of a supervisor comes before it reads the order
            return SupervisorLost(
                f"the {self._program.what} {self._program.argv[0]!r} was not started: its supervisor ended early"
            )
        if "refused" not in self._report:
            # Killed before it could say more. The program may have run, and may be who did it: that is its end. Or the
            # lease was over before it was started.
            return None
        sentence = refusal_sentence(
            str(self._report["refused"]), int(str(self._report["errno"])),
            what=self._program.what, program=self._path, folder=str(self._program.folder),
        )  # fmt: skip
        return ProgramNotStarted(sentence)

    def _ending(self, unkillable: Sequence[int]) -> Ending:
        report = self._report
        problem = None
        is_lease_over = "lease" in report
        if is_lease_over:
            problem = LEASE_LOST
        elif not report.keys() & {"exit", "signal"}:
            problem = "its supervisor was killed, so how it ended is not known"
        if unkillable:
            problem = f"its processes {', '.join(map(str, unkillable))} could not be ended"
        notes = [stream.file_problem for stream in self._outputs if stream.file_problem is not None]
        if self._errors is not None and self._errors.excess:
            notes.append(f"only the first {self._program.max_output_bytes} bytes of its error output were kept")
        # What a supervisor that was killed left behind is no fault of the agent.
        left = int(str(report["left"])) + len(self._escaped.difference(unkillable)) if "left" in report else 0
        if left and self._end_asked_at is None and not is_lease_over:
            notes.append(f"it left {left} process{'es' if left > 1 else ''} behind, which the host ended")
        return Ending(
            exit=int(str(report["exit"])) if "exit" in report else None,
            signal=int(str(report["signal"])) if "signal" in report else None,
            left=left,
            seconds=self._loop.time() - self._began,
            output=self._output.kept,
            output_excess=self._output.excess,
            errors=b"" if self._errors is None else self._errors.kept,
            notes=tuple(notes),
            problem=problem,
            is_lease_over=is_lease_over,
        )

    # ---- ending

    def _kill_supervisor(self) -> None:
        if self._handle is None:
            # The nursery has not come to it, and will find that its order was taken back.
            self._supervisor_is_gone()
            return
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)


def _order(program: Program, path: str, mark: str) -> bytes:
    order = Order(
        path=path,
        arguments=[path if os.sep in program.argv[0] else program.argv[0], *program.argv[1:]],
        environment={**program.environment, MARK_NAME: mark},
        folder=program.folder,
        private_folders=program.private_folders,
        grace_seconds=program.grace_seconds,
        lease=program.lease,
    )
    try:
        return order.encode()
    except ValueError:
        raise ProgramNotStarted(
            f"the {program.what} {program.argv[0]!r} cannot get an argument with a zero character"
        ) from None
