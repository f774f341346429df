"""What this machine has and permits, as far as attacks need it: why a control cannot succeed here."""

import ctypes
import errno
import os
import platform
import re
import resource
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from loopwarden.machine_programs import LIBRARY, SHELL, find_library, find_loader, find_set_user_id_program
from loopwarden.machine_state import (
    CAPABILITIES,
    has_capability,
    is_in_first_user_namespace,
    read_number,
    read_status,
)
from loopwarden.machine_trials import FOLDER_TRIALS, TRIALS, try_user_namespace

__all__ = ["KERNEL_LACKS", "NEEDS", "find_gaps", "find_general_limits", "find_reason"]

KERNEL_LACKS: Final[Mapping[int, str]] = {
    errno.ENOSYS: "this kernel has no such call",
    errno.EAFNOSUPPORT: "this kernel has no such sockets",
    errno.EPROTONOSUPPORT: "this kernel has no such protocol",
    errno.ESOCKTNOSUPPORT: "this kernel has no such sockets",
    errno.ENOPROTOOPT: "this kernel has no such protocol",
    errno.EOPNOTSUPP: "this file system or kernel does not support it",
    errno.ENODEV: "this kernel has no such device",
    errno.EMFILE: "this process or this user has as many of them as are allowed",
    errno.ENFILE: "this machine has as many open files as are allowed",
    errno.ENOSPC: "this machine has as many of them as are allowed",
    errno.EDQUOT: "this user has used up what is allowed of it",
    errno.EUSERS: "this user has as many of them as are allowed",
}
"""Errors that say by themselves that there is nothing to attack, or no more to be had."""

_ALL_USERS: Final = 60_000
_PAGE_BYTES: Final = 4096
_RING_BYTES: Final = 1 << 16
_LEAST_MEMORY_BYTES: Final = 512 << 20
_LEAST_PROCESSOR_SECONDS: Final = 11
"""The limits behind the wall: where a process begins with no more, an attack on them shows nothing."""
_LOWEST_PRIORITY: Final = 19
_LIKELY_TO_GO: Final = 1000
_PR_GET_DUMPABLE: Final = 3
_NAMESPACES: Final = ("mnt", "net", "pid", "user", "uts")


def find_general_limits() -> str | None:
    """Why any control may fail here although it is in order: this process itself is confined; None when it is not."""
    if read_status("Seccomp") not in ("0", None):
        return "this process is behind a filter of system calls, as in a container"
    if os.geteuid() == 0 and not is_in_first_user_namespace():
        return "root is not root of this machine: it is inside a user namespace"
    if os.geteuid() == 0 and not all(has_capability(name) for name in ("sys-ptrace", "sys-admin", "mknod")):
        return "root has not all its capabilities, as in a container"
    return None


def find_gaps(folder: Path) -> dict[str, str]:
    """Which needs of attacks are not met here, and why. `folder` is an own one, where files can be tried."""
    found = {need: find() for need, find in NEEDS.items() if need not in FOLDER_TRIALS}
    tried = folder / "tried"
    tried.mkdir()
    found |= {need: find(tried) for need, find in FOLDER_TRIALS.items()}
    tried.rmdir()
    return {need: reason for need, reason in found.items() if reason is not None}


def find_reason(need: str, gaps: Mapping[str, str]) -> str | None:
    """Why a need of an attack is not met; None when it is. `linux-5.13` asks for a kernel of at least this version."""
    if not need.startswith("linux-"):
        return gaps.get(need)
    wanted = need.removeprefix("linux-")
    found = [int(number) for number in re.findall(r"\d+", platform.release())[:2]]
    return None if found >= [int(number) for number in wanted.split(".")] else f"this kernel is older than {wanted}"


# ---- single needs: None when met


def _find_ptrace_gap() -> str | None:
    scope = read_number("/proc/sys/kernel/yama/ptrace_scope", 0)
    if scope == 0 or (scope < 3 and has_capability("sys-ptrace")):
        return None
    return f"kernel.yama.ptrace_scope is {scope}"


def _find_visibility_gap() -> str | None:
    is_visible = ctypes.CDLL(None).prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0) == 1 or has_capability("sys-ptrace")
    return None if is_visible else "the memory of this process is closed to its own user"


def _find_user_namespace_gap() -> str | None:
    missing = [name for name in _NAMESPACES if not Path("/proc/self/ns", name).is_symlink()]
    if missing:
        return f"this kernel has no namespaces of these kinds: {', '.join(missing)}"
    if read_number("/proc/sys/user/max_user_namespaces", 1) == 0:
        return "user.max_user_namespaces is 0"
    if not has_capability("sys-admin"):
        if read_number("/proc/sys/kernel/unprivileged_userns_clone", 1) == 0:
            return "kernel.unprivileged_userns_clone is 0"
        if read_number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", 0) != 0:
            return "kernel.apparmor_restrict_unprivileged_userns is set"
    return try_user_namespace()


def _find_perf_gap() -> str | None:
    level = read_number("/proc/sys/kernel/perf_event_paranoid", 0)
    is_allowed = level <= 2 or has_capability("sys-admin") or has_capability("perfmon")
    return None if is_allowed else f"perf_event_paranoid is {level}"


def _find_io_uring_gap() -> str | None:
    level = read_number("/proc/sys/kernel/io_uring_disabled", 0)
    if level != 0 and not (level == 1 and has_capability("sys-admin")):
        return f"kernel.io_uring_disabled is {level}"
    return None if _is_lockable(_RING_BYTES) else "the limit of locked memory is lower than a ring needs"


def _find_terminal_input_gap() -> str | None:
    is_allowed = has_capability("sys-admin") or read_number("/proc/sys/dev/tty/legacy_tiocsti", 1) == 1
    return None if is_allowed else "dev.tty.legacy_tiocsti is 0"


def _find_user_gap() -> str | None:
    counts = [int(line.split()[2]) for line in Path("/proc/self/uid_map").read_text(encoding="ascii").splitlines()]
    return None if sum(counts) >= _ALL_USERS else "this user namespace has few users"


def _find_set_user_id_gap() -> str | None:
    if read_status("NoNewPrivs") == "1":
        return "this process, and whatever it starts, can get no privileges"
    return None if find_set_user_id_program() is not None else "no program with the set-user-ID bit was found"


def _find_lockdown_gap() -> str | None:
    try:
        state = Path("/sys/kernel/security/lockdown").read_text(encoding="ascii")
    except OSError:
        return None
    return None if "[none]" in state else "the kernel is locked down"


def _find_limit_gap() -> str | None:
    memory = resource.getrlimit(resource.RLIMIT_AS)[1]
    seconds = resource.getrlimit(resource.RLIMIT_CPU)[1]
    is_low = 0 <= memory <= _LEAST_MEMORY_BYTES or 0 <= seconds <= _LEAST_PROCESSOR_SECONDS
    return "the limits of this process are no higher than those behind the wall" if is_low else None


def _is_lockable(wanted_bytes: int) -> bool:
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return has_capability("ipc-lock") or not 0 <= soft < wanted_bytes


def _is_writable(path: str) -> bool:
    return os.access(path, os.W_OK) and not os.statvfs(path).f_flag & os.ST_RDONLY


def _gap_unless(is_met: Callable[[], bool], reason: str) -> Callable[[], str | None]:
    return lambda: None if is_met() else reason


def _gap_unless_at_most(path: str, most: int) -> Callable[[], str | None]:
    name = path.removeprefix("/proc/sys/").replace("/", ".")
    return _gap_unless(lambda: read_number(path, 0) <= most, f"{name} is above {most}")


NEEDS: Final[Mapping[str, Callable[[], str | None]]] = {
    **TRIALS,
    **dict.fromkeys(FOLDER_TRIALS, lambda: None),
    **{
        f"cap-{name}": _gap_unless(lambda name=name: has_capability(name), f"root has no {name} capability")  # type: ignore[misc]
        for name in CAPABILITIES
    },
    "cap-bpf": _gap_unless(lambda: has_capability("bpf") or has_capability("sys-admin"), "root has no bpf capability"),
    "fast-open": _gap_unless(
        lambda: read_number("/proc/sys/net/ipv4/tcp_fastopen", 0) & 1 == 1, "net.ipv4.tcp_fastopen is off"
    ),
    "interpreter": _gap_unless(
        lambda: os.access(sys.executable, os.X_OK) and os.access(os.__file__, os.R_OK),
        "this user may not start the interpreter",
    ),
    "io-uring": _find_io_uring_gap,
    "kernel-symbols": _gap_unless(
        lambda: os.access("/proc/kallsyms", os.R_OK), "this kernel shows no list of its symbols"
    ),
    "kexec": _gap_unless_at_most("/proc/sys/kernel/kexec_load_disabled", 0),
    "library": _gap_unless(lambda: find_library() is not None, f"there is no {LIBRARY} beside the C library"),
    "limits": _find_limit_gap,
    "loader": _gap_unless(lambda: find_loader() is not None, f"{SHELL} is no program that has a loader"),
    "lockable-memory": _gap_unless(
        lambda: _is_lockable(_PAGE_BYTES), "the limit of locked memory is lower than a page"
    ),
    "many-users": _find_user_gap,
    "memory-files": _gap_unless_at_most("/proc/sys/vm/memfd_noexec", 1),
    "memory-programs": _gap_unless_at_most("/proc/sys/vm/memfd_noexec", 0),
    "modules": _gap_unless_at_most("/proc/sys/kernel/modules_disabled", 0),
    "no-lockdown": _find_lockdown_gap,
    "oom-score": _gap_unless(
        lambda: has_capability("sys-resource") or read_number("/proc/self/oom_score_adj", 0) < _LIKELY_TO_GO,
        "this process is already the first that the kernel ends when memory is short",
    ),
    "perf": _find_perf_gap,
    "priority": _gap_unless(
        lambda: has_capability("sys-nice") or os.getpriority(os.PRIO_PROCESS, 0) < _LOWEST_PRIORITY,
        "this process already has the lowest priority",
    ),
    "processors": _gap_unless(lambda: len(os.sched_getaffinity(0)) > 1, "there is one processor only"),
    "ptrace": _find_ptrace_gap,
    "random-device": _gap_unless(lambda: os.access("/dev/urandom", os.R_OK), "there is no /dev/urandom"),
    "set-user-id-program": _find_set_user_id_gap,
    "shell": _gap_unless(lambda: os.access(SHELL, os.X_OK), "there is no /bin/sh"),
    "terminal-input": _find_terminal_input_gap,
    "user-namespaces": _find_user_namespace_gap,
    "visible-host": _find_visibility_gap,
    "vsyscall": _gap_unless(
        lambda: "[vsyscall]" in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace"),
        "this kernel has no page of calls at a fixed address",
    ),
    "writable-settings": _gap_unless(
        lambda: _is_writable("/proc/sysrq-trigger") and _is_writable("/proc/sys/kernel/core_pattern"),
        "the settings of the kernel cannot be written here",
    ),
}
"""What attacks need, by the names in `needs` of the catalogue. Those of files are found by `find_gaps` alone."""
