"""Files that a person names, opened so that nothing is waited for: a pipe or a device in their place is refused."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, Final

_OPEN_FILES: Final = (Path("/dev/fd"), Path("/proc/self/fd"))
_STDIN: Final = Path("/dev/stdin")


def open_regular_file(path: Path) -> BinaryIO:
    """Open a file for reading. Raises OSError, also for what is no regular file, and ValueError for an impossible name.

    What the shell has opened for this process (`/dev/stdin`, `<(…)`) is read whatever it is: somebody feeds it.
    """
    if path == _STDIN or path.parent in _OPEN_FILES:
        return open(path, "rb")
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise
