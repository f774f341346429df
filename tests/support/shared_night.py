"""Several runs of one host through a night: shared providers, slots and breakers, one virtual clock. Tests decide how
and when each ask ends; after every step the rules that hold for policies are looked at, in words of the outside."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from loopwarden import (
    AgentFailed,
    AgentReply,
    AgentRequest,
    Capabilities,
    Failure,
    FailureClass,
    Limits,
    Policy,
    ProviderStartError,
    Usage,
)
from loopwarden.events import AgentEnded
from loopwarden.failures import Code
from loopwarden.slots import AgentSlots
from support.broker_lab import EPOCH, BrokerLab, VirtualClock
from support.night_rules import (
    DONE,
    as_told,
    attempts_of,
    check_history,
    check_numbers,
    check_reports,
    check_waits,
    is_over,
    unended,
)
from support.watched_board import WatchedBoard

MAX_RUNS: Final = 8


@dataclass(frozen=True, kw_only=True)
class End:
    """How an ask ends."""

    kind: str
    failure_class: FailureClass = FailureClass.UNKNOWN
    resets_in: float | None = None
    retry_after: float | None = None
    cost: float | None = None

    def give(self, now: float) -> AgentReply | str:
        """Return or raise what the end says."""
        usage = None if self.cost is None else Usage(cost_usd=self.cost)
        match self.kind:
            case "answer":
                return AgentReply(text=DONE, usage=usage)
            case "failed":
                raise AgentFailed(
                    "no",
                    failure_class=self.failure_class,
                    resets_at=None if self.resets_in is None else EPOCH + now + self.resets_in,
                    retry_after_seconds=self.retry_after,
                    usage=usage,
                    evidence=b"\x80",  # type: ignore[arg-type]  # a provider is foreign code
                )
            case "no text":
                return AgentReply(text="\ud800", usage=usage)
            case "no start":
                raise ProviderStartError("no such program")
            case "cancels itself":
                raise asyncio.CancelledError
            case "returns nothing":
                return None  # type: ignore[return-value]
            case _:
                raise ValueError("a mistake of the provider")


MANNERS: Final[Mapping[str, End | None]] = {
    "obeys": End(kind="cancels itself"),
    "says why": End(kind="failed", failure_class=FailureClass.OVERLOADED, cost=0.25),
    "answers": End(kind="answer", cost=0.25),
    "is deaf": None,
}
"""What a provider does when it is cancelled."""


@dataclass(eq=False)
class Ask:
    """An ask that has not ended yet."""

    request: AgentRequest
    manner: str
    end: "asyncio.Future[End]"


@dataclass(eq=False)
class HeldProvider:
    """Ends its asks when and how it is told."""

    name: str
    capabilities: Capabilities
    night: "Night"

    async def reply(self, request: AgentRequest) -> AgentReply | str:
        """Run one agent."""
        night = self.night
        night.asked.append((request.run_id, request.seq, request.attempt, self.name))
        if request.max_cost_usd is not None and request.max_cost_usd <= 0:
            night.faults.append("an agent was asked, and the money was spent")
        manner = night.manners[len(night.asked) % len(night.manners)]
        ask = Ask(request, manner, asyncio.get_running_loop().create_future())
        night.open.append(ask)
        try:
            end = await self._end(ask)
        finally:
            night.open.remove(ask)
        return end.give(night.clock.time)

    async def _end(self, ask: Ask) -> End:
        while True:
            try:
                return await asyncio.shield(ask.end)
            except asyncio.CancelledError:
                end = MANNERS[ask.manner]
                if end is not None:
                    return end


@dataclass(eq=False)
class Night:
    """The runs of a host. Use within a running event loop."""

    policies: Mapping[str, Policy]
    capabilities: Mapping[str, Capabilities]
    limits: Limits
    runs: int
    manners: list[str]
    jitter: float
    clock: VirtualClock = field(default_factory=VirtualClock)
    open: list[Ask] = field(default_factory=list)
    asked: list[tuple[str, int, int, str]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    stopped_at: dict[str, int] = field(default_factory=dict)
    """How many events a run had emitted when it was over."""

    def __post_init__(self) -> None:
        rules = {name: policy.breaker for name, policy in self.policies.items() if policy.breaker}
        self.board = WatchedBoard(rules, self.clock, self.faults.append)
        self.slots = AgentSlots(self.limits.max_live_agents)
        self.providers = {name: HeldProvider(name, able, self) for name, able in self.capabilities.items()}
        self.labs: list[BrokerLab] = []
        """All runs, those that are over included."""
        self.current = [self._lab() for _ in range(self.runs)]

    def _lab(self) -> BrokerLab:
        run_id = f"run-{len(self.labs)}"
        lab = BrokerLab(
            providers=self.providers,
            policies=self.policies,
            limits=self.limits,
            clock=self.clock,
            board=self.board,
            slots=self.slots,
            jitter=self.jitter,
            run_id=run_id,
        )
        fail = lab.broker.ports.fail

        def over(failure: Failure) -> None:
            if failure.code is Code.AGENT_RESULT and not isinstance(lab.events[-1], AgentEnded):
                self.faults.append("an agent started on the way to the end of its run")
            self.stopped_at.setdefault(run_id, len(lab.events))
            fail(failure)

        lab.broker.ports.fail = over
        lab.broker._admission.fail = over
        self.labs.append(lab)
        return lab

    # ---- steps

    def call(self, run: int, provider: str | None) -> None:
        """A script calls an agent, unless that would end its run; when that has ended, the script of a new one."""
        run %= len(self.current)
        lab = self.current[run]
        if is_over(lab) and len(self.labs) < MAX_RUNS:
            lab = self.current[run] = self._lab()
        if lab.run_id not in self.stopped_at and len(lab.broker.agents) < self.limits.max_total_agents:
            lab.call(**({} if provider is None else {"provider": provider}))

    def end(self, which: int, end: End) -> None:
        """One of the open asks ends."""
        waiting = [ask for ask in self.open if not ask.end.done()]
        if waiting:
            waiting[which % len(waiting)].end.set_result(end)

    def stop(self, run: int) -> None:
        """A run is over."""
        self._stop(self.current[run % len(self.current)])

    def _stop(self, lab: BrokerLab) -> None:
        self.stopped_at.setdefault(lab.run_id, len(lab.events))
        lab.broker.stop()

    def stick(self, run: int, stuck: bool) -> None:
        """The worker of a run takes no replies, or takes them again."""
        lab = self.current[run % len(self.current)]
        lab.is_stuck = stuck and lab.run_id not in self.stopped_at
        if not lab.is_stuck:
            lab.broker.drained()

    def sign(self, which: int, sign: str) -> None:
        """An agent shows that it works."""
        if self.open:
            request = self.open[which % len(self.open)].request
            request.alive() if sign == "alive" else getattr(request, sign)("words")

    async def pass_time(self, seconds: float | None) -> None:
        """Let time pass; None: until the next timer."""
        await self.settle()  # on a real loop no timer is faster than what is ready
        if seconds is None:
            self.clock.jump()
        else:
            self.clock.advance(seconds)

    async def settle(self) -> None:
        """Let everything happen that needs no time, and look at what has to hold then."""
        await self.labs[0].settle()
        self.check()
        for lab in self.labs:
            check_waits(lab, self.slots, self.board)
            asked = sorted(ask[1:] for ask in self.asked if ask[0] == lab.run_id)
            attempts = [(agent.seq, each.number, each.provider_name) for agent, each in attempts_of(lab)]
            assert asked == sorted(attempts), "what was charged and what providers saw differ"

    async def finish(self) -> None:
        """Answer and let time pass until nothing is left, end all runs, and look at what must be free then."""
        for run in range(len(self.current)):
            self.stick(run, stuck=False)
        await self._play_out(lambda lab: not unended(lab))
        for lab in self.labs:
            self._stop(lab)
        await self._play_out(lambda lab: not lab.broker.has_live_agents)
        for lab in self.labs:
            await asyncio.wait_for(lab.broker.ended(), 5)
            check_history(lab)
        emitted = [len(lab.events) for lab in self.labs]
        self.release()
        await self.settle()
        assert [len(lab.events) for lab in self.labs] == emitted, "something was reported after the end"
        assert not self.open
        assert self.slots._free == self.limits.max_live_agents
        assert not self.slots._waiting
        assert self.clock.next_due is None, "a timer is left"
        assert self.board.nobody_waits
        ended = [(each.provider_name, as_told(each)) for lab in self.labs for _, each in attempts_of(lab)]
        # A rate limit that is waited for tells nothing; whether it was waited for shows elsewhere.
        told = [(name, "undecided" if what == "rateLimited" else what) for name, what in self.board.reported]
        assert Counter(told) == Counter(ended)
        assert self.board.started.total() == len(ended)

    def release(self) -> None:
        """Let the deaf end too: nobody listens to them any more."""
        for ask in self.open:
            if not ask.end.done():
                ask.end.set_result(End(kind="answer"))

    async def _play_out(self, is_done: Callable[[BrokerLab], bool]) -> None:
        for _ in range(2000):
            await self.settle()
            if all(is_done(lab) for lab in self.labs):
                return
            waiting = [ask for ask in self.open if not ask.end.done() and self._is_live(ask)]
            if waiting:
                waiting[0].end.set_result(End(kind="answer"))
            else:
                assert self.clock.jump(), "something waits for ever"
        raise AssertionError("the night has no end")

    def _is_live(self, ask: Ask) -> bool:
        [lab] = [lab for lab in self.labs if lab.run_id == ask.request.run_id]
        attempt = lab.broker.agents[ask.request.seq - 1].attempts[ask.request.attempt - 1]
        return not attempt.is_over and lab.run_id not in self.stopped_at

    # ---- what holds at every moment

    def check(self) -> None:
        """Raises AssertionError when a rule is broken."""
        assert not self.faults, self.faults
        for lab in self.labs:
            check_numbers(lab)
            check_reports(lab, self.stopped_at.get(lab.run_id))
        taken = sum(lab.broker._admission._live_slots for lab in self.labs)
        assert self.slots._free == self.limits.max_live_agents - taken
        assert taken <= self.limits.max_live_agents
