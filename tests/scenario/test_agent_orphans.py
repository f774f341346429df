"""Nothing that descends from an agent is left when its host or its supervisor dies."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from loopwarden.provider import AgentFailed, AgentReply
from support.agents import (
    IGNORE_TERM,
    LEFT_BEHIND,
    SLEEP,
    carrying,
    is_supervisor,
    processes_below,
    provider,
    request,
    state,
    supervisors,
    until,
    wait_until,
)


@pytest.mark.parametrize("what", ["in its group and deaf", "a daemon", "without its environment", "stopped"])
def test_a_host_killed_by_sigkill_leaves_no_agent(tmp_path: Path, mark: str, what: str) -> None:
    host = start_host(tmp_path, mark, f"{IGNORE_TERM}{LEFT_BEHIND[what]} {SLEEP}; {SLEEP}")
    try:
        assert wait_until((tmp_path / "up").exists)
        tree = processes_below(host.pid)
        assert tree
    finally:
        host.kill()
        host.communicate()
    assert wait_until(lambda: not carrying("TEST_MARK", mark))
    assert wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in tree))


def test_an_agent_does_not_outlive_its_supervisor_when_the_host_cannot_help(tmp_path: Path, mark: str) -> None:
    host = start_host(tmp_path, mark, f"touch up; exec {SLEEP}")
    try:
        assert wait_until((tmp_path / "up").exists)
        host.send_signal(signal.SIGSTOP)
        [supervisor] = [pid for pid in processes_below(host.pid) if is_supervisor(pid)]
        [agent] = processes_below(supervisor)
        os.kill(supervisor, signal.SIGKILL)
        assert wait_until(lambda: not Path(f"/proc/{agent}").exists() or state(agent) == b"Z")
    finally:
        host.kill()
        host.communicate()


def test_a_host_that_dies_while_a_fork_of_it_lives_leaves_no_agent(tmp_path: Path, mark: str) -> None:
    """The fork keeps the host's end of the socket open: only the host's own process id tells."""
    code = (
        "import os, sys, runpy, signal, threading\n"
        "def fork():\n"
        "    pid = os.fork()\n"
        "    if pid == 0: signal.pause()\n"
        "    print(pid, flush=True)\n"
        "signal.signal(signal.SIGUSR1, lambda *_: fork())\n"
        "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0])"
    )
    host = start_host(tmp_path, mark, f"touch up; {SLEEP}", "-W", "ignore", "-c", code)
    assert host.stdout is not None
    fork = None
    try:
        assert wait_until((tmp_path / "up").exists)
        host.send_signal(signal.SIGUSR1)
        fork = int(host.stdout.readline())
        host.kill()
        host.wait()
        assert Path(f"/proc/{fork}").exists()
        assert wait_until(lambda: not carrying("TEST_MARK", mark))
    finally:
        host.kill()
        host.wait()
        host.stdout.close()
        if fork is not None:
            os.kill(fork, signal.SIGKILL)


def start_host(workspace: Path, mark: str, script: str, *wrapper: str) -> "subprocess.Popen[bytes]":
    tests = Path(__file__).parent.parent
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tests), *filter(None, sys.path)])}
    argv = [
        sys.executable,
        *wrapper,
        str(tests / "support" / "host_with_agent.py"),
        str(workspace),
        mark,
        "sh",
        "-c",
        script,
    ]
    return subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE)


async def reply_while_up(tmp_path: Path, mark: str, script: str, number: signal.Signals) -> AgentReply:
    task = asyncio.create_task(provider(script, mark).reply(request(tmp_path)))
    await until((tmp_path / "up").exists)
    [supervisor] = supervisors()
    # Streams, socket, host, and the pipe that wakes it: the supervisor has reported the start and watches.
    await until(lambda: len(os.listdir(f"/proc/{supervisor}/fd")) >= 7)
    os.kill(supervisor, number)
    return await task


@pytest.mark.parametrize("what", sorted(set(LEFT_BEHIND) - {"without its environment"}))
def test_a_supervisor_killed_by_sigkill_leaves_nothing(tmp_path: Path, mark: str, what: str) -> None:
    with pytest.raises(AgentFailed, match="its supervisor was killed"):
        asyncio.run(reply_while_up(tmp_path, mark, f"{LEFT_BEHIND[what]} {SLEEP}; {SLEEP}", signal.SIGKILL))
    assert carrying("TEST_MARK", mark) == set()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1])
def test_a_supervisor_takes_no_notice_of_other_signals(tmp_path: Path, mark: str, number: signal.Signals) -> None:
    script = "touch up; until [ -e go ]; do sleep 0.01; done; echo done"

    async def scenario() -> AgentReply:
        task = asyncio.create_task(provider(script, mark).reply(request(tmp_path)))
        await until((tmp_path / "up").exists)
        [supervisor] = supervisors()
        os.kill(supervisor, number)
        (tmp_path / "go").touch()
        return await task

    assert asyncio.run(scenario()).text == "done\n"


def test_a_stopped_supervisor_is_given_up_and_nothing_is_left(
    tmp_path: Path, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loopwarden.providers.process.SUPERVISOR_MARGIN_SECONDS", 0.1)

    async def scenario() -> None:
        task = asyncio.create_task(provider(f"touch up; setsid {SLEEP} & {SLEEP}", mark).reply(request(tmp_path)))
        await until((tmp_path / "up").exists)
        [supervisor] = supervisors()
        os.kill(supervisor, signal.SIGSTOP)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    assert carrying("TEST_MARK", mark) == set()
    assert supervisors() == set()
