"""Walls that do not stand are reported, never assumed: machines that lack something, simulated one by one.

For each: `loopwarden doctor` says which wall and why, a run is refused in the same words, with
`allow_weak_confinement` it runs and receipt and log say what is missing, and nothing is left behind.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loopwarden_engine.confinement import STANDS, WALLS
from support.machine_table import FADING, IDENTITIES, KERNELS, SINGLE_USER, SOUND
from support.machines import Machine

TESTS = Path(__file__).parent.parent
IS_ROOT = os.geteuid() == 0


class Room:
    """A running `support.machine_room`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.machine_room"],
            cwd=TESTS,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def visit(self, machine: Machine, user: str) -> dict[str, Any]:
        """What a host says on `machine`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"machine": machine.name, "later": machine.around == "later", "user": user}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        assert "broken" not in found, found["broken"]
        assert found["processesLeft"] == []
        assert found["descriptorsLeft"] == []
        return found

    def can_make_user_namespaces(self) -> bool:
        """Found out by a child that tries."""
        program = "import ctypes, sys; sys.exit(ctypes.CDLL(None).unshare(0x10000000) != 0)"
        return subprocess.run([sys.executable, "-c", program], check=False).returncode == 0

    def close(self) -> None:
        """Let it end by itself."""
        self._process.communicate()
        assert self._process.returncode == 0


@pytest.fixture(scope="module")
def room() -> Iterator[Room]:
    made = Room()
    yield made
    made.close()


def check(room: Room, machine: Machine, user: str) -> None:
    """Compare everything that is said with what the table of machines says."""
    found = room.visit(machine, user)
    if machine.never is not None:
        check_refusal_for_good(found, machine.never)
        return
    is_root = user == "root" and (IS_ROOT or machine.single_user)
    missing = machine.missing_for(is_root=is_root)
    needed = {wall: reason for wall, reason in missing.items() if wall != "identity"}
    standing = dict.fromkeys(WALLS, STANDS) | missing

    walls = {wall["name"]: wall for wall in found["doctor"]["walls"]}
    assert {name: STANDS if wall["stands"] else wall["detail"] for name, wall in walls.items()} == standing
    problems = found["doctor"]["problems"]
    assert found["doctor"]["exit"] == (1 if needed else 0)
    assert problems[:-1] == [f"the wall {wall} does not stand: {reason}" for wall, reason in needed.items()]
    if is_root:
        assert {wall: walls[wall]["detail"] for wall in machine.details} == machine.details

    if needed:
        assert found["strict"]["code"] == "CONFINEMENT_UNAVAILABLE"
        assert found["strict"]["details"] == {"walls": needed}
        assert all(f"{wall!r}: {reason}" in told(found) for wall, reason in needed.items())
    else:
        assert found["strict"]["walls"] == standing
    assert found["weak"]["value"] == 1
    assert found["weak"]["walls"] == standing
    assert found["weak"]["log"] == (missing if is_root else needed)


def told(found: dict[str, Any]) -> str:
    """The refusal, with its two ways to name a wall made one."""
    message: str = found["strict"]["message"]
    return message.replace(" does not stand here", "").replace("nor does ", "")


def check_refusal_for_good(found: dict[str, Any], reason: str) -> None:
    for kind in ("strict", "weak"):
        assert found[kind]["code"] == "CONFINEMENT_UNAVAILABLE"
        assert found[kind]["message"].startswith(reason)
    assert found["doctor"]["exit"] == 1
    assert found["doctor"]["problems"] == [found["strict"]["message"]]
    assert found["doctor"]["walls"] == []


@pytest.mark.parametrize("machine", [SOUND, *KERNELS], ids=lambda machine: machine.name)
def test_what_a_kernel_or_a_container_withholds_is_reported(room: Room, machine: Machine) -> None:
    check(room, machine, "root")


ORDINARY = [SOUND, *(machine for machine in KERNELS if machine.never or machine.ordinary is not None)]


@pytest.mark.parametrize("machine", ORDINARY, ids=lambda machine: machine.name)
def test_it_is_reported_to_an_ordinary_user_too(room: Room, machine: Machine) -> None:
    check(room, machine, "ordinary")


@pytest.mark.parametrize("machine", IDENTITIES, ids=lambda machine: machine.name)
def test_what_root_cannot_do_is_reported(room: Room, machine: Machine) -> None:
    check(room, machine, "root")


def test_root_of_a_namespace_with_one_user_is_reported(room: Room) -> None:
    if room.can_make_user_namespaces():  # else: the same machine, as its calls answer, is among the identities
        check(room, SINGLE_USER, "root")


@pytest.mark.parametrize("machine", FADING, ids=lambda machine: machine.name)
def test_a_wall_that_falls_after_the_probe_lets_nothing_run(room: Room, machine: Machine) -> None:
    found = room.visit(machine, "root")
    assert found["doctor"]["exit"] == 0
    (wall,) = machine.missing
    if wall == "identity" and not IS_ROOT:
        assert found["strict"]["value"] == found["weak"]["value"] == 1
        return
    for kind in ("strict", "weak"):
        assert found[kind]["code"] == "CONFINEMENT_UNAVAILABLE"
        assert found[kind]["details"] == {"wall": wall}
        assert f"The wall {wall!r} could not be put up" in found[kind]["message"]
