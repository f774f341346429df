"""Landlock: a domain without a single rule, so that no file, no port and nobody outside can be reached.

Source: linux/Documentation/userspace-api/landlock.rst, linux/include/uapi/linux/landlock.h.
"""

import ctypes
import os
from dataclasses import dataclass
from functools import cache
from typing import Final

from loopwarden_engine.confinement.kernel import call_kernel
from loopwarden_engine.confinement.wall import WallMissing

__all__ = ["deny_everything", "describe_landlock", "find_ruleset"]

_CREATE_RULESET: Final = 444
_RESTRICT_SELF: Final = 446
_ASK_VERSION: Final = 1  # LANDLOCK_CREATE_RULESET_VERSION

_FILE_RIGHTS_BY_ABI: Final = (13, 14, 15, 15, 16)
"""How many bits of handled_access_fs ABI 1, 2, … knows; later ones added none."""
_NETWORK_ABI: Final = 4
_BIND_AND_CONNECT_TCP: Final = 0b11
_SCOPE_ABI: Final = 6
_ABSTRACT_SOCKETS_AND_SIGNALS: Final = 0b11


class _RulesetAttributes(ctypes.Structure):
    """struct landlock_ruleset_attr."""

    _fields_ = (
        ("handled_access_fs", ctypes.c_uint64),
        ("handled_access_net", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ruleset:
    """What this kernel is asked to handle; `size_bytes` is as much of the structure as its ABI knows."""

    abi: int
    attributes: _RulesetAttributes
    size_bytes: int


@cache
def find_ruleset() -> _Ruleset | None:
    """Ask the kernel for its Landlock ABI, once; None when it has none. Called before the fork."""
    try:
        abi = call_kernel(_CREATE_RULESET, 0, 0, _ASK_VERSION)
    except OSError:
        return None
    rights = _FILE_RIGHTS_BY_ABI[min(abi, len(_FILE_RIGHTS_BY_ABI)) - 1]
    attributes = _RulesetAttributes((1 << rights) - 1, 0, 0)
    size_bytes = 8
    if abi >= _NETWORK_ABI:
        attributes.handled_access_net = _BIND_AND_CONNECT_TCP
        size_bytes = 16
    if abi >= _SCOPE_ABI:
        attributes.scoped = _ABSTRACT_SOCKETS_AND_SIGNALS
        size_bytes = 24
    return _Ruleset(abi=abi, attributes=attributes, size_bytes=size_bytes)


def describe_landlock() -> str:
    """What the domain covers on this kernel, for a person."""
    ruleset = find_ruleset()
    if ruleset is None:
        return "this kernel has no Landlock, or it is switched off"
    covered = ["files"]
    if ruleset.abi >= _NETWORK_ABI:
        covered.append("TCP")
    if ruleset.abi >= _SCOPE_ABI:
        covered.append("signals and abstract sockets")
    return f"ABI {ruleset.abi}: {', '.join(covered)}"


def deny_everything() -> None:
    """Enter the domain, for good. Raises `WallMissing` without Landlock, `OSError` when the kernel refuses."""
    ruleset = find_ruleset()
    if ruleset is None:
        raise WallMissing(describe_landlock())
    descriptor = call_kernel(_CREATE_RULESET, ctypes.addressof(ruleset.attributes), ruleset.size_bytes, 0)
    try:
        call_kernel(_RESTRICT_SELF, descriptor, 0)
    finally:
        os.close(descriptor)
