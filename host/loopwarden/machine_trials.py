"""Trials: what this process, which is not confined, is refused itself. A reason for a control to be refused too.

Each returns why not, or None when it works. What a trial makes, it removes.
"""

import ctypes
import errno
import mmap
import os
import secrets
import shutil
import socket
import stat
import struct
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from loopwarden.machine_programs import SHELL
from loopwarden_engine.attacks.calls import CALLS
from loopwarden_engine.confinement.kernel import call_kernel

__all__ = ["ATTACKED_BYTES", "FOLDER_TRIALS", "TRIALS", "try_user_namespace"]

ATTACKED_BYTES: Final = 1 << 30
"""How much memory attacks on the limit of memory ask for at once."""

_RENAME_EXCHANGE: Final = 2
_THIS_FOLDER: Final = -100


def _try_loopback(family: int, address: str) -> Callable[[], str | None]:
    def find() -> str | None:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.bind((address, 0))
                probe.connect(probe.getsockname())
        except OSError as error:
            return f"nothing is sent to {address} here: {error.strerror}"
        return None

    return find


def _try_cryptography() -> str | None:
    try:
        with socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET, 0) as probe:
            probe.bind(("hash", "sha256"))
    except OSError as error:
        return f"the kernel lends its cryptography to nobody: {error.strerror}"
    return None


def _try_terminal() -> str | None:
    try:
        master, slave = os.openpty()
    except OSError as error:
        return f"no terminal can be made here: {error.strerror}"
    os.close(master)
    os.close(slave)
    return None


def _try_memory() -> str | None:
    try:
        mmap.mmap(-1, ATTACKED_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except OSError as error:
        return f"{ATTACKED_BYTES >> 20} MiB of memory are more than this process can have: {error.strerror}"
    return None


def _try_message_queue() -> str | None:
    name = ctypes.create_string_buffer(f"loopwarden-trial-{secrets.token_hex(8)}".encode())
    try:
        descriptor = call_kernel(CALLS["mq_open"], ctypes.addressof(name), os.O_CREAT | os.O_RDWR, 0o600, 0)
        os.close(descriptor)
        call_kernel(CALLS["mq_unlink"], ctypes.addressof(name))
    except OSError as error:
        return f"no message queue can be made here: {error.strerror}"
    return None


def try_user_namespace() -> str | None:
    """The same by another program, as far as the system has it: in a changed root, for one, the kernel gives none."""
    program = shutil.which("unshare", path="/usr/bin:/bin")
    if program is None:
        return None
    order = [program, "--user", SHELL, "-c", ":"]
    tried = subprocess.run(order, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    said = tried.stderr.decode(errors="replace").strip().rpartition(": ")[2]
    return None if tried.returncode == 0 else f"no user namespace can be made here: {said}"


def _try_old_program() -> str | None:
    """Start a 32-bit program that leaves at once: a kernel that was started without its entry does not take it."""
    if not Path("/proc/sys/abi/vsyscall32").exists():
        return "this kernel has no entry for 32-bit code"
    code = bytes.fromhex("b80100000031dbcd80")  # eax = exit, ebx = 0; int 0x80
    base, head_bytes = 0x08048000, 52 + 32
    size = head_bytes + len(code)
    image = b"\x7fELF\x01\x01\x01" + bytes(9)
    image += struct.pack("<HHIIIIIHHHHHH", 2, 3, 1, base + head_bytes, 52, 0, 0, 52, 32, 1, 0, 0, 0)
    image += struct.pack("<IIIIIIII", 1, 0, base, base, size, size, 5, 4096) + code
    with suppress(OSError), open(os.memfd_create("trial"), "wb") as program:
        program.write(image)
        program.flush()
        try:
            subprocess.run([f"/proc/self/fd/{program.fileno()}"], pass_fds=[program.fileno()], env={}, check=False)
        except OSError as error:
            return "this kernel takes no 32-bit code" if error.errno == errno.ENOEXEC else None
    return None


def _try_xattr(folder: Path) -> str | None:
    tried = folder / "xattr"
    tried.touch()
    try:
        os.setxattr(tried, "user.tried", b"x")
    except OSError as error:
        return f"the file system of temporary files has no user attributes: {error.strerror}"
    finally:
        tried.unlink()
    return None


def _try_second_name(folder: Path) -> str | None:
    first, second = folder / "first", folder / "second"
    first.touch()
    try:
        second.hardlink_to(first)
        second.unlink()
    except OSError as error:
        return f"files have one name only on the file system of temporary files: {error.strerror}"
    finally:
        first.unlink()
    return None


def _try_exchange(folder: Path) -> str | None:
    paths = folder / "first", folder / "second"
    for path in paths:
        path.touch()
    first, second = (ctypes.create_string_buffer(os.fsencode(path)) for path in paths)
    try:
        call_kernel(
            CALLS["renameat2"],
            *(_THIS_FOLDER, ctypes.addressof(first), _THIS_FOLDER, ctypes.addressof(second), _RENAME_EXCHANGE),
        )
    except OSError as error:
        return f"the file system of temporary files exchanges no names: {error.strerror}"
    finally:
        for path in paths:
            path.unlink()
    return None


def _try_device(folder: Path) -> str | None:
    device = folder / "device"
    try:
        os.mknod(device, stat.S_IFCHR | 0o600, os.makedev(1, 3))
        device.unlink()
    except OSError as error:
        return f"device files cannot be made here: {error.strerror}"
    return None


TRIALS: Final[Mapping[str, Callable[[], str | None]]] = {
    "ia32": _try_old_program,
    "ipv6": _try_loopback(socket.AF_INET6, "::1"),
    "kernel-cryptography": _try_cryptography,
    "loopback": _try_loopback(socket.AF_INET, "127.0.0.1"),
    "memory": _try_memory,
    "message-queues": _try_message_queue,
    "terminals": _try_terminal,
}
"""By the names in `needs` of the catalogue."""

FOLDER_TRIALS: Final[Mapping[str, Callable[[Path], str | None]]] = {
    "devices": _try_device,
    "exchange": _try_exchange,
    "links": _try_second_name,
    "xattr": _try_xattr,
}
"""The same, of the file system of temporary files: each is given a folder of its own there."""
