"""What the code of an attack finds as names beside the facts of its stage: modules, kernel calls, machine code.

Everything is imported and made here, before any wall stands: behind the walls nothing can be loaded.
"""

import ctypes
import encodings.idna  # noqa: F401 -- what `socket` loads when it is given a name
import errno
import fcntl
import json
import mmap
import os
import platform
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from typing import Any, Final, NoReturn

from loopwarden_engine.attacks.calls import CALLS

__all__ = ["make_toolbox"]

_libc: Final = ctypes.CDLL(None, use_errno=True)
_syscall: Final = _libc.syscall
_syscall.restype = ctypes.c_long
_syscall.argtypes = [ctypes.c_long] * 7

_MODULES: Final = (
    ctypes,
    errno,
    fcntl,
    mmap,
    os,
    resource,
    select,
    signal,
    socket,
    struct,
    subprocess,
    sys,
    threading,
    time,
)
_RETURN_42: Final = {
    "x86_64": bytes.fromhex("b82a000000c3"),  # mov eax, 42; ret
    "aarch64": bytes.fromhex("40058052c0035fd6"),  # mov w0, #42; ret
}
_ASK_NUMBER_32_BIT: Final = bytes.fromhex("53b814000000cd805bc3")  # push rbx; mov eax, 20; int 0x80; pop rbx; ret


def make_toolbox(channel: socket.socket) -> dict[str, Any]:
    """The names, for a worker that talks through `channel`."""

    def speak() -> NoReturn:
        """For a child of the worker: show that it is there, and stay until the runner has looked."""
        channel.sendall(json.dumps({"child": True}).encode() + b"\n")
        while channel.recv(1):
            pass
        os._exit(0)

    return {
        **{module.__name__: module for module in _MODULES},
        "call": _call,
        "channel": channel,
        "errno_of": _errno_of,
        "int80": _int80,
        "run_code": _run_code,
        "speak": speak,
        "tiny_program": _tiny_program,
        "write_code": _write_code,
    }


def _call(name: str | int, *arguments: Any) -> int:
    """The kernel's answer to a call, by its name or its number; texts and structures are handed over by address."""
    held = [ctypes.create_string_buffer(item) if isinstance(item, bytes) else item for item in arguments]
    numbers = [item if isinstance(item, int) else ctypes.addressof(item) for item in held]
    number = CALLS[name] if isinstance(name, str) else name
    result: int = _syscall(number, *(*numbers, 0, 0, 0, 0, 0, 0)[:6])
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def _errno_of(name: str | int, *arguments: Any) -> int:
    """0 when the kernel carried the call out, else its error number."""
    try:
        _call(name, *arguments)
    except OSError as error:
        return error.errno or 0
    return 0


def _write_code(address: int) -> None:
    """Put a function that returns 42 at `address`."""
    code = _RETURN_42[platform.machine()]
    ctypes.memmove(address, code, len(code))


def _run_code(address: int, *, written: bool = False) -> int:
    """Execute the function at `address`, which is put there first unless it was `written`."""
    if not written:
        _write_code(address)
    return _jump_to(address)


def _int80(address: int) -> int:
    """The own process number, asked for by the entry of 32-bit programs, from executable memory at `address`."""
    ctypes.memmove(address, _ASK_NUMBER_32_BIT, len(_ASK_NUMBER_32_BIT))
    return _jump_to(address)


def _jump_to(address: int) -> int:
    result: int = ctypes.CFUNCTYPE(ctypes.c_int)(address)()
    return result


def _tiny_program(line: str) -> bytes:
    """An ELF program for x86_64 without libraries that writes `line` to the channel and waits for the runner."""
    text = line.encode() + b"\n"
    base, header_bytes = 0x400000, 64 + 56
    code = bytearray()
    code += bytes.fromhex("b801000000bf03000000") + b"\xbe" + bytes(4)  # eax = write, edi = 3, esi = address of text
    code += b"\xba" + struct.pack("I", len(text)) + bytes.fromhex("0f05")  # edx = its length; syscall
    code += bytes.fromhex("31c0bf03000000") + b"\xbe" + struct.pack("I", base + header_bytes + 0x100)  # read
    code += bytes.fromhex("ba010000000f05")  # edx = 1; syscall
    code += bytes.fromhex("b83c00000031ff0f05")  # exit(0)
    struct.pack_into("I", code, 11, base + header_bytes + len(code))
    size = header_bytes + 0x200
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, base + header_bytes, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 7, 0, base, base, size, size, 4096)
    return (header + segment + code + text).ljust(size, b"\0")
