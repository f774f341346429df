"""An agent does not outlive the lease of its run, whatever became of its host."""

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from loopwarden.checks import Check, run_check
from loopwarden.failure_class import FailureClass
from loopwarden.lease_view import LeaseView, boot_seconds
from loopwarden.provider import AgentFailed, AgentReply
from loopwarden.providers.command import CommandProvider
from loopwarden.providers.dialect import ProgramOptions
from loopwarden.providers.driver import ProgramProvider
from loopwarden.providers.process import Program, SupervisedProcess
from support.acp_lab import Lab
from support.agents import (
    IGNORE_TERM,
    LEFT_BEHIND,
    REAL_SECONDS,
    SLEEP,
    carrying,
    descendants,
    is_supervisor,
    processes_below,
    provider,
    request,
    state,
    supervisors,
    until,
    wait_until,
)
from support.toy_dialect import ToyDialect

LEASE_SECONDS = 1.0
KILL_GRACE_SECONDS = 0.4
LEFT = ["in its group and deaf", "in its own session and deaf", "a daemon", "stopped", "without its environment"]
LOST = (FailureClass.CANCELLED, "the agent program was ended: the host lost the lease of the run")
UNTIL_GO = "touch up; until [ -e go ]; do sleep 0.01; done; echo done"


def lease_of(seconds: float = LEASE_SECONDS, *, kills: bool = True) -> LeaseView:
    """A lease that began now."""
    return LeaseView(boot_seconds() + seconds, kill_grace_seconds=KILL_GRACE_SECONDS, kills=kills)


async def renewed_until_up(lease: LeaseView, workspace: Path) -> None:
    """Keep a lease alive, however long the agent takes to begin. Then nobody renews it any more."""

    def is_up() -> bool:
        lease.renew(boot_seconds() + LEASE_SECONDS)
        return (workspace / "up").exists()

    await until(is_up)


@contextlib.contextmanager
def handles(pids: set[int]) -> Iterator[list[int]]:
    """Pidfds of processes; one that ended by itself since it was seen, as the parent of a daemon does, is left out."""
    opened = []
    for pid in sorted(pids):
        with contextlib.suppress(ProcessLookupError):
            opened.append(os.pidfd_open(pid))
    try:
        yield opened
    finally:
        for handle in opened:
            os.close(handle)


def all_ended(pidfds: list[int], seconds: float) -> bool:
    """Wait for the end of processes; says whether it came in time. A zombie has ended."""
    end = boot_seconds() + seconds
    return all(select.select([pidfd], [], [], max(0.0, end - boot_seconds()))[0] for pidfd in pidfds)


@contextlib.contextmanager
def host_of(workspace: Path, mark: str, script: str, grace_seconds: float) -> "Iterator[subprocess.Popen[bytes]]":
    """A host that renews the lease of its agent; by now the agent is up."""
    tests = Path(__file__).parent.parent
    argv = [sys.executable, str(tests / "support" / "host_with_lease.py"), str(workspace), mark]
    argv += [str(LEASE_SECONDS), str(grace_seconds), "sh", "-c", script]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tests), *filter(None, sys.path)])}
    host = subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE)
    try:
        assert wait_until((workspace / "up").exists)
        yield host
    finally:
        host.kill()
        host.communicate()


@pytest.mark.parametrize("what", LEFT)
def test_when_the_lease_is_over_the_whole_tree_of_an_agent_dies(tmp_path: Path, mark: str, what: str) -> None:
    async def main() -> None:
        lease = lease_of()
        script = f"{IGNORE_TERM}{LEFT_BEHIND[what]} {SLEEP}; {SLEEP}"
        task = asyncio.create_task(provider(script, mark).reply(request(tmp_path, lease=lease, grace_seconds=60)))
        await renewed_until_up(lease, tmp_path)
        [supervisor] = supervisors()
        with handles(processes_below(supervisor)) as tree:
            assert len(tree) >= 2
            await asyncio.wait([task], timeout=REAL_SECONDS)
            assert all_ended(tree, 0)
        with pytest.raises(AgentFailed) as failed:
            await task
        assert (failed.value.failure_class, failed.value.reason) == LOST
        assert failed.value.notes == ()
        assert not lease.is_alive()

    before = descendants()
    asyncio.run(main())
    assert carrying("TEST_MARK", mark) == set()
    assert descendants() == before


def test_an_agent_whose_lease_is_over_may_wind_down_for_half_of_the_kill_grace(tmp_path: Path, mark: str) -> None:
    async def main() -> None:
        lease = LeaseView(boot_seconds() + LEASE_SECONDS, kill_grace_seconds=120)
        script = f"trap 'sleep 0.3; echo bye > bye; exit 0' TERM; touch up; {SLEEP} & wait"
        task = asyncio.create_task(provider(script, mark).reply(request(tmp_path, lease=lease, grace_seconds=60)))
        await renewed_until_up(lease, tmp_path)
        with pytest.raises(AgentFailed, match=LOST[1]):
            await asyncio.wait_for(task, REAL_SECONDS)
        assert (tmp_path / "bye").read_text() == "bye\n"

    asyncio.run(main())


def test_renewals_keep_an_agent_alive_beyond_its_first_deadline(tmp_path: Path, mark: str) -> None:
    async def main() -> AgentReply:
        lease = lease_of()
        first = lease.ends_at
        task = asyncio.create_task(provider(UNTIL_GO, mark).reply(request(tmp_path, lease=lease)))
        await renewed_until_up(lease, tmp_path)

        def is_long_after() -> bool:
            lease.renew(boot_seconds() + LEASE_SECONDS)
            return boot_seconds() > first + LEASE_SECONDS

        await until(is_long_after)
        (tmp_path / "go").touch()
        return await task

    assert asyncio.run(main()).text == "done\n"


def test_a_renewal_that_comes_while_the_order_is_sent_is_not_lost(tmp_path: Path, mark: str) -> None:
    """The order is larger than the buffer of the socket, so it goes out in pieces."""
    agent = CommandProvider(["sh", "-c", UNTIL_GO, *["x" * 100_000] * 8], env={"TEST_MARK": mark})

    async def main() -> AgentReply:
        lease = lease_of(3 * LEASE_SECONDS)
        first = lease.ends_at
        task = asyncio.create_task(agent.reply(request(tmp_path, lease=lease)))
        await asyncio.sleep(0)  # the order is written, and not a byte of it sent
        lease.renew(boot_seconds() + 600)
        await until((tmp_path / "up").exists)
        await until(lambda: boot_seconds() > first + KILL_GRACE_SECONDS)
        (tmp_path / "go").touch()
        return await task

    assert asyncio.run(main()).text == "done\n"


def test_renewals_that_a_stopped_supervisor_has_not_read_count_and_hold_nobody_up(tmp_path: Path, mark: str) -> None:
    async def main() -> AgentReply:
        lease = lease_of()
        task = asyncio.create_task(provider(UNTIL_GO, mark).reply(request(tmp_path, lease=lease)))
        await renewed_until_up(lease, tmp_path)
        [supervisor] = supervisors()
        os.kill(supervisor, signal.SIGSTOP)
        await until(lambda: state(supervisor) == b"T")
        last_read = lease.ends_at
        for number in range(5000):
            lease.renew(boot_seconds() + 600 + number)
        await until(lambda: boot_seconds() > last_read)
        os.kill(supervisor, signal.SIGCONT)
        (tmp_path / "go").touch()
        return await task

    assert asyncio.run(main()).text == "done\n"


@pytest.mark.parametrize("what", ["in its own session and deaf", "without its environment"])
def test_an_agent_dies_with_the_lease_while_its_host_is_stopped(tmp_path: Path, mark: str, what: str) -> None:
    with host_of(tmp_path, mark, f"{IGNORE_TERM}{LEFT_BEHIND[what]} {SLEEP}; {SLEEP}", 60) as host:
        [supervisor] = filter(is_supervisor, processes_below(host.pid))
        with handles(processes_below(supervisor)) as tree:
            assert len(tree) >= 2
            assert not all_ended(tree, 2 * LEASE_SECONDS), "the agent died although its host renewed the lease"
            host.send_signal(signal.SIGSTOP)
            assert all_ended(tree, REAL_SECONDS)
            assert state(host.pid) == b"T"
        host.send_signal(signal.SIGCONT)
        assert host.communicate(timeout=REAL_SECONDS)[0].decode() == f"{LOST[0]}: {LOST[1]}\n"


def test_an_agent_of_a_host_that_was_killed_has_no_longer_grace_than_the_lease(tmp_path: Path, mark: str) -> None:
    script = f"{IGNORE_TERM} touch up; {SLEEP}; {SLEEP}"
    with host_of(tmp_path, mark, script, 600) as host, handles(processes_below(host.pid)) as tree:
        host.kill()
        assert all_ended(tree, REAL_SECONDS)


def test_an_agent_that_is_cancelled_has_no_longer_grace_than_the_lease(tmp_path: Path, mark: str) -> None:
    async def main() -> None:
        lease = lease_of()
        script = f"{IGNORE_TERM} touch up; {SLEEP}; {SLEEP}"
        task = asyncio.create_task(provider(script, mark).reply(request(tmp_path, lease=lease, grace_seconds=600)))
        await renewed_until_up(lease, tmp_path)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(asyncio.shield(task), REAL_SECONDS)

    asyncio.run(main())
    assert carrying("TEST_MARK", mark) == set()


def test_a_program_whose_lease_is_over_is_not_started(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    program = Program(
        what="agent program", argv=["sleep", "600"], folder=tmp_path, environment={"PATH": os.environ["PATH"]},
        stdin=None, grace_seconds=600, max_output_bytes=1024, private_folders=[home], lease=lease_of(-1.0),
    )  # fmt: skip

    async def main() -> None:
        process = await SupervisedProcess.start(program)
        ending = await process.wait()
        assert (ending.exit, ending.signal, ending.left, ending.is_lease_over) == (None, None, 0, True)
        assert ending.problem == "the host lost the lease of the run"
        assert process.pid is None
        assert not home.exists()

    asyncio.run(main())


def test_an_agent_that_was_not_started_for_its_lease_is_one_that_failed(tmp_path: Path, mark: str) -> None:
    """It is no provider that cannot start agents, which would end the run for good."""
    with pytest.raises(AgentFailed) as failed:
        asyncio.run(provider(SLEEP, mark).reply(request(tmp_path, lease=lease_of(-1.0))))
    assert (failed.value.failure_class, failed.value.reason) == LOST


def test_a_program_with_a_dialect_says_that_the_lease_was_lost(tmp_path: Path, mark: str) -> None:
    options = ProgramOptions(program="sh", arguments=("-c", f"touch up; {SLEEP}"), env={"TEST_MARK": mark})
    toy = ProgramProvider(ToyDialect(), options)

    async def main() -> None:
        lease = lease_of()
        task = asyncio.create_task(toy.reply(request(tmp_path, lease=lease)))
        await renewed_until_up(lease, tmp_path)
        await task

    with pytest.raises(AgentFailed) as failed:
        asyncio.run(main())
    assert failed.value.failure_class is FailureClass.CANCELLED
    assert failed.value.reason == "toy was ended: the host lost the lease of the run"


def test_an_agent_that_is_talked_to_says_that_the_lease_was_lost(tmp_path: Path, mark: str) -> None:
    agent = Lab(tmp_path, mark).provider("hangs")  # it loads the SDK, which may take longer than the lease

    async def main() -> None:
        lease = lease_of()
        task = asyncio.create_task(agent.reply(request(tmp_path, lease=lease)))
        await renewed_until_up(lease, tmp_path)
        await task

    with pytest.raises(AgentFailed) as failed:
        asyncio.run(main())
    assert (failed.value.failure_class, failed.value.reason) == LOST


def test_agents_of_a_deployment_that_holds_go_on_without_a_lease(tmp_path: Path, mark: str) -> None:
    lease = lease_of(-1.0, kills=False)
    assert asyncio.run(provider("echo done", mark).reply(request(tmp_path, lease=lease))).text == "done\n"


def test_a_check_is_ended_when_the_lease_is_over(tmp_path: Path, mark: str) -> None:
    record = asyncio.run(
        run_check(
            Check.parse(SLEEP), workspace=tmp_path, timeout_seconds=600, grace_seconds=0.1, max_output_bytes=1024,
            env={"PATH": os.environ["PATH"], "TEST_MARK": mark}, lease=lease_of(),
        )
    )  # fmt: skip
    assert (record.exit, record.problem) == (None, "the check was ended: the host lost the lease of the run")
    assert not record.passed
