"""What an attack obtained, as the runner sees it from outside: in files, sockets, memory, processes and answers."""

import os
import socket
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from loopwarden.attack_stage import Scene, Stage, Victim
from loopwarden_engine.attacks.catalogue import Attack

__all__ = ["Evidence", "Heard"]

_STATUS_FIELDS: Final = (
    "Umask",
    "TracerPid",
    "Uid",
    "Gid",
    "Groups",
    "SigBlk",
    "SigIgn",
    "CapInh",
    "CapPrm",
    "CapEff",
    "CapBnd",
    "CapAmb",
    "NoNewPrivs",
)
_GONE: Final[Mapping[str, str]] = {}


@dataclass(slots=True)
class Heard:
    """What came over the channel of one worker, with the process that sent it by the kernel's stamp."""

    answer: dict[str, Any] | None = None
    lines: list[tuple[int, bytes]] = field(default_factory=list)
    everything: bytearray = field(default_factory=bytearray)
    senders: set[int] = field(default_factory=set)
    descriptors: list[int] = field(default_factory=list)
    urgent: bytes = b""

    @property
    def out(self) -> Any:
        """What the worker says that it obtained."""
        return None if self.answer is None else self.answer.get("out")


class Evidence:
    """Looks before the attack, when it is made, and again whenever `is_there` is asked.

    `worker_pid` is the worker behind its walls, `heard` what came over its channel so far.
    """

    def __init__(self, attack: Attack, stage: Stage, scene: Scene, worker_pid: int, heard: Heard) -> None:
        self._attack = attack
        self._stage = stage
        self._scene = scene
        self._worker_pid = worker_pid
        self._heard = heard
        self._processor_seconds = time.process_time()
        self._name = _status(worker_pid).get("Name")
        self._before = self._snapshot()
        self._check = self._find_check()

    @property
    def sees_worker(self) -> bool:
        """Whether this process saw the worker behind its walls. It has ended otherwise, or it is hidden."""
        return self._name is not None

    def is_there(self) -> bool:
        """Whether the attack obtained what it wanted, as far as can be seen now."""
        return self._check()

    def has_other_program(self) -> bool:
        """Whether another program has taken the place of the interpreter."""
        return _status(self._worker_pid).get("Name", self._name) != self._name

    def is_decided(self) -> bool:
        """Whether nothing can show any more that has not shown yet, once the worker has answered.

        So nobody has to guess how long the kernel, or another process, takes on a machine with much to do.
        """
        match self._attack.evidence:
            case "arrived" | "typed":
                return False
            case "process":
                return _have_all_ended(_children(self._worker_pid))
            case "root":
                # It waits for a pipe that nobody empties, as whom it was made.
                return self._heard.answer is not None or _status(self._worker_pid).get("State", "").startswith("S")
            case "victim":
                assert self._scene.victim is not None
                return self._scene.victim.has_left()
            case _:
                return True

    def _find_check(self) -> Callable[[], bool]:
        heard, secret = self._heard, self._stage.secret.encode()
        checks: dict[str, Callable[[], bool]] = {
            "answer": self._is_answer,
            "arrived": self._has_arrived,
            "descriptor": lambda: bool(heard.descriptors),
            "echo": lambda: heard.out == self._scene.nonce,
            "folder": self._has_changed,
            "forged": lambda: os.getpid() in heard.senders,
            "host-clock": self._is_host_clock,
            "host-memory": self._has_changed,
            "kernel": self._is_kernels_answer,
            "listens": self._listens,
            "process": self._is_another_process,
            "program": self._is_program,
            "root": self._is_root,
            "said": lambda: (self._worker_pid, self._line("said")) in heard.lines,
            "secret": self._is_secret,
            "secret-said": lambda: secret in heard.everything,
            "thread": lambda: _status(self._worker_pid).get("Threads") == "2",
            "typed": self._is_typed,
            "urgent": lambda: heard.urgent == b"!",
            "victim": self._has_changed,
            "worker": self._has_changed,
        }
        return checks[self._attack.evidence]

    def _snapshot(self) -> object:
        match self._attack.evidence:
            case "folder":
                return _folder(self._scene.folder)
            case "victim":
                assert self._scene.victim is not None
                return _victim(self._scene.victim)
            case "worker" | "root":
                return _worker(self._worker_pid, with_name=self._attack.id == "process-name")
            case "host-memory":
                return self._scene.memory.raw
            case _:
                return None

    def _has_changed(self) -> bool:
        # A worker that is gone is no other worker, and a victim that left by itself is none.
        return self._snapshot() not in (self._before, _GONE)

    def _is_answer(self) -> bool:
        out, expects = self._heard.out, self._attack.expects
        return type(out) is type(expects) and bool(out == expects)

    def _is_kernels_answer(self) -> bool:
        return type(self._heard.out) is int and self._heard.out in self._attack.expects

    def _has_arrived(self) -> bool:
        self._stage.listen()
        left_open = self._scene.hear()
        nonce = self._scene.nonce.encode()
        return nonce in self._stage.heard or nonce in left_open or self._stage.secret.encode() in left_open

    def _is_secret(self) -> bool:
        return self._heard.out is not None and self._stage.secret in str(self._heard.out)

    def _is_host_clock(self) -> bool:
        out = self._heard.out
        return type(out) is float and self._processor_seconds <= out <= time.process_time()

    def _listens(self) -> bool:
        address = self._heard.out
        family = socket.AF_INET if isinstance(address, int) else socket.AF_UNIX
        if not isinstance(address, int | str):
            return False
        with socket.socket(family) as client:
            client.settimeout(1)
            try:
                client.connect(("127.0.0.1", address) if isinstance(address, int) else address)
            except OSError:
                return False
        return True

    def _is_another_process(self) -> bool:
        return bool(self._heard.senders - {self._worker_pid, os.getpid()})

    def _is_program(self) -> bool:
        return (self._worker_pid, self._line("program")) in self._heard.lines and self.has_other_program()

    def _is_root(self) -> bool:
        return _status(self._worker_pid).get("Uid", "").split()[1:2] == ["0"]

    def _is_typed(self) -> bool:
        return b"!" in self._scene.hear()

    def _line(self, word: str) -> bytes:
        return f"{word} {self._scene.nonce}".encode()


def _folder(folder: Path) -> list[tuple[Any, ...]]:
    """Everything about the entries of a folder but when they were read."""
    return [_entry(path) for path in sorted(folder.iterdir())]


def _entry(path: Path) -> tuple[Any, ...]:
    """One that goes while it is looked at is an entry that has changed."""
    try:
        facts = path.lstat()
        content: object = None
        if stat.S_ISREG(facts.st_mode):
            content = path.read_bytes()
        elif stat.S_ISLNK(facts.st_mode):
            content = path.readlink()
        attributes = os.listxattr(path, follow_symlinks=False)
    except FileNotFoundError:
        return (path.name, "gone")
    kept = (facts.st_mode, facts.st_uid, facts.st_gid, facts.st_nlink, facts.st_size, facts.st_mtime_ns)
    return (path.name, *kept, facts.st_ino, attributes, content)


def _victim(victim: Victim) -> Mapping[str, Any]:
    ended = victim.find_status()
    if ended is not None:
        return {"killed": True} if ended < 0 else _GONE
    return {
        "tracer": _status(victim.pid).get("TracerPid"),
        "oom": Path(f"/proc/{victim.pid}/oom_score_adj").read_text(encoding="ascii"),
        **_scheduling(victim.pid),
    }


def _worker(pid: int, *, with_name: bool) -> Mapping[str, Any]:
    status = _status(pid)
    try:
        scheduling = _scheduling(pid)
    except OSError:
        return _GONE
    names = (*_STATUS_FIELDS, "Name") if with_name else _STATUS_FIELDS
    if "Umask" not in status:
        return _GONE
    return {name: status.get(name) for name in names} | scheduling


def _children(pid: int) -> list[int] | None:
    """Its children, the dead among them; None when this kernel does not tell."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    except OSError:
        return None
    return [int(child) for child in text.split()]


def _have_all_ended(pids: list[int] | None) -> bool:
    """Whether they are dead, all of at least one."""
    return bool(pids) and all(_status(pid).get("State", "Z").startswith("Z") for pid in pids or ())


def _scheduling(pid: int) -> dict[str, Any]:
    """What everybody may see of a process. Raises `OSError` when it is gone, or hidden."""
    return {
        "limits": Path(f"/proc/{pid}/limits").read_text(encoding="ascii"),
        "priority": os.getpriority(os.PRIO_PROCESS, pid),
        "scheduler": os.sched_getscheduler(pid),
        "processors": sorted(os.sched_getaffinity(pid)),
        "group": (os.getsid(pid), os.getpgid(pid)),
    }


def _status(pid: int) -> dict[str, str]:
    """/proc/PID/status; empty when the process is gone or hidden, and short when it is dead."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}
