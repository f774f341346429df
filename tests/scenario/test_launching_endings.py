"""The launcher's endings: whoever dies, is cancelled or is crowded, no process and no descriptor is left."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from typing import Any

import pytest

from loopwarden import launching
from loopwarden.failures import LaunchFailed
from loopwarden.launching import Launcher
from support.plain_worker import (
    LIMITS,
    PLAIN,
    TESTS,
    TIMEOUT_SECONDS,
    Ends,
    ask,
    children_of,
    is_alive,
    open_descriptors,
    plain_launcher,
    plain_worker,
    run,
    tell,
    wait_for_end,
)

# --- what is left behind


def test_fifty_workers_leave_no_process_and_no_descriptor() -> None:
    async def main() -> None:
        before = open_descriptors()
        async with plain_launcher() as launcher:
            async with plain_worker(launcher) as worker:
                worker.kill()
                await wait_for_end(worker)
            here, there = open_descriptors(), open_descriptors(launcher.pid)
            workers = await asyncio.gather(*(launcher.fork(LIMITS) for _ in range(50)))
            assert len(children_of(launcher.pid)) == 50
            assert len(open_descriptors()) == len(here) + 2 * 50
            for worker in workers:
                worker.kill()
            for worker in workers:
                await wait_for_end(worker)
                worker.release()
            assert children_of(launcher.pid) == []
            assert open_descriptors().keys() == here.keys()
            assert len(open_descriptors(launcher.pid)) == len(there)
        assert open_descriptors().keys() == before.keys()
        assert not is_alive(launcher.pid)

    run(main)


def test_no_descriptor_of_a_launcher_is_inherited_by_another_program() -> None:
    def inherited() -> str:
        program = "import os; print(sorted(os.listdir('/proc/self/fd')))"
        # Not closed by `subprocess`, so that only the descriptors' own flags count.
        return subprocess.run(
            [sys.executable, "-c", program], close_fds=False, stdout=subprocess.PIPE, text=True, check=True
        ).stdout

    async def main() -> None:
        before = inherited()
        async with plain_launcher() as launcher, plain_worker(launcher):
            assert inherited() == before

    run(main)


def test_close_ends_workers_whatever_they_do_and_may_be_repeated() -> None:
    async def main() -> None:
        before = open_descriptors()
        lost: list[bool] = []
        launcher = await Launcher.start(lambda: lost.append(True), command=PLAIN)
        workers = [await launcher.fork(LIMITS) for _ in range(5)]
        for worker in workers[:3]:
            await tell(worker, "while True: pass")
        await launcher.close()
        await launcher.close()
        assert not launcher.alive
        assert not any(is_alive(pid) for pid in [launcher.pid, *(worker.pid for worker in workers)])
        assert [worker.exited.result() for worker in workers] == [-signal.SIGKILL] * 5
        for worker in workers:
            worker.release()
        assert lost == []
        assert open_descriptors().keys() == before.keys()

    run(main)


def test_close_ends_a_launcher_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "_CLOSE_TIMEOUT_SECONDS", 0.05)

    async def main() -> None:
        async with plain_launcher() as launcher, plain_worker(launcher) as worker:
            os.kill(launcher.pid, signal.SIGSTOP)
            await launcher.close()
            assert not is_alive(launcher.pid)
            assert await wait_for_end(worker) == -signal.SIGKILL

    run(main)


# --- deaths


def test_the_launcher_killed_takes_its_workers_along_and_is_reported_once() -> None:
    async def main() -> None:
        before = open_descriptors()
        lost: list[bool] = []
        launcher = await Launcher.start(lambda: lost.append(True), command=PLAIN)
        workers = [await launcher.fork(LIMITS) for _ in range(4)]
        ends = Ends([worker.pid for worker in workers])
        for worker in workers[:2]:
            await tell(worker, "while True: pass")
        os.kill(launcher.pid, signal.SIGKILL)
        for worker in workers:
            assert await wait_for_end(worker) == -signal.SIGKILL
        ends.wait()
        assert lost == [True]
        assert not launcher.alive
        with pytest.raises(LaunchFailed, match="The launcher is not running any more"):
            await launcher.fork(LIMITS)
        for worker in workers:
            worker.release()
        await launcher.close()
        assert lost == [True]
        assert open_descriptors().keys() == before.keys()

    run(main)


def test_a_fork_that_waits_when_the_launcher_dies_fails() -> None:
    async def main() -> None:
        async with plain_launcher() as launcher:
            os.kill(launcher.pid, signal.SIGSTOP)
            waiting = [asyncio.ensure_future(launcher.fork(LIMITS)) for _ in range(3)]
            await asyncio.sleep(0)
            os.kill(launcher.pid, signal.SIGKILL)
            for result in await asyncio.gather(*waiting, return_exceptions=True):
                assert isinstance(result, LaunchFailed)

    run(main)


def test_the_host_killed_takes_launcher_and_workers_along() -> None:
    host = subprocess.Popen(
        [sys.executable, "-m", "support.launching_host", "live"], cwd=TESTS, stdout=subprocess.PIPE, text=True
    )
    assert host.stdout is not None
    with host.stdout:
        pids = json.loads(host.stdout.readline())
    ends = Ends([pids["launcher"], *pids["workers"]])
    host.kill()
    host.wait()
    ends.wait()


def test_the_launcher_leaves_when_its_host_talks_nonsense() -> None:
    async def main() -> None:
        lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        launcher = await Launcher.start(lambda: lost.set_result(None), command=PLAIN)
        async with plain_worker(launcher) as worker:
            launcher._control.send(b"[]")
            await asyncio.wait_for(lost, TIMEOUT_SECONDS)
            assert await wait_for_end(worker) == -signal.SIGKILL
        await launcher.close()

    run(main)


# --- cancelling and crowding


def test_a_cancelled_fork_leaves_no_worker_whenever_it_is_cancelled() -> None:
    async def main() -> None:
        async with plain_launcher() as launcher:
            before = open_descriptors()
            for turns in range(12):
                fork = asyncio.ensure_future(launcher.fork(LIMITS))
                for _ in range(turns):
                    await asyncio.sleep(0)
                fork.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    (await fork).release()
            await settle(launcher)
            assert open_descriptors().keys() == before.keys()

    run(main)


def test_a_fork_cancelled_in_the_moment_of_its_arrival_leaves_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with plain_launcher() as launcher:
            welcome = launcher._welcome

            def cancel_at_arrival(report: Any, descriptors: list[int]) -> None:
                welcome(report, descriptors)
                fork.cancel()

            monkeypatch.setattr(launcher, "_welcome", cancel_at_arrival)
            before = open_descriptors()
            fork = asyncio.ensure_future(launcher.fork(LIMITS))
            with pytest.raises(asyncio.CancelledError):
                await fork
            monkeypatch.undo()
            await settle(launcher)
            assert open_descriptors().keys() == before.keys()

    run(main)


async def settle(launcher: Launcher) -> None:
    """Wait until every worker that was asked for so far has come and gone.

    Reports come in the order of the requests, so after one more worker all earlier ones are known.
    """
    async with plain_worker(launcher) as last:
        last.kill()
    await asyncio.wait([worker.exited for worker in launcher._workers.values()], timeout=TIMEOUT_SECONDS)
    assert children_of(launcher.pid) == []


def test_more_requests_than_the_socket_holds_are_all_answered() -> None:
    async def main() -> None:
        async with plain_launcher() as launcher:
            os.kill(launcher.pid, signal.SIGSTOP)
            launcher._control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            waiting = [asyncio.ensure_future(launcher.fork(LIMITS)) for _ in range(60)]
            for _ in range(5):
                await asyncio.sleep(0)
            os.kill(launcher.pid, signal.SIGCONT)
            workers = await asyncio.gather(*waiting)
            assert len({worker.pid for worker in workers}) == 60
            for worker in workers:
                worker.release()

    run(main)


def test_a_host_that_does_not_read_its_reports_loses_none() -> None:
    async def main() -> None:
        async with plain_launcher() as launcher:
            asyncio.get_running_loop().remove_reader(launcher._control.fileno())
            waiting = [asyncio.ensure_future(launcher.fork(LIMITS)) for _ in range(40)]
            for _ in range(200):
                await asyncio.sleep(0)
            asyncio.get_running_loop().add_reader(launcher._control.fileno(), launcher._read_reports)
            workers = await asyncio.gather(*waiting)
            assert [await ask(worker, "out = 1") for worker in workers] == [{"value": 1}] * 40
            for worker in workers:
                worker.release()

    run(main)


def test_a_host_with_many_threads_can_start_one() -> None:
    stop = threading.Event()
    threads = [threading.Thread(target=stop.wait) for _ in range(30)]
    for thread in threads:
        thread.start()

    async def main() -> None:
        async with plain_launcher() as launcher, plain_worker(launcher) as worker:
            assert await ask(worker, "out = 1") == {"value": 1}

    try:
        run(main)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
