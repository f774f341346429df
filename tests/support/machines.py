"""Machines on which some wall cannot stand: what one is, and how a process gets onto it (`support.machine_table`).

What a kernel or a container forbids is forbidden by a seccomp filter around host, launcher and workers, so that it is
the real call that fails, whoever makes it and however. An answer of 0 from such a filter is a kernel that claims to
have done it and did nothing. The few things that no filter can say are put into the launcher's modules.

Launchers of `support.machine_room` import this module: the standard library and the engine only.
"""

import ctypes
import importlib
import os
import platform
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

NOTHING = 0
"""The answer of a call that claims success and does nothing."""
NOT_ROOT = "not root: a worker runs as the same user"

ORDINARY_USER = 65533
_READ_ANY_FILE = 1 << 2  # CAP_DAC_READ_SEARCH: the interpreter can be read wherever root installed it

_NUMBERS = {
    "x86_64": {
        "close": 3, "prctl": 157, "capset": 126, "setgroups": 116, "setresgid": 119, "setresuid": 117,
        "prlimit64": 302, "seccomp": 317,
    },
    "aarch64": {
        "close": 57, "prctl": 167, "capset": 91, "setgroups": 159, "setresgid": 149, "setresuid": 147,
        "prlimit64": 261, "seccomp": 277,
    },
}[platform.machine()] | {
    "pidfd_send_signal": 424, "pidfd_open": 434, "close_range": 436, "landlock_create_ruleset": 444,
    "landlock_restrict_self": 446,
}  # fmt: skip
_SECCOMP = _NUMBERS["seccomp"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A call that answers `answer`, an error number or `NOTHING`, without being carried out.

    `equals` are arguments by index that it must have, `given` is an argument that must not be 0.
    """

    call: str
    answer: int
    equals: Mapping[int, int] = field(default_factory=dict)
    given: int | None = None

    @property
    def instructions(self) -> list[tuple[int, int, int, int]]:
        """Of classic BPF, relative jumps; falls out at the end when the rule does not match."""
        tests = [(4 * 0, _NUMBERS[self.call], True)]
        tests += [(16 + 8 * index, value, True) for index, value in self.equals.items()]
        if self.given is not None:
            # A pointer: its low half is not 0 in practice.
            tests.append((16 + 8 * self.given, 0, False))
        made: list[tuple[int, int, int, int]] = []
        for position, (offset, value, is_equal) in enumerate(tests):
            miss = 2 * (len(tests) - position - 1) + 1
            made += [(0x20, 0, 0, offset), (0x15, *((0, miss) if is_equal else (miss, 0)), value)]
        return [*made, (0x06, 0, 0, 0x00050000 | self.answer)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """An attribute of a module of the launcher."""

    module: str
    name: str
    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One machine, and what must be said of it.

    `around`: what the rules surround, the "machine", every "worker", or workers "later" than the probes. `missing` are
    the walls that do not stand there for root, with the reason; `ordinary` the same for another user, when it differs
    in more than the identity. `never`: why no run can start, opted in or not. `details`: what is said to be covered.
    """

    name: str
    rules: tuple[Rule, ...] = ()
    around: str = "machine"
    patches: tuple[Patch, ...] = ()
    lacks: tuple[int, ...] = ()
    single_user: bool = False
    missing: Mapping[str, str] = field(default_factory=dict)
    ordinary: Mapping[str, str] | None = None
    never: str | None = None
    details: Mapping[str, str] = field(default_factory=dict)

    def missing_for(self, *, is_root: bool) -> dict[str, str]:
        """The walls that do not stand for a user."""
        if is_root:
            return dict(self.missing)
        found = self.missing if self.ordinary is None else self.ordinary
        return {**found, "identity": NOT_ROOT}


def enter(machine: Machine, host_pidfd: int | None = None) -> None:
    """Let this process be the host on `machine`, or its launcher, which gets the host's pidfd."""
    if os.geteuid() == 0:
        os.setgroups([ORDINARY_USER])  # something to drop
    if machine.single_user:
        _enter_user_namespace(host_pidfd)
    for patch in machine.patches if host_pidfd is not None else ():
        setattr(importlib.import_module(patch.module), patch.name, patch.value)
    if machine.lacks:
        _drop(machine.lacks)
    if machine.around == "machine":
        surround(machine.rules)


def surround(rules: tuple[Rule, ...]) -> None:
    """Put a filter around this process and all its children."""
    if not rules:
        return
    code = [instruction for rule in rules for instruction in rule.instructions] + [(0x06, 0, 0, 0x7FFF0000)]
    packed = b"".join(struct.pack("=HBBI", *instruction) for instruction in code)
    text = ctypes.create_string_buffer(packed, len(packed))
    program = struct.pack("=H6xQ", len(code), ctypes.addressof(text))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(_SECCOMP, 1, 0, program) != 0:
        # Not root: the kernel wants it this way.
        assert libc.prctl(38, 1, 0, 0, 0) == 0
        assert libc.syscall(_SECCOMP, 1, 0, program) == 0, os.strerror(ctypes.get_errno())


def become_ordinary() -> None:
    """Stop being root, but stay able to read the interpreter wherever root installed it."""
    if os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(8, 1, 0, 0, 0) == 0  # PR_SET_KEEPCAPS
    os.setgroups([])
    os.setresgid(ORDINARY_USER, ORDINARY_USER, ORDINARY_USER)
    os.setresuid(ORDINARY_USER, ORDINARY_USER, ORDINARY_USER)
    _set_capabilities(_READ_ANY_FILE)
    assert libc.prctl(47, 2, 2, 0, 0) == 0  # PR_CAP_AMBIENT, raise CAP_DAC_READ_SEARCH
    assert libc.prctl(4, 1, 0, 0, 0) == 0  # dumpable again, as any process that was started by its user


def _drop(capabilities: tuple[int, ...]) -> None:
    header, sets = ctypes.create_string_buffer(struct.pack("<Ii", 0x20080522, 0)), ctypes.create_string_buffer(24)
    assert ctypes.CDLL(None, use_errno=True).capget(header, sets) == 0
    words = struct.unpack("<6I", sets.raw)
    _set_capabilities((words[4] << 32 | words[1]) & ~sum(1 << number for number in capabilities))


def _set_capabilities(wanted: int) -> None:
    low, high = wanted & 0xFFFFFFFF, wanted >> 32
    inheritable = low & _READ_ANY_FILE if wanted == _READ_ANY_FILE else 0
    header = ctypes.create_string_buffer(struct.pack("<Ii", 0x20080522, 0))
    sets = ctypes.create_string_buffer(struct.pack("<6I", low, low, inheritable, high, high, 0))
    assert ctypes.CDLL(None, use_errno=True).capset(header, sets) == 0


def _enter_user_namespace(host_pidfd: int | None) -> None:
    """A namespace in which this user is root and nobody else exists; the launcher goes where its host is."""
    new_user = 0x10000000
    libc = ctypes.CDLL(None, use_errno=True)
    if host_pidfd is not None:
        assert libc.setns(host_pidfd, new_user) == 0, os.strerror(ctypes.get_errno())
        return
    user, group = os.geteuid(), os.getegid()
    if libc.unshare(new_user) != 0:
        raise OSError(ctypes.get_errno(), "user namespaces are forbidden here")
    for file, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        with open(f"/proc/self/{file}", "w") as map_file:
            map_file.write(text)
