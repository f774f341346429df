"""Promise 3: the operating-system wall: what a process behind it is, what it still has, and how it is refused.

As root and as an ordinary user. The code behind the walls is plain Python: the language wall is not part of this.
What the walls stop is shown by `test_os_matrix`.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from loopwarden_engine.confinement import WALLS

PRIVILEGES = ("no_new_privileges",)


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


# --- privileges

STATUS = (
    "out = dict(line.split(':\\t', 1) for line in open('/proc/self/status').read().splitlines())['{field}'].strip()"
)


def test_no_new_privileges_is_set_for_good(lab: Lab) -> None:
    code = STATUS.format(field="NoNewPrivs")
    own = re.search(r"^NoNewPrivs:\t(\d)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert own is not None
    assert lab.run(code).value == own[1]
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


# --- resource limits


def test_memory_above_the_limit_is_an_ordinary_exception(lab: Lab) -> None:
    code = "out = len(bytearray(600 << 20))"
    assert lab.run(code).got_through
    assert lab.run(code, ("rlimits",)).error == "MemoryError: "


def test_processor_time_ends_with_a_signal_that_says_so(lab: Lab) -> None:
    assert lab.run("while True: pass", ("rlimits",)).status == -signal.SIGXCPU


# --- seccomp

EPERM = "PermissionError: [Errno 1] Operation not permitted"
REFUSED = [
    ("open", "open('/dev/null')"),
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
