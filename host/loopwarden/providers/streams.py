"""The streams of a program, on the host's side: what it gets to read, and what is kept of what it writes.

Nothing here blocks: all ends that the host holds are non-blocking and are driven by the event loop.
"""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

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
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
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
    """One stream that a program writes. At most `max_bytes` are kept; `on_excess` is called once when more arrive.

    With `whole`, everything up to the cap is held in memory too, otherwise only the end of the stream.
    """

    def __init__(
        self,
        descriptor: int,
        *,
        max_bytes: int,
        whole: bool,
        file: KeptFile | None,
        on_excess: Callable[[], None] | None,
    ) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._max_bytes = max_bytes
        self._whole = whole
        self._file = file
        self._on_excess = on_excess
        self._kept = bytearray()
        self._loop = asyncio.get_running_loop()
        self.total_bytes = 0
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
        if self.excess and not had_excess and self._on_excess is not None:
            self._on_excess()

    def _close(self) -> None:
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
        if self._file is not None:
            self._file.close()


class InputStream:
    """What a program gets to read, then the end of the stream. A program that does not read it all is no error."""

    def __init__(self, descriptor: int, data: bytes) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._rest = memoryview(data)
        self._loop = asyncio.get_running_loop()
        self._loop.add_writer(descriptor, self._write)

    def finish(self) -> None:
        """Close the stream. May be called again."""
        if self._descriptor >= 0:
            self._loop.remove_writer(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
            self._rest = memoryview(b"")

    def _write(self) -> None:
        try:
            if self._rest:
                self._rest = self._rest[os.write(self._descriptor, self._rest) :]
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.finish()
            return
        if not self._rest:
            self.finish()
