"""What the launcher refuses, and what it says of walls that do not stand."""

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys

import pytest

from loopwarden import launching
from loopwarden.failures import LaunchFailed
from loopwarden.launching import Launcher
from loopwarden.walls import probe_walls
from loopwarden_engine.confinement import STANDS, WALLS
from support.plain_worker import (
    LIMITS,
    PLAIN,
    TESTS,
    ask,
    children_of,
    command_of,
    open_descriptors,
    plain_launcher,
    plain_worker,
    run,
)

# --- refusals


def test_a_worker_that_cannot_be_made_is_a_refusal_and_the_launcher_goes_on() -> None:
    async def main() -> None:
        async with plain_launcher() as launcher:
            before = resource.prlimit(launcher.pid, resource.RLIMIT_NOFILE)
            used = {int(name) for name in open_descriptors(launcher.pid)}
            free = [number for number in range(64) if number not in used]
            resource.prlimit(launcher.pid, resource.RLIMIT_NOFILE, (free[0], before[1]))
            with pytest.raises(LaunchFailed, match="the launcher has no descriptor left for a channel"):
                await launcher.fork(LIMITS)
            resource.prlimit(launcher.pid, resource.RLIMIT_NOFILE, (free[1], before[1]))
            with pytest.raises(LaunchFailed, match="A worker could not be made: Too many open files"):
                await launcher.fork(LIMITS)
            assert children_of(launcher.pid) == []
            resource.prlimit(launcher.pid, resource.RLIMIT_NOFILE, before)
            async with plain_worker(launcher) as worker:
                assert await ask(worker, "out = 1") == {"value": 1}

    run(main)


def test_a_launcher_that_cannot_import_says_what_is_missing_without_a_path() -> None:
    async def main() -> None:
        before = open_descriptors()
        with pytest.raises(LaunchFailed) as caught:
            await Launcher.start(lambda: None, command=command_of("support.no_such_module", "Worker"))
        assert caught.value.message == (
            "The launcher ended: ModuleNotFoundError: No module named 'support.no_such_module'. "
            "Start again, and install loopwarden again if that does not help."
        )
        assert open_descriptors().keys() == before.keys()

    run(main)


def test_an_interpreter_that_does_not_exist_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")

    async def main() -> None:
        before = open_descriptors()
        with pytest.raises(LaunchFailed, match="could not be started for the launcher: No such file or directory"):
            await Launcher.start(lambda: None)
        assert open_descriptors().keys() == before.keys()

    run(main)


def test_a_launcher_that_is_not_ready_in_time_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "_START_TIMEOUT_SECONDS", 0.0)

    async def main() -> None:
        before = open_descriptors()
        children = children_of(os.getpid())
        with pytest.raises(LaunchFailed, match="was not ready within"):
            await Launcher.start(lambda: None, command=PLAIN)
        assert children_of(os.getpid()) == children
        assert open_descriptors().keys() == before.keys()

    run(main)


def test_a_cancelled_start_leaves_nothing() -> None:
    async def main() -> None:
        before = open_descriptors()
        children = children_of(os.getpid())
        start = asyncio.ensure_future(Launcher.start(lambda: None, command=PLAIN))
        await asyncio.sleep(0)
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        assert children_of(os.getpid()) == children
        assert open_descriptors().keys() == before.keys()

    run(main)


def test_hash_randomization_is_refused() -> None:
    program = "from loopwarden_engine.launcher import run_launcher; run_launcher(None)"
    ended = subprocess.run(
        [sys.executable, "-c", program, "0", "0"],
        env=os.environ | {"PYTHONHASHSEED": "random"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stderr.strip().endswith("LauncherRefused: hash randomization is on, so runs could not be repeated")


# --- walls


def test_the_walls_of_this_machine_are_described_for_people() -> None:
    walls = asyncio.run(probe_walls())
    assert [wall.name for wall in walls] == list(WALLS)
    assert [wall.name for wall in walls if not wall.mandatory] == ["identity"]
    assert all(wall.stands for wall in walls if wall.mandatory)
    assert all(wall.detail for wall in walls)


def test_an_ordinary_user_gets_every_wall_but_a_second_identity() -> None:
    host = subprocess.run(
        [sys.executable, "-m", "support.launching_host", "ordinary"],
        cwd=TESTS,
        capture_output=True,
        text=True,
        check=False,
    )
    assert host.stderr == ""
    report = json.loads(host.stdout)
    assert report.pop("user") != 0
    assert report == {
        "walls": dict.fromkeys(WALLS, STANDS) | {"identity": "not root: a worker runs as the same user"},
        "attack": {"error": "PermissionError: [Errno 1] Operation not permitted: '/etc/hostname'"},
        "killed": -signal.SIGKILL,
        "refused": "A worker could not be made: Resource temporarily unavailable. "
        "Free some memory or processes, and try again.",
        "recovered": {"value": "yes"},
    }
