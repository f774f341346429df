"""What the kernel says of this process and of its own settings, as small answers."""

from pathlib import Path
from typing import Final

__all__ = [
    "CAPABILITIES",
    "has_capability",
    "is_in_first_user_namespace",
    "read_number",
    "read_status",
]

CAPABILITIES: Final = {
    "chown": 0,
    "dac-read-search": 2,
    "setgid": 6,
    "setuid": 7,
    "setpcap": 8,
    "net-raw": 13,
    "ipc-lock": 14,
    "sys-module": 16,
    "sys-rawio": 17,
    "sys-chroot": 18,
    "sys-ptrace": 19,
    "sys-pacct": 20,
    "sys-admin": 21,
    "sys-boot": 22,
    "sys-nice": 23,
    "sys-resource": 24,
    "sys-time": 25,
    "mknod": 27,
    "syslog": 34,
    "perfmon": 38,
    "bpf": 39,
}
"""The rights of root by their names without `CAP_`, with their numbers in linux/capability.h."""


def read_number(path: str, default: int) -> int:
    """A setting of the kernel; `default` when this kernel does not have it, or does not show it."""
    try:
        return int(Path(path).read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return default


def read_status(field: str) -> str | None:
    """A field of /proc/self/status; None when this kernel does not have it."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return value.strip()
    return None


def has_capability(name: str) -> bool:
    """Whether this process has a right of root, by a name of `CAPABILITIES`."""
    return int(read_status("CapEff") or "0", 16) >> CAPABILITIES[name] & 1 == 1


def is_in_first_user_namespace() -> bool:
    """Whether the users of this process are those of the machine."""
    return Path("/proc/self/uid_map").read_text(encoding="ascii").split() == ["0", "0", "4294967295"]
