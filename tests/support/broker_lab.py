"""A broker without a worker and without waiting: calls go in, events and replies come out, tests drive the time."""

import asyncio
import heapq
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from loopwarden import AgentFailed, AgentReply, AgentRequest, Failure, Limits, Policy
from loopwarden.agent import BrokerPorts
from loopwarden.breaker import BreakerBoard
from loopwarden.broker import Broker
from loopwarden.contract import Facts
from loopwarden.events import AgentEnded, AgentProgress
from loopwarden.provider import FUNCTION_CAPABILITIES, Capabilities
from loopwarden.slots import AgentSlots
from loopwarden_engine.messages import Call

EPOCH = 1_000_000.0
"""The Unix time at which a virtual clock begins."""


@dataclass
class _Timer:
    callback: Callable[[], None] | None

    def cancel(self) -> None:
        self.callback = None


@dataclass
class VirtualClock:
    """Time that jumps from one timer to the next, when told to."""

    time: float = 0.0
    _due: list[tuple[float, int, _Timer]] = field(default_factory=list)
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def now(self) -> float:
        """Seconds since the clock began."""
        return self.time

    def wall(self) -> float:
        """Unix time."""
        return EPOCH + self.time

    def call_later(self, seconds: float, callback: Callable[[], None]) -> _Timer:
        """Call `callback` when the clock has come so far."""
        timer = _Timer(callback)
        heapq.heappush(self._due, (self.time + seconds, next(self._numbers), timer))
        return timer

    def jump(self) -> bool:
        """Go to the next timer. False when there is none."""
        if self.next_due is None:
            return False
        at, _, timer = heapq.heappop(self._due)
        assert timer.callback is not None
        self.time = max(self.time, at)
        timer.callback()
        return True

    def advance(self, seconds: float) -> None:
        """Let time pass, timers included."""
        until = self.time + seconds
        while (due := self.next_due) is not None and due <= until:
            self.jump()
        self.time = until

    @property
    def next_due(self) -> float | None:
        """When the next timer is due; None when none is left."""
        while self._due and self._due[0][2].callback is None:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None


@dataclass
class ScriptedProvider:
    """Answers its asks in order: an exception is raised, a text is the answer; after the last one, `ok`."""

    answers: list[Any]
    capabilities: Capabilities = FUNCTION_CAPABILITIES
    requests: list[AgentRequest] = field(default_factory=list)
    hold: asyncio.Event | None = None

    async def reply(self, request: AgentRequest) -> AgentReply | str:
        """Run one agent."""
        self.requests.append(request)
        answer = self.answers[len(self.requests) - 1] if len(self.requests) <= len(self.answers) else "ok"
        if self.hold is not None:
            await self.hold.wait()
        if isinstance(answer, BaseException):
            raise answer
        if answer == "silence":
            await asyncio.Event().wait()
        assert isinstance(answer, str | AgentReply)
        return answer


def failure(failure_class: Any, **more: Any) -> AgentFailed:
    """A failure of a class."""
    return AgentFailed("it failed", failure_class=failure_class, **more)


@dataclass
class BrokerLab:
    """One broker. Use within a running event loop."""

    providers: Mapping[str, Any]
    policies: Mapping[str, Policy] = field(default_factory=dict)
    limits: Limits = field(default_factory=lambda: Limits(max_extra_attempts=100))
    clock: VirtualClock = field(default_factory=VirtualClock)
    board: BreakerBoard | None = None
    """With `slots`: shared with other labs, as the runs of one host share them."""
    slots: AgentSlots | None = None
    jitter: float = 0.0
    run_id: str = "lab"
    is_stuck: bool = False
    """The worker does not take its replies."""
    events: list[Any] = field(default_factory=list)
    replies: dict[int, Any] = field(default_factory=dict)
    replied: list[int] = field(default_factory=list)
    """The calls that got a reply, each as often as it got one."""
    failures: list[Failure] = field(default_factory=list)
    broker: Broker = field(init=False)
    _calls: int = 0

    def __post_init__(self) -> None:
        rules = {name: policy.breaker for name, policy in self.policies.items() if policy.breaker}
        self.broker = Broker(
            run_id=self.run_id,
            limits=self.limits,
            providers=self.providers,
            policies=self.policies,
            board=self.board or BreakerBoard(rules, None, self.clock.wall),
            default_provider=next(iter(self.providers)),
            workspace=None,
            slots=self.slots or AgentSlots(self.limits.max_live_agents),
            clock=self.clock,
            facts=Facts(opening=None),
            ports=BrokerPorts(
                emit=self._emit,
                reply=self._reply,
                fail=self._fail,
                is_stuck=lambda: self.is_stuck,
                check_call=lambda call: None,
            ),
            keeper=None,
            jitter=lambda: self.jitter,
        )

    def _emit(self, kind: Any, **content: Any) -> None:
        self.events.append(kind(number=len(self.events) + 1, run_id=self.run_id, at=self.clock.wall(), **content))

    def _reply(self, seq: int, value: Any) -> None:
        self.replied.append(seq)
        self.replies[seq] = value

    def _fail(self, failure: Failure) -> None:
        self.failures.append(failure)
        self.broker.stop()

    def call(self, prompt: str = "do it", **options: Any) -> int:
        """Accept a call. Returns its number."""
        self._calls += 1
        self.broker.accept(Call(id=self._calls, key=str(self._calls), prompt=prompt, options=options, line=1))
        return self._calls

    async def settle(self) -> None:
        """Let everything happen that needs no time."""
        for _ in range(30):
            await asyncio.sleep(0)

    async def run_out(self) -> None:
        """Let time pass until every agent has ended."""
        await self.settle()
        while self.broker.has_live_agents:
            assert self.clock.jump(), "an agent waits for ever"
            await self.settle()

    @property
    def remarks(self) -> list[str]:
        """What observers were told of agents at work."""
        return [event.message for event in self.events if isinstance(event, AgentProgress)]

    @property
    def ends(self) -> list[AgentEnded]:
        """The ends of agents."""
        return [event for event in self.events if isinstance(event, AgentEnded)]

    def asks(self, seq: int = 1) -> list[tuple[str, str, float]]:
        """The attempts of a call: provider, kind, seconds waited before."""
        attempts = self.broker.agents[seq - 1].attempts
        return [(each.provider_name, each.kind, round(each.paused_seconds, 3)) for each in attempts]
