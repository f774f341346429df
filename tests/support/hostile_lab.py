"""One host, and hostile workers one after the other. Each has to end as promised and to leave nothing behind."""

import asyncio
import gc
import resource
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from loopwarden import AgentRequest, Code, Host, Limits, Outcome, Run, Script, StartRefused, events
from loopwarden.agent import Agent
from loopwarden.channel import WorkerChannel
from loopwarden.launching import Launcher, WorkerLimits
from loopwarden.live_run import LiveRun
from loopwarden.session import Session
from loopwarden.worker_process import WorkerProcess
from support.census import descriptors
from support.hostile_frames import Attack, Manners, play
from support.stand_in import StandInLauncher

LIMITS: Final = Limits(
    max_total_agents=3, max_concurrent_agents=2, max_narration=6, agent_grace_seconds=0.2, run_deadline_seconds=60
)
SCRIPT: Final = Script.from_text("def main(args):\n    return agent('honest')\n", name="hostile")
MOST_HELD_SECONDS: Final = 0.05
"""No callback of the event loop may use more processor time: every other run waits for it."""
WAIT_SECONDS: Final = 20.0
COMPLETED: Final = "completed"
GIVEN_UP: Final = "given up"
"""The caller of `start` was cancelled, since the worker never said that the script compiled."""

WORKERS_OWN: Final = frozenset(
    {
        Code.SCRIPT_ERROR,
        Code.MEMORY_LIMIT,
        Code.RESULT_INVALID,
        Code.INVALID_ARGUMENT,
        Code.UNSUPPORTED_OPTION,
        Code.UNSUPPORTED_SCHEMA,
        Code.ITEM_CAP,
        Code.NARRATION_LIMIT,
        Code.AGENT_CAP,
        Code.AGENT_START,
        Code.AGENT_RESULT,
    }
)
"""What a worker may bring upon its run by saying so, or by a call that an honest one could make as well."""


class HoldMeter:
    """The longest that one callback of an event loop took, in processor time of its thread."""

    def __init__(self) -> None:
        self.held_seconds = 0.0
        self.holder = ""

    def reset(self) -> None:
        """Forget what was measured."""
        self.held_seconds, self.holder = 0.0, ""

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Measure all callbacks of all event loops of this process."""
        run = asyncio.Handle._run

        def measured(handle: asyncio.Handle) -> None:
            began = time.thread_time()
            run(handle)
            held = time.thread_time() - began
            if held > self.held_seconds:
                self.held_seconds, self.holder = held, repr(handle)

        asyncio.Handle._run = measured  # type: ignore[method-assign]
        try:
            yield
        finally:
            asyncio.Handle._run = run  # type: ignore[method-assign]


class MixedLauncher:
    """The real launcher, but for workers that are asked to be hostile."""

    def __init__(self, real: Launcher) -> None:
        self._real = real
        self.stand_ins = StandInLauncher()
        self.is_hostile = False

    @property
    def alive(self) -> bool:
        """As the real one."""
        return self._real.alive

    @property
    def walls(self) -> Mapping[str, str]:
        """As the real one."""
        return self._real.walls

    async def fork(self, limits: WorkerLimits) -> WorkerProcess:
        """A worker of the kind that is asked for."""
        return await (self.stand_ins if self.is_hostile else self._real).fork(limits)

    async def close(self) -> None:
        """Close both."""
        await self.stand_ins.close()
        await self._real.close()


@dataclass
class Lab:
    """A host that is attacked."""

    host: Host
    launcher: MixedLauncher
    meter: HoldMeter
    asked: list[str] = field(default_factory=list)
    cases: int = 0
    longest_hold_seconds: float = 0.0
    """Over all attacks."""
    costliest: Attack | None = None
    """The attack that held up the host for so long."""

    async def answer(self, request: AgentRequest) -> Any:
        """The agents: some never end by themselves, some say much, some give an object."""
        self.asked.append(request.run_id)
        if request.prompt == "slow":
            await asyncio.Event().wait()
        if request.prompt == "much":
            return "x" * 500_000
        return {"a": "aaaa"} if request.schema is not None else "ok"

    async def attack(self, attack: Attack) -> str:
        """Let a hostile worker loose. Fails when a promise is broken.

        Returns the code that its run ended with, or `COMPLETED`, or `GIVEN_UP`.
        """
        ending = await self._attack(attack)
        held, holder = self.meter.held_seconds, self.meter.holder
        for _ in range(2):
            if held < MOST_HELD_SECONDS / 2:
                break
            # Another program may have had the caches of the processor: what holds up the host does so every time.
            await self._attack(attack)
            held = min(held, self.meter.held_seconds)
        if held > self.longest_hold_seconds:
            self.longest_hold_seconds, self.costliest = held, attack
        assert held < MOST_HELD_SECONDS, f"the event loop was held for {held * 1e3:.1f} ms by {holder}"
        return ending

    async def _attack(self, attack: Attack) -> str:
        before = await self._census()
        self.asked.clear()
        self.meter.reset()
        self.cases += 1
        self.launcher.is_hostile = True
        starting = asyncio.create_task(self.host.start(SCRIPT))
        peer = await self.launcher.stand_ins.peers.get()
        self.launcher.is_hostile = False
        playing = asyncio.create_task(asyncio.to_thread(play, peer.end, attack))
        try:
            ending = await self._ending(starting, playing, attack)
        finally:
            # The host has hung up by now, which ends what still waits for it.
            await asyncio.wait_for(asyncio.shield(playing), WAIT_SECONDS)
            peer.end.close()
            await asyncio.wait([starting])
        await self._gone(before)
        return ending

    async def _ending(self, starting: "asyncio.Task[Run[Any]]", playing: "asyncio.Task[None]", attack: Attack) -> str:
        if attack.manners in (Manners.NONE, Manners.START) and not attack.hangs_up:
            # Nothing comes any more, and the script was not even compiled: only the caller can end that.
            await playing
            done, _ = await asyncio.wait([starting], timeout=0.01)
            if not done:
                starting.cancel()
        await asyncio.wait([starting], timeout=WAIT_SECONDS)
        if starting.cancelled():
            return GIVEN_UP
        refusal = starting.exception()
        if refusal is not None:
            assert isinstance(refusal, StartRefused)
            assert not self.asked
            assert "mistake of ours" not in refusal.message
            return refusal.code.value
        run = starting.result()
        if not attack.hangs_up:
            await playing
            run.cancel("it says nothing more")
        outcome: Outcome[Any] = await asyncio.wait_for(run.wait(), WAIT_SECONDS)
        await self._check(run, outcome, attack)
        return COMPLETED if outcome.failure is None else outcome.failure.code.value

    async def _check(self, run: Run[Any], outcome: Outcome[Any], attack: Attack) -> None:
        failure = outcome.failure
        if failure is not None:
            expected = WORKERS_OWN | {Code.PROTOCOL, Code.WORKER_LOST} | ({Code.CANCELLED} - {attack.hangs_up})
            assert failure.code in expected, failure
            assert "mistake of ours" not in failure.message
            assert len(failure.message) < 20_000
        told = [event async for event in run.events()]
        assert [type(event) for event in told].count(events.RunEnded) == 1
        assert isinstance(told[-1], events.RunEnded)
        started = [event.seq for event in told if isinstance(event, events.AgentStarted)]
        ended = [event.seq for event in told if isinstance(event, events.AgentEnded)]
        assert sorted(started) == sorted(ended)
        assert len(started) == outcome.agents_started == len(self.asked) <= LIMITS.max_total_agents
        assert outcome.receipt.agents_started == outcome.agents_started

    async def honest_run(self) -> None:
        """A run of a real worker, which has to come to its honest end."""
        self.asked.clear()
        outcome = await asyncio.wait_for(self.host.run(SCRIPT), WAIT_SECONDS)
        assert (outcome.value, outcome.failure, outcome.agents_started) == ("ok", None, 1)

    # ---- what is left behind

    def forget_ended_runs(self) -> list[object]:
        """Let the host forget the runs that ended; what is still there of any run then."""
        self.host._ended.clear()
        gc.collect()
        return [kept for kept in gc.get_objects() if type(kept) in (LiveRun, Session, WorkerChannel, Agent)]

    def memory_bytes(self) -> int:
        """What this process holds in memory now."""
        return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * resource.getpagesize()

    async def _census(self) -> tuple[int, int, int]:
        loop: Any = asyncio.get_running_loop()
        timers = sum(not timer.cancelled() for timer in loop._scheduled)
        return descriptors(), len(asyncio.all_tasks()), timers

    async def _gone(self, before: tuple[int, int, int]) -> None:
        """Everything that the run made is gone, at once or a few turns of the event loop later."""
        deadline = time.monotonic() + WAIT_SECONDS
        after = await self._census()
        while after != before and time.monotonic() < deadline:
            await asyncio.sleep(0)
            after = await self._census()
        assert after == before, f"descriptors, tasks and timers were {before} and are {after}"
        await self.launcher.stand_ins.close()
        self.launcher.stand_ins._sleepers.clear()


@asynccontextmanager
async def hostile_lab() -> AsyncIterator[Lab]:
    """A host with a real launcher, ready to be attacked."""
    meter = HoldMeter()
    lab: Lab

    async def answer(request: AgentRequest) -> Any:
        return await lab.answer(request)

    async with Host(providers={"default": answer}, limits=LIMITS) as host:
        mixed = MixedLauncher(await host._ready_launcher())
        host._launcher = mixed  # type: ignore[assignment]
        lab = Lab(host, mixed, meter)
        with meter.installed():
            # Threads and caches of the first time are no leak.
            await lab.honest_run()
            await asyncio.gather(*(asyncio.to_thread(time.sleep, 0.01) for _ in range(4)))
            # What the test program holds is looked through by every full collection; that is not what is measured.
            gc.collect()
            gc.freeze()
            try:
                yield lab
            finally:
                gc.unfreeze()
