"""Who a worker is to the kernel: nobody, with no capability and no way back; and whose death it shares."""

import os
import signal
from typing import Final

from loopwarden_engine.confinement.kernel import (
    ask,
    drop_capabilities,
    find_death_signal,
    find_process_option,
    has_capabilities,
    set_process_option,
)
from loopwarden_engine.confinement.wall import ConfinementError, WallMissing, take_all

__all__ = ["become_nobody", "renounce_privileges"]

_NOBODY: Final = 65534  # the overflow identity: owns nothing, and is mapped in the usual user namespaces

_PR_SET_PDEATHSIG: Final = 1
_PR_GET_DUMPABLE: Final = 3
_PR_SET_DUMPABLE: Final = 4
_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_GET_NO_NEW_PRIVS: Final = 39


def become_nobody() -> None:
    """Drop groups, group and user. Raises `WallMissing` when not root, or when the kernel refuses or does nothing."""
    if os.geteuid() != 0:
        raise WallMissing("not root: a worker runs as the same user")
    ask("setgroups", os.setgroups, [])
    ask("setresgid", os.setresgid, _NOBODY, _NOBODY, _NOBODY)
    ask("setresuid", os.setresuid, _NOBODY, _NOBODY, _NOBODY)
    if os.getgroups():
        raise WallMissing("setgroups changed nothing")
    if os.getresgid() != (_NOBODY,) * 3:
        raise WallMissing("setresgid changed nothing")
    if os.getresuid() != (_NOBODY,) * 3:
        raise WallMissing("setresuid changed nothing")


def renounce_privileges(parent_pid: int) -> None:
    """No capability, no new privilege, not dumpable, dead when the parent is; as much of it as can be had.

    Comes after `become_nobody`: a change of user clears the parent-death signal and may set the dumpable flag. Raises
    `WallMissing` when the kernel refuses or does nothing, and `ConfinementError`, whatever walls are required, when
    the parent died before the signal was asked for: nothing would ever end this process then.
    """
    take_all(
        _drop_capabilities,
        lambda: _set_option("prctl no_new_privs", _PR_SET_NO_NEW_PRIVS, 1, _PR_GET_NO_NEW_PRIVS),
        lambda: _set_option("prctl dumpable", _PR_SET_DUMPABLE, 0, _PR_GET_DUMPABLE),
        lambda: _share_death_of(parent_pid),
    )


def _drop_capabilities() -> None:
    ask("capset", drop_capabilities)
    if ask("capget", has_capabilities):
        raise WallMissing("capset changed nothing")


def _set_option(name: str, set_option: int, value: int, get_option: int) -> None:
    ask(name, set_process_option, set_option, value)
    if ask(name, find_process_option, get_option) != value:
        raise WallMissing(f"{name} changed nothing")


def _share_death_of(parent_pid: int) -> None:
    try:
        ask("prctl pdeathsig", set_process_option, _PR_SET_PDEATHSIG, signal.SIGKILL)
        if ask("prctl pdeathsig", find_death_signal) != signal.SIGKILL:
            raise WallMissing("prctl pdeathsig changed nothing")
    finally:
        if os.getppid() != parent_pid:
            raise ConfinementError("no_new_privileges", "the launcher is gone")
