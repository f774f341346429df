"""What the probe worker tries behind each wall: a wall counts as standing only when it stops something.

Every worker looks at its walls by calls that cost nothing (what a limit is, who it is, whether one file opens). The
probe, once per launcher, also does what a hostile script would do. Only the probe imports this module.
"""

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from loopwarden_engine.confinement.descriptors import find_open_but
from loopwarden_engine.confinement.kernel import map_nothing
from loopwarden_engine.confinement.landlock import deny_everything, describe_landlock, find_ruleset
from loopwarden_engine.confinement.rlimits import WorkerLimits
from loopwarden_engine.confinement.wall import WallMissing

__all__ = ["Trials"]

_SOME_OTHER_USER: Final = 65533


class Trials:
    """What is tried, once. `details` says of a wall what it covers here, where that is not the same everywhere."""

    def __init__(self, channel_fd: int, limits: WorkerLimits) -> None:
        self._channel_fd = channel_fd
        self._limits = limits
        self.details: dict[str, str] = {}

    def find_descriptors(self) -> None:
        """Behind descriptors: read the list of what is open. Raises `WallMissing` when there is something."""
        left = find_open_but(self._channel_fd)
        if left:
            raise WallMissing(f"descriptor {left[0]} is open")

    def regain_rights(self) -> None:
        """Behind no_new_privileges: become root, or anybody else. Raises `WallMissing` when that works."""
        user, groups = os.getuid(), os.getgroups()
        with suppress(OSError):
            os.setgroups([_SOME_OTHER_USER])
        if os.getgroups() != groups:
            raise WallMissing("groups can still be changed")
        with suppress(OSError):
            os.setuid(0 if user else _SOME_OTHER_USER)
        if os.getuid() != user:
            raise WallMissing("the user can still be changed")

    def reach_out(self) -> None:
        """Enter the Landlock domain, and try what this kernel's version covers beside files. Raises `WallMissing`."""
        outside = socket.socket(socket.AF_UNIX)
        try:
            # Whoever listens must have been there before: within its own domain a process may talk.
            outside.bind(f"\0loopwarden-probe-{os.getpid()}")
            outside.listen()
            deny_everything()
            self.details["landlock"] = describe_landlock()
            ruleset = find_ruleset()
            if ruleset is not None and ruleset.covers_tcp:
                _must_fail("a TCP port can be bound", _bind_port)
            if ruleset is not None and ruleset.covers_scopes:
                _must_fail("the launcher can be signalled", lambda: os.kill(os.getppid(), 0))
                _must_fail("an abstract socket can be reached", lambda: _connect(outside.getsockname()))
        finally:
            # On a kernel that hands out descriptors which are none, it may be closed already.
            with suppress(OSError):
                outside.close()

    def exceed_limits(self) -> None:
        """Behind rlimits: one descriptor, one process and one byte too many. Raises `WallMissing` when that works."""
        _must_fail("a descriptor can be opened", lambda: os.dup(self._channel_fd))
        _must_fail("memory above the limit can be had", lambda: map_nothing(self._limits.memory_bytes))
        with suppress(OSError):
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            os.waitpid(pid, 0)
            if os.getuid() != 0:
                raise WallMissing("a process can be started")
            self.details["rlimits"] = (
                "no file, no descriptor; memory and processor time are capped; processes are left to seccomp alone, "
                "because the kernel does not count those of root"
            )


def _must_fail(finding: str, trial: Callable[[], object]) -> None:
    try:
        trial()
    except OSError:
        return
    raise WallMissing(finding)


def _bind_port() -> None:
    with socket.socket(socket.AF_INET) as stream:
        stream.bind(("127.0.0.1", 0))


def _connect(address: str | bytes) -> None:
    with socket.socket(socket.AF_UNIX) as stream:
        stream.connect(address)
