"""Getting a supervisor for an agent: one nursery per process of the host, started when the first one is needed."""

import atexit
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_FOLDER: Final = str(Path(__file__).parent)
# The folder comes last in the path, so nothing in it can take the place of a module of the standard library.
_CODE: Final = (
    "import sys; sys.path.append(sys.argv[3]); from supervision import nursery; "
    "nursery.main(int(sys.argv[1]), int(sys.argv[2]))"
)
_ENDS_WITHIN_SECONDS: Final = 5.0


class _Nursery:
    """The process that forks supervisors, seen from the host."""

    def __init__(self) -> None:
        """Start it. Raises OSError."""
        self.owner = os.getpid()
        self._socket, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            arguments = [str(far.fileno()), str(self.owner), _FOLDER]
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _CODE, *arguments],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                pass_fds=[far.fileno()], start_new_session=True, env={}, cwd="/",
            )  # fmt: skip
        except BaseException:
            self._socket.close()
            raise
        finally:
            far.close()
        self._socket.settimeout(0)

    def ask(self, descriptors: Sequence[int]) -> None:
        """Have a supervisor forked. Raises OSError when the nursery is gone or does not listen."""
        socket.send_fds(self._socket, [b"one"], descriptors)

    def close(self) -> None:
        """Let it leave, and reap it. In a forked copy of the host it is somebody else's."""
        self._socket.close()
        if self.owner != os.getpid():
            self._process.returncode = 0  # so that nobody takes it for a child that is still running
            return
        try:
            self._process.wait(_ENDS_WITHIN_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Supervisors:
    """The supervisors of this process, on whichever thread and event loop they are asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._nursery: _Nursery | None = None
        self._live = 0

    def forget(self) -> None:
        """This is a forked copy of the host: nursery and supervisors are somebody else's, and so may the lock be."""
        self._lock = threading.Lock()
        self._close()
        self._live = 0

    def ask(self, descriptors: Sequence[int]) -> None:
        """Have a supervisor forked for an agent with these standard streams and this link. Raises OSError.

        Count it as live until `ended`.
        """
        with self._lock:
            for _ in range(2):
                if self._nursery is None:
                    self._nursery = _Nursery()
                try:
                    self._nursery.ask(descriptors)
                except (BrokenPipeError, ConnectionResetError):
                    # Somebody killed it: the next one serves as well.
                    self._close()
                else:
                    self._live += 1
                    return
            raise BrokenPipeError

    def ended(self) -> None:
        """A supervisor that was asked for is gone."""
        with self._lock:
            self._live = max(0, self._live - 1)

    def close_when_idle(self) -> None:
        """Let the nursery leave unless supervisors live. It is started anew when one is needed."""
        with self._lock:
            if not self._live:
                self._close()

    def close(self) -> None:
        """Let the nursery leave; supervisors that live go on."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        nursery, self._nursery = self._nursery, None
        if nursery is not None:
            nursery.close()


SUPERVISORS: Final = Supervisors()
atexit.register(SUPERVISORS.close)
os.register_at_fork(after_in_child=SUPERVISORS.forget)
