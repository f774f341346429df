"""Figures of the driver of agent programs, against starting the same program bare."""

import asyncio
import os
import re
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from loopwarden import AgentReply, AgentRequest
from loopwarden.providers.configured import make_dialect
from loopwarden.providers.dialect import ProgramOptions
from loopwarden.providers.driver import ProgramProvider

PROGRAM = """#!/bin/sh
cat > /dev/null
echo '{"type":"thread.started","thread_id":"t"}'
echo '{"type":"item.completed","item":{"id":"i","type":"agent_message","text":"done"}}'
echo '{"type":"turn.completed","usage":{"input_tokens":1,"cached_input_tokens":0,"output_tokens":1}}'
"""
"""As quick as a program can be: reads its prompt, and prints what codex prints."""
SLEEPER = "#!/bin/sh\nexec sleep 600\n"
AT_ONCE = 64


@dataclass(frozen=True)
class Bench:
    """A program, and a workspace to run it in."""

    program: str
    provider: ProgramProvider
    workspace: Path
    folder: Path

    async def driven(self, number: int = 1) -> AgentReply:
        """Run it as an agent."""
        folder = self.folder / f"{number}-{time.monotonic_ns()}"
        folder.mkdir()
        return await self.provider.reply(
            AgentRequest(
                run_id="bench", seq=number, attempt=1, prompt="hello", label="hello", phase=None, schema=None,
                model=None, workspace=self.workspace, folder=folder, timeout_seconds=60, idle_seconds=60,
                grace_seconds=1, max_output_bytes=1 << 20, idempotency_key="bench", progress=lambda _: None,
            )
        )  # fmt: skip

    async def bare(self) -> None:
        """Start the same program, and read what it prints."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            self.program, stdin=pipe, stdout=pipe, stderr=pipe, cwd=self.workspace
        )
        await process.communicate(b"hello")


@contextmanager
def bench(text: str = PROGRAM) -> Iterator[Bench]:
    """A program in a folder of its own."""
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        for name in ("workspace", "state"):
            (root / name).mkdir()
        program = root / "program"
        program.write_text(text)
        program.chmod(0o700)
        provider = ProgramProvider(make_dialect("codex"), ProgramOptions(program=os.fspath(program)))
        yield Bench(os.fspath(program), provider, root / "workspace", root / "state")


async def milliseconds(action: Callable[[], Awaitable[object]]) -> float:
    """How long an action takes."""
    began = time.perf_counter()
    await action()
    return (time.perf_counter() - began) * 1000


async def overhead() -> float:
    """Milliseconds that one agent takes longer under the driver: median of differences of pairs, taken in turn."""
    with bench() as it:
        await it.driven()
        await it.bare()
        pairs = [(await milliseconds(it.driven), await milliseconds(it.bare)) for _ in range(40)]
        return statistics.median(driven - bare for driven, bare in pairs)


async def at_once() -> float:
    """Milliseconds until 64 agents that were started together have all ended."""
    with bench() as it:

        async def all_of_them() -> None:
            await asyncio.gather(*(it.driven(number) for number in range(AT_ONCE)))

        await all_of_them()
        return statistics.median([await milliseconds(all_of_them) for _ in range(5)])


async def at_once_ratio() -> float:
    """64 agents at once under the driver, over 64 bare starts at once."""
    with bench() as it:

        async def driven() -> None:
            await asyncio.gather(*(it.driven(number) for number in range(AT_ONCE)))

        async def bare() -> None:
            await asyncio.gather(*(it.bare() for _ in range(AT_ONCE)))

        await driven()
        await bare()
        return statistics.median([await milliseconds(driven) / await milliseconds(bare) for _ in range(5)])


async def memory() -> float:
    """Private megabytes per live agent, without the program itself: its supervisor, and what the host grew by."""
    with bench(SLEEPER) as it:
        before = private_bytes(os.getpid())
        tasks = [asyncio.create_task(it.driven(number)) for number in range(AT_ONCE)]
        while len(supervisors := supervisors_of(os.getpid())) < AT_ONCE or not all(map(children_of, supervisors)):
            await asyncio.sleep(0.05)
        used = private_bytes(os.getpid()) - before + sum(map(private_bytes, supervisors))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return used / AT_ONCE / 1e6


def children_of(pid: int) -> list[int]:
    """The direct children of a process, whichever of its threads started them."""
    found = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        found += map(int, (thread / "children").read_text().split())
    return found


def supervisors_of(pid: int) -> list[int]:
    """The supervisors that the nursery of a process forked."""
    return [supervisor for nursery in children_of(pid) for supervisor in children_of(nursery)]


def private_bytes(pid: int) -> int:
    """What only this process has in memory."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    return sum(int(size) * 1024 for size in re.findall(r"^Private_\w+:\s+(\d+) kB", rollup, re.MULTILINE))
