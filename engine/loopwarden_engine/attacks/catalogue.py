"""The catalogue: what each attack tries, how it is proved, and which walls stop it alone.

TOML, because an attack is a few lines of Python that people have to read: its literal strings hold them as they are.
The code finds the names of `loopwarden_engine.attacks.toolbox` and leaves what it obtained in `out`.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from loopwarden_engine.confinement import WALLS

__all__ = ["EVIDENCE", "FILES", "LAUNCHER", "Attack", "StoppedBy", "load_catalogue"]

FILES: Final = (
    "reading",
    "writing",
    "proc",
    "sockets",
    "descriptors",
    "processes",
    "others",
    "memory",
    "kernel",
    "namespaces",
    "privileges",
    "channel",
    "allowed",
)
"""The files of the catalogue, in the order in which they are shown."""

LAUNCHER: Final = "launcher"
"""What is no wall around a worker, but stops some attacks alone: a launcher that passes nothing of the host on."""

EVIDENCE: Final[Mapping[str, str]] = {
    "answer": "the worker answered with what only success gives: the value in `expects`",
    "arrived": "a word that nobody else knows arrived at a socket or terminal of the runner",
    "descriptor": "the runner received a descriptor over the channel",
    "echo": "the worker answered with a word that went through the kernel",
    "folder": "a folder of the runner is not what it was",
    "forged": "the runner received a message that the kernel stamped with the runner's own process number",
    "host-clock": "the worker answered with a processor time between two readings by the runner",
    "host-memory": "memory of the runner is not what it was",
    "kernel": "the kernel carried the call out, or looked at its arguments: its answer is one of `expects`",
    "listens": "the runner could connect to a socket of the worker",
    "process": "a message came from another process than the worker, by the kernel's stamp",
    "program": "another program than the interpreter spoke, and the kernel names it as the worker's",
    "root": "the kernel says that the worker has become root",
    "said": "a line arrived by another call than the one that the channel permits",
    "secret": "the worker answered with a secret of the runner",
    "secret-said": "a secret of the runner arrived on the channel",
    "thread": "the kernel counts a second thread in the worker",
    "typed": "a key was typed into a terminal of the runner",
    "urgent": "the runner received a byte out of band",
    "victim": "another process of the runner is not what it was: dead, traced, or with other settings",
    "worker": "the kernel says something else of the worker than before: identity, limits, signals, group",
}
"""The kinds of evidence. None of them is that something raised, or did not raise, an exception."""

_MACHINES: Final = ("x86_64", "aarch64")
_IDENTITIES: Final = ("root", "ordinary")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedBy:
    """A wall that stops an attack when it stands alone.

    `landlock_abi`: from this version on; `identity`: only for workers that begin as `root`, or as an `ordinary` user;
    None: for both.
    """

    wall: str
    landlock_abi: int = 1
    identity: str | None = None

    def holds(self, identity: str, landlock_abi: int) -> bool:
        """Whether it is claimed for workers that begin as `identity` on a kernel with this Landlock."""
        right_kernel = self.wall != "landlock" or landlock_abi >= self.landlock_abi
        return right_kernel and self.identity in (None, identity)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One entry of the catalogue.

    `identity` and `machine`: None, or the only one for which it means something. `needs`: what a machine must have or
    permit, by the names of `loopwarden.machine`. `stage`: what the runner has to set up besides what every attack
    finds. `start`: "launcher", or "child" for what only a process can obtain that was started without care. `before`:
    code that runs before the walls stand.
    """

    id: str
    family: str
    known_from: str
    goal: str
    evidence: str
    expects: Any
    code: str
    before: str
    stopped_by: tuple[StoppedBy, ...]
    identity: str | None
    machine: str | None
    needs: tuple[str, ...]
    stage: str | None
    start: str

    def concerns(self, identity: str, machine: str) -> bool:
        """Whether it means something for workers that begin as `identity` on this kind of processor."""
        return self.identity in (None, identity) and self.machine in (None, machine)


def load_catalogue() -> tuple[Attack, ...]:
    """Every attack, in order. Raises `ValueError` when an entry is not what it must be."""
    found: dict[str, Attack] = {}
    for name in FILES:
        table = tomllib.loads(Path(__file__).with_name(f"{name}.toml").read_text(encoding="utf-8"))
        for entry in table["attack"]:
            attack = _read(entry)
            if attack.id in found:
                raise ValueError(f"attack {attack.id} stands twice in the catalogue")
            found[attack.id] = attack
    return tuple(found.values())


def _read(entry: dict[str, Any]) -> Attack:
    given = dict(entry)
    attack = Attack(
        id=given.pop("id"),
        family=given.pop("family"),
        known_from=given.pop("known_from"),
        goal=given.pop("goal"),
        evidence=given.pop("evidence"),
        expects=given.pop("expects", None),
        code=given.pop("code"),
        before=given.pop("before", ""),
        stopped_by=tuple(_read_stopped_by(text) for text in given.pop("stopped_by")),
        identity=given.pop("identity", None),
        machine=given.pop("machine", None),
        needs=tuple(given.pop("needs", ())),
        stage=given.pop("stage", None),
        start=given.pop("start", LAUNCHER),
    )
    problems = [
        (given, f"unknown keys {sorted(given)}"),
        (attack.evidence not in EVIDENCE, f"unknown evidence {attack.evidence}"),
        (attack.identity not in (None, *_IDENTITIES), f"unknown identity {attack.identity}"),
        (attack.machine not in (None, *_MACHINES), f"unknown machine {attack.machine}"),
        (attack.start not in (LAUNCHER, "child"), f"unknown start {attack.start}"),
        (not attack.stopped_by, "no wall stops it alone"),
        ((attack.expects is not None) != (attack.evidence in ("answer", "kernel")), "expects and evidence do not fit"),
    ]
    for is_wrong, text in problems:
        if is_wrong:
            raise ValueError(f"attack {attack.id}: {text}")
    return attack


def _read_stopped_by(text: str) -> StoppedBy:
    """Read `seccomp`, `landlock abi 6` or `rlimits as ordinary`."""
    wall, *rest = text.split()
    if wall not in (LAUNCHER, *WALLS):
        raise ValueError(f"unknown wall {wall}")
    match rest:
        case []:
            return StoppedBy(wall=wall)
        case ["abi", number] if wall == "landlock":
            return StoppedBy(wall=wall, landlock_abi=int(number))
        case ["as", identity] if identity in _IDENTITIES:
            return StoppedBy(wall=wall, identity=identity)
        case _:
            raise ValueError(f"cannot be read: {text}")
