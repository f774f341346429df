"""Nothing that descends from an agent is left: however it ends, and whatever it started."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from loopwarden.provider import AgentReply
from loopwarden.providers.command import CommandProvider
from support.agents import (
    IGNORE_TERM,
    LEFT_BEHIND,
    REAL_SECONDS,
    SLEEP,
    carrying,
    descendants,
    processes_below,
    provider,
    request,
    state,
    supervisors,
    until,
)


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


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_what_somebody_else_started_for_an_agent_is_ended_with_it(
    tmp_path: Path, mark: str, is_cancelled: bool
) -> None:
    """A job daemon runs what it is given with the agent's environment, and does not descend from the agent."""

    async def scenario() -> AgentReply | None:
        script = "echo $LOOPWARDEN_AGENT > token; mv token up; until [ -e go ]; do sleep 0.01; done; echo done"
        task = asyncio.create_task(provider(script, mark).reply(request(tmp_path)))
        await until((tmp_path / "up").exists)
        token = (tmp_path / "up").read_text().strip()
        job = subprocess.Popen(["sleep", "600"], env={"LOOPWARDEN_AGENT": token, "TEST_MARK": mark})
        other = subprocess.Popen(["sleep", "600"], env={"LOOPWARDEN_AGENT": token[:-1], "TEST_MARK": mark})
        try:
            if is_cancelled:
                task.cancel()
            else:
                (tmp_path / "go").touch()
            await asyncio.wait([task])
            # Reaped by us alone, so that its death is for sure the work of the host.
            assert job.wait(REAL_SECONDS) == -signal.SIGKILL
            assert other.poll() is None
        finally:
            for process in (job, other):
                process.kill()
                process.wait()
        return None if task.cancelled() else task.result()

    reply = asyncio.run(scenario())
    assert (
        reply is None
        if is_cancelled
        else reply == AgentReply(text="done\n", notes=("it left 1 process behind, which the host ended",))
    )


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


def test_a_child_that_lost_its_term_does_not_use_up_the_grace(tmp_path: Path, mark: str) -> None:
    """Between fork and exec a child has the handlers of its parent, and forgets what they caught."""
    code = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: os._exit(0))\n"
        "if os.fork() == 0:\n"
        "    signal.signal(signal.SIGTERM, lambda *_: open('lost', 'w').close())\n"
        "    open('up', 'w').close()\n"
        "    while not os.path.exists('lost'): time.sleep(0.001)\n"
        "    os.execvp('sleep', ['sleep', '600'])\n"
        "while True: time.sleep(1)\n"
    )

    async def scenario() -> float:
        agent = CommandProvider([sys.executable, "-I", "-S", "-c", code], env={"TEST_MARK": mark})
        task = asyncio.create_task(agent.reply(request(tmp_path, grace_seconds=60)))
        await until((tmp_path / "up").exists)
        began = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return time.monotonic() - began

    assert asyncio.run(scenario()) < 10
    assert (tmp_path / "lost").exists()


def test_an_agent_that_is_stopped_may_wind_down_too(tmp_path: Path, mark: str) -> None:
    async def scenario() -> None:
        script = "trap 'echo bye > bye; exit 0' TERM; touch up; kill -STOP $$"
        task = asyncio.create_task(provider(script, mark).reply(request(tmp_path, grace_seconds=60)))
        await until((tmp_path / "up").exists)
        await until(lambda: len(carrying("TEST_MARK", mark)) == 1)  # without `touch`
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


def test_orphans_of_a_living_agent_are_reaped_as_they_end(tmp_path: Path, mark: str) -> None:
    script = "for i in 1 2 3 4 5; do (sh -c true &); done; touch up; until [ -e go ]; do sleep 0.01; done"

    async def scenario() -> None:
        task = asyncio.create_task(provider(script, mark).reply(request(tmp_path)))
        await until((tmp_path / "up").exists)
        [supervisor] = supervisors()
        await until(lambda: len(processes_below(supervisor)) <= 2)  # the agent and its `sleep 0.01`
        (tmp_path / "go").touch()
        assert (await task).notes == ()

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
        argvs = [["cat"], ["false"], ["no-such-agent"], [str(broken)], ["sh", "-c", "exec >&- 2>&-; sleep 0.05"]]
        argv = argvs[number % len(argvs)]
        return await CommandProvider(argv).reply(request(tmp_path, folder=tmp_path, attempt=number + 1))

    broken = tmp_path / "broken"
    broken.write_text("#!/nowhere\n")
    broken.chmod(0o755)
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
