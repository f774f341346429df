"""Where there is no Linux: everything can be imported and asked, and what cannot work says so in a sentence."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from loopwarden.failures import ConfinementUnavailable, LaunchFailed
from loopwarden.wall_probe import check_system

TESTS = Path(__file__).parent.parent
REFUSAL = (
    "Scripts cannot be confined here: {} is not Linux. Run on Linux 5.13 or newer, in a virtual machine if need be; "
    "allow_weak_confinement does not help, because a worker could not be ended."
)
systems = pytest.mark.parametrize("system", ["darwin", "freebsd14"])


def on(system: str, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "support.other_system", system, *arguments],
        cwd=home,
        env={"HOME": str(home), "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=False,
    )


@systems
def test_doctor_says_that_it_is_not_linux(system: str, tmp_path: Path) -> None:
    done = on(system, tmp_path, "doctor", "--json")
    assert (done.returncode, done.stderr) == (1, "")
    found = json.loads(done.stdout)
    assert found["platform"]["system"] == f"{system.capitalize()} 24.1.0"
    assert found["walls"] == []
    assert found["problems"] == [REFUSAL.format(system)]


@systems
def test_a_host_refuses_runs_opted_in_or_not(system: str, tmp_path: Path) -> None:
    done = on(system, tmp_path, "host")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [f"CONFINEMENT_UNAVAILABLE: {REFUSAL.format(system)}"] * 2


def test_a_run_of_the_command_line_is_refused_before_an_agent_starts(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    run = ("run", "ralph", "--objective", "x", "--workspace", "work", "--json", "--", "/bin/true")
    done = on("darwin", tmp_path, *run)
    assert done.returncode == 2
    assert json.loads(done.stdout)["failure"]["code"] == "CONFINEMENT_UNAVAILABLE"
    assert "Traceback" not in done.stderr


def test_a_python_without_pidfds_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    with pytest.raises(
        ConfinementUnavailable, match=r"this Python was built without pidfd_open\. Use a Python that was"
    ):
        check_system()


def test_a_host_without_a_free_descriptor_is_not_taken_for_a_weak_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    def crowded(pid: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "pidfd_open", crowded)
    with pytest.raises(LaunchFailed, match=r"could not be started: Too many open files\. Close some files"):
        check_system()
