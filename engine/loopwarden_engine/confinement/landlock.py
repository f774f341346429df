"""Landlock: a domain without a single rule, so that no file, no port and nobody outside can be reached.

Source: linux/Documentation/userspace-api/landlock.rst, linux/include/uapi/linux/landlock.h.
"""

import ctypes
import os
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Final

from loopwarden_engine.confinement.kernel import ask, call_kernel
from loopwarden_engine.confinement.wall import WallMissing

__all__ = ["Ruleset", "deny_everything", "describe_landlock", "find_ruleset"]

_CREATE_RULESET: Final = 444
_RESTRICT_SELF: Final = 446
_ASK_VERSION: Final = 1  # LANDLOCK_CREATE_RULESET_VERSION

_FILE_RIGHTS_BY_ABI: Final = (13, 14, 15, 15, 16)
"""How many bits of handled_access_fs ABI 1, 2, … knows; later ones added none."""
_NETWORK_ABI: Final = 4
_BIND_AND_CONNECT_TCP: Final = 0b11
_SCOPE_ABI: Final = 6
_ABSTRACT_SOCKETS_AND_SIGNALS: Final = 0b11
_LOG_ABI: Final = 7
_LOG_NOTHING_OF_THIS_PROGRAM: Final = 1  # LANDLOCK_RESTRICT_SELF_LOG_SAME_EXEC_OFF

_READABLE_FOR_ALL: Final = ("/", "/proc/self/status", "/dev/null", "/etc/passwd", "/usr")
"""What nearly every system lets everybody open: one of them shows that the domain is there."""


class _RulesetAttributes(ctypes.Structure):
    """struct landlock_ruleset_attr."""

    _fields_ = (
        ("handled_access_fs", ctypes.c_uint64),
        ("handled_access_net", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruleset:
    """What this kernel is asked to handle; `size_bytes` is as much of the structure as its ABI knows."""

    abi: int
    attributes: _RulesetAttributes
    size_bytes: int

    @property
    def covers_tcp(self) -> bool:
        """Whether no TCP port can be bound or connected to."""
        return self.abi >= _NETWORK_ABI

    @property
    def covers_scopes(self) -> bool:
        """Whether nobody outside can be signalled or reached through an abstract socket."""
        return self.abi >= _SCOPE_ABI


@cache
def find_ruleset() -> Ruleset | None:
    """Ask the kernel for its Landlock ABI, once; None when it has none. Called before the fork."""
    try:
        return _ruleset(_ask_version())
    except WallMissing:
        return None


def _ask_version() -> int:
    abi: int = ask("landlock_create_ruleset", call_kernel, _CREATE_RULESET, 0, 0, _ASK_VERSION)
    if abi < 1:
        raise WallMissing("landlock_create_ruleset answers, but knows no Landlock")
    return abi


def _ruleset(abi: int) -> Ruleset:
    rights = _FILE_RIGHTS_BY_ABI[min(abi, len(_FILE_RIGHTS_BY_ABI)) - 1]
    attributes = _RulesetAttributes((1 << rights) - 1, 0, 0)
    size_bytes = 8
    if abi >= _NETWORK_ABI:
        attributes.handled_access_net = _BIND_AND_CONNECT_TCP
        size_bytes = 16
    if abi >= _SCOPE_ABI:
        attributes.scoped = _ABSTRACT_SOCKETS_AND_SIGNALS
        size_bytes = 24
    return Ruleset(abi=abi, attributes=attributes, size_bytes=size_bytes)


def describe_landlock() -> str:
    """What the domain covers on this kernel, and what it leaves to the other walls, for a person."""
    ruleset = find_ruleset()
    if ruleset is None:
        return "this kernel has no Landlock, or it is switched off"
    covers = {"files": True, "TCP": ruleset.covers_tcp, "signals and abstract sockets": ruleset.covers_scopes}
    covered = [what for what, is_covered in covers.items() if is_covered]
    others = [what for what, is_covered in covers.items() if not is_covered]
    left = f"; {' and '.join(others)} are left to seccomp alone" if others else ""
    return f"ABI {ruleset.abi}: {', '.join(covered)}{left}"


def deny_everything() -> None:
    """Enter the domain, for good, and look. Raises `WallMissing` when the kernel cannot, refuses or does nothing."""
    ruleset = find_ruleset()
    if ruleset is None:
        # Asked once more, for the reason.
        ruleset = _ruleset(_ask_version())
    witness = next(filter(_can_open, _READABLE_FOR_ALL), None)
    if witness is None:
        raise WallMissing("it cannot be verified: no file could be opened before either")
    descriptor = ask(
        "landlock_create_ruleset",
        call_kernel,
        _CREATE_RULESET,
        ctypes.addressof(ruleset.attributes),
        ruleset.size_bytes,
        0,
    )
    # Trying the witness would otherwise leave a line in the system's audit log for every run.
    flags = _LOG_NOTHING_OF_THIS_PROGRAM if ruleset.abi >= _LOG_ABI else 0
    try:
        ask("landlock_restrict_self", call_kernel, _RESTRICT_SELF, descriptor, flags)
    finally:
        with suppress(OSError):
            os.close(descriptor)
    if _can_open(witness):
        raise WallMissing("landlock_restrict_self changed nothing")


def _can_open(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
