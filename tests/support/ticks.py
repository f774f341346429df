"""Virtual time: a clock that tests drive, and a provider whose agents take ticks of it.

A tick passes only when nothing else can happen: the worker waits for the host, and every live agent waits for a tick.
"""

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from loopwarden import AgentFailed, AgentReply, AgentRequest, ProviderStartError, Run
from loopwarden.provider import FUNCTION_CAPABILITIES, Capabilities

REAL_SECONDS = 20.0


@dataclass
class TickTimer:
    """One call that was put off to a tick."""

    callback: Callable[[], None] | None

    def cancel(self) -> None:
        """Forget the call."""
        self.callback = None


@dataclass
class TickClock:
    """Time that stands still until `tick`."""

    ticks: int = 0
    _due: list[tuple[float, int, TickTimer]] = field(default_factory=list)
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def now(self) -> float:
        """Ticks so far."""
        return float(self.ticks)

    def wall(self) -> float:
        """Ticks since 1970."""
        return float(self.ticks)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> TickTimer:
        """Call `callback` when `seconds` ticks have passed."""
        timer = TickTimer(callback)
        heapq.heappush(self._due, (self.ticks + seconds, next(self._numbers), timer))
        return timer

    def tick(self) -> None:
        """Let one tick pass."""
        self.ticks += 1
        while self._due and self._due[0][0] <= self.ticks:
            timer = heapq.heappop(self._due)[2]
            if timer.callback is not None:
                timer.callback()


@dataclass
class TickProvider:
    """Agents as the `provider.table` of a workflow case describes them."""

    clock: TickClock
    table: list[dict[str, Any]]
    starts: list[str] = field(default_factory=list)
    history: list[tuple[str, str]] = field(default_factory=list)
    in_flight: int = 0
    max_in_flight: int = 0
    _parked: "list[asyncio.Future[None]]" = field(default_factory=list)
    capabilities: Capabilities = FUNCTION_CAPABILITIES

    async def reply(self, request: AgentRequest) -> AgentReply:
        """Run one agent."""
        row = next((row for row in self.table if row["match"] == "*" or row["match"] in request.prompt), {})
        self.starts.append(request.prompt)
        self.history.append(("start", request.prompt))
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        try:
            return await self._work(request, row)
        finally:
            self.in_flight -= 1
            self.history.append(("end", request.prompt))

    async def _work(self, request: AgentRequest, row: dict[str, Any]) -> AgentReply:
        ignores = bool(row.get("ignores_abort"))
        await self._wait(row.get("start_delay", 0), ignores=ignores)
        outcome = row.get("outcome", "completed")
        if outcome == "start-fault":
            raise ProviderStartError(row.get("text", "it cannot start"))
        await self._wait(None if outcome == "never" else row.get("delay", 1), ignores=ignores)
        if outcome == "failed":
            raise AgentFailed(row.get("text", "the child failed"))
        if outcome == "result-fault":
            raise RuntimeError(row.get("text", "the result is broken"))
        if "structured" in row:
            return AgentReply(text=row.get("text", ""), value=row["structured"])
        return AgentReply(text=row.get("text", f"reply to {request.prompt}"))

    async def _wait(self, ticks: int | None, *, ignores: bool) -> None:
        if ticks == 0:
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if ticks is not None:
            self.clock.call_later(ticks, lambda: woken.done() or woken.set_result(None))
        self._parked.append(woken)
        try:
            while not woken.done():
                try:
                    await asyncio.shield(woken)
                except asyncio.CancelledError:
                    if not ignores:
                        raise
        finally:
            self._parked.remove(woken)

    def let_go(self) -> None:
        """Wake agents that ignored their cancellation: who never ends would hold up the end of the test's loop."""
        for woken in self._parked:
            if not woken.done():
                woken.set_result(None)

    @property
    def parked(self) -> int:
        """Agents that wait for a tick."""
        return sum(not woken.done() for woken in self._parked)


def is_quiet(run: Run[Any], provider: TickProvider) -> bool:
    """True when nothing happens until a tick passes."""
    broker = run._broker
    if run._record.ending is not None:
        # Only agents that ignore their cancellation are worth a tick now, until their run has given them up; the end of
        # the worker is real, and takes no ticks.
        return bool(broker._live) and provider.parked == provider.in_flight
    return run._session.is_waiting and provider.parked == sum(agent.task is not None for agent in broker._live)


async def until_quiet(run: Run[Any], provider: TickProvider) -> None:
    """Let everything happen that can happen without a tick."""
    deadline = time.monotonic() + REAL_SECONDS
    while not run.is_over:
        await asyncio.sleep(0)
        if is_quiet(run, provider):
            return
        assert time.monotonic() < deadline, "the run neither ended nor came to rest"
