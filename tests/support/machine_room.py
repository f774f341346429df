"""Examines simulated machines, each in a process of its own: what `doctor` says, and what becomes of runs.

A program of the tests: one JSON request a line in, `{"machine": name, "later": bool, "user": "root" | "ordinary"}`, one
JSON answer a line out. Everything is imported once; hosts and launchers are forked, which saves half a second for each
machine.
"""

import asyncio
import contextlib
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import structlog

import loopwarden.store.sqlite  # noqa: F401 -- once, not in each process
from loopwarden import Host, Limits, Script, launching, wall_probe
from loopwarden.cli.doctor import examine
from loopwarden.cli.output import Output
from loopwarden.failures import StartRefused
from loopwarden.launch_command import LaunchCommand, find_package_folders
from support.command_line import Home
from support.launcher_stock import ForkedLauncher
from support.machine_table import ALL, LATER
from support.machines import Machine, become_ordinary, enter

TESTS = Path(__file__).parent.parent
TIMEOUT_SECONDS = 40
SCRIPT = Script.from_text('"""One."""\n\ndef main(args):\n    return 1\n')

_LAUNCHERS = """\
import os, socket, sys
sys.path += sys.argv[2:]
from loopwarden_engine.preloading import preload
make_worker = preload("loopwarden_engine.worker", "Worker")
from loopwarden_engine.forked_worker import ForkedWorker
from loopwarden_engine.launcher import run_launcher
from support.machine_table import ALL, LATER
from support.machines import become_ordinary, enter, surround
def live_on(machine):
    live = ForkedWorker.live
    def changed(worker):
        if machine.around == "worker" or machine.around == "later" and not worker.request.is_probe:
            surround(machine.rules)
        live(worker)
    ForkedWorker.live = changed
orders = socket.socket(fileno=int(sys.argv[1]))
while True:
    order, descriptors, _, _ = socket.recv_fds(orders, 1000, 4)
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
        user, kind, name = order.decode().split("|")
        if user == "ordinary":
            become_ordinary()
        machine = (LATER if kind == "later" else ALL)[name]
        enter(machine, host)
        live_on(machine)
        run_launcher(make_worker)
    os.wait()
    for descriptor in descriptors:
        os.close(descriptor)
"""


class Launchers:
    """The process that launchers are forked from."""

    def __init__(self) -> None:
        self.orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        folders = [*find_package_folders(), str(TESTS)]
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-s", "-S", "-c", _LAUNCHERS, str(theirs.fileno()), *folders],
                env={"PYTHONHASHSEED": "0"}, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),), start_new_session=True,
            )  # fmt: skip


class Launched(ForkedLauncher):
    """A launcher whose end is waited for, as that of a real child is."""

    def wait(self) -> int:
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(self.pid)
            select.select([handle], [], [], TIMEOUT_SECONDS)
            os.close(handle)
        return 0


class Visit:
    """A host on one machine."""

    def __init__(self, machine: Machine, user: str, launchers: Launchers) -> None:
        self.machine = machine
        self._user = user
        self._launchers = launchers
        self._sessions: list[int] = []

    def spawn(self, command: LaunchCommand, control_fd: int, host_pidfd: int, error_fd: int) -> "Launched":
        """Stands in for `spawn_launcher`."""
        listen, answer = os.pipe()
        order = f"{self._user}|{self.machine.around}|{self.machine.name}".encode()
        try:
            socket.send_fds(self._launchers.orders, [order], [control_fd, host_pidfd, error_fd, answer])
            os.close(answer)
            launcher = Launched(int(os.read(listen, 16)))
        finally:
            os.close(listen)
        self._sessions.append(launcher.pid)
        return launcher

    def examine(self, folder: Path) -> dict[str, Any]:
        """Everything that is to be said of it."""
        if self._user == "ordinary":
            become_ordinary()
        enter(self.machine)
        launching.spawn_launcher = self.spawn  # type: ignore[assignment]
        wall_probe._END_TIMEOUT_SECONDS = 0.2  # type: ignore[misc]
        wanted = Home(folder).environment
        os.environ.clear()
        os.environ.update(wanted)
        before = sorted(os.listdir("/proc/self/fd"))
        return {
            "doctor": _doctor(),
            "strict": asyncio.run(self._run(allow_weak_confinement=False)),
            "weak": asyncio.run(self._run(allow_weak_confinement=True)),
            "descriptorsLeft": sorted(set(os.listdir("/proc/self/fd")) - set(before)),
            "processesLeft": self._processes_left(),
        }

    def _processes_left(self) -> list[str]:
        """What lives on of all launchers and workers. Who was killed is gone some moments later."""
        deadline = time.monotonic() + 5
        while True:
            left = [name for name in os.listdir("/proc") if name.isdigit() and self._is_ours(name)]
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.01)

    def _is_ours(self, pid: str) -> bool:
        """Whether it belongs to the session of one of the launchers."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return False
        state, _, _, session = stat.rsplit(")", 1)[1].split()[:4]
        return state not in "ZX" and int(session) in self._sessions

    async def _run(self, *, allow_weak_confinement: bool) -> dict[str, Any]:
        """One run; a refusal, or its receipt's walls, and what the log said."""
        with structlog.testing.capture_logs() as logs:
            async with Host(
                providers={"default": _reply},
                limits=Limits(max_total_agents=1),
                allow_weak_confinement=allow_weak_confinement,
            ) as host:
                try:
                    outcome = await host.run(SCRIPT, {})
                except StartRefused as refusal:
                    return {"code": refusal.code, "message": refusal.message, "details": refusal.details}
        receipt = outcome.receipt
        assert receipt is not None
        return {"value": outcome.value, "walls": receipt.walls, "log": _missing_walls_of(logs)}


def _doctor() -> Any:
    """What `loopwarden doctor --json` prints. The command line itself takes as long to set up as a machine to visit."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        code = examine(None, Output(json=True))
    found = json.loads(printed.getvalue())
    assert found["exit"] == code
    return found


def _missing_walls_of(logs: Any) -> dict[str, str]:
    return {line["wall"]: line["reason"] for line in logs if line["event"] == "wall is missing"}


async def _reply(_request: object) -> str:
    raise AssertionError("no agent is asked for")


def visit(request: dict[str, Any], launchers: Launchers, folder: Path, answer_fd: int) -> None:
    """In a child: examine one machine, answer, leave."""
    machine = (LATER if request["later"] else ALL)[request["machine"]]
    answer: dict[str, Any]
    try:
        answer = Visit(machine, request["user"], launchers).examine(folder)
    except BaseException:
        answer = {"broken": traceback.format_exc()}
    os.write(answer_fd, json.dumps(answer).encode())
    os._exit(0)


def answer_request(request: dict[str, Any], launchers: Launchers, folder: Path) -> dict[str, Any]:
    """What came of one visit."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        signal.alarm(TIMEOUT_SECONDS)
        visit(request, launchers, folder, writer)
    os.close(writer)
    with open(reader, "rb") as file:
        received = file.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    answer: dict[str, Any] = json.loads(received) if received else {"broken": f"ended with {status}"}
    return answer


def main() -> None:
    """Serve until standard input ends."""
    structlog.configure(cache_logger_on_first_use=False)
    launchers = Launchers()
    for line in sys.stdin:
        with tempfile.TemporaryDirectory() as folder, contextlib.suppress(BrokenPipeError):
            os.chmod(folder, 0o777)
            sys.stdout.write(json.dumps(answer_request(json.loads(line), launchers, Path(folder))) + "\n")
            sys.stdout.flush()
    launchers.orders.close()
    launchers.process.wait()


if __name__ == "__main__":
    main()
