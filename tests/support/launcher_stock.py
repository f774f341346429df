"""Launchers that are forked from a process that has imported everything: the same program, without 80 ms a piece."""

import os
import socket
import subprocess
import sys
from dataclasses import dataclass

from loopwarden.launch_command import PRODUCTION, LaunchCommand, find_package_folders

_PROGRAM = f"""\
import os
import sys
sys.path += sys.argv[2:]
from loopwarden_engine.preloading import preload
make_worker = preload({PRODUCTION.module!r}, {PRODUCTION.factory!r})
import socket
from loopwarden_engine.launcher import run_launcher
orders = socket.socket(fileno=int(sys.argv[1]))
while True:
    order, descriptors, _, _ = socket.recv_fds(orders, 1, 4)
    if not order:
        break
    if os.fork() == 0:
        if os.fork():
            os._exit(0)  # what it forked is nobody's child, as the launcher of a host that died
        orders.close()
        control, host, errors, answer = descriptors
        os.setsid()
        os.dup2(errors, 2)
        os.write(answer, str(os.getpid()).encode())
        os.close(answer)
        os.close(errors)
        sys.argv[1:] = [str(control), str(host)]
        run_launcher(make_worker)
    os.wait()
    for descriptor in descriptors:
        os.close(descriptor)
"""


@dataclass(frozen=True, slots=True)
class ForkedLauncher:
    """Stands for the process of a launcher. It is no child of its host, which hears of its end by a descriptor."""

    pid: int

    def wait(self) -> int:
        """It has ended already."""
        return 0


class LauncherStock:
    """The process that launchers are forked from. A child of this process; ends with it and with all that it forked."""

    def __init__(self) -> None:
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            argv = [sys.executable, "-P", "-s", "-S", "-c", _PROGRAM, str(theirs.fileno()), *find_package_folders()]
            self._process = subprocess.Popen(
                argv, env={"PYTHONHASHSEED": "0"}, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),), start_new_session=True,
            )  # fmt: skip
        self.pid = self._process.pid

    def spawn(self, command: LaunchCommand, control_fd: int, host_pidfd: int, error_fd: int) -> ForkedLauncher:
        """Stands in for `spawn_launcher`, also in processes that this one forked."""
        assert command is PRODUCTION
        listen, answer = os.pipe()
        try:
            socket.send_fds(self._orders, [b"?"], [control_fd, host_pidfd, error_fd, answer])
            os.close(answer)
            return ForkedLauncher(int(os.read(listen, 16)))
        finally:
            os.close(listen)
