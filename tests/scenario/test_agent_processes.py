"""Nothing that descends from an agent is left: however it ends, and whatever it started."""

import asyncio
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loopwarden.provider import AgentFailed, AgentReply
from loopwarden.providers.command import CommandProvider
from support.agents import carrying, kill_all, request, until, wait_until

IGNORE_TERM = "trap '' TERM HUP INT;"
SLEEP = "sleep 600"
# Each leaves something behind that says that it is there by touching a file in the workspace.
LEFT_BEHIND = {
    "in its group": f"({SLEEP}) & touch up;",
    "in its group and deaf": f"({IGNORE_TERM} touch up; {SLEEP}; {SLEEP}) &",
    "in its own session": f"setsid sh -c 'touch up; {SLEEP}' &",
    "in its own session and deaf": f'setsid sh -c "{IGNORE_TERM} touch up; {SLEEP}; {SLEEP}" &',
    "a daemon": f'( (setsid sh -c "{IGNORE_TERM} touch up; {SLEEP}; {SLEEP}" &) & );',
    "stopped": "sh -c 'touch up; kill -STOP $$' &",
    "without its environment": f"setsid env -i PATH=$PATH sh -c 'touch up; {SLEEP}' &",
    "a process whose first thread is gone": (
        f"setsid {sys.executable} -c 'import ctypes, threading, time;"
        "threading.Thread(target=time.sleep, args=(600,)).start();"
        'open("up", "w").close(); ctypes.CDLL(None).pthread_exit(None)\' &'
    ),
}


@pytest.fixture
def mark() -> Iterator[str]:
    value = secrets.token_hex(8)
    yield value
    kill_all(carrying("TEST_MARK", value))


def provider(script: str, mark: str) -> CommandProvider:
    return CommandProvider(["sh", "-c", script], env={"TEST_MARK": mark})


def descendants() -> set[int]:
    """Our live processes, found by their parents: a mark can be lost, a parent cannot."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                fields = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()
            except OSError:
                continue
            parents[int(name)] = int(fields[1])
    below = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    return below - {os.getpid()}


def state(pid: int) -> bytes:
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]


@pytest.mark.parametrize("what", LEFT_BEHIND)
def test_what_an_agent_leaves_behind_is_ended_after_a_normal_end(tmp_path: Path, mark: str, what: str) -> None:
    script = f"{LEFT_BEHIND[what]} until [ -e up ]; do sleep 0.01; done; echo done"
    before = descendants()
    reply = asyncio.run(provider(script, mark).reply(request(tmp_path)))
    assert reply.text == "done\n"
    assert carrying("TEST_MARK", mark) == set()
    assert descendants() == before
    [note] = reply.notes
    assert note.startswith("it left ")
    assert note.endswith(" behind, which the host ended")


@pytest.mark.parametrize("what", LEFT_BEHIND)
def test_what_an_agent_started_is_ended_with_it_when_it_is_cancelled(tmp_path: Path, mark: str, what: str) -> None:
    async def scenario() -> None:
        task = asyncio.create_task(
            provider(f"{IGNORE_TERM}{LEFT_BEHIND[what]} {SLEEP}; {SLEEP}", mark).reply(request(tmp_path))
        )
        await until((tmp_path / "up").exists)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert carrying("TEST_MARK", mark) == set()

    before = descendants()
    asyncio.run(scenario())
    assert descendants() == before


def test_an_agent_that_leaves_nothing_behind_has_no_note(tmp_path: Path, mark: str) -> None:
    assert asyncio.run(provider("sh -c true; sh -c 'exit 3'; echo done", mark).reply(request(tmp_path))).notes == ()


def test_an_agent_that_was_cancelled_may_wind_down_within_its_grace(tmp_path: Path, mark: str) -> None:
    async def scenario() -> float:
        script = f"trap 'echo bye > bye; exit 0' TERM; touch up; {SLEEP} & wait"
        task = asyncio.create_task(provider(script, mark).reply(request(tmp_path, grace_seconds=60)))
        await until((tmp_path / "up").exists)
        began = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return time.monotonic() - began

    assert asyncio.run(scenario()) < 10
    assert (tmp_path / "bye").read_text() == "bye\n"


def test_an_agent_that_is_stopped_may_wind_down_too(tmp_path: Path, mark: str) -> None:
    async def scenario() -> None:
        script = "trap 'echo bye > bye; exit 0' TERM; touch up; kill -STOP $$"
        task = asyncio.create_task(provider(script, mark).reply(request(tmp_path, grace_seconds=60)))
        await until((tmp_path / "up").exists)
        [pid] = carrying("TEST_MARK", mark)
        await until(lambda: state(pid) == b"T")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    assert (tmp_path / "bye").exists()


def test_a_second_cancellation_cuts_the_grace_short_and_still_leaves_nothing(tmp_path: Path, mark: str) -> None:
    async def scenario() -> float:
        script = f"{IGNORE_TERM} touch up; {SLEEP}; {SLEEP}"
        task = asyncio.create_task(provider(script, mark).reply(request(tmp_path, grace_seconds=60)))
        await until((tmp_path / "up").exists)
        began = time.monotonic()
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
        return time.monotonic() - began

    assert asyncio.run(scenario()) < 10
    assert carrying("TEST_MARK", mark) == set()


def test_a_time_limit_around_the_provider_ends_the_agent(tmp_path: Path, mark: str) -> None:
    async def scenario() -> None:
        async with asyncio.timeout(0.2):
            await provider(SLEEP, mark).reply(request(tmp_path))

    with pytest.raises(TimeoutError):
        asyncio.run(scenario())
    assert carrying("TEST_MARK", mark) == set()


def test_an_event_loop_that_is_shut_down_takes_its_agents_with_it(tmp_path: Path, mark: str) -> None:
    async def scenario() -> None:
        tasks.append(asyncio.create_task(provider(f"touch up; {SLEEP}", mark).reply(request(tmp_path))))
        await until((tmp_path / "up").exists)

    tasks: list[asyncio.Task[AgentReply]] = []
    asyncio.run(scenario())
    assert tasks[0].cancelled()
    assert carrying("TEST_MARK", mark) == set()


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 4, 6, 10, 20])
def test_a_cancellation_at_any_moment_leaves_nothing(tmp_path: Path, mark: str, turns: int) -> None:
    async def scenario() -> None:
        task = asyncio.create_task(provider(f"{SLEEP} & {SLEEP}", mark).reply(request(tmp_path, prompt="p" * 200_000)))
        for _ in range(turns):
            await asyncio.sleep(0.002)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    before = descendants()
    asyncio.run(scenario())
    assert carrying("TEST_MARK", mark) == set()
    assert descendants() == before


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


def processes_below(root: int) -> set[int]:
    below = {root}
    grew = True
    while grew:
        grew = False
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                parent = int(Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()[1])
            except OSError:
                continue
            if parent in below and int(name) not in below:
                below.add(int(name))
                grew = True
    return below - {root}


def is_supervisor(pid: int) -> bool:
    try:
        return b"supervisor.main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def supervisors() -> set[int]:
    return {pid for pid in descendants() if is_supervisor(pid)}


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


def test_orphans_of_a_living_agent_are_reaped_as_they_end(tmp_path: Path, mark: str) -> None:
    script = "for i in 1 2 3 4 5; do (sh -c true &); done; touch up; until [ -e go ]; do sleep 0.01; done"

    async def scenario() -> None:
        task = asyncio.create_task(provider(script, mark).reply(request(tmp_path)))
        await until((tmp_path / "up").exists)
        [supervisor] = supervisors()
        await until(lambda: len(processes_below(supervisor)) <= 2)  # the agent and its `sleep 0.01`
        (tmp_path / "go").touch()
        await task

    asyncio.run(scenario())


def test_a_program_that_respawns_itself_does_not_outrun_the_supervisor(tmp_path: Path, mark: str) -> None:
    code = (
        "import os, signal\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "open('up', 'w').close()\n"
        "while True:\n"
        "    if os.fork(): os._exit(0)\n"
        "    os.setsid()\n"
    )
    (tmp_path / "respawn.py").write_text(code)
    script = f"{sys.executable} -I -S respawn.py & until [ -e up ]; do sleep 0.01; done; echo done"
    before = descendants()
    assert asyncio.run(provider(script, mark).reply(request(tmp_path))).text == "done\n"
    assert carrying("TEST_MARK", mark) == set()
    assert descendants() == before


def test_twenty_agents_leave_no_descriptor_no_thread_and_no_zombie(tmp_path: Path, mark: str) -> None:
    def open_descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    async def scenario() -> None:
        await one(0)
        descriptors = open_descriptors()
        await asyncio.gather(*(one(number) for number in range(20)), return_exceptions=True)
        assert open_descriptors() == descriptors

    async def one(number: int) -> Any:
        argv = [["cat"], ["false"], ["no-such-agent"], ["sh", "-c", "exec >&- 2>&-; sleep 0.05"]][number % 4]
        return await CommandProvider(argv).reply(request(tmp_path, folder=tmp_path, attempt=number + 1))

    before = descendants()
    asyncio.run(scenario())
    assert threading.active_count() == 1
    assert descendants() == before


def test_the_number_of_an_agent_is_not_free_for_others_while_its_group_lives(tmp_path: Path, mark: str) -> None:
    script = (
        f"({IGNORE_TERM} touch up; {SLEEP}; {SLEEP}) & until [ -e up ]; do sleep 0.01; done; echo $$ > pid; touch done"
    )

    async def scenario() -> None:
        task = asyncio.create_task(provider(script, mark).reply(request(tmp_path, grace_seconds=60)))
        await until((tmp_path / "done").exists)
        pid = int((tmp_path / "pid").read_text())
        await until(lambda: state(pid) == b"Z")
        assert len(carrying("TEST_MARK", mark)) == 2
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not Path(f"/proc/{pid}").exists()

    asyncio.run(scenario())
