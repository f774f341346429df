"""The streams of a program, on the host's side: what it gets to read, and what is kept of what it writes.

Nothing here blocks: all ends that the host holds are non-blocking and are driven by the event loop.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from loopwarden.failures import LoopwardenError

INPUT_WAITING_BYTES: Final = 4 * 1024 * 1024
"""How much may wait for a program that does not read, beyond what it was given at its start."""
READ_BYTES: Final = 256 * 1024
TAIL_BYTES: Final = 16 * 1024
LATE_BYTES: Final = 4 * 1024 * 1024
"""How much is read after the end. All writers that we know are dead by then; a stranger may still hold the pipe."""


class KeptFile:
    """A private file that receives a stream as it arrives. A full disk is a note, not a failed agent."""

    def __init__(self, path: Path) -> None:
        self.problem: str | None = None
        self._name = path.name
        self._descriptor = -1
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            # An agent of an earlier attempt, which has our rights, may have put something there. Opening a pipe would
            # wait for its reader for ever.
            path.unlink(missing_ok=True)
            self._descriptor = os.open(path, flags, 0o600)
        except OSError as error:
            self._give_up(error)

    def write(self, data: bytes) -> None:
        """Append `data`, unless writing failed before."""
        rest = memoryview(data)
        while rest and self._descriptor >= 0:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except OSError as error:
                self._give_up(error)

    def close(self) -> None:
        """Close the file. May be called again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _give_up(self, error: OSError) -> None:
        self.problem = f"{self._name} could not be kept: {(error.strerror or 'output error').lower()}"
        self.close()


class OutputStream:
    """One stream that a program writes. At most `max_bytes` are kept.

    With `whole`, everything up to the cap is held in memory too, otherwise only the end of the stream. `on_data` is
    given what arrives, up to the cap; the first thing that it raises is kept as `fault`, and it is not called again.
    `on_stop` is called when the program should not go on: with a fault, or, with `stop_on_excess`, beyond the cap.
    """

    def __init__(
        self,
        descriptor: int,
        *,
        max_bytes: int,
        whole: bool,
        file: KeptFile | None,
        on_data: Callable[[bytes], None] | None,
        on_stop: Callable[[], None],
        stop_on_excess: bool = True,
    ) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._max_bytes = max_bytes
        self._whole = whole
        self._file = file
        self._on_data = on_data
        self._on_stop = on_stop
        self._stop_on_excess = stop_on_excess
        self._kept = bytearray()
        self._loop = asyncio.get_running_loop()
        self.total_bytes = 0
        self.fault: Exception | None = None
        self._loop.add_reader(descriptor, self._read)

    @property
    def excess(self) -> bool:
        """True when the program wrote more than the cap."""
        return self.total_bytes > self._max_bytes

    @property
    def kept(self) -> bytes:
        """What is held in memory."""
        return bytes(self._kept if self._whole else self._kept[-TAIL_BYTES:])

    @property
    def file_problem(self) -> str | None:
        """Why the stream is not on disk in full; None when it is, or was not asked for."""
        return None if self._file is None else self._file.problem

    def finish(self) -> None:
        """The program ended: take what is still in the pipe, then close. May be called again."""
        last = self.total_bytes + LATE_BYTES
        while self._descriptor >= 0 and self.total_bytes < last:
            if not self._read():
                break
        self._close()

    def _read(self) -> bool:
        try:
            data = os.read(self._descriptor, READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            data = b""
        if not data:
            self._close()
            return False
        self._take(data)
        return True

    def _take(self, data: bytes) -> None:
        had_excess = self.excess
        room = max(self._max_bytes - self.total_bytes, 0)
        self.total_bytes += len(data)
        if self._file is not None and room:
            self._file.write(data[:room])
        if self._whole:
            self._kept += data[:room]
        else:
            self._kept += data
            if len(self._kept) > 2 * READ_BYTES:
                del self._kept[:-TAIL_BYTES]
        if self._on_data is not None and room and self.fault is None:
            try:
                self._on_data(data[:room])
            except Exception as error:  # noqa: BLE001 - foreign code; raising here would leave the program unwatched
                self.fault = error
                self._on_stop()
        if self.excess and not had_excess and self._stop_on_excess:
            self._on_stop()

    def _close(self) -> None:
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
        if self._file is not None:
            self._file.close()


class InputNotTaken(LoopwardenError):
    """A program does not take what it is sent. The message continues "the agent program …"."""


class InputStream:
    """What a program gets to read. A program that does not read what it was given at its start is no error.

    The stream ends after `data`, or, with `stays_open`, after `end` was called and all was read.
    """

    def __init__(self, descriptor: int, data: bytes, *, stays_open: bool = False) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._rest = memoryview(data)
        self._more = bytearray()
        self._stays_open = stays_open
        self._loop = asyncio.get_running_loop()
        self._loop.add_writer(descriptor, self._write)

    def write(self, data: bytes) -> None:
        """Send `data` after what still waits. Raises `InputNotTaken`."""
        if self._descriptor < 0 or not self._stays_open:
            raise InputNotTaken("does not read its input any more")
        if len(self._more) + len(data) > INPUT_WAITING_BYTES:
            raise InputNotTaken(f"does not read its input: {len(self._more)} bytes wait to be read")
        if not self._rest and not self._more:
            self._loop.add_writer(self._descriptor, self._write)
        self._more += data

    def end(self) -> None:
        """Close the stream when all was read. May be called again."""
        self._stays_open = False
        if not self._rest and not self._more:
            self.finish()

    def finish(self) -> None:
        """Close the stream now. May be called again."""
        if self._descriptor >= 0:
            self._loop.remove_writer(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
            self._rest = memoryview(b"")
            self._more.clear()

    def _write(self) -> None:
        if not self._rest and self._more:
            self._rest, self._more = memoryview(bytes(self._more)), bytearray()
        try:
            if self._rest:
                self._rest = self._rest[os.write(self._descriptor, self._rest) :]
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.finish()
            return
        if self._rest or self._more:
            return
        if self._stays_open:
            self._loop.remove_writer(self._descriptor)
        else:
            self.finish()


def no_input(theirs: contextlib.ExitStack) -> int:
    """An empty stream for a program to read."""
    descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    theirs.callback(os.close, descriptor)
    return descriptor


def pipe_to(theirs: contextlib.ExitStack, ours: contextlib.ExitStack) -> tuple[int, int]:
    """A pipe that the program reads: its end, then ours."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    theirs.callback(os.close, reader)
    ours.callback(os.close, writer)
    return reader, writer


def pipe_from(theirs: contextlib.ExitStack, ours: contextlib.ExitStack) -> tuple[int, int]:
    """A pipe that the program writes: its end, then ours."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    theirs.callback(os.close, writer)
    ours.callback(os.close, reader)
    return writer, reader
