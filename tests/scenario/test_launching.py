"""The launcher and its workers: what they hold, what they carry, and how a worker ends."""

import asyncio
import os
import signal
import socket
from pathlib import Path

from loopwarden.launching import WorkerLimits
from loopwarden_engine.confinement import STANDS, WALLS
from support.plain_worker import (
    LIMITS,
    ask,
    is_alive,
    open_descriptors,
    plain_launcher,
    plain_worker,
    run,
    tell,
    wait_for_end,
)

# --- what it is


def test_every_mandatory_wall_stands_around_a_worker_and_the_report_says_so() -> None:
    async def main() -> None:
        async with plain_launcher() as launcher, plain_worker(launcher) as worker:
            assert set(worker.walls) == set(WALLS)
            assert worker.walls == launcher.walls
            assert {wall for wall, state in worker.walls.items() if state != STANDS} <= {"identity"}
            assert (worker.walls["identity"] == STANDS) == (os.geteuid() == 0)
            assert await ask(worker, "out = 6 * 7") == {"value": 42}
            status = await asyncio.to_thread(Path(f"/proc/{worker.pid}/status").read_text)
            assert "\nSeccomp:\t2\n" in status
            assert "\nNoNewPrivs:\t1\n" in status

    run(main)


def test_the_launcher_holds_nothing_of_the_host() -> None:
    os.environ["LOOPWARDEN_TEST_SECRET"] = "the secret"

    async def main() -> None:
        async with plain_launcher() as launcher:
            process = Path(f"/proc/{launcher.pid}")
            assert (process / "environ").read_bytes() == b"PYTHONHASHSEED=0\0"
            assert (process / "cwd").readlink() == Path("/")
            assert os.getsid(launcher.pid) == launcher.pid
            assert b"secret" not in (process / "cmdline").read_bytes()
            descriptors = open_descriptors(launcher.pid)
            assert [descriptors.pop(name) for name in "012"] == ["/dev/null"] * 3
            assert sorted(target.split(":")[0] for target in descriptors.values()) == [
                "anon_inode",
                "anon_inode",
                "socket",
            ]
            assert len(list((process / "task").iterdir())) == 1
            ignored = int((process / "status").read_text().split("SigIgn:\t")[1].split()[0], 16)
            assert ignored & (1 << signal.SIGINT - 1)
            assert ignored & (1 << signal.SIGHUP - 1)

    try:
        run(main)
    finally:
        del os.environ["LOOPWARDEN_TEST_SECRET"]


def test_a_worker_sees_no_environment_no_argument_and_no_stream() -> None:
    code = "import os, sys; out = [dict(os.environ), sys.argv, str(sys.stdin), str(sys.stdout), str(sys.__stderr__)]"

    async def main() -> None:
        async with plain_launcher() as launcher, plain_worker(launcher) as worker:
            assert await ask(worker, code) == {"value": [{}, ["-c"], "None", "None", "None"]}

    run(main)


def test_a_worker_has_neither_pickle_machinery_nor_collector_nor_hash_seed() -> None:
    code = "import gc, sys; out = [sys.modules.get('dill') is None, gc.isenabled(), sys.flags.hash_randomization]"

    async def main() -> None:
        async with plain_launcher() as launcher, plain_worker(launcher) as worker:
            assert await ask(worker, code) == {"value": [True, False, 0]}

    run(main)


def test_two_workers_are_two_processes_that_share_nothing() -> None:
    async def main() -> None:
        async with (
            plain_launcher() as launcher,
            plain_worker(launcher) as first,
            plain_worker(launcher) as second,
        ):
            await ask(first, "import json; json.mark = 'first'")
            assert await ask(second, "import json; out = hasattr(json, 'mark')") == {"value": False}

    run(main)


def test_a_worker_carries_ten_thousand_messages_and_large_ones() -> None:
    async def main() -> None:
        async with plain_launcher() as launcher, plain_worker(launcher) as worker:
            assert await ask(worker, "out = 'x' * 5_000_000") == {"value": "x" * 5_000_000}
            for number in range(10_000):
                assert await ask(worker, f"out = {number}") == {"value": number}

    run(main)


# --- how workers end


def test_the_exit_status_says_how_a_worker_ended() -> None:
    async def main() -> None:
        async with plain_launcher() as launcher:
            async with plain_worker(launcher) as killed:
                killed.kill()
                killed.kill()
                assert await wait_for_end(killed) == -signal.SIGKILL
                killed.kill()
            async with plain_worker(launcher) as forbidden:
                assert await ask(forbidden, "import os; os.fork()") is None
                assert await wait_for_end(forbidden) == -signal.SIGSYS
            async with plain_worker(launcher) as left_alone:
                left_alone.channel.shutdown(socket.SHUT_RDWR)
                assert await wait_for_end(left_alone) == 0
            assert killed.refusal() is forbidden.refusal() is left_alone.refusal() is None
            greedy = await launcher.fork(WorkerLimits(memory_bytes=LIMITS.memory_bytes, cpu_seconds=1))
            await tell(greedy, "while True: pass")
            assert await wait_for_end(greedy) == -signal.SIGXCPU
            greedy.release()

    run(main)


def test_memory_is_limited_to_what_was_asked_for() -> None:
    async def main() -> None:
        async with plain_launcher() as launcher:
            worker = await launcher.fork(WorkerLimits(memory_bytes=128 * 1024 * 1024, cpu_seconds=10))
            assert await ask(worker, "out = len(bytearray(20_000_000))") == {"value": 20_000_000}
            assert await ask(worker, "out = len(bytearray(200_000_000))") == {"error": "MemoryError: "}
            worker.release()

    run(main)


def test_released_workers_are_dead_and_release_may_be_repeated() -> None:
    async def main() -> None:
        async with plain_launcher() as launcher:
            worker = await launcher.fork(LIMITS)
            await tell(worker, "while True: pass")
            worker.release()
            worker.release()
            worker.kill()
            assert await wait_for_end(worker) == -signal.SIGKILL
            assert not is_alive(worker.pid)

    run(main)


def test_an_end_is_reported_only_once_the_process_is_reaped() -> None:
    async def main() -> None:
        async with plain_launcher() as launcher:
            for _ in range(20):
                async with plain_worker(launcher) as worker:
                    worker.kill()
                    await wait_for_end(worker)
                    assert not is_alive(worker.pid)

    run(main)
