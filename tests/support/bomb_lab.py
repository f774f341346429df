"""A host with resource bombs and honest runs beside each other, and what the bombs cost the host.

The honest runs call one agent after the other for as long as bombs go off; their agents answer all at once, at a beat.
How long the event loop was held is measured so that other programs of the machine do not count: a timer that fires
too late was held up by this process for no longer than the processor time that this process used meanwhile.
"""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Container, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loopwarden import AgentReply, AgentRequest, Host, Limits, Outcome, Run, Script, StartRefused
from support.stand_in import Peer, StandInLauncher

CORPUS = Path(__file__).parent.parent / "escape" / "resources.jsonl"
LIMITS = Limits(
    cpu_seconds_per_turn=1.5,
    cpu_seconds_per_run=60.0,
    memory_bytes=160 * 1024 * 1024,
    max_total_agents=100_000,
    max_held_bytes=24 * 1024 * 1024,
    agent_grace_seconds=0.2,
)
BOMB_LIMITS: Mapping[str, Any] = {"cpu_seconds_per_run": 2.0, "max_total_agents": 1000}
SPIN_LIMITS: Mapping[str, Any] = {"cpu_seconds_per_turn": 0.08, "cpu_seconds_per_run": 0.4}
"""For bombs that end by their processor time: far less than what is shipped, so that they cost the tests little."""
HONEST_RUNS = 20
HONEST_SCRIPT = """\
def main(args):
    heard = []
    while True:
        answer = agent(f"{args['name']}: round {len(heard) + 1}", provider="honest")
        if answer == "enough":
            return heard
        heard.append(answer)
"""
BEAT_SECONDS = 0.1
TICK_SECONDS = 0.002
PATIENCE_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one bomb did."""

    id: str
    ending: "Outcome[Any] | StartRefused"
    seconds: float
    held_seconds: float
    """The longest that the host itself kept its event loop from turning."""
    lag_seconds: float
    """The longest that a timer of the event loop was late, whoever used the processor meanwhile."""
    grown_bytes: int
    """What the host's memory grew by at the most."""
    rounds: int
    """Rounds of the slowest honest run while the bomb went off."""

    @property
    def code(self) -> str | None:
        """The code it ended with; None when it came to its end unharmed."""
        if isinstance(self.ending, StartRefused):
            return self.ending.code.value
        return None if self.ending.failure is None else self.ending.failure.code.value


class LagSampler:
    """Looks every few milliseconds how late the event loop is."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.reset()

    def reset(self) -> None:
        """Forget what was measured, and begin to measure."""
        self.held_seconds = self.lag_seconds = 0.0
        self._arm(time.monotonic(), time.process_time())

    def stop(self) -> None:
        """No more looks, after the one that is due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, now: float, used: float) -> None:
        self.stop()
        self._due, self._used = now + TICK_SECONDS, used
        self._timer = self._loop.call_later(TICK_SECONDS, self.look)

    def look(self) -> None:
        """Take what the loop was late by since the last look."""
        now, used = time.monotonic(), time.process_time()
        late = max(0.0, now - self._due)
        self.lag_seconds = max(self.lag_seconds, late)
        self.held_seconds = max(self.held_seconds, min(late, used - self._used))
        self._arm(now, used)


def begin_peak() -> int:
    """Let the kernel forget the most memory that this process had (proc_pid_clear_refs(5)). Bytes that it has now."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return _status_bytes("VmRSS")


def peak_bytes() -> int:
    """The most memory that this process has had since `begin_peak`."""
    return _status_bytes("VmHWM")


def _status_bytes(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"), re.MULTILINE)
    assert found is not None
    return int(found.group(1)) * 1024


class Beat:
    """The agents of the honest runs: each waits for the next beat, and says which call it answers."""

    def __init__(self) -> None:
        self._waiting: list[tuple[AgentRequest, asyncio.Future[str]]] = []
        self.answered: dict[str, int] = {}
        self.is_over = False

    async def __call__(self, request: AgentRequest) -> str:
        """Answer one call, at the next beat."""
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, answer))
        return await answer

    def strike(self, only: Container[str] | None = None) -> None:
        """Answer whoever waits; `only`: of these runs."""
        waiting, self._waiting = self._waiting, []
        for request, answer in waiting:
            if only is not None and request.run_id not in only:
                self._waiting.append((request, answer))
            elif not answer.done():
                self.answered[request.run_id] = self.answered.get(request.run_id, 0) + 1
                answer.set_result("enough" if self.is_over else answer_to(request.seq, request.prompt))


def answer_to(number: int, prompt: str) -> str:
    """What an honest agent says."""
    return f"answer {number} to {prompt}"


class BombReplies:
    """The agents of a bomb: all give the reply of its row, at once."""

    def __init__(self) -> None:
        self.reply: Any = "reply"

    async def __call__(self, request: AgentRequest) -> AgentReply:
        """Answer one call."""
        reply = self.reply
        return AgentReply(text=reply) if isinstance(reply, str) else AgentReply(value=reply)


@dataclass(slots=True, kw_only=True)
class BombRange:
    """A host with honest runs, where bombs go off."""

    host: Host
    beat: Beat
    replies: BombReplies
    sampler: LagSampler
    honest: list[Run[Any]] = field(default_factory=list)

    async def set_off(self, row: Mapping[str, Any]) -> Measured:
        """Let one bomb go off, and measure."""
        source = made(row, "source")
        self.replies.reply = made(row, "reply") if {"reply", "reply_made_by"} & row.keys() else "reply"
        await self._everybody_goes_on()
        rounds = dict(self.beat.answered)
        memory = begin_peak()
        self.sampler.reset()
        began = time.monotonic()
        try:
            ending = await asyncio.wait_for(self._ending(row, source), PATIENCE_SECONDS)
        except TimeoutError:
            raise AssertionError(f"{row['id']} did not end within {PATIENCE_SECONDS:g} s") from None
        seconds = time.monotonic() - began
        # What the bomb left to do in this turn of the loop, and in the next.
        await asyncio.sleep(2 * TICK_SECONDS)
        self.sampler.look()
        return Measured(
            id=row["id"],
            ending=ending,
            seconds=seconds,
            held_seconds=self.sampler.held_seconds,
            lag_seconds=self.sampler.lag_seconds,
            grown_bytes=max(0, peak_bytes() - memory),
            rounds=min(self.beat.answered[run.id] - rounds[run.id] for run in self.honest),
        )

    async def _ending(self, row: Mapping[str, Any], source: str) -> "Outcome[Any] | StartRefused":
        stand_in = row.get("stand_in")
        real = self.host._launcher
        launcher = StandInLauncher()
        try:
            if stand_in is not None:
                self.host._launcher = launcher  # type: ignore[assignment]
            starting = asyncio.ensure_future(
                self.host.start(Script.from_text(source), row.get("args", {}), **limits_of(row))
            )
            if stand_in is None:
                return await (await starting).wait()
            return await self._ending_of_stand_in(stand_in, starting, await launcher.peers.get())
        except StartRefused as refusal:
            return refusal
        finally:
            self.host._launcher = real
            await launcher.close()

    async def _ending_of_stand_in(self, name: str, starting: "asyncio.Future[Run[Any]]", peer: Peer) -> Outcome[Any]:
        with peer.end:
            await peer.begin()
            run = await starting
            await peer.go()
            STAND_INS[name](peer)
            return await run.wait()

    async def _everybody_goes_on(self) -> None:
        """Wait until each honest run was answered once more."""
        before = dict(self.beat.answered)
        began = time.monotonic()
        while behind := [run for run in self.honest if self.beat.answered.get(run.id) == before.get(run.id)]:
            ended = [await run.wait() for run in behind if run.is_over]
            assert not ended, f"honest runs have ended: {ended}"
            assert time.monotonic() - began < PATIENCE_SECONDS, f"{len(behind)} honest runs stand still"
            self.beat.strike([run.id for run in behind])
            await asyncio.sleep(TICK_SECONDS)


@asynccontextmanager
async def bomb_range(limits: Limits = LIMITS) -> AsyncIterator[BombRange]:
    """A host with honest runs. When the bombs are over the honest runs end, and must have gone on unharmed."""
    beat, replies = Beat(), BombReplies()
    sampler = LagSampler()
    async with Host(providers={"default": replies, "honest": beat}, limits=limits) as host:
        script = Script.from_text(HONEST_SCRIPT, name="honest")
        names = [f"run {number}" for number in range(HONEST_RUNS)]
        runs = await asyncio.gather(*[host.start(script, {"name": name}) for name in names])
        striking = asyncio.get_running_loop().create_task(_strike(beat))
        try:
            place = BombRange(host=host, beat=beat, replies=replies, sampler=sampler, honest=list(runs))
            yield place
            beat.is_over = True
            outcomes = await asyncio.wait_for(asyncio.gather(*[run.wait() for run in runs]), PATIENCE_SECONDS)
            for name, outcome in zip(names, outcomes, strict=True):
                assert outcome.stop_reason == "completed", outcome
                count = outcome.agents_started - 1
                assert outcome.value == [answer_to(seq, f"{name}: round {seq}") for seq in range(1, count + 1)]
        finally:
            striking.cancel()
            sampler.stop()


async def _strike(beat: Beat) -> None:
    while True:
        await asyncio.sleep(BEAT_SECONDS)
        beat.strike()


def rows_by_family(path: Path = CORPUS) -> dict[str, list[dict[str, Any]]]:
    """The bombs of the corpus."""
    families: dict[str, list[dict[str, Any]]] = {}
    for line in path.read_text(encoding="ascii").splitlines():
        row = json.loads(line)
        families.setdefault(row["family"], []).append(row)
    return families


def limits_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """The limits of a bomb: its own, else as small as what it must end by allows."""
    is_spin = not {"CPU_LIMIT", "SCRIPT_REJECTED"}.isdisjoint(row["expect"])
    return {**BOMB_LIMITS, **(SPIN_LIMITS if is_spin else {}), **row.get("limits", {})}


def made(row: Mapping[str, Any], name: str) -> Any:
    """What a row says as it is, or as the Python expression that makes it: the corpus is our own."""
    if name in row:
        return row[name]
    return eval(row[f"{name}_made_by"], {})


def _asks_and_never_reads(peer: Peer) -> None:
    """As many agents as it may have, and not one reply is taken."""
    from loopwarden_engine.messages import Call

    peer.send(*[Call(number, str(number), 1, "say much", {}) for number in range(1, 1001)])


STAND_INS: dict[str, Callable[[Peer], None]] = {"asks and never reads": _asks_and_never_reads}
"""Workers that no script can be: what one does once it may run, by the name that a row uses."""
