"""The system call filter: what a worker may still ask of the kernel once its script runs.

Three verdicts. Allowed: memory, the clock, waiting, leaving, and bytes through the channel. Refused with EPERM: what
the standard library tries on its own while it formats a traceback or looks for a module, so that such a try ends as
an ordinary exception. All else ends the process. Arguments are compared in both 32-bit halves, because BPF loads 32
bits and the kernel gets 64.

Source: linux/Documentation/userspace-api/seccomp_filter.rst, seccomp(2).
"""

import ctypes
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Final

from loopwarden_engine.confinement.bpf import (
    AND,
    BYTES_PER_INSTRUCTION,
    JUMP_IF_ANY_BIT,
    JUMP_IF_AT_LEAST,
    JUMP_IF_EQUAL,
    LOAD_WORD,
    RETURN,
    Assembler,
)
from loopwarden_engine.confinement.kernel import ask, call_kernel
from loopwarden_engine.confinement.syscalls import Architecture, find_architecture
from loopwarden_engine.confinement.wall import WallMissing

__all__ = [
    "ALLOW",
    "ALWAYS_ALLOWED",
    "ARGUMENT_RULES",
    "KILL_PROCESS",
    "REFUSED",
    "REFUSE_WITH_EPERM",
    "build_filter",
    "install_filter",
    "prepare_filter",
]

KILL_PROCESS: Final = 0x80000000  # SECCOMP_RET_KILL_PROCESS
REFUSE_WITH_EPERM: Final = 0x00050001  # SECCOMP_RET_ERRNO | EPERM
ALLOW: Final = 0x7FFF0000  # SECCOMP_RET_ALLOW

# No rt_sigreturn: a worker has no signal handler to return from, and a forged return sets every register at once.
ALWAYS_ALLOWED: Final = ("brk", "munmap", "close", "exit_group")
REFUSED: Final = (
    "open",
    "openat",
    "openat2",
    "stat",
    "fstat",
    "lstat",
    "newfstatat",
    "statx",
    "lseek",
    "readlink",
    "readlinkat",
    "getcwd",
    "access",
    "faccessat",
    "faccessat2",
    "ioctl",
)

_ON_THE_CHANNEL: Final = "on the channel, without an address, with no flag or MSG_NOSIGNAL"
ARGUMENT_RULES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "recvfrom": _ON_THE_CHANNEL,
        "sendto": _ON_THE_CHANNEL,
        "mmap": "private memory of no file, for reading and writing at most; fixed, unreserved or a stack if asked",
        "mremap": "to wherever there is room, and nothing else",
        "madvise": "no longer needed, may be freed, huge pages",
        "futex": "wait, wake, and their bitset forms, within the own process, with or without the clock flag",
        "clock_gettime": "clocks 0 to 11: of the machine and of the own process",
    }
)
"""Under which condition a call is allowed, in words for docs/confinement.md; otherwise it ends the process."""

_SECCOMP_NUMBER: Final = {"x86_64": 317, "aarch64": 277}
_SET_MODE_FILTER: Final = 1
_GET_ACTION_AVAILABLE: Final = 2

_NUMBER_OFFSET: Final = 0  # struct seccomp_data: int nr; u32 arch; u64 instruction_pointer; u64 args[6]
_ARCHITECTURE_OFFSET: Final = 4
_ARGUMENTS_OFFSET: Final = 16

_READ_OR_WRITE: Final = 3  # PROT_READ | PROT_WRITE
# MAP_PRIVATE, MAP_FIXED, MAP_ANONYMOUS, MAP_NORESERVE, MAP_STACK: what the C library asks for. Not memory that is
# shared, locked, of the pool of huge pages, or that grows downwards.
_MAP_FLAGS: Final = 0x02 | 0x10 | 0x20 | 0x4000 | 0x20000
_MREMAP_MAYMOVE: Final = 1
# MADV_DONTNEED, MADV_FREE, MADV_HUGEPAGE. Not merging with equal pages of others, which shows what those hold, nor
# moving pages out of the cache that all share.
_ADVICE: Final = (4, 8, 14)
_MSG_NOSIGNAL: Final = 0x4000
_FUTEX_CLOCK_REALTIME: Final = 256
# Without it a wait on a page of the C library's file is met by every process of the machine that maps that file.
_FUTEX_PRIVATE: Final = 128
# Waiting and waking, nothing of the priority-inheritance and requeue family: no library needs those here, and their
# kernel code has a history of holes.
_FUTEX_OPERATIONS: Final = (0, 1, 9, 10)  # FUTEX_WAIT, FUTEX_WAKE, FUTEX_WAIT_BITSET, FUTEX_WAKE_BITSET

_NO_DESCRIPTOR: Final = 0xFFFFFFFF
_CLOCKS: Final = 12  # CLOCK_REALTIME to CLOCK_TAI

_WORD: Final = 0xFFFFFFFF


class _SockFprog(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


@dataclass(frozen=True, slots=True, kw_only=True)
class _LoadedFilter:
    """A program laid out for the kernel; `instructions` must live as long as `program`, which points into it."""

    seccomp_number: int
    program: _SockFprog
    instructions: ctypes.Array[ctypes.c_char]
    deadly_action: ctypes.c_uint32


def build_filter(architecture: Architecture, channel_fd: int) -> bytes:
    """The filter as the bytes of a `sock_filter` array, for a worker whose only descriptor is `channel_fd`."""
    assembler = Assembler()
    assembler.add(LOAD_WORD, _ARCHITECTURE_OFFSET)
    assembler.add(JUMP_IF_EQUAL, architecture.audit_value, if_false="kill")
    assembler.add(LOAD_WORD, _NUMBER_OFFSET)
    if architecture.foreign_from is not None:
        assembler.add(JUMP_IF_AT_LEAST, architecture.foreign_from, if_true="kill")
    numbers = architecture.numbers
    # The calls of a running script come first: the kernel walks the comparisons in order.
    for name in ("recvfrom", "sendto"):
        assembler.add(JUMP_IF_EQUAL, numbers[name], if_true="transfer")
    assembler.add(JUMP_IF_EQUAL, numbers["mmap"], if_true="mmap")
    for name in ALWAYS_ALLOWED:
        assembler.add(JUMP_IF_EQUAL, numbers[name], if_true="allow")
    for name in ("mremap", "madvise", "futex", "clock_gettime"):
        assembler.add(JUMP_IF_EQUAL, numbers[name], if_true=name)
    for name in REFUSED:
        if name in numbers:  # aarch64 has only the newer forms of some
            assembler.add(JUMP_IF_EQUAL, numbers[name], if_true="refuse")
    assembler.add(RETURN, KILL_PROCESS)
    _add_transfer(assembler, channel_fd)
    _add_mmap(assembler)
    _add_mremap(assembler)
    _add_madvise(assembler)
    _add_clock(assembler)
    _add_futex(assembler)
    assembler.label("kill")
    assembler.add(RETURN, KILL_PROCESS)
    assembler.label("refuse")
    assembler.add(RETURN, REFUSE_WITH_EPERM)
    assembler.label("allow")
    assembler.add(RETURN, ALLOW)
    return assembler.assemble()


def _add_transfer(assembler: Assembler, channel_fd: int) -> None:
    """Sendto and recvfrom: (fd, buffer, length, flags, address, address length); the address comes fifth."""
    assembler.label("transfer")
    _require(assembler, 0, channel_fd)
    _require(assembler, 4, 0)
    assembler.add(LOAD_WORD, _high_half(3))
    assembler.add(JUMP_IF_EQUAL, 0, if_false="kill")
    assembler.add(LOAD_WORD, _low_half(3))
    assembler.add(JUMP_IF_EQUAL, 0, if_true="allow")
    assembler.add(JUMP_IF_EQUAL, _MSG_NOSIGNAL, if_true="allow", if_false="kill")


def _add_mmap(assembler: Assembler) -> None:
    """mmap: (address, length, protection, flags, fd, offset); nothing but private memory to read and write, of no file.

    The kernel looks at the low half of the descriptor alone, and the C library leaves the high half undefined.
    """
    assembler.label("mmap")
    assembler.add(LOAD_WORD, _low_half(4))
    assembler.add(JUMP_IF_EQUAL, _NO_DESCRIPTOR, if_false="kill")
    _require_at_most(assembler, 3, _MAP_FLAGS)
    _require_at_most(assembler, 2, _READ_OR_WRITE)
    assembler.add(RETURN, ALLOW)


def _add_mremap(assembler: Assembler) -> None:
    """mremap: (address, old length, new length, flags, new address)."""
    assembler.label("mremap")
    _require(assembler, 3, _MREMAP_MAYMOVE)
    assembler.add(RETURN, ALLOW)


def _add_madvise(assembler: Assembler) -> None:
    """madvise: (address, length, advice). The kernel looks at the low half of the advice alone."""
    assembler.label("madvise")
    assembler.add(LOAD_WORD, _low_half(2))
    for advice in _ADVICE:
        assembler.add(JUMP_IF_EQUAL, advice, if_true="allow")
    assembler.add(RETURN, KILL_PROCESS)


def _add_futex(assembler: Assembler) -> None:
    """futex: (address, operation, ...)."""
    assembler.label("futex")
    assembler.add(LOAD_WORD, _high_half(1))
    assembler.add(JUMP_IF_EQUAL, 0, if_false="kill")
    assembler.add(LOAD_WORD, _low_half(1))
    assembler.add(AND, _WORD & ~_FUTEX_CLOCK_REALTIME)
    for operation in _FUTEX_OPERATIONS:
        assembler.add(JUMP_IF_EQUAL, operation | _FUTEX_PRIVATE, if_true="allow")


def _add_clock(assembler: Assembler) -> None:
    """clock_gettime: (clock, time). Negative numbers are clocks of other processes and of descriptors.

    The kernel looks at the low half of the number alone.
    """
    assembler.label("clock_gettime")
    assembler.add(LOAD_WORD, _low_half(0))
    assembler.add(JUMP_IF_AT_LEAST, _CLOCKS, if_true="kill", if_false="allow")


def _require(assembler: Assembler, argument: int, value: int) -> None:
    assembler.add(LOAD_WORD, _low_half(argument))
    assembler.add(JUMP_IF_EQUAL, value & _WORD, if_false="kill")
    assembler.add(LOAD_WORD, _high_half(argument))
    assembler.add(JUMP_IF_EQUAL, value >> 32, if_false="kill")


def _require_at_most(assembler: Assembler, argument: int, bits: int) -> None:
    """No other bit than these."""
    assembler.add(LOAD_WORD, _high_half(argument))
    assembler.add(JUMP_IF_EQUAL, 0, if_false="kill")
    assembler.add(LOAD_WORD, _low_half(argument))
    assembler.add(JUMP_IF_ANY_BIT, _WORD & ~bits, if_true="kill")


def _low_half(argument: int) -> int:
    """Both architectures are little-endian."""
    return _ARGUMENTS_OFFSET + 8 * argument


def _high_half(argument: int) -> int:
    return _ARGUMENTS_OFFSET + 8 * argument + 4


@cache
def prepare_filter(channel_fd: int) -> _LoadedFilter | None:
    """Lay the filter out for the kernel; None on an architecture without a table.

    Called before the fork, so that a worker finds it.
    """
    architecture = find_architecture()
    if architecture is None:
        return None
    code = build_filter(architecture, channel_fd)
    instructions = ctypes.create_string_buffer(code, len(code))
    program = _SockFprog(len(code) // BYTES_PER_INSTRUCTION, ctypes.addressof(instructions))
    return _LoadedFilter(
        seccomp_number=_SECCOMP_NUMBER[architecture.name],
        program=program,
        instructions=instructions,
        deadly_action=ctypes.c_uint32(KILL_PROCESS),
    )


def install_filter(channel_fd: int) -> None:
    """Put the filter up, for good, and look. Raises `WallMissing` without a table, or when it is not in force.

    Looking costs one call that the filter answers itself. That a forbidden call ends the process is what the probe
    shows, at the cost of itself.
    """
    loaded = prepare_filter(channel_fd)
    if loaded is None:
        raise WallMissing("there is no system call table for this processor")
    os.fstat(channel_fd)
    ask(
        "seccomp",
        call_kernel,
        loaded.seccomp_number,
        _GET_ACTION_AVAILABLE,
        0,
        ctypes.addressof(loaded.deadly_action),
    )
    ask("seccomp", call_kernel, loaded.seccomp_number, _SET_MODE_FILTER, 0, ctypes.addressof(loaded.program))
    try:
        os.fstat(channel_fd)
    except PermissionError:
        return
    raise WallMissing("seccomp took the filter and does not apply it")
