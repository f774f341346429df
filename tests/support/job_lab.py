"""Hosts that share stores, and agents that answer when a test lets them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from loopwarden import AgentRequest, Host, Limits, Script
from loopwarden.failures import Code
from loopwarden.lease_keeper import LeaseRules
from loopwarden.store.api import Store
from loopwarden.store.runs import RunRow
from loopwarden.store.sqlite import open_sqlite
from support.lent_launcher import LentLauncher

QUICK = LeaseRules(lease_seconds=30.0, kill_grace_seconds=1.0, poll_seconds=0.05)
"""A driver that looks often, and leases that no test outlives."""
SHORT = LeaseRules(lease_seconds=0.6, kill_grace_seconds=0.1, poll_seconds=0.05)
"""Leases that end while a test waits for it."""
SECONDS = 30
"""After so long a test has failed: what it waits for does not come."""

FAN = Script.from_text(
    """
from loopwarden_engine import agent, log, parallel, phase

def main(args):
    phase("asking")
    log(f"{args['n']} agents")
    return parallel([lambda i=i: agent(f"{args.get('name', 'p')}{i}") for i in range(args["n"])])
""",
    name="fan",
)
CHAIN = Script.from_text(
    """
from loopwarden_engine import agent

def main(args):
    return [agent(f"{args.get('name', 'p')}{i}") for i in range(args["n"])]
""",
    name="chain",
)


class Agents:
    """A provider: what it was asked, and when it answers."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.kept: set[str] = set()
        """Prompts that wait until `let_go`."""
        self._gates: dict[str, asyncio.Event] = {}
        self._asks: asyncio.Condition | None = None

    async def __call__(self, request: AgentRequest) -> str:
        """Answer one call."""
        self.asked.append(request.prompt)
        self._asks = self._asks or asyncio.Condition()
        async with self._asks:
            self._asks.notify_all()
        if request.prompt in self.kept:
            await self._gate(request.prompt).wait()
        return f"answer to {request.prompt}"

    def let_go(self, *prompts: str) -> None:
        """Let these be answered, and asked again without waiting."""
        for prompt in prompts:
            self.kept.discard(prompt)
            self._gate(prompt).set()

    async def until_asked(self, prompt: str, times: int = 1) -> None:
        """Wait until a prompt was asked so often."""
        self._asks = self._asks or asyncio.Condition()
        async with asyncio.timeout(SECONDS), self._asks:
            await self._asks.wait_for(lambda: self.asked.count(prompt) >= times)

    def _gate(self, prompt: str) -> asyncio.Event:
        return self._gates.setdefault(prompt, asyncio.Event())


class JobLab:
    """One store file, any number of hosts on it: each with a store object of its own, as in processes of their own."""

    def __init__(self, folder: Path, launcher: LentLauncher) -> None:
        self.file = folder / "state" / "store.db"
        self._launcher = launcher
        self._stack = contextlib.AsyncExitStack()
        self.agents = Agents()

    async def store(self, clock: Callable[[], float] | None = None) -> Store:
        """Open the store once more; closed at the end."""
        store = await (open_sqlite(self.file) if clock is None else open_sqlite(self.file, clock=clock))
        self._stack.push_async_callback(store.close)
        return store

    async def host(
        self,
        *,
        clock: Callable[[], float] | None = None,
        leases: LeaseRules = QUICK,
        limits: Limits | None = None,
        providers: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Host:
        """A host on the store; closed at the end."""
        host = Host(
            providers=providers or {"default": self.agents},
            limits=limits or Limits(agent_grace_seconds=0.2),
            store=await self.store(clock),
            leases=leases,
            **more,
        )
        self._launcher.lend_to(host)
        return await self._stack.enter_async_context(host)

    async def close(self) -> None:
        """Close hosts, then stores."""
        await self._stack.aclose()


InLab: TypeAlias = Callable[[Callable[[JobLab], Awaitable[None]]], None]
"""The fixture `in_lab`: plays a case in a lab of its own."""


@contextlib.asynccontextmanager
async def job_lab(folder: Path, launcher: LentLauncher) -> AsyncIterator[JobLab]:
    """A lab, within a time after which its test has failed."""
    async with asyncio.timeout(SECONDS):
        lab = JobLab(folder, launcher)
        try:
            yield lab
        finally:
            await lab.close()


async def row_of(host: Host, run_id: str) -> RunRow:
    """A run that there is."""
    row = await host.find(run_id)
    assert row is not None
    return row


async def held_run(host: Host) -> str:
    """A run that was held before it had done anything."""
    run_id = await host.submit(FAN, {"n": 1})
    assert host.custody is not None
    claim, asked_at = await host.custody.claim_one(run_id)
    await host.custody.tenure(claim, asked_at).hold(Code.REPLAY_DIVERGED, "it differs")
    return run_id
