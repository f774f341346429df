"""Promise 3: the operating-system wall: each wall alone stops what the same process can do without it.

As root and as an ordinary user. The code behind the walls is plain Python: the language wall is not part of this.
"""

import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from loopwarden_engine.confinement import WALLS
from loopwarden_engine.confinement.landlock import find_ruleset

KILLED = -signal.SIGSYS
PRIVILEGES = ("no_new_privileges",)
RULESET = find_ruleset()
LANDLOCK_ABI = 0 if RULESET is None else RULESET.abi


@dataclass(frozen=True)
class Answer:
    """What came of one piece of code; `status` is that of its process."""

    value: Any
    error: str | None
    status: int

    @property
    def got_through(self) -> bool:
        return self.error is None and self.status == 0


class Lab:
    """A running `support.wall_lab`."""

    def __init__(self, user: str) -> None:
        self.is_root = user == "root" and os.geteuid() == 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.wall_lab", user],
            cwd=Path(__file__).parent.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, code: str, walls: tuple[str, ...] = ()) -> Answer:
        """Run `code` behind `walls`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"walls": walls, "code": code}) + "\n")
        self._process.stdin.flush()
        return Answer(**json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        self._process.communicate(timeout=10)


@pytest.fixture(scope="module", params=["root", "ordinary"])
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    laboratory = Lab(request.param)
    yield laboratory
    laboratory.close()


# --- descriptors

INHERITED = [
    ("a secret file", "import os; out = os.pread(SECRET, 100, 0).decode()"),
    ("a socket", "import os; out = os.write(OUTSIDE, b'x')"),
    ("a writable file", "import os; out = os.pwrite(WRITABLE, b'x', 0)"),
    ("standard error", "import os; out = os.write(2, b'')"),
    ("standard input", "import os; out = os.fstat(0).st_mode"),
]


@pytest.mark.parametrize(("what", "code"), INHERITED, ids=[what for what, _ in INHERITED])
def test_descriptors_that_were_inherited_are_closed(lab: Lab, what: str, code: str) -> None:
    assert lab.run(code).got_through, f"the control must reach {what}"
    assert lab.run(code, ("descriptors",)).error == "OSError: [Errno 9] Bad file descriptor"


def test_only_the_channel_is_left_open(lab: Lab) -> None:
    code = "import os; out = sorted(os.listdir('/proc/self/fd'), key=int)"
    listing_itself = "0"
    assert lab.run(code, ("descriptors",)).value == [listing_itself, "3"]


def test_descriptors_are_closed_on_a_kernel_without_close_range_too(lab: Lab) -> None:
    code = """
import os
from loopwarden_engine.confinement import WorkerLimits, confine, descriptors
def missing(number, *arguments):
    raise OSError(38, "Function not implemented")
descriptors.call_kernel = missing
limits = WorkerLimits(memory_bytes=2**29, cpu_seconds=1)
wall = frozenset({"descriptors"})
confine(3, limits, required=wall, walls=wall, parent_pid=os.getppid())
out = sorted(os.listdir("/proc/self/fd"))
"""
    assert lab.run(code).value == ["0", "3"]


# --- identity


def test_root_becomes_nobody_without_groups(lab: Lab) -> None:
    code = "import os; out = [os.getresuid(), os.getresgid(), os.getgroups()]"
    answer = lab.run(code, ("identity",))
    if lab.is_root:
        assert answer.value == [[65534] * 3, [65534] * 3, []]
    else:
        assert answer.error == "ConfinementError: identity: not root: a worker runs as the same user"


@pytest.mark.parametrize(
    "code",
    ["out = open(f'{FOLDER}/secret').read()", "import os; out = os.setuid(0)", "import os; out = os.setgroups([0])"],
)
def test_nobody_has_lost_the_rights_of_root(code: str) -> None:
    laboratory = Lab("root")
    try:
        if laboratory.is_root:
            assert laboratory.run(code).got_through
            assert laboratory.run(code, ("identity",)).error is not None
        else:
            assert laboratory.run(code, ("identity",)).error == (
                "ConfinementError: identity: not root: a worker runs as the same user"
            )
    finally:
        laboratory.close()


# --- privileges

STATUS = (
    "out = dict(line.split(':\\t', 1) for line in open('/proc/self/status').read().splitlines())['{field}'].strip()"
)


def test_no_new_privileges_is_set_for_good(lab: Lab) -> None:
    code = STATUS.format(field="NoNewPrivs")
    assert lab.run(code).value == "0"
    assert lab.run(code, PRIVILEGES).value == "1"


def test_no_capability_is_left(lab: Lab) -> None:
    for field in ("CapEff", "CapPrm", "CapInh", "CapAmb"):
        assert int(lab.run(STATUS.format(field=field), PRIVILEGES).value, 16) == 0
    if lab.is_root:
        assert int(lab.run(STATUS.format(field="CapEff")).value, 16) != 0


def test_the_process_cannot_be_dumped_or_traced(lab: Lab) -> None:
    code = "import ctypes; out = ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)"
    assert lab.run(code, PRIVILEGES).value == 0


def test_the_process_asks_to_die_with_its_parent(lab: Lab) -> None:
    code = "import ctypes; n = ctypes.c_int(); ctypes.CDLL(None).prctl(2, ctypes.byref(n), 0, 0, 0); out = n.value"
    assert lab.run(code).value == 0
    assert lab.run(code, PRIVILEGES).value == signal.SIGKILL


def test_a_process_whose_parent_is_gone_already_does_not_go_on(lab: Lab) -> None:
    code = """
import os
from loopwarden_engine.confinement import WorkerLimits, confine
limits = WorkerLimits(memory_bytes=2**29, cpu_seconds=1)
walls = frozenset({"no_new_privileges"})
confine(3, limits, required=frozenset(), walls=walls, parent_pid=os.getppid() + 1)
"""
    assert lab.run(code).error == "ConfinementError: no_new_privileges: the launcher is gone"


# --- Landlock

FILES = [
    ("read a file", "out = open('/etc/hostname').read()"),
    ("read what the process may know of itself", "out = open('/proc/self/status', 'rb').read()"),
    ("list a folder", "import os; out = os.listdir('/')"),
    ("create a file", "import os; open(f'/tmp/lab-{os.getpid()}', 'w').close(); os.remove(f'/tmp/lab-{os.getpid()}')"),
    ("make a folder", "import os; os.mkdir(f'/tmp/lab-{os.getpid()}'); os.rmdir(f'/tmp/lab-{os.getpid()}')"),
    ("run a program", "import subprocess; subprocess.run(['/bin/true'], check=True)"),
]
NETWORK = [
    ("connect by TCP", "import socket; out = socket.create_connection(('127.0.0.1', PORT), 5).close()"),
    ("listen on TCP", "import socket; out = socket.create_server(('127.0.0.1', 0)).close()"),
]
SCOPES = [
    ("signal the parent", "import os, signal; out = os.kill(LAB, signal.SIGUSR1)"),
    ("connect to an abstract socket", "import socket; out = socket.socket(socket.AF_UNIX).connect(ABSTRACT)"),
]
OUTSIDE = FILES + (NETWORK if LANDLOCK_ABI >= 4 else []) + (SCOPES if LANDLOCK_ABI >= 6 else [])


@pytest.mark.parametrize(("what", "code"), OUTSIDE, ids=[what for what, _ in OUTSIDE])
def test_landlock_alone_denies_what_lies_outside(lab: Lab, what: str, code: str) -> None:
    assert lab.run(code, PRIVILEGES).got_through, f"the control must {what}"
    error = lab.run(code, (*PRIVILEGES, "landlock")).error
    assert error is not None
    assert error.startswith("PermissionError: ")


# --- resource limits

RESOURCES = [
    ("open a file", "out = open('/etc/hostname').read()", "OSError: [Errno 24] Too many open files: '/etc/hostname'"),
    ("open a socket", "import socket; out = str(socket.socket())", "OSError: [Errno 24] Too many open files"),
    ("write to a file", "import os; out = os.pwrite(WRITABLE, b'x', 0)", "OSError: [Errno 27] File too large"),
    ("take a gigabyte", "out = len(bytearray(2**30))", "MemoryError: "),
    (
        "start a process",
        "import os; pid = os.fork(); pid or os._exit(0); out = os.waitpid(pid, 0)[1]",
        "BlockingIOError: [Errno 11] Resource temporarily unavailable",
    ),
]


@pytest.mark.parametrize(("what", "code", "error"), RESOURCES, ids=[what for what, _, _ in RESOURCES])
def test_resource_limits_alone_stop_what_takes_resources(lab: Lab, what: str, code: str, error: str) -> None:
    # The kernel does not count the processes of root, so root has to become nobody first.
    before = ("identity",) if lab.is_root else ()
    assert lab.run(code, before).got_through, f"the control must {what}"
    assert lab.run(code, (*before, "rlimits")).error == error


def test_processor_time_ends_with_a_signal_that_says_so(lab: Lab) -> None:
    assert lab.run("while True: pass", ("rlimits",)).status == -signal.SIGXCPU


def test_limits_cannot_be_raised_again(lab: Lab) -> None:
    code = "import resource; out = resource.setrlimit(resource.RLIMIT_NOFILE, (10, 10))"
    assert lab.run(code, PRIVILEGES).got_through
    assert lab.run(code, (*PRIVILEGES, "rlimits")).error == "ValueError: not allowed to raise maximum limit"


# --- seccomp

KERNEL_CALL = "import ctypes; out = ctypes.CDLL(None, use_errno=True).syscall({})"
NUMBERS = {
    "x86_64": {
        "ptrace": 101,
        "unshare": 272,
        "mount": 165,
        "bpf": 321,
        "keyctl": 250,
        "userfaultfd": 323,
        "getdents64": 217,
    },
    "aarch64": {
        "ptrace": 117,
        "unshare": 97,
        "mount": 40,
        "bpf": 280,
        "keyctl": 219,
        "userfaultfd": 282,
        "getdents64": 61,
    },
}[platform.machine()]
FORBIDDEN = [
    ("fork", "import os; pid = os.fork(); pid or os._exit(0); out = os.waitpid(pid, 0)[1]"),
    ("execute", "import subprocess; subprocess.run(['/bin/true'], check=True)"),
    ("start a thread", "import threading; t = threading.Thread(target=int); t.start(); t.join()"),
    ("open a socket", "import socket; out = str(socket.socket())"),
    ("make a pipe", "import os; out = os.pipe()"),
    ("duplicate the channel", "import os; out = os.dup(3)"),
    ("look at the channel's flags", "import fcntl; out = fcntl.fcntl(3, fcntl.F_GETFL)"),
    ("signal itself", "import os; out = os.kill(os.getpid(), 0)"),
    ("ask for its process id", "import os; out = os.getpid()"),
    ("ask for its user", "import os; out = os.getuid()"),
    ("ask for randomness", "import os; out = len(os.urandom(8))"),
    ("sleep", "import time; out = time.sleep(0.0001)"),
    ("change its folder", "import os; out = os.chdir('/')"),
    ("remove a file", "import os; out = os.remove(f'{FOLDER}/nothing')"),
    ("handle a signal", "import signal; out = str(signal.signal(signal.SIGXCPU, signal.SIG_IGN))"),
    ("set a timer", "import signal; out = signal.setitimer(signal.ITIMER_REAL, 0)"),
    ("map executable memory", "import mmap; out = str(mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_EXEC))"),
    ("write to another descriptor", "import os; out = os.write(OUTSIDE, b'x')"),
    (
        "send through another socket",
        "import socket; out = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=OUTSIDE).send(b'x')",
    ),
    ("write to the channel", "import os; out = os.write(3, b'')"),
    ("send a descriptor", "import socket; out = socket.send_fds(channel, [b' '], [3])"),
    ("send out of band", "import socket; out = channel.send(b'', socket.MSG_DONTROUTE)"),
    ("receive without waiting", "import socket; out = channel.recv(1, socket.MSG_DONTWAIT)"),
    ("ask who speaks", "out = channel.getpeername()"),
    ("read a folder", KERNEL_CALL.format(f"{NUMBERS['getdents64']}, -1, 0, 0")),
    ("trace", KERNEL_CALL.format(f"{NUMBERS['ptrace']}, 0, 0, 0, 0")),
    ("leave its namespaces", KERNEL_CALL.format(f"{NUMBERS['unshare']}, 0")),
    ("mount", KERNEL_CALL.format(f"{NUMBERS['mount']}, 0, 0, 0, 0, 0")),
    ("load BPF", KERNEL_CALL.format(f"{NUMBERS['bpf']}, 0, 0, 0")),
    ("use the keyring", KERNEL_CALL.format(f"{NUMBERS['keyctl']}, 0, 0, 0")),
    ("handle page faults", KERNEL_CALL.format(f"{NUMBERS['userfaultfd']}, 0")),
    ("set up an io_uring", KERNEL_CALL.format("425, 0, 0")),
    ("take a descriptor of the parent", KERNEL_CALL.format("438, -1, 0, 0")),
    ("change its filter", KERNEL_CALL.format("-1, 0")),
]
FORBIDDEN_OF_X86_64 = [("call by the x32 convention", KERNEL_CALL.format("0x40000000 + 39"))]
KILLING = FORBIDDEN + (FORBIDDEN_OF_X86_64 if platform.machine() == "x86_64" else [])


@pytest.mark.parametrize(("what", "code"), KILLING, ids=[what for what, _ in KILLING])
def test_seccomp_alone_kills_what_asks_for_more(lab: Lab, what: str, code: str) -> None:
    control = lab.run(code, PRIVILEGES)
    assert control.status == 0, f"the control must survive trying to {what}"
    assert lab.run(code, (*PRIVILEGES, "seccomp")).status == KILLED


EPERM = "PermissionError: [Errno 1] Operation not permitted"
REFUSED = [
    ("open", "open('/etc/hostname')"),
    ("stat", "import os; os.stat('/')"),
    ("stat a link", "import os; os.lstat('/')"),
    ("stat the channel", "import os; os.fstat(3)"),
    ("list", "import os; os.listdir('/')"),
    ("read a link", "import os; os.readlink('/proc/self/exe')"),
    ("ask for the folder", "import os; os.getcwd()"),
    ("control a device", "import fcntl; fcntl.ioctl(3, 0x541B, b'1234')"),
    ("seek", "import os; os.lseek(WRITABLE, 0, 0)"),
]


@pytest.mark.parametrize(("what", "code"), REFUSED, ids=[what for what, _ in REFUSED])
def test_seccomp_refuses_with_an_error_what_the_library_tries_by_itself(lab: Lab, what: str, code: str) -> None:
    assert lab.run(code, PRIVILEGES).got_through, f"the control must be able to {what}"
    error = lab.run(code, (*PRIVILEGES, "seccomp")).error
    assert error is not None
    assert error.startswith(EPERM)


def test_no_library_can_be_loaded(lab: Lab) -> None:
    code = "import ctypes; out = str(ctypes.CDLL('libresolv.so.2'))"
    assert lab.run(code, PRIVILEGES).got_through
    error = lab.run(code, (*PRIVILEGES, "seccomp")).error
    assert error is not None
    assert error.startswith("OSError: libresolv.so.2: cannot open shared object file")


ALLOWED = [
    ("large memory", "out = [len(bytearray(n << 20)) for n in (1, 50, 100, 1)][0]"),
    ("memory that grows", "b = bytearray()\nfor _ in range(2000): b += bytes(50_000)\nout = len(b)"),
    ("many small objects", "x = [[i] for i in range(300_000)]; del x; import gc; gc.collect(); out = 1"),
    ("the clock", "import time; out = time.time() > 0 and time.monotonic() > 0"),
    ("a traceback", "import traceback\ntry: 1 / 0\nexcept ZeroDivisionError: out = len(traceback.format_exc())"),
    ("deep recursion", "f = lambda n: n and f(n - 1) + 1\nout = f(900)"),
    ("a module that is not there", "try: import no_such_module\nexcept ImportError: out = 1"),
    ("the channel", "out = channel.send(b' ')"),
]


@pytest.mark.parametrize(("what", "code"), ALLOWED, ids=[what for what, _ in ALLOWED])
def test_a_script_behind_all_walls_still_has(lab: Lab, what: str, code: str) -> None:
    walls = WALLS if lab.is_root else tuple(wall for wall in WALLS if wall != "identity")
    answer = lab.run(code, walls)
    assert answer.got_through, f"{what}: {answer}"


# --- all of them

REACHES = [code for _, code in [*INHERITED, *OUTSIDE, *FORBIDDEN] if "channel" not in code] + [
    "out = open(f'{FOLDER}/secret').read()",
    "import os; out = os.kill(LAB, 9)",
    "import os; out = os.kill(-1, 9)",
    "import os; out = os.execv('/bin/sh', ['sh'])",
    "import os; out = os.symlink('/', '/tmp/loopwarden-lab')",
    "out = open('/proc/1/environ').read()",
    "out = open('/dev/mem').read()",
]


@pytest.mark.parametrize("code", REACHES)
def test_behind_all_walls_nothing_is_reached(lab: Lab, code: str) -> None:
    walls = WALLS if lab.is_root else tuple(wall for wall in WALLS if wall != "identity")
    answer = lab.run(code, walls)
    assert not answer.got_through
    assert answer.status == KILLED or (answer.error or "").startswith(("PermissionError: ", "OSError: [Errno 9]"))


def test_a_required_wall_that_does_not_stand_names_itself(lab: Lab) -> None:
    code = """
import loopwarden_engine.confinement as confinement
def missing():
    raise OSError(38, "Function not implemented")
confinement.deny_everything = missing
import os
arguments = dict(walls=frozenset({"landlock"}), parent_pid=os.getppid())
limits = confinement.WorkerLimits(memory_bytes=2**29, cpu_seconds=1)
out = [confinement.confine(3, limits, required=frozenset(), **arguments)["landlock"]]
confinement.confine(3, limits, required=frozenset({"landlock"}), **arguments)
"""
    assert lab.run(code).error == "ConfinementError: landlock: Function not implemented"
