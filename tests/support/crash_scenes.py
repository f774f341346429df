"""Runs that tests interrupt: script, arguments, what agents answer, and a log of them that survives every host."""

import asyncio
import json
import os
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loopwarden import AgentFailed, AgentReply, AgentRequest, FailureClass, Script
from loopwarden.policy import Policy, Retry
from loopwarden_scripts import ralph
from support.crash_seams import Seams

ROUNDS = 8

FAN_OUT = """
from loopwarden_engine import agent, log, parallel, phase

def main(args):
    phase("fan out")
    def group(name):
        def work():
            out = parallel([lambda i=i: agent(f"{name}{i}") for i in range(args["width"])])
            log(f"{name}: {out}")
            if name == args["unlucky"]:
                raise ValueError(f"{name} has no luck")
            return out
        return work
    found = parallel([group(name) for name in args["groups"]])
    log("all in")
    return found
"""

NESTED = """
from loopwarden_engine import agent, log, parallel, phase, pipeline

def main(args):
    phase("nested")
    def spread(before, item, index):
        return parallel([lambda k=k: agent(f"{item}/{k}") for k in range(args["width"])])
    def join(before, item, index):
        log(f"{item} has {before}")
        return agent(f"join {item} {before}")
    def check(before, item, index):
        if index == 1:
            raise ValueError(f"{before} will not do")
        return parallel([lambda: agent(f"left of {before}"), lambda: agent(f"right of {before}")])
    found = pipeline(args["items"], spread, join, check)
    phase("end")
    return {"found": found, "last": agent(f"sum up {found}")}
"""

SECOND_THOUGHTS = """
from loopwarden_engine import agent, log, parallel

def main(args):
    first = parallel([lambda i=i: agent(f"try {i}") for i in range(3)])
    log(f"first: {first}")
    return [agent(f"again {value}") for value in first]
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One run, and what it costs undisturbed."""

    script: Script[Any, Any]
    args: Any
    overrides: Mapping[str, Any]
    answer: Callable[[AgentRequest], AgentReply]
    calls: int
    repeats: int = 0
    """Asks beyond the first of a call that a policy makes when nothing is interrupted."""
    policies: Mapping[str, Policy] = field(default_factory=dict)

    @property
    def live(self) -> int:
        """How many agents may be at work at once."""
        return int(self.overrides.get("max_concurrent_agents", 1))

    @property
    def most_asks(self) -> int:
        """What the provider may see at the most, in all."""
        return self.calls + int(self.overrides["max_extra_attempts"])


def _echo(request: AgentRequest) -> AgentReply:
    if request.prompt == "b1":
        raise AgentFailed("b1 never works")
    return AgentReply(text=f"<{request.prompt}>")


def _report(request: AgentRequest) -> AgentReply:
    is_last = request.seq == ROUNDS
    return AgentReply(
        value={
            "status": "complete" if is_last else "continue",
            "summary": f"round {request.seq} is done",
            "evidence": [f"test {request.seq} passes"],
            "nextSteps": [] if is_last else [f"do part {request.seq + 1}"],
            "blocker": "",
        }
    )


def _second_time(request: AgentRequest) -> AgentReply:
    # The key says which of the policy's asks this is: a redo of the first one fails again.
    if request.idempotency_key.endswith("/1") and request.seq in (2, 4):
        raise AgentFailed("come again", failure_class=FailureClass.OVERLOADED)
    return AgentReply(text=f"<{request.prompt}>")


SCENES: Mapping[str, Scene] = {
    "ralph": Scene(
        script=ralph.script,
        args={"objective": "Do all the parts.", "maxRounds": ROUNDS},
        overrides={"max_extra_attempts": 3},
        answer=_report,
        calls=ROUNDS,
    ),
    "fan-out": Scene(
        script=Script.from_text(FAN_OUT, name="fan-out"),
        args={"groups": ["a", "b", "c", "d"], "width": 3, "unlucky": "c"},
        overrides={"max_total_agents": 12, "max_extra_attempts": 16, "max_concurrent_agents": 8},
        answer=_echo,
        calls=12,
    ),
    "nested": Scene(
        script=Script.from_text(NESTED, name="nested"),
        args={"items": ["p", "q", "r", "s"], "width": 3},
        overrides={"max_total_agents": 23, "max_extra_attempts": 12, "max_concurrent_agents": 12},
        answer=_echo,
        calls=23,
    ),
    "strict": Scene(
        script=Script.from_text(FAN_OUT, name="strict"),
        args={"groups": ["a", "c", "d"], "width": 2, "unlucky": "c"},
        overrides={"max_total_agents": 6, "max_extra_attempts": 0, "max_concurrent_agents": 4},
        answer=_echo,
        calls=6,
    ),
    "second-thoughts": Scene(
        script=Script.from_text(SECOND_THOUGHTS, name="second-thoughts"),
        args={},
        overrides={"max_total_agents": 6, "max_extra_attempts": 8, "max_concurrent_agents": 3},
        answer=_second_time,
        calls=6,
        repeats=2,
        policies={
            "default": Policy(retry=Retry(classes=frozenset({FailureClass.OVERLOADED}), times=2, first_seconds=0.0))
        },
    ),
}


@dataclass(frozen=True, slots=True, order=True)
class Ask:
    """One line of the provider's own log."""

    seq: int
    attempt: int
    key: str
    epoch: int


class ProviderLog:
    """What a provider was asked, in a file that outlives every host. Appended to in one write a line."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def note(self, request: AgentRequest) -> None:
        """Write down that a host asks."""
        line = json.dumps([request.seq, request.attempt, request.idempotency_key, request.epoch]) + "\n"
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def asks(self) -> list[Ask]:
        """All asks so far, in order."""
        if not self.path.exists():
            return []
        return [Ask(*json.loads(line)) for line in self.path.read_text().splitlines()]


class Order:
    """Decides which of the agents at work answers next, once the run has nothing else to do.

    `seed` None: the one with the lowest number. The run has nothing else to do when nothing is on its way to the store
    and its worker waits: so the order is the same in every process, whatever the machine is busy with. `most`: how many
    may answer in one turn of the event loop. `waits` False: everybody answers at once.
    """

    def __init__(self, seed: int | str | None = None, *, most: int = 1, waits: bool = True) -> None:
        self._random = None if seed is None else random.Random(seed)
        self._most = most
        self._waits = waits
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self.in_flight = 0
        """Appends that are on their way to the store."""
        self._answering = 0
        self._notices = 0
        self._is_worker_waiting = lambda: True
        self.is_closed = False
        """True: nobody answers for now."""

    def watch(self, host: Any) -> None:
        """Hear of everything that a host with a store does. Before its first run."""
        store = host.custody.store
        append = store.append

        def appended(one: Any) -> None:
            self.in_flight += 1
            done = one.done

            def told(result: Any) -> None:
                one.done = done  # it may be handed over again
                done(result)
                self.in_flight -= 1
                self._look_later()

            one.done = told
            append(one)

        store.append = appended

    def follow(self, run: Any) -> None:
        """Hear of the run's worker, too."""
        session = run._session
        self._is_worker_waiting = lambda: session._over or session.is_waiting
        received = session._channel._on_data

        def heard(data: bytes) -> None:
            received(data)
            self._look_later()

        session._channel._on_data = heard
        self._look_later()

    async def turn(self, seq: int) -> None:
        """Wait until the agent of this call may answer."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[seq] = future
        self._look_later()
        try:
            await future
        except asyncio.CancelledError:
            if not future.cancelled():
                self.answered()
            raise
        finally:
            self._waiting.pop(seq, None)

    @property
    def at_work(self) -> list[int]:
        """The calls whose agents wait for their turn."""
        return sorted(seq for seq, future in self._waiting.items() if not future.done())

    def let_answer(self, seq: int) -> None:
        """Let this one answer now, whatever else there is to do."""
        self._answering += 1
        self._waiting[seq].set_result(None)

    def open(self) -> None:
        """Let agents answer again."""
        self.is_closed = False
        self._look_later()

    def answered(self) -> None:
        """What an agent answered is on its way."""
        self._answering -= 1
        self._look_later()

    def _look_later(self) -> None:
        """Look once nothing has happened for some turns of the event loop: a task that was made begins meanwhile."""
        self._notices += 1
        self._look_after(self._notices, 4)

    def _look_after(self, notice: int, turns: int) -> None:
        if notice != self._notices:
            return
        if turns:
            asyncio.get_running_loop().call_soon(self._look_after, notice, turns - 1)
        else:
            self._look()

    def _look(self) -> None:
        at_work = self.at_work
        if self.is_closed or not at_work:
            return
        if not self._waits:
            for seq in at_work:
                self.let_answer(seq)
            return
        if self.in_flight or self._answering or not self._is_worker_waiting():
            return
        for _ in range(1 if self._random is None else self._random.randint(1, self._most)):
            if at_work:
                seq = at_work[0] if self._random is None else self._random.choice(at_work)
                at_work.remove(seq)
                self.let_answer(seq)


class SceneProvider:
    """Answers for a scene: in the log first, then in its order."""

    def __init__(self, scene: Scene, log: ProviderLog, order: Order, seams: Seams | None = None) -> None:
        self._scene = scene
        self._log = log
        self._order = order
        self._seams = seams if seams is not None else Seams()

    async def __call__(self, request: AgentRequest) -> AgentReply:
        """Answer one ask."""
        self._log.note(request)
        self._seams.passes("ask.logged")
        await self._order.turn(request.seq)
        asyncio.get_running_loop().call_soon(self._order.answered)
        self._seams.passes("answer.given")
        return self._scene.answer(request)
