"""Asks the kernel what a filter says: installs programs and makes calls, each call in a process of its own.

A program of the tests: one JSON request a line in, `{"program": hex, "calls": [[number, argument…], …]}`, one JSON
answer a line out: null when the kernel does not take the program, else per call "killed", or the error number that it
answered, 0 for none. Descriptor 3 of each process is a connected socket.
"""

import ctypes
import json
import mmap
import os
import platform
import signal
import socket
import struct
import sys

_SECCOMP = {"x86_64": 317, "aarch64": 277}[platform.machine()]
_LONGEST_SECONDS = 10
_NOT_TAKEN, _NO_ANSWER = -1, -2

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.argtypes = [ctypes.c_ulong] * 7
_libc.syscall.restype = ctypes.c_long
_answer = mmap.mmap(-1, mmap.PAGESIZE)


def install(program: bytes) -> bool:
    """Put the filter around this process, for good; False when the kernel does not take it."""
    text = ctypes.create_string_buffer(program, len(program))
    described = ctypes.create_string_buffer(struct.pack("=H6xQ", len(program) // 8, ctypes.addressof(text)))
    _libc.prctl(38, 1, 0, 0, 0)
    result: int = _libc.syscall(_SECCOMP, 1, 0, ctypes.addressof(described), 0, 0, 0)
    return result == 0


def call(program: bytes, number: int, arguments: list[int]) -> int:
    """The error number of one call behind the filter; `_NO_ANSWER` when it ended the process."""
    padded = [*arguments, 0, 0, 0, 0, 0, 0][:6]
    struct.pack_into("=i", _answer, 0, _NO_ANSWER)
    pid = os.fork()
    if pid == 0:
        signal.alarm(_LONGEST_SECONDS)
        if install(program):
            ctypes.set_errno(0)
            result = _libc.syscall(number, *padded)
            struct.pack_into("=i", _answer, 0, ctypes.get_errno() if result == -1 else 0)
        else:
            struct.pack_into("=i", _answer, 0, _NOT_TAKEN)
        os._exit(0)
    os.waitpid(pid, 0)
    found: int = struct.unpack_from("=i", _answer)[0]
    return found


def main() -> None:
    """Serve requests until standard input ends."""
    ours, theirs = socket.socketpair()
    os.dup2(ours.fileno(), 3)
    theirs.close()  # so that receiving ends at once
    for line in sys.stdin:
        request = json.loads(line)
        program = bytes.fromhex(request["program"])
        found = [call(program, number, arguments) for number, *arguments in request["calls"]]
        answer = None if _NOT_TAKEN in found else ["killed" if value == _NO_ANSWER else value for value in found]
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
