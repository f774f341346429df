"""Runs the escape matrix as another user, and prints it as JSON. A program of the tests, started by root.

Everything is imported before it stops being root, and the launcher is forked without a new program: the interpreter and
this tree may lie where an ordinary user cannot read them.
"""

import asyncio
import ctypes
import json
import os
import subprocess
import sys
from typing import Any, NoReturn

import loopwarden.launching
from loopwarden.launch_command import LaunchCommand
from loopwarden.matrix import run_matrix
from loopwarden_engine.attacks.catalogue import load_catalogue
from loopwarden_engine.launcher import run_launcher
from loopwarden_engine.preloading import preload

make_worker = preload("loopwarden_engine.attacks.worker", "Attacker")

ORDINARY_USER = 65533
PR_SET_DUMPABLE = 4
OF_A_NEW_PROGRAM = {"environment-memory"}
"""What is stopped by starting the launcher as a new program: the memory of one that was forked is a copy of ours."""


class ForkedLauncher(subprocess.Popen[bytes]):
    """A launcher that was forked and not started anew, as far as its host looks at it."""

    def __init__(self, control_fd: int, host_pidfd: int) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            become_launcher(control_fd, host_pidfd)

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def __del__(self, *_: Any) -> None:
        """Nothing to see to."""


def become_launcher(control_fd: int, host_pidfd: int) -> NoReturn:
    """What `spawn_launcher` arranges for a new program."""
    try:
        os.setsid()
        os.chdir("/")
        kept = {0, 1, 2, control_fd, host_pidfd}
        for name in os.listdir("/proc/self/fd"):
            if int(name) not in kept:
                try:
                    os.close(int(name))
                except OSError:
                    continue  # the list itself
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nothing, descriptor)
        os.close(nothing)
        sys.argv = ["launcher", str(control_fd), str(host_pidfd)]
        run_launcher(make_worker)
    finally:
        os._exit(1)


def fork_launcher(command: LaunchCommand, control_fd: int, host_pidfd: int, error_fd: int) -> ForkedLauncher:
    """Stands in for `spawn_launcher`."""
    return ForkedLauncher(control_fd, host_pidfd)


def become_ordinary() -> None:
    """Stop being root, as if this program had been started by somebody else."""
    os.setgroups([])
    os.setresgid(ORDINARY_USER, ORDINARY_USER, ORDINARY_USER)
    os.setresuid(ORDINARY_USER, ORDINARY_USER, ORDINARY_USER)
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)


if __name__ == "__main__":
    become_ordinary()
    loopwarden.launching.spawn_launcher = fork_launcher
    attacks = {attack.id for attack in load_catalogue()} - OF_A_NEW_PROGRAM
    matrix = asyncio.run(run_matrix(attacks, is_brief=True))
    sys.stdout.write(json.dumps(matrix.to_json()) + "\n")
