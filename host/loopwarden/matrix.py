"""The escape matrix: each attack of the catalogue without a wall, behind each wall alone, and behind all of them.

Without a wall it must succeed, or it proves nothing; behind all of them it must obtain nothing; and each wall that the
catalogue names must stop it alone. Attacks are made by workers of a launcher like that of runs: the same process, the
same fork, the same walls. What was obtained is seen from outside (`loopwarden.attack_evidence`).
"""

import asyncio
import errno
import os
import platform
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from loopwarden.attack_attempt import AttackLauncher, Attempt, Outcome, attempt_attack
from loopwarden.attack_stage import STAGE_NEEDS, Stage
from loopwarden.failures import LaunchFailed
from loopwarden.launch_command import LaunchCommand
from loopwarden.machine import KERNEL_LACKS, find_gaps, find_general_limits, find_reason
from loopwarden.wall_probe import check_system
from loopwarden_engine.attacks.catalogue import LAUNCHER, Attack, load_catalogue
from loopwarden_engine.confinement import STANDS, WALLS
from loopwarden_engine.confinement.landlock import find_ruleset
from loopwarden_engine.plain import JsonObject

__all__ = ["ALL", "ATTACKS", "BUT_SECCOMP", "COLUMNS", "CONTROL", "Matrix", "Row", "Verdict", "run_matrix"]

ATTACKS: Final = LaunchCommand(module="loopwarden_engine.attacks.worker", factory="Attacker")

CONTROL: Final = "none"
ALL: Final = "all"
BUT_SECCOMP: Final = "but_seccomp"
COLUMNS: Final = (LAUNCHER, *WALLS)
"""What may stop an attack alone."""

_AT_A_TIME: Final = 4


class Verdict(StrEnum):
    """What became of an attack on this machine."""

    STOPPED = "stopped"
    """It succeeds without walls, and obtains nothing behind all of them."""
    ESCAPE = "escape"
    """It obtains something behind all walls that stand."""
    UNPROVEN = "unproven"
    """It does not succeed without walls either, so nothing is shown by its failure."""
    UNCLEAR = "unclear"
    """It did not come to an end in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One attack. `attempts` by what stood around it: "none", a name of `COLUMNS`, "but_seccomp", "all"."""

    attack: Attack
    attempts: Mapping[str, Attempt]
    lost: tuple[str, ...]
    """Walls that the catalogue names, that stand here, and that did not stop it alone."""
    unproven_because: str | None
    """Why the control could not succeed here; empty when nothing explains it. None when it did succeed."""

    @property
    def verdict(self) -> Verdict:
        """See `Verdict`."""
        if self.attempts[ALL].outcome is Outcome.OBTAINED:
            return Verdict.ESCAPE
        if any(attempt.outcome is Outcome.UNCLEAR for attempt in self.attempts.values()):
            return Verdict.UNCLEAR
        return Verdict.STOPPED if self.unproven_because is None else Verdict.UNPROVEN

    @property
    def stopped_by(self) -> tuple[str, ...]:
        """What stopped it alone here; nothing when the control did not succeed."""
        if self.unproven_because is not None:
            return ()
        return tuple(
            column for column in COLUMNS if column in self.attempts and self.attempts[column].outcome is Outcome.STOPPED
        )

    def to_json(self) -> JsonObject:
        """In JSON form."""
        return {
            "id": self.attack.id,
            "family": self.attack.family,
            "knownFrom": self.attack.known_from,
            "goal": self.attack.goal,
            "verdict": str(self.verdict),
            "stoppedBy": list(self.stopped_by),
            "lost": list(self.lost),
            "unprovenBecause": self.unproven_because,
            "attempts": {
                around: {"outcome": str(attempt.outcome), "answer": attempt.answer}
                for around, attempt in self.attempts.items()
            },
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """What came of all attacks. `identity`: "root" or "ordinary", as whom the runner began; `walls` as probed."""

    identity: str
    machine: str
    landlock_abi: int
    walls: Mapping[str, str]
    rows: tuple[Row, ...]
    duration_seconds: float

    def having(self, verdict: Verdict) -> list[Row]:
        """The rows with this verdict."""
        return [row for row in self.rows if row.verdict is verdict]

    @property
    def has_failed(self) -> bool:
        """Whether something got through, stayed unclear, or a wall no longer stops alone what it is known to stop."""
        bad = (Verdict.ESCAPE, Verdict.UNCLEAR)
        return any(row.verdict in bad or row.lost for row in self.rows)

    def to_json(self) -> JsonObject:
        """In JSON form."""
        return {
            "identity": self.identity,
            "machine": self.machine,
            "landlockAbi": self.landlock_abi,
            "walls": dict(self.walls),
            "attacks": [row.to_json() for row in self.rows],
            "durationSeconds": round(self.duration_seconds, 3),
        }


async def run_matrix(
    only: Collection[str] | None = None, *, is_brief: bool = False, command: LaunchCommand = ATTACKS
) -> Matrix:
    """Make every attack that means something here, or those whose ids are in `only`.

    `is_brief`: behind single walls only where the catalogue says that the wall stops it. `command` is for tests of
    the matrix itself. Changes nothing outside a temporary folder, and sets a variable of this process while
    it runs. Raises `LaunchFailed` or `ConfinementUnavailable`.
    """
    check_system()
    _check_proc()
    started = time.monotonic()
    identity = "root" if os.geteuid() == 0 else "ordinary"
    machine = platform.machine()
    wanted = [
        attack
        for attack in load_catalogue()
        if attack.concerns(identity, machine) and (only is None or attack.id in only)
    ]
    general = find_general_limits()
    # What the catalogue claims of root means one that has its rights, and can lose them behind a wall.
    claimed_as = identity if identity != "root" or general is None else "limited"
    ruleset = find_ruleset()
    landlock_abi = 0 if ruleset is None else ruleset.abi
    with Stage() as stage:
        gaps = find_gaps(stage.folder)
        launcher = await AttackLauncher.start(lambda: None, allow_weak_confinement=True, command=command)
        try:
            walls = dict(launcher.walls)
            standing = tuple(wall for wall in WALLS if walls[wall] == STANDS)
            cases = [
                (attack, around, behind)
                for attack in wanted
                for around, behind in _cells(attack, standing)
                if not is_brief or _is_claimed(attack, around, claimed_as, landlock_abi)
            ]
            found = await _attempt_all(launcher, stage, cases)
        finally:
            await launcher.close()
    rows = []
    for attack in wanted:
        because = _explain(attack, found[attack.id][CONTROL], gaps, general)
        lost = _find_lost(attack, found[attack.id], claimed_as, landlock_abi) if because is None else ()
        rows.append(Row(attack=attack, attempts=found[attack.id], lost=lost, unproven_because=because))
    return Matrix(
        identity=identity,
        machine=machine,
        landlock_abi=landlock_abi,
        walls=walls,
        rows=tuple(rows),
        duration_seconds=time.monotonic() - started,
    )


def _check_proc() -> None:
    if not os.access("/proc/self/status", os.R_OK):
        raise LaunchFailed("What an attack obtains cannot be seen here: /proc cannot be read. Mount it, and try again.")
    if os.readlink("/proc/self") != str(os.getpid()):
        raise LaunchFailed(
            "What an attack obtains cannot be seen here: /proc shows the processes of another namespace. "
            "Mount the own one, and try again."
        )


Case = tuple[Attack, str, frozenset[str] | None]
"""An attack, the name of what stands around it, and the walls; None for a process that no launcher made."""


async def _attempt_all(
    launcher: AttackLauncher, stage: Stage, cases: list[Case]
) -> Mapping[str, Mapping[str, Attempt]]:
    found: dict[str, dict[str, Attempt]] = {attack.id: {} for attack, _, _ in cases}
    waiting = iter(cases)

    async def take_turns() -> None:
        for attack, around, behind in waiting:
            attempt = await attempt_attack(launcher, stage, attack, behind)
            if attempt.outcome is Outcome.UNCLEAR:
                # The machine may have been short of memory or time; workers are the first that it kills.
                attempt = await attempt_attack(launcher, stage, attack, behind)
            found[attack.id][around] = attempt

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(_AT_A_TIME):
                group.create_task(take_turns())
    except ExceptionGroup as several:
        raise several.exceptions[0] from None
    return found


def _cells(attack: Attack, standing: tuple[str, ...]) -> Iterator[tuple[str, frozenset[str] | None]]:
    if attack.start == LAUNCHER:
        yield CONTROL, frozenset()
        for wall in standing:
            yield wall, frozenset({wall})
        yield BUT_SECCOMP, frozenset(standing) - {"seccomp"}
    else:
        yield CONTROL, None
        yield LAUNCHER, frozenset()
    yield ALL, frozenset(standing)


def _is_claimed(attack: Attack, around: str, identity: str, landlock_abi: int) -> bool:
    return around in (CONTROL, ALL) or any(
        claim.wall == around and claim.holds(identity, landlock_abi) for claim in attack.stopped_by
    )


def _explain(attack: Attack, control: Attempt, gaps: Mapping[str, str], general: str | None) -> str | None:
    """Why an attack fails without a wall; None when it does not."""
    if control.outcome is Outcome.OBTAINED:
        return None
    needs = (*attack.needs, *STAGE_NEEDS.get(attack.stage or "", ()))
    reasons = [reason for need in needs if (reason := find_reason(need, gaps)) is not None]
    if control.errno is not None and control.errno in KERNEL_LACKS:
        reasons.append(KERNEL_LACKS[control.errno])
    if control.errno == errno.EAGAIN and attack.evidence in ("process", "thread"):
        reasons.append("this user has as many processes as are allowed")
    if general is not None and not reasons:
        reasons.append(general)
    return "; ".join(reasons)


def _find_lost(attack: Attack, attempts: Mapping[str, Attempt], identity: str, landlock_abi: int) -> tuple[str, ...]:
    return tuple(
        claim.wall
        for claim in attack.stopped_by
        if claim.holds(identity, landlock_abi)
        and claim.wall in attempts
        and attempts[claim.wall].outcome is not Outcome.STOPPED
    )
