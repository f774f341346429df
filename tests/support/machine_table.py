"""The machines of `tests/scenario/test_weak_machines.py`, and what must be said of each."""

import errno
import os
import resource
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from loopwarden_engine.confinement import landlock
from support.machines import NOTHING, Machine, Patch, Rule

CAP_KILL, CAP_SETGID, CAP_SETUID = 5, 6, 7
_ALL_CAPABILITIES = tuple(range(41))
_PRCTL = {"no_new_privs": 38, "dumpable": 4, "pdeathsig": 1}
_LIMITS = ("AS", "CPU", "FSIZE", "CORE", "NPROC", "NOFILE")
_CALLS: tuple[tuple[str, str, Callable[[int], Rule]], ...] = (
    ("landlock_create_ruleset", "landlock", lambda answer: Rule(call="landlock_create_ruleset", answer=answer)),
    ("landlock_restrict_self", "landlock", lambda answer: Rule(call="landlock_restrict_self", answer=answer)),
    ("seccomp", "seccomp", lambda answer: Rule(call="seccomp", answer=answer)),
    ("setgroups", "identity", lambda answer: Rule(call="setgroups", answer=answer)),
    ("setresgid", "identity", lambda answer: Rule(call="setresgid", answer=answer)),
    ("setresuid", "identity", lambda answer: Rule(call="setresuid", answer=answer)),
    ("capset", "no_new_privileges", lambda answer: Rule(call="capset", answer=answer)),
    *(
        (f"prctl {name}", "no_new_privileges", lambda answer, option=option: Rule(
            call="prctl", answer=answer, equals={0: option}))
        for name, option in _PRCTL.items()
    ),
    *(
        (f"setrlimit RLIMIT_{name}", "rlimits", lambda answer, name=name: Rule(
            call="prlimit64", answer=answer, equals={1: getattr(resource, f"RLIMIT_{name}")}, given=2))
        for name in _LIMITS
    ),
)  # fmt: skip
"""What a wall calls, by the name under which its reason speaks of it."""

_UNUSUAL_SUCCESS = {
    "landlock_create_ruleset": "landlock_create_ruleset answers, but knows no Landlock",
    "seccomp": "seccomp took the filter and does not apply it",
}

_IS_DUMPABLE_LOST_WITH_THE_USER = Path("/proc/sys/fs/suid_dumpable").read_text().strip() == "0"


def _reason(call: str, answer: int) -> str:
    if answer == NOTHING:
        return _UNUSUAL_SUCCESS.get(call, f"{call} changed nothing")
    if answer == errno.EPERM and call.startswith("setrlimit"):
        return f"{call}: not permitted"
    return f"{call}: {os.strerror(answer)}"


def _failing(call: str, wall: str, rule: Callable[[int], Rule], answer: int) -> Machine:
    name = "does nothing" if answer == NOTHING else errno.errorcode[answer]
    missing = {wall: _reason(call, answer)}
    ordinary = None
    if wall == "identity":
        ordinary = {}
    if call == "capset" and answer == NOTHING:
        # Root loses its capabilities with its user already. An ordinary user has none, unless the tests made one of
        # root (`become_ordinary`), which keeps the one that it needs to read the interpreter.
        missing, ordinary = {}, missing if os.geteuid() == 0 else {}
    if call == "prctl no_new_privs":
        # An ordinary user gets no filter without it, so here it stands before the rules do.
        ordinary = {} if answer == NOTHING else missing
        # Both need it, or capabilities.
        missing = missing | {
            "landlock": "landlock_restrict_self: Operation not permitted",
            "seccomp": "seccomp: Permission denied",
        }
    if call == "prctl dumpable" and answer == NOTHING and _IS_DUMPABLE_LOST_WITH_THE_USER:
        missing, ordinary = {}, missing
    return Machine(name=f"{call}: {name}", rules=(rule(answer),), missing=missing, ordinary=ordinary)


_OFTEN_UNKNOWN = ("landlock_create_ruleset", "landlock_restrict_self", "seccomp", "setrlimit RLIMIT_AS")
"""Calls that old kernels, emulations and containers answer with ENOSYS; the others are as old as Linux."""

_FAILING = [
    _failing(call, wall, rule, answer)
    for call, wall, rule in _CALLS
    for answer in (errno.EPERM, errno.ENOSYS, NOTHING)
    if answer != errno.ENOSYS or call in _OFTEN_UNKNOWN
]


def _whole(call: str, *answers: int, never: str | None = None) -> list[Machine]:
    return [
        Machine(
            name=f"{call}: {'does nothing' if answer == NOTHING else errno.errorcode[answer]}",
            rules=(Rule(call=call, answer=answer),),
            never=None if never is None else never.format(_reason(call, answer)),
        )
        for answer in answers
    ]


def _version(abi: int) -> tuple[Patch, ...]:
    return (Patch(module="loopwarden_engine.confinement.landlock", name="_ask_version", value=lambda: abi),)


def _claims_all_covers_files(abi: int) -> landlock.Ruleset:
    files = landlock._RulesetAttributes((1 << 13) - 1, 0, 0)
    return landlock.Ruleset(abi=7, attributes=files, size_bytes=8)


class _HollowLimits:
    """Limits that can be read back and limit nothing."""

    def __init__(self) -> None:
        self._set: dict[int, tuple[int, int]] = {}

    def setrlimit(self, kind: int, limits: tuple[int, int]) -> None:
        self._set[kind] = limits

    def getrlimit(self, kind: int) -> tuple[int, int]:
        return self._set.get(kind, (-1, -1))

    def __getattr__(self, name: str) -> Any:
        return getattr(resource, name)


_CANNOT_END = "This host cannot end its workers: {}."
_NO_FILE = "it cannot be verified: no file could be opened before either"

SOUND = Machine(name="a sound one")

KERNELS = [
    *_FAILING,
    *_whole("close_range", errno.EPERM, errno.ENOSYS, NOTHING),
    *_whole("pidfd_open", errno.EPERM, errno.ENOSYS, never="Scripts cannot be confined here: {}."),
    *_whole("pidfd_send_signal", errno.EPERM, errno.ENOSYS, NOTHING, never=_CANNOT_END),
    Machine(
        name="Landlock switched off at boot",
        rules=(Rule(call="landlock_create_ruleset", answer=errno.EOPNOTSUPP),),
        missing={"landlock": "landlock_create_ruleset: Operation not supported"},
    ),
    Machine(
        name="a kernel without seccomp filters",
        rules=(Rule(call="seccomp", answer=errno.EINVAL),),
        missing={"seccomp": "seccomp: Invalid argument"},
    ),
    Machine(
        name="neither Landlock nor seccomp",
        rules=(Rule(call="landlock_create_ruleset", answer=errno.ENOSYS), Rule(call="seccomp", answer=errno.ENOSYS)),
        missing={
            "landlock": "landlock_create_ruleset: Function not implemented",
            "seccomp": "seccomp: Function not implemented",
        },
    ),
    Machine(
        name="rulesets that are made of nothing",
        rules=(Rule(call="landlock_create_ruleset", answer=NOTHING, equals={2: 0}),),
        missing={"landlock": "landlock_restrict_self: File descriptor in bad state"},
    ),
    Machine(
        name="descriptors that stay open",
        rules=(Rule(call="close_range", answer=NOTHING), Rule(call="close", answer=NOTHING)),
        around="worker",
        missing={"descriptors": "descriptor 0 cannot be closed"},
    ),
    Machine(
        name="no file to look at",
        patches=(
            Patch(module="loopwarden_engine.confinement.landlock", name="_READABLE_FOR_ALL", value=("/nowhere",)),
        ),
        missing={"landlock": _NO_FILE},
    ),
    Machine(
        name="a ruleset that leaves out what it promises",
        patches=(
            Patch(module="loopwarden_engine.confinement.landlock", name="_ruleset", value=_claims_all_covers_files),
        ),
        missing={"landlock": "a TCP port can be bound"},
    ),
    Machine(
        name="limits that are kept in mind only",
        patches=(Patch(module="loopwarden_engine.confinement.rlimits", name="resource", value=_HollowLimits()),),
        missing={"rlimits": "a descriptor can be opened"},
    ),
    Machine(
        name="capabilities that stay, unseen",
        rules=(Rule(call="setgroups", answer=errno.EPERM), Rule(call="capset", answer=NOTHING)),
        patches=(Patch(module="loopwarden_engine.confinement.identity", name="has_capabilities", value=lambda: False),),
        around="worker",
        missing={
            "identity": "setgroups: Operation not permitted",
            "no_new_privileges": "the user can still be changed",
        },
        ordinary={},
    ),
    Machine(
        name="a filter that only takes notes",
        patches=(Patch(module="loopwarden_engine.confinement.seccomp", name="KILL_PROCESS", value=0x7FFC0000),),
        missing={"seccomp": "a forbidden call does not end the process"},
    ),
    Machine(
        name="a processor without a table",
        patches=(Patch(module="os", name="uname", value=lambda: SimpleNamespace(machine="riscv64")),),
        missing={"seccomp": "there is no system call table for this processor"},
    ),
    *(
        Machine(
            name=f"Landlock ABI {abi}",
            patches=_version(abi),
            details={"landlock": f"ABI {abi}: {covered}"},
        )
        for abi, covered in (
            (1, "files; TCP and signals and abstract sockets are left to seccomp alone"),
            (3, "files; TCP and signals and abstract sockets are left to seccomp alone"),
            (5, "files, TCP; signals and abstract sockets are left to seccomp alone"),
            (6, "files, TCP, signals and abstract sockets"),
        )
    ),
]

_UNCOUNTED = (
    "no file, no descriptor; memory and processor time are capped; processes are left to seccomp alone, because the "
    "kernel does not count those of root"
)
IDENTITIES = [
    Machine(
        name="root without CAP_KILL",
        lacks=(CAP_KILL,),
        missing={
            "identity": "a worker under another user could not be killed: pidfd_send_signal: Operation not permitted"
        },
        details={"rlimits": _UNCOUNTED},
    ),
    Machine(
        name="root without CAP_SETGID",
        lacks=(CAP_SETGID,),
        missing={"identity": "setgroups: Operation not permitted"},
        details={"rlimits": _UNCOUNTED},
    ),
    Machine(
        name="root without CAP_SETUID",
        lacks=(CAP_SETUID,),
        missing={"identity": "setresuid: Operation not permitted"},
    ),
    Machine(
        name="root without any capability",
        lacks=_ALL_CAPABILITIES,
        missing={"identity": "setgroups: Operation not permitted"},
        details={"rlimits": _UNCOUNTED},
    ),
    Machine(
        name="root of a namespace with one user, as its calls answer",
        rules=(
            Rule(call="setgroups", answer=NOTHING),
            Rule(call="setresgid", answer=errno.EINVAL),
            Rule(call="setresuid", answer=errno.EINVAL),
        ),
        missing={"identity": "setresgid: Invalid argument"},
        ordinary={},
    ),
]
SINGLE_USER = Machine(
    name="root of a namespace with one user",
    single_user=True,
    missing={"identity": "setgroups: Operation not permitted"},
)

FADING = [
    Machine(name=f"{call}: {'does nothing' if answer == NOTHING else errno.errorcode[answer]}", around="later",
            rules=(rule(answer),), missing={wall: ""})
    for call, wall, rule in _CALLS
    for answer in (errno.EPERM, NOTHING)
    if call in ("landlock_restrict_self", "seccomp", "setresuid", "prctl pdeathsig", "setrlimit RLIMIT_NOFILE")
]  # fmt: skip
"""Walls that stand around the probes, and not around a worker. The create call of Landlock is asked once only."""

ALL = {machine.name: machine for machine in (SOUND, *KERNELS, *IDENTITIES, SINGLE_USER)}
LATER = {machine.name: machine for machine in FADING}
