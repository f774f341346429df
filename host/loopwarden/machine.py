"""What this machine has and permits, as far as attacks need it: why a control cannot succeed here."""

import errno
import os
import shutil
import socket
import stat
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

__all__ = ["KERNEL_LACKS", "find_gaps", "find_general_limits", "find_library", "find_set_user_id_program"]

KERNEL_LACKS: Final[Mapping[int, str]] = {
    errno.ENOSYS: "this kernel has no such call",
    errno.EAFNOSUPPORT: "this kernel has no such sockets",
    errno.EPROTONOSUPPORT: "this kernel has no such protocol",
    errno.ESOCKTNOSUPPORT: "this kernel has no such sockets",
    errno.ENOPROTOOPT: "this kernel has no such protocol",
    errno.EOPNOTSUPP: "this file system or kernel does not support it",
    errno.ENODEV: "this kernel has no such device",
}
"""Errors that say by themselves that there is nothing to attack."""

_CAP_SYS_PTRACE: Final = 19
_CAP_SYS_ADMIN: Final = 21
_CAP_SYS_NICE: Final = 23
_CAP_MKNOD: Final = 27
_CAP_PERFMON: Final = 38
_ALL_USERS: Final = 60_000
_SET_USER_ID_PROGRAMS: Final = ("su", "mount", "umount", "passwd", "chsh", "newgrp")
_LIBRARY: Final = "libresolv.so.2"


def find_general_limits() -> str | None:
    """Why any control may fail here although it is in order: this process itself is confined; None when it is not."""
    if _status("Seccomp") not in ("0", None):
        return "this process is behind a filter of system calls, as in a container"
    if os.geteuid() == 0 and not _is_in_first_user_namespace():
        return "root is not root of this machine: it is inside a user namespace"
    if os.geteuid() == 0 and not all(_has(number) for number in (_CAP_SYS_PTRACE, _CAP_SYS_ADMIN, _CAP_MKNOD)):
        return "root has not all its capabilities, as in a container"
    return None


def find_gaps(folder: Path) -> dict[str, str]:
    """Which needs of attacks are not met here, and why. `folder` is an own one, where files can be tried."""
    gaps: dict[str, str] = {}
    for need, find in _NEEDS.items():
        reason = find()
        if reason is not None:
            gaps[need] = reason
    reason = _find_xattr_gap(folder)
    if reason is not None:
        gaps["xattr"] = reason
    return gaps


def find_library() -> Path | None:
    """A library of the system that no worker has loaded."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        path = Path(line.split(maxsplit=5)[-1])
        if path.name.startswith("libc.so"):
            library = path.with_name(_LIBRARY)
            return library if library.is_file() else None
    return None


def find_set_user_id_program() -> str | None:
    """A program that runs as root whoever starts it."""
    for name in _SET_USER_ID_PROGRAMS:
        found = shutil.which(name, path="/usr/bin:/bin")
        if found is not None:
            facts = os.stat(found)
            if facts.st_mode & stat.S_ISUID and facts.st_uid == 0 and facts.st_mode & stat.S_IXOTH:
                return found
    return None


# ---- single needs: None when met


def _find_ptrace_gap() -> str | None:
    scope = _number("/proc/sys/kernel/yama/ptrace_scope", 0)
    if scope == 0 or (scope < 3 and _has(_CAP_SYS_PTRACE)):
        return None
    return f"kernel.yama.ptrace_scope is {scope}"


def _find_user_namespace_gap() -> str | None:
    if _number("/proc/sys/user/max_user_namespaces", 1) == 0:
        return "user.max_user_namespaces is 0"
    if _has(_CAP_SYS_ADMIN):
        return None
    if _number("/proc/sys/kernel/unprivileged_userns_clone", 1) == 0:
        return "kernel.unprivileged_userns_clone is 0"
    if _number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", 0) != 0:
        return "kernel.apparmor_restrict_unprivileged_userns is set"
    return None


def _find_perf_gap() -> str | None:
    level = _number("/proc/sys/kernel/perf_event_paranoid", 0)
    return None if level <= 2 or _has(_CAP_SYS_ADMIN) or _has(_CAP_PERFMON) else f"perf_event_paranoid is {level}"


def _find_io_uring_gap() -> str | None:
    level = _number("/proc/sys/kernel/io_uring_disabled", 0)
    return None if level == 0 or (level == 1 and _has(_CAP_SYS_ADMIN)) else f"kernel.io_uring_disabled is {level}"


def _find_terminal_gap() -> str | None:
    is_allowed = _has(_CAP_SYS_ADMIN) or _number("/proc/sys/dev/tty/legacy_tiocsti", 1) == 1
    return None if is_allowed else "dev.tty.legacy_tiocsti is 0"


def _find_user_gap() -> str | None:
    counts = [int(line.split()[2]) for line in Path("/proc/self/uid_map").read_text(encoding="ascii").splitlines()]
    return None if sum(counts) >= _ALL_USERS else "this user namespace has few users"


def _find_ipv6_gap() -> str | None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        return f"no IPv6 on the loopback interface: {error.strerror}"
    return None


def _find_xattr_gap(folder: Path) -> str | None:
    tried = folder / "xattr"
    tried.touch()
    try:
        os.setxattr(tried, "user.tried", b"x")
    except OSError as error:
        return f"the file system of temporary files has no user attributes: {error.strerror}"
    finally:
        tried.unlink()
    return None


def _gap_unless(is_met: Callable[[], bool], reason: str) -> Callable[[], str | None]:
    return lambda: None if is_met() else reason


_NEEDS: Final[Mapping[str, Callable[[], str | None]]] = {
    "devices": _gap_unless(
        lambda: _has(_CAP_MKNOD) and _is_in_first_user_namespace(), "device files cannot be made here"
    ),
    "fast-open": _gap_unless(
        lambda: _number("/proc/sys/net/ipv4/tcp_fastopen", 0) & 1 == 1, "net.ipv4.tcp_fastopen is off"
    ),
    "ia32": _gap_unless(lambda: Path("/proc/sys/abi/vsyscall32").exists(), "this kernel has no entry for 32-bit code"),
    "interpreter": _gap_unless(
        lambda: os.access(sys.executable, os.X_OK) and os.access(os.__file__, os.R_OK),
        "this user may not start the interpreter",
    ),
    "io-uring": _find_io_uring_gap,
    "ipv6": _find_ipv6_gap,
    "library": _gap_unless(lambda: find_library() is not None, f"there is no {_LIBRARY} beside the C library"),
    "many-users": _find_user_gap,
    "nice": _gap_unless(lambda: _has(_CAP_SYS_NICE), "root has no CAP_SYS_NICE"),
    "perf": _find_perf_gap,
    "processors": _gap_unless(lambda: len(os.sched_getaffinity(0)) > 1, "there is one processor only"),
    "ptrace": _find_ptrace_gap,
    "set-user-id-program": _gap_unless(
        lambda: find_set_user_id_program() is not None, "no program with the set-user-ID bit was found"
    ),
    "terminal-input": _find_terminal_gap,
    "user-namespaces": _find_user_namespace_gap,
    "vsyscall": _gap_unless(
        lambda: "[vsyscall]" in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace"),
        "this kernel has no page of calls at a fixed address",
    ),
    "writable-settings": _gap_unless(
        lambda: os.access("/proc/sysrq-trigger", os.W_OK) and not _is_read_only("/proc/sys"),
        "the settings of the kernel cannot be written here",
    ),
}


def _number(path: str, default: int) -> int:
    """A setting of the kernel; `default` when this kernel does not have it."""
    try:
        return int(Path(path).read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return default


def _status(field: str) -> str | None:
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return value.strip()
    return None


def _has(capability: int) -> bool:
    return int(_status("CapEff") or "0", 16) >> capability & 1 == 1


def _is_in_first_user_namespace() -> bool:
    return Path("/proc/self/uid_map").read_text(encoding="ascii").split() == ["0", "0", "4294967295"]


def _is_read_only(folder: str) -> bool:
    return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)
