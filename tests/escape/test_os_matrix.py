"""Promise 3: arbitrary Python behind the operating-system wall, with the language wall off, reaches nothing.

The catalogue of attacks is in the package, because `loopwarden doctor --matrix` makes them on the user's machine. Each
attack must succeed without a wall, obtain nothing behind all of them, and be stopped by each wall alone that the
catalogue names: what a wall stops may grow, and never shrinks.
"""

import asyncio
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest

from loopwarden.attack_stage import SECRET_VARIABLE, STAGE_NEEDS, Victim
from loopwarden.cli.app import run as run_command_line
from loopwarden.cli.matrix import describe_matrix
from loopwarden.failures import LaunchFailed
from loopwarden.launch_command import LaunchCommand
from loopwarden.machine import NEEDS
from loopwarden.matrix import Verdict, run_matrix
from loopwarden_engine.attacks.calls import CALLS
from loopwarden_engine.attacks.catalogue import EVIDENCE, load_catalogue
from loopwarden_engine.confinement import STANDS, WALLS
from loopwarden_engine.confinement.kernel import call_kernel
from support.plain_worker import command_of

TESTS = Path(__file__).parents[1]
LIE = "support.lying_walls"
# The catalogue only ever grows: raise this with every entry that is added.
ENTRIES = 350
FEW = {"read-open", "socket-tcp-connect", "process-fork", "signal-victim", "kernel-add-key"}


def matrix_of(identity: str) -> dict[str, Any]:
    """What the attacks came to for workers that begin as `identity`."""
    is_root = os.geteuid() == 0
    if identity == "root" and not is_root:
        if "CI" in os.environ:
            pytest.fail("the part of root was not tested: run the tests as root")
        pytest.skip("the part of root needs root; with the variable CI set this is a failure")
    if identity == "root" or not is_root:
        return dict(asyncio.run(run_matrix(is_brief=True)).to_json())
    lab = subprocess.run(
        [sys.executable, "-m", "support.matrix_lab"],
        cwd=TESTS,
        env=os.environ | {"PYTHONHASHSEED": "0"},
        stdout=subprocess.PIPE,
        check=True,
    )
    return dict(json.loads(lab.stdout))


def problems(matrix: dict[str, Any], identity: str) -> list[str]:
    """Everything that is not as promised, as sentences."""
    found = []
    if matrix["identity"] != identity:
        found.append(f"the attacks were made as {matrix['identity']}")
    for wall, state in matrix["walls"].items():
        if state != STANDS and (wall != "identity" or identity == "root"):
            found.append(f"the wall {wall} does not stand: {state}")
    for attack in matrix["attacks"]:
        name, attempts = attack["id"], attack["attempts"]
        if attack["verdict"] == Verdict.ESCAPE:
            found.append(f"{name} got through all walls: {attack['goal']}")
        if attack["verdict"] == Verdict.UNCLEAR:
            found.append(f"{name} stayed unclear: {attempts}")
        if attack["unprovenBecause"] == "":
            found.append(f"{name} does not succeed without walls, for no known reason: {attempts['none']['answer']}")
        found += [f"{wall} alone does not stop {name} any more: {attempts[wall]}" for wall in attack["lost"]]
    return found


@pytest.mark.timeout(600)  # a guard only: on a machine that has much to do all attacks together take their time
@pytest.mark.parametrize("identity", ["root", "ordinary"])
def test_every_attack_succeeds_without_walls_and_is_stopped_by_each_that_is_named_and_by_all(identity: str) -> None:
    matrix = matrix_of(identity)
    assert problems(matrix, identity) == []
    assert len(matrix["attacks"]) > ENTRIES * 0.7


def broken_by(factory: str) -> LaunchCommand:
    return command_of(LIE, factory)


def test_a_wall_that_stopped_working_is_noticed() -> None:
    matrix = asyncio.run(run_matrix({"read-open"}, is_brief=True, command=broken_by("WithoutLandlock")))
    assert [row.lost for row in matrix.rows] == [("landlock",)]
    assert [row.verdict for row in matrix.rows] == [Verdict.STOPPED]
    assert matrix.has_failed


def test_attacks_that_get_through_are_called_escapes() -> None:
    matrix = asyncio.run(run_matrix(FEW, command=broken_by("WithoutWalls")))
    assert {row.attack.id: row.verdict for row in matrix.rows} == dict.fromkeys(FEW, Verdict.ESCAPE)
    assert matrix.has_failed


def test_an_attack_that_fails_without_walls_too_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from loopwarden import attack_evidence

    monkeypatch.setattr(attack_evidence.Evidence, "is_there", lambda self: False)
    matrix = asyncio.run(run_matrix({"signal-host"}, is_brief=True))
    assert [(row.verdict, row.stopped_by) for row in matrix.rows] == [(Verdict.UNPROVEN, ())]


def test_root_without_its_rights_is_not_held_to_what_root_can_lose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loopwarden.matrix.find_general_limits", lambda: "root has not all its capabilities")
    (row,) = asyncio.run(run_matrix({"other-trace"}, is_brief=True)).rows
    assert "seccomp" in row.attempts
    assert "no_new_privileges" not in row.attempts


def test_where_nothing_can_be_seen_nothing_is_attacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loopwarden.matrix.os.access", lambda path, mode: False)
    with pytest.raises(LaunchFailed, match="/proc cannot be read"):
        asyncio.run(run_matrix(FEW))


def test_attacks_that_prove_nothing_for_the_same_reason_are_printed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    from loopwarden import attack_evidence

    monkeypatch.setattr(attack_evidence.Evidence, "is_there", lambda self: False)
    monkeypatch.setattr("loopwarden.matrix.find_general_limits", lambda: "this is a container")
    lines = describe_matrix(asyncio.run(run_matrix({"signal-host", "read-open", "process-outlive"}, is_brief=True)))
    assert lines[lines.index("  this is a container:") + 1] == "    read-open, process-outlive, signal-host"


def test_a_file_that_goes_while_it_is_looked_at_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from loopwarden import attack_evidence

    (tmp_path / "target").write_text("before")

    def vanish(path: Path, *, follow_symlinks: bool) -> list[str]:
        path.unlink()
        raise FileNotFoundError

    monkeypatch.setattr("loopwarden.attack_evidence.os.listxattr", vanish)
    assert attack_evidence._folder(tmp_path) == [("target", "gone")]


def test_where_workers_cannot_be_seen_nothing_is_attacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loopwarden.attack_evidence._status", lambda pid: {})
    with pytest.raises(LaunchFailed, match="/proc hides processes"):
        asyncio.run(run_matrix({"process-session"}, is_brief=True))


def test_the_processes_of_another_namespace_are_not_taken_for_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loopwarden.matrix.os.readlink", lambda path: "1")
    with pytest.raises(LaunchFailed, match="another namespace"):
        asyncio.run(run_matrix(FEW))


def test_what_cannot_be_set_up_is_not_attacked_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loopwarden.attack_stage.SHELL", "/no/such/shell")
    matrix = asyncio.run(run_matrix({"signal-victim"}, is_brief=True))
    assert [(row.verdict, row.unproven_because) for row in matrix.rows] == [(Verdict.UNPROVEN, "")]
    monkeypatch.setattr("loopwarden.machine.SHELL", "/no/such/shell")
    matrix = asyncio.run(run_matrix({"signal-victim"}, is_brief=True))
    assert [row.unproven_because for row in matrix.rows] == ["there is no /bin/sh"]


def test_a_victim_that_leaves_by_itself_was_not_reached_and_one_that_was_killed_was() -> None:
    for signal_number, is_killed in ((None, False), (signal.SIGKILL, True)):
        victim = Victim("word")
        if signal_number is not None:
            os.kill(victim.pid, signal_number)
        while not victim.has_left():
            select.select([victim.pidfd], [], [])
        status = victim.find_status()
        victim.close()
        assert status is not None
        assert (status < 0) == is_killed


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder with a short name, as sockets need it."""
    with tempfile.TemporaryDirectory(prefix="lw-") as folder:
        yield Path(folder)


def own_segments() -> list[str]:
    """The private segments of shared memory that are as large as those of attacks; other programs have some too."""
    rows = [line.split() for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]]
    return [row[1] for row in rows if (row[0], row[3]) == ("0", "4096")]


def test_the_matrix_leaves_nothing_behind(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words: list[str] = []

    def recorded(size: int) -> str:
        words.append(token_hex(size))
        return words[-1]

    monkeypatch.setattr("loopwarden.attack_stage.secrets.token_hex", recorded)
    monkeypatch.setattr("tempfile.tempdir", str(short_path))
    descriptors = set(os.listdir("/proc/self/fd"))
    segments = own_segments()
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    asyncio.run(run_matrix({*FEW, "memory-shared-segment", "write-create", "kernel-posix-messages"}))
    assert list(short_path.iterdir()) == []
    assert set(os.listdir("/proc/self/fd")) == descriptors
    assert own_segments() == segments
    assert SECRET_VARIABLE not in os.environ
    assert Path(f"/proc/self/task/{os.getpid()}/children").read_text() == children
    for word in words:
        name = ctypes.create_string_buffer(f"loopwarden-{word}".encode())
        with pytest.raises(FileNotFoundError):
            call_kernel(CALLS["mq_unlink"], ctypes.addressof(name))


def test_doctor_prints_the_matrix(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loopwarden.cli.matrix.run_matrix", lambda: run_matrix(FEW))
    assert run_command_line(["doctor", "--matrix"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "attacks on the operating-system wall, the language wall switched off: 5"
    (files,) = [line.split() for line in lines if line.startswith("files-read")]
    assert files == ["files-read", "1", "1", ".", ".", "1" if os.geteuid() == 0 else "-", ".", "1", "1", "1", "1", "."]
    assert lines[-1] == "nothing got through"


def test_doctor_prints_escapes_and_fails(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "loopwarden.cli.matrix.run_matrix", lambda: run_matrix({"read-open"}, command=broken_by("WithoutWalls"))
    )
    assert run_command_line(["doctor", "--matrix"]) == 1
    printed = capsys.readouterr().out
    assert "ESCAPE: read-open: content of a file of the host" in printed
    assert "seccomp alone no longer stops read-open: content of a file of the host" in printed
    assert printed.endswith("1 of 1 attacks got through: do not run scripts here that you do not trust\n")
    assert run_command_line(["doctor", "--matrix", "--json"]) == 1
    shown = json.loads(capsys.readouterr().out)
    assert (shown["exit"], [attack["verdict"] for attack in shown["attacks"]]) == (1, ["escape"])


def test_every_kind_of_evidence_is_used_and_every_wall_stops_something() -> None:
    attacks = load_catalogue()
    assert len(attacks) >= ENTRIES
    assert {attack.evidence for attack in attacks} == set(EVIDENCE)
    named = {need for attack in attacks for need in attack.needs} | {n for needs in STAGE_NEEDS.values() for n in needs}
    assert {need for need in named if not need.startswith("linux-")} <= set(NEEDS)
    assert {claim.wall for attack in attacks for claim in attack.stopped_by} == {"launcher", *WALLS}
