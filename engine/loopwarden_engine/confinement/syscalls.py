"""System call numbers of the architectures that the seccomp filter knows, for glibc and Linux.

Sources: linux/arch/x86/entry/syscalls/syscall_64.tbl, linux/include/uapi/asm-generic/unistd.h (aarch64),
linux/include/uapi/linux/audit.h.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

__all__ = ["AARCH64", "ARCHITECTURES", "X86_64", "Architecture", "find_architecture"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One architecture as a seccomp filter sees it.

    `audit_value` is what `seccomp_data.arch` holds. Numbers from `foreign_from` on belong to another calling
    convention that shares that value (x32 on x86_64); None when there is none.
    """

    name: str
    audit_value: int
    foreign_from: int | None
    numbers: Mapping[str, int]


X86_64: Final = Architecture(
    name="x86_64",
    audit_value=0xC000003E,
    foreign_from=0x40000000,
    numbers=MappingProxyType(
        {
            "open": 2,
            "close": 3,
            "stat": 4,
            "fstat": 5,
            "lstat": 6,
            "lseek": 8,
            "mmap": 9,
            "munmap": 11,
            "brk": 12,
            "ioctl": 16,
            "access": 21,
            "mremap": 25,
            "madvise": 28,
            "sendto": 44,
            "recvfrom": 45,
            "getcwd": 79,
            "readlink": 89,
            "futex": 202,
            "clock_gettime": 228,
            "exit_group": 231,
            "openat": 257,
            "newfstatat": 262,
            "readlinkat": 267,
            "faccessat": 269,
            "statx": 332,
            "openat2": 437,
            "faccessat2": 439,
        }
    ),
)

AARCH64: Final = Architecture(
    name="aarch64",
    audit_value=0xC00000B7,
    foreign_from=None,
    numbers=MappingProxyType(
        {
            "getcwd": 17,
            "ioctl": 29,
            "faccessat": 48,
            "openat": 56,
            "close": 57,
            "lseek": 62,
            "readlinkat": 78,
            "newfstatat": 79,
            "fstat": 80,
            "exit_group": 94,
            "futex": 98,
            "clock_gettime": 113,
            "sendto": 206,
            "recvfrom": 207,
            "brk": 214,
            "munmap": 215,
            "mremap": 216,
            "mmap": 222,
            "madvise": 233,
            "statx": 291,
            "openat2": 437,
            "faccessat2": 439,
        }
    ),
)

ARCHITECTURES: Final[Mapping[str, Architecture]] = MappingProxyType({X86_64.name: X86_64, AARCH64.name: AARCH64})


def find_architecture() -> Architecture | None:
    """The table for this process; None on another system or processor, and for a 32-bit interpreter."""
    if sys.platform != "linux" or sys.maxsize < 2**32:
        return None
    return ARCHITECTURES.get(os.uname().machine)
