"""The figures of Loopwarden: a table, then one JSON object. Medians over repeats; run it on a quiet machine.

`bench.py NAME…` takes single figures; `bench.py bombs` shows what each family of resource bombs costs the host.
"Pinned" means that host, launcher and worker share one core. Each figure is taken in a process of its own.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable

import agent_programs
import bombs
import jobs
import journal
import structlog
import syncs
from measuring import NotMeasured, median, private_kib

from loopwarden import AgentRequest, Host, Limits, Run, Script, events

ROOMY = Limits(max_total_agents=20_000, max_concurrent_agents=1000, max_live_agents=2000)
NOTHING = Script.from_text("def main(args):\n    return 1\n")
SEQUENTIAL = Script.from_text("def main(args):\n    for i in range(args['n']):\n        agent('hello')\n    return i\n")
FAN_OUT = Script.from_text("def main(args):\n    return len(parallel([lambda: agent('hello')] * args['n']))\n")
SPIN = Script.from_text("def main(args):\n    log('spinning')\n    while True:\n        pass\n")
ONE_AGENT = Script.from_text("def main(args):\n    return agent('hello')\n")


async def at_once(request: AgentRequest) -> str:
    """An agent that answers immediately."""
    return "reply"


async def ten_milliseconds(request: AgentRequest) -> str:
    """An agent that takes 10 ms."""
    await asyncio.sleep(0.01)
    return "reply"


async def never(request: AgentRequest) -> str:
    """An agent that works until it is cancelled."""
    await asyncio.Event().wait()
    return "never"


async def return_1() -> float:
    """Milliseconds from `start` to the result of `return 1`."""
    async with Host(providers={"default": at_once}) as host:

        async def measure() -> float:
            began = time.perf_counter()
            (await host.run(NOTHING)).raise_for_failure()
            return (time.perf_counter() - began) * 1000

        return await median(100, measure)


async def sequential() -> float:
    """Calls per second."""
    async with Host(providers={"default": at_once}, limits=ROOMY) as host:

        async def measure() -> float:
            began = time.perf_counter()
            (await host.run(SEQUENTIAL, {"n": 4000})).raise_for_failure()
            return 4000 / (time.perf_counter() - began)

        return await median(7, measure)


async def fan_out() -> float:
    """Milliseconds for 1,000 calls through `parallel`, concurrency 1,000."""
    async with Host(providers={"default": at_once}, limits=ROOMY) as host:

        async def measure() -> float:
            began = time.perf_counter()
            (await host.run(FAN_OUT, {"n": 1000})).raise_for_failure()
            return (time.perf_counter() - began) * 1000

        return await median(15, measure)


async def overhead() -> float:
    """1,000 calls of 10 ms at concurrency 16, as a multiple of the same tasks under bare asyncio."""
    async with Host(providers={"default": ten_milliseconds}, limits=Limits(max_total_agents=1000)) as host:

        async def measure() -> float:
            slots = asyncio.Semaphore(16)

            async def task() -> None:
                async with slots:
                    await asyncio.sleep(0.01)

            began = time.perf_counter()
            await asyncio.gather(*[task() for _ in range(1000)])
            bare = time.perf_counter() - began
            began = time.perf_counter()
            (await host.run(FAN_OUT, {"n": 1000})).raise_for_failure()
            return (time.perf_counter() - began) / bare

        return await median(5, measure)


async def live_runs(host: Host, count: int) -> list[Run[object]]:
    """Start runs and wait until each has its agent."""
    runs: list[Run[object]] = await asyncio.gather(*[host.start(ONE_AGENT) for _ in range(count)])
    for run in runs:
        async for event in run.events():
            if isinstance(event, events.AgentStarted):
                break
    return runs


async def memory() -> float:
    """Private megabytes per idle live run: its worker and the growth of the host."""
    async with Host(providers={"default": never}, limits=Limits(max_live_agents=500)) as host:
        await live_runs(host, 5)
        before = private_kib(os.getpid())
        runs = await live_runs(host, 100)
        growth = private_kib(os.getpid()) - before
        workers = sum(private_kib(run._session.worker.pid) for run in runs)
        return (growth + workers) / len(runs) / 1024


async def cancel_spin() -> float:
    """Milliseconds from `cancel()` of a spinning script to the end of `wait()`."""
    async with Host(providers={"default": at_once}) as host:

        async def measure() -> float:
            run = await host.start(SPIN)
            async for event in run.events():
                if isinstance(event, events.Log):
                    break
            began = time.perf_counter()
            run.cancel("enough")
            await run.wait()
            return (time.perf_counter() - began) * 1000

        return await median(20, measure)


async def fifty_runs() -> float:
    """Milliseconds until 50 runs that were started at once all have their agent."""
    async with Host(providers={"default": never}, limits=Limits(max_live_agents=500)) as host:

        async def measure() -> float:
            began = time.perf_counter()
            runs = await live_runs(host, 50)
            took = (time.perf_counter() - began) * 1000
            for run in runs:
                run.cancel("measured")
            for run in runs:
                await run.wait()
            return took

        return await median(7, measure)


FIGURES: dict[str, tuple[str, Callable[[], Awaitable[float]], bool, str, float, str]] = {
    "returnOneMs": ("start to result of `return 1`, pinned", return_1, True, "ms", 6, "<="),
    "sequentialPerSecond": ("sequential agent(), immediate provider, pinned", sequential, True, "calls/s", 8000, ">="),
    "fanOutMs": ("1,000 calls through parallel, concurrency 1,000, pinned", fan_out, True, "ms", 60, "<="),
    "overheadRatio": ("1,000 calls of 10 ms, concurrency 16, over bare asyncio", overhead, False, "x", 1.10, "<="),
    "idleRunMb": ("private memory per idle live run, worker and host", memory, False, "MB", 3, "<="),
    "cancelMs": ("cancel of a spinning script to wait()", cancel_spin, False, "ms", 20, "<="),
    "fiftyRunsMs": ("50 runs started at once, all agents started", fifty_runs, False, "ms", 250, "<="),
    "driverMs": ("one agent program, driver over a bare start", agent_programs.overhead, False, "ms", 8, "<="),
    "driverMb": ("private memory per live agent, program left out", agent_programs.memory, False, "MB", 4, "<="),
    "agentsAtOnceMs": ("64 agent programs at once, until all have ended", agent_programs.at_once, False, "ms", 0, ""),
    "agentsAtOnceRatio": ("64 agent programs at once, over bare", agent_programs.at_once_ratio, False, "x", 0, ""),
    "sqlitePairs": ("64 runs, ask+end pairs, SQLite", journal.sqlite_at_once, False, "pairs/s", 8000, ">="),
    "sqliteOnePairs": ("one run, ask+end pairs, SQLite", journal.sqlite_alone, False, "pairs/s", 500, ">="),
    "postgresPairs": ("64 runs, ask+end pairs, Postgres", journal.postgres_at_once, False, "pairs/s", 1500, ">="),
    "postgresScopePairs": (
        "64 runs of one budget, ask+end pairs, Postgres", journal.postgres_one_scope, False, "pairs/s", 800, ">=",
    ),
    "sqliteCalls": ("64 runs in workers, calls, SQLite", jobs.at_once, False, "calls/s", 0, ""),
    "sqliteOneCalls": ("one run in a worker, calls, SQLite", jobs.alone, False, "calls/s", 0, ""),
    "syncsPerCall": ("syncs for a call of one run, checkpoints apart, SQLite", syncs.per_call, False, "", 2, "<="),
    "replayMs": ("replay of 1,000 ended calls, worker included", jobs.replay, False, "ms", 150, "<="),
    "submitPerSecond": ("submit, one by one", jobs.submit, False, "runs/s", 0, ""),
    "submitManyPerSecond": ("submit_many, 500 at a time", jobs.submit_many, False, "runs/s", 0, ""),
    "queuedRunsMb": ("memory of 1,000 queued runs, in their host", jobs.queued_memory, False, "MB", 5, "<="),
    "liveRunsMb": ("memory of 200 live runs, all processes", jobs.live_memory, False, "MB", 700, "<="),
}  # fmt: skip


def take(name: str) -> float | str:
    """Take one figure in a process of its own; in words, why it cannot be taken here."""
    done = subprocess.run([sys.executable, __file__, name], check=True, stdout=subprocess.PIPE, text=True)
    figure: float | str = json.loads(done.stdout)
    return round(figure, 3) if isinstance(figure, float) else figure


async def taken_here(measure: Callable[[], Awaitable[float]]) -> float | str:
    """Take a figure in this process."""
    try:
        return float(await measure())
    except NotMeasured as why:
        return str(why)


def main() -> None:
    """Take all figures, or those that are named; with one name, in this process."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    names = sys.argv[1:]
    if names == ["bombs"]:
        sys.stdout.write(bombs.table())
        return
    if len(names) == 1:
        _, measure, is_pinned, *_ = FIGURES[names[0]]
        if is_pinned:
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        sys.stdout.write(json.dumps(asyncio.run(taken_here(measure))) + "\n")
        return
    figures: dict[str, float | str] = {}
    width = max(len(row[0]) for row in FIGURES.values())
    for name in names or FIGURES:
        title, _, _, unit, reach, relation = FIGURES[name]
        figures[name] = value = take(name)
        if isinstance(value, str):
            sys.stdout.write(f"{title:<{width}}  {value}\n")
            continue
        aim = ""
        if relation:
            is_met = value <= reach if relation == "<=" else value >= reach
            aim = f"reach {relation} {reach:>8,g}  {'reached' if is_met else 'missed'}"
        sys.stdout.write(f"{title:<{width}}  {value:>10,.2f} {unit:<8} {aim}".rstrip() + "\n")
        sys.stdout.flush()
    if not names:
        sys.stdout.write(
            subprocess.run([sys.executable, __file__, "bombs"], check=True, stdout=subprocess.PIPE, text=True).stdout
        )
    sys.stdout.write(json.dumps({"figures": figures, "python": sys.version.split()[0], "cores": os.cpu_count()}) + "\n")


if __name__ == "__main__":
    main()
