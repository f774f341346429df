"""Who a worker is to the kernel: nobody, with no capability and no way back; and whose death it shares."""

import ctypes
import os
import signal
from typing import Final

from loopwarden_engine.confinement.kernel import call_kernel, set_process_option
from loopwarden_engine.confinement.wall import ConfinementError, WallMissing

__all__ = ["become_nobody", "renounce_privileges"]

_NOBODY: Final = 65534  # the overflow identity: owns nothing, and is mapped in the usual user namespaces

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_PR_SET_NO_NEW_PRIVS: Final = 38

_CAPSET: Final = {"x86_64": 126, "aarch64": 91}
_CAPABILITY_VERSION_3: Final = 0x20080522


class _CapabilityHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


_capability_header: Final = _CapabilityHeader(_CAPABILITY_VERSION_3, 0)
_no_capabilities: Final = ctypes.create_string_buffer(24)
_capset_number: Final = _CAPSET.get(os.uname().machine)


def become_nobody() -> None:
    """Drop groups, group and user. Raises `WallMissing` when not root, `OSError` when the kernel refuses."""
    if os.geteuid() != 0:
        raise WallMissing("not root: a worker runs as the same user")
    os.setgroups([])
    os.setresgid(_NOBODY, _NOBODY, _NOBODY)
    os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    if os.getresuid() != (_NOBODY,) * 3 or os.getresgid() != (_NOBODY,) * 3:
        raise WallMissing("the identity did not change")


def renounce_privileges(parent_pid: int) -> None:
    """No capability, no new privilege, not dumpable, dead when the parent is.

    Comes after `become_nobody`: a change of user clears the parent-death signal and may set the dumpable flag. Raises
    `OSError` when the kernel refuses, and `ConfinementError`, whatever walls are required, when the parent died
    before the signal was asked for: nothing would ever end this process then.
    """
    if _capset_number is not None:
        call_kernel(_capset_number, ctypes.addressof(_capability_header), ctypes.addressof(_no_capabilities))
    set_process_option(_PR_SET_NO_NEW_PRIVS, 1)
    set_process_option(_PR_SET_DUMPABLE, 0)
    set_process_option(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        raise ConfinementError("no_new_privileges", "the launcher is gone")
