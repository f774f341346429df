"""Descriptors: a worker keeps its channel and nothing else."""

import os
import resource
from typing import Final

from loopwarden_engine.confinement.kernel import call_kernel

__all__ = ["close_all_but"]

_CLOSE_RANGE: Final = 436
_LAST: Final = 0xFFFFFFFF
_LEAST_TRIED: Final = 1024


def close_all_but(channel_fd: int) -> None:
    """Close every descriptor but one. Raises `OSError` when the channel itself is not open."""
    try:
        if channel_fd > 0:
            call_kernel(_CLOSE_RANGE, 0, channel_fd - 1, 0)
        call_kernel(_CLOSE_RANGE, channel_fd + 1, _LAST, 0)
    except OSError:
        # A kernel before 5.9, or a container whose filter does not know the call.
        os.closerange(0, channel_fd)
        os.closerange(channel_fd + 1, max(resource.getrlimit(resource.RLIMIT_NOFILE)[0], _LEAST_TRIED))
    os.fstat(channel_fd)
