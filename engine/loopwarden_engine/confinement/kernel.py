"""The few kernel calls that the standard library does not offer.

Numbers above 423 are the same on every architecture (linux/include/uapi/asm-generic/unistd.h), so they stand here as
constants; the calls that a seccomp filter has to name per architecture are in `syscalls`.
"""

import ctypes
import errno
import os
import struct
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from loopwarden_engine.confinement.wall import WallMissing

__all__ = [
    "ask",
    "call_kernel",
    "drop_capabilities",
    "find_death_signal",
    "find_process_option",
    "has_capabilities",
    "map_nothing",
    "poll_at_once",
    "prepare_kernel_calls",
    "set_process_option",
]

_LONG_RESULT: Final = {"syscall": ctypes.c_long, "mmap": ctypes.c_long}
_ARGUMENTS: Final[dict[str, list[Any]]] = {
    "syscall": [ctypes.c_long] * 7,
    "prctl": [ctypes.c_int] + [ctypes.c_ulong] * 4,
    "mmap": [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long],
    "poll": [ctypes.c_void_p, ctypes.c_ulong, ctypes.c_int],
    "capset": [ctypes.c_void_p, ctypes.c_void_p],
    "capget": [ctypes.c_void_p, ctypes.c_void_p],
}
_PR_GET_PDEATHSIG: Final = 2
_CAPABILITY_VERSION_3: Final = 0x20080522
_PRIVATE_AND_ANONYMOUS: Final = 0x22
_CAPABILITY_BYTES: Final = 24  # effective, permitted and inheritable, 64 bits of each


# Laid out once, side by side: in a worker nearly everything that is made or changed costs a page of memory.
_header: Final = ctypes.create_string_buffer(struct.pack("=Ii", _CAPABILITY_VERSION_3, 0))
_no_capabilities: Final = ctypes.create_string_buffer(_CAPABILITY_BYTES)
_found_capabilities: Final = ctypes.create_string_buffer(_CAPABILITY_BYTES)
_found_signal: Final = ctypes.c_int()


@cache
def _find(name: str) -> Callable[..., int]:
    """A function of the C library; on a system that has none of that name, one that says so.

    The package is imported there too, to tell a person that it needs Linux.
    """
    try:
        function: Callable[..., int] = getattr(ctypes.CDLL(None, use_errno=True), name)
    except (AttributeError, OSError, TypeError):
        return _missing
    function.restype = _LONG_RESULT.get(name, ctypes.c_int)  # type: ignore[attr-defined]
    function.argtypes = _ARGUMENTS[name]  # type: ignore[attr-defined]
    return function


def _missing(*_arguments: object) -> int:
    ctypes.set_errno(errno.ENOSYS)
    return -1


def prepare_kernel_calls() -> None:
    """Find all of them, before any fork."""
    for name in _ARGUMENTS:
        _find(name)


def ask(name: str, call: Callable[..., Any], *arguments: object) -> Any:
    """What `call` answers; raise `WallMissing`, which names it as `name`, when the kernel says no."""
    try:
        return call(*arguments)
    except OSError as error:
        raise WallMissing(f"{name}: {error.strerror or 'the kernel refused'}") from None


def call_kernel(number: int, *arguments: int) -> int:
    """Call system call `number` with up to six integers or addresses; raise `OSError` when the kernel says no."""
    padded = (*arguments, 0, 0, 0, 0, 0, 0)[:6]
    return _checked(_find("syscall")(number, *padded))


def set_process_option(option: int, value: int) -> None:
    """prctl(2) with one argument; raise `OSError` when the kernel says no."""
    _checked(_find("prctl")(option, value, 0, 0, 0))


def find_process_option(option: int) -> int:
    """prctl(2) that answers with a value; raise `OSError` when the kernel says no."""
    return _checked(_find("prctl")(option, 0, 0, 0, 0))


def find_death_signal() -> int:
    """The signal that this process gets when its parent dies, 0 for none. Raises `OSError`."""
    _checked(_find("prctl")(_PR_GET_PDEATHSIG, ctypes.addressof(_found_signal), 0, 0, 0))
    return _found_signal.value


def drop_capabilities() -> None:
    """Empty the effective, permitted and inheritable set, and with them the ambient one. Raises `OSError`."""
    _checked(_find("capset")(_header, _no_capabilities))


def has_capabilities() -> bool:
    """Whether this process has any capability, or could get one back. Raises `OSError`."""
    _checked(_find("capget")(_header, _found_capabilities))
    return bool(_found_capabilities.raw != _no_capabilities.raw)


def poll_at_once(descriptions: Any, count: int) -> None:
    """Let the kernel fill in the events of `count` pollfd structures in a buffer. Raises `OSError`."""
    _checked(_find("poll")(descriptions, count, 0))


def map_nothing(size_bytes: int) -> None:
    """Take `size_bytes` of address space that cannot be used, so that it costs no memory. Raises `OSError`."""
    _checked(_find("mmap")(None, size_bytes, 0, _PRIVATE_AND_ANONYMOUS, -1, 0))


def _checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
