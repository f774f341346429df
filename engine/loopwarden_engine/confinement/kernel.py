"""The few kernel calls that the standard library does not offer, bound once before any fork.

Numbers above 423 are the same on every architecture (linux/include/uapi/asm-generic/unistd.h), so they stand here as
constants; the calls that a seccomp filter has to name per architecture are in `syscalls`.
"""

import ctypes
import os
from typing import Final

__all__ = ["call_kernel", "set_process_option"]

_libc: Final = ctypes.CDLL(None, use_errno=True)

_syscall: Final = _libc.syscall
_syscall.restype = ctypes.c_long
_syscall.argtypes = [ctypes.c_long] * 7

_prctl: Final = _libc.prctl
_prctl.restype = ctypes.c_int
_prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4


def call_kernel(number: int, *arguments: int) -> int:
    """Call system call `number` with up to six integers or addresses; raise `OSError` when the kernel says no."""
    padded = (*arguments, 0, 0, 0, 0, 0, 0)[:6]
    result: int = _syscall(number, *padded)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def set_process_option(option: int, value: int) -> None:
    """prctl(2) with one argument; raise `OSError` when the kernel says no."""
    if _prctl(option, value, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
