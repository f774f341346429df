"""Descriptors: a worker keeps its channel and nothing else."""

import ctypes
import os
import select
import struct
from contextlib import suppress
from functools import cache
from typing import Any, Final

from loopwarden_engine.confinement.kernel import ask, call_kernel, poll_at_once
from loopwarden_engine.confinement.wall import WallMissing

__all__ = ["close_all_but", "find_open_but", "prepare_look"]

_CLOSE_RANGE: Final = 436
_LAST: Final = 0xFFFFFFFF
_OWN_LIST: Final = "/proc/self/fd"
_LOOKED_AT: Final = 64
_POLLFD: Final = struct.Struct("=ihh")
_MOST_WITHOUT_A_LIST: Final = 1024


def close_all_but(channel_fd: int) -> None:
    """Close every descriptor but one, and look. Raises `WallMissing` when another one stays, or this one is not open.

    The lowest numbers are looked at, those of the launcher's own files among them; the list of all takes five times as
    long to read, so it is for the probe.
    """
    try:
        if channel_fd > 0:
            call_kernel(_CLOSE_RANGE, 0, channel_fd - 1, 0)
        call_kernel(_CLOSE_RANGE, channel_fd + 1, _LAST, 0)
        are_closed = not _is_any_open_but(channel_fd)
    except OSError:
        # A kernel before 5.9, or a container whose filter does not know the call.
        are_closed = False
    if not are_closed:
        for descriptor in find_open_but(channel_fd):
            with suppress(OSError):
                os.close(descriptor)
        left = find_open_but(channel_fd)
        if left:
            raise WallMissing(f"descriptor {left[0]} cannot be closed")
    ask("the channel", os.fstat, channel_fd)


def find_open_but(channel_fd: int) -> list[int]:
    """The other descriptors that are open; without /proc those below 1024."""
    try:
        listed = [int(name) for name in os.listdir(_OWN_LIST)]
    except OSError:
        listed = list(range(_MOST_WITHOUT_A_LIST))
    # The list itself was read through a descriptor that is gone by now.
    return [descriptor for descriptor in listed if descriptor != channel_fd and _is_open(descriptor)]


@cache
def prepare_look(channel_fd: int) -> tuple[Any, bytes]:
    """The lowest numbers as pollfd structures, and how the kernel fills them in when none is open.

    Called before the fork: in a worker nearly everything that is made costs a page of memory.
    """
    others = [descriptor for descriptor in range(_LOOKED_AT + 1) if descriptor != channel_fd][:_LOOKED_AT]
    asked, closed = (
        b"".join(_POLLFD.pack(descriptor, 0, events) for descriptor in others) for events in (0, select.POLLNVAL)
    )
    return ctypes.create_string_buffer(asked, len(asked)), closed


def _is_any_open_but(channel_fd: int) -> bool:
    """One call for all of the lowest numbers. Raises `OSError`."""
    descriptions, closed = prepare_look(channel_fd)
    poll_at_once(descriptions, _LOOKED_AT)
    return bool(descriptions.raw != closed)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True
