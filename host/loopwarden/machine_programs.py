"""Programs and libraries of this machine that attacks use."""

import os
import shutil
import stat
import struct
from pathlib import Path
from typing import Final

__all__ = ["LIBRARY", "SHELL", "find_library", "find_loader", "find_set_user_id_program"]

LIBRARY: Final = "libresolv.so.2"
SHELL: Final = "/bin/sh"

_SET_USER_ID_PROGRAMS: Final = ("su", "mount", "umount", "passwd", "chsh", "newgrp")
_PROGRAM_HEADERS: Final = struct.Struct("<Q14xHH")  # of a 64-bit ELF file, at 32: offset, size of one, count
_SEGMENT: Final = struct.Struct("<I4xQ16xQ")  # type, offset, size in the file
_INTERPRETER: Final = 3
_HEAD_BYTES: Final = 65_536


def find_library() -> Path | None:
    """A library of the system that no worker has loaded."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        path = Path(line.split(maxsplit=5)[-1])
        if path.name.startswith("libc.so"):
            library = path.with_name(LIBRARY)
            return library if library.is_file() else None
    return None


def find_set_user_id_program() -> str | None:
    """A program that runs as root whoever starts it."""
    for name in _SET_USER_ID_PROGRAMS:
        found = shutil.which(name, path="/usr/bin:/bin")
        if found is not None:
            facts = os.stat(found)
            is_heeded = not os.statvfs(found).f_flag & os.ST_NOSUID
            if facts.st_mode & stat.S_ISUID and facts.st_uid == 0 and facts.st_mode & stat.S_IXOTH and is_heeded:
                return found
    return None


def find_loader() -> str | None:
    """The program that loads the libraries of the shell, by which the shell can be started too."""
    try:
        with Path(SHELL).open("rb") as program:
            head = program.read(_HEAD_BYTES)
    except OSError:
        return None
    if not head.startswith(b"\x7fELF\x02\x01"):
        return None
    try:
        offset, size, count = _PROGRAM_HEADERS.unpack_from(head, 32)
        for number in range(count):
            kind, place, length = _SEGMENT.unpack_from(head, offset + number * size)
            if kind == _INTERPRETER:
                return os.fsdecode(head[place : place + length].rstrip(b"\0"))
    except struct.error:
        return None
    return None
