"""Figures of the job engine, on SQLite: submitting, replaying, and what runs take of memory."""

import asyncio
import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from journal import AT_ONCE, VALUE
from measuring import median, private_kib, shared_out_kib

from loopwarden import AgentRequest, Host, JobRequest, Limits, Script
from loopwarden.provider import ReplyFunction
from loopwarden.store.sqlite import open_sqlite

ROOMY = Limits(max_total_agents=20_000, max_live_agents=500)
NOTHING = Script.from_text("def main(args):\n    return 1\n", name="nothing")
CALLS = Script.from_text(
    """
from loopwarden_engine import agent

def main(args):
    for i in range(args["n"]):
        agent("hello")
    return agent("the last")
""",
    name="calls",
)
QUEUED = 1000
LIVE = 200
REPLAYED = 1000


async def answer(request: AgentRequest) -> str:
    """An agent that answers immediately."""
    return VALUE


class Waits:
    """Agents that answer immediately, but for the last one of each run, which works until it is cancelled."""

    def __init__(self, runs: int) -> None:
        self._missing = runs
        self.all_wait = asyncio.Event()

    async def __call__(self, request: AgentRequest) -> str:
        """Answer one call."""
        if request.prompt == "hello":
            return VALUE
        self._missing -= 1
        if not self._missing:
            self.all_wait.set()
        await asyncio.Event().wait()
        return "never"


@contextlib.asynccontextmanager
async def host_on(file: Path, reply: ReplyFunction) -> AsyncIterator[Host]:
    """A host on a store in a file, whose launcher is warm."""
    store = await open_sqlite(file)
    try:
        async with Host(providers={"default": reply}, limits=ROOMY, store=store) as host:
            (await host.run(NOTHING)).raise_for_failure()
            yield host
    finally:
        await store.close()


@contextlib.asynccontextmanager
async def fresh_host(reply: ReplyFunction) -> AsyncIterator[Host]:
    """A host on a store of its own."""
    with tempfile.TemporaryDirectory() as folder:
        async with host_on(Path(folder) / "state" / "runs.db", reply) as host:
            yield host


async def at_once() -> float:
    """Calls per second of 64 runs in workers, each with one agent at a time."""
    async with fresh_host(answer) as host:

        async def measure() -> float:
            began = time.perf_counter()
            runs = [await host.start(CALLS, {"n": 29}) for _ in range(AT_ONCE)]
            for run in runs:
                (await run.wait()).raise_for_failure()
            return AT_ONCE * 30 / (time.perf_counter() - began)

        return await median(3, measure)


async def alone() -> float:
    """Calls per second of one run in a worker."""
    async with fresh_host(answer) as host:

        async def measure() -> float:
            began = time.perf_counter()
            (await host.run(CALLS, {"n": 299})).raise_for_failure()
            return 300 / (time.perf_counter() - began)

        return await median(3, measure)


async def replay() -> float:
    """Milliseconds from the claim of a run with 1,000 ended calls until its next call is asked, worker included."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "made.db"
        waits = Waits(1)
        async with host_on(made, waits) as host:
            run_id = await host.submit(CALLS, {"n": REPLAYED})
            async with host.drive():
                await waits.all_wait.wait()
        count = 0

        async def measure() -> float:
            nonlocal count
            count += 1
            copy = Path(folder) / f"{count}.db"
            shutil.copy(made, copy)  # the host has given the run back, and closing the store has emptied its log
            waits = Waits(1)
            async with host_on(copy, waits) as host:
                assert host.custody is not None
                began = time.perf_counter()
                assert await host.adopt(*await host.custody.claim_one(run_id)) is not None
                await waits.all_wait.wait()
                return (time.perf_counter() - began) * 1000

        return await median(5, measure)


async def submit() -> float:
    """Runs per second that are submitted one after the other, each committed before the next."""
    async with fresh_host(answer) as host:

        async def measure() -> float:
            began = time.perf_counter()
            for _ in range(200):
                await host.submit(CALLS, {"n": 1})
            return 200 / (time.perf_counter() - began)

        return await median(3, measure)


async def submit_many() -> float:
    """Runs per second that are submitted 500 at a time."""
    async with fresh_host(answer) as host:

        async def measure() -> float:
            requests = [JobRequest(script=CALLS, args={"n": 1}) for _ in range(500)]
            began = time.perf_counter()
            await host.submit_many(requests)
            return 500 / (time.perf_counter() - began)

        return await median(3, measure)


async def queued_memory() -> float:
    """Private megabytes by which a process grows when it submits 1,000 runs."""
    async with fresh_host(answer) as host:
        for _ in range(20):
            await host.submit(CALLS, {"n": 1})
        before = private_kib(os.getpid())
        for _ in range(QUEUED):
            await host.submit(CALLS, {"n": 1})
        return (private_kib(os.getpid()) - before) / 1024


async def live_memory() -> float:
    """Megabytes of host, launcher and workers while 200 runs of a queue have an agent each."""
    waits = Waits(LIVE)
    async with fresh_host(waits) as host, host.drive():
        await host.submit_many([JobRequest(script=CALLS, args={"n": 1}) for _ in range(LIVE)])
        await waits.all_wait.wait()
        processes = [os.getpid(), *_descendants(os.getpid())]
        assert len(processes) >= LIVE
        return shared_out_kib(processes) / 1024


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (thread / "children").read_text().split()):
            found += [child, *_descendants(child)]
    return found
