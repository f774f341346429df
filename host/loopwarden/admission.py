"""Which agent of a run is asked next, and when: slots of the run and the host, breakers, the cap on money."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from loopwarden.agent import Agent
from loopwarden.breaker import BreakerBoard, BreakerState
from loopwarden.clock import Clock
from loopwarden.failures import Code, Failure
from loopwarden.limits import Limits
from loopwarden.repeats import Repeats
from loopwarden.slots import AgentSlots, ProviderPlaces
from loopwarden.spending import Spending


@dataclass(slots=True, kw_only=True, eq=False)
class Admission:
    """The queue of one run. `begin` is called with an agent that got its slot, `fail` when the run has to end."""

    limits: Limits
    slots: AgentSlots
    board: BreakerBoard
    spending: Spending
    repeats: Repeats
    places: ProviderPlaces
    clock: Clock
    begin: Callable[[Agent], None]
    fail: Callable[[Failure], None]
    _queue: deque[Agent] = field(default_factory=deque)
    _live_slots: int = 0
    _unsent: int = 0
    """Slots whose replies the worker has not taken yet."""
    _waits_for_host: bool = False
    _held: dict[str, list[Agent]] = field(default_factory=dict)
    """By provider: agents that wait for what another one finds, who tries the provider out. The others go on."""
    _crowded: dict[str, list[Agent]] = field(default_factory=dict)
    """By provider: agents that wait for a place at it. The others go on."""
    _room: dict[str, Callable[[], None]] = field(default_factory=dict)
    """By provider: what is called when it has a place."""
    _is_held: bool = False
    _is_closed: bool = False
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    def add(self, agent: Agent, *, first: bool = False) -> None:
        """Put an agent into the queue; `first` one that is asked again, before those that were accepted after it."""
        if first:
            place = next((index for index, other in enumerate(self._queue) if other.seq > agent.seq), len(self._queue))
            self._queue.insert(place, agent)
        else:
            self._queue.append(agent)
        self.pump()

    def pump(self) -> None:
        """Let agents begin as long as there are slots."""
        while self._queue and self._may_begin:
            agent = self._queue[0]
            if not self._route(agent):
                return
            name = agent.provider_name
            if name in self._held or self.board.is_tried_out(name, self._is_decided):
                self._held.setdefault(name, []).append(self._queue.popleft())
                continue
            if self._waits_for_host or not self.slots.take(self._host_slot_is_free):
                self._waits_for_host = True
                return
            self._queue.popleft()
            if name in self._crowded or not self.places.take(name, self._when_room(name)):
                self._crowded.setdefault(name, []).append(agent)
                self.slots.give_back()
                continue
            self._live_slots += 1
            agent.has_slot = True
            agent.place = name
            self.board.starts(name, agent)
            self.begin(agent)

    @property
    def _may_begin(self) -> bool:
        return not self._is_closed and not self._is_held and self._live_slots < self.limits.max_concurrent_agents

    def hold(self) -> bool:
        """Let nobody begin until `go_on`. False when that is so already."""
        if self._is_held:
            return False
        self._is_held = True
        return True

    def go_on(self) -> None:
        """Let agents begin again."""
        self._is_held = False
        self.pump()

    def give_back(self, agent: Agent) -> None:
        """Free the slot of an agent, if it has one. Starts nothing: see `pump`."""
        self._leave_place(agent)
        if agent.has_slot:
            agent.has_slot = False
            self._free_slot()

    def keep_until_drained(self, agent: Agent) -> None:
        """The worker does not take its replies: the slot stays taken, so that what waits for it stays bounded."""
        self._leave_place(agent)
        if agent.has_slot:
            agent.has_slot = False
            self._unsent += 1

    def drained(self) -> None:
        """The worker took everything that was sent to it."""
        unsent, self._unsent = self._unsent, 0
        for _ in range(unsent):
            self._free_slot()
        if unsent:
            self.pump()

    def clear(self) -> None:
        """Forget who waits: the run ends."""
        self._queue.clear()
        self._held.clear()
        self._crowded.clear()

    def close(self) -> None:
        """The run ended: let nobody begin any more."""
        self._is_closed = True
        self.clear()
        if self._waits_for_host:
            self.slots.withdraw(self._host_slot_is_free)
        self.board.withdraw(self._is_decided)
        for name, told in self._room.items():
            self.places.withdraw(name, told)
        self.drained()

    def fail_out_of_use(self, agent: Agent, state: BreakerState) -> None:
        """End the run: no agent of this provider may start, and there is nobody to take over."""
        self.clear()
        name = agent.provider_name
        details = {
            "provider": name,
            "class": state.failure_class.value,
            "evidence": state.evidence,
            "reopensAt": state.reopens_at,
        }
        message = state.sentence(name, self.clock.wall())
        self.fail(Failure(code=Code.AGENT_START, message=message, line=agent.line or None, details=details))

    def fail_cost_cap(self, agent: Agent, sentence: str) -> None:
        """End the run: its cap on money is reached."""
        self.clear()
        self.fail(Failure(code=Code.COST_CAP, message=sentence, line=agent.line or None))

    # ---- inside

    def _route(self, agent: Agent) -> bool:
        """Say whether the agent may be asked now, perhaps of its fallback; otherwise the run ends."""
        state = self.board.out_of_use(agent.provider_name)
        if state is not None:
            fallback = self.repeats.fallback_of(agent)
            if fallback is None or self.board.out_of_use(fallback) is not None:
                self.fail_out_of_use(agent, state)
                return False
            self.repeats.switch(agent, fallback)
        if self.spending.cap_usd is None:
            return True
        used_up = self.spending.used_up
        if used_up is not None:
            self.fail_cost_cap(agent, used_up)
            return False
        problem = self.spending.cannot_measure(agent.provider_name, agent.provider)
        if problem is not None:
            self.clear()
            self.fail(Failure(code=Code.AGENT_START, message=problem, line=agent.line or None))
        return problem is None

    def _host_slot_is_free(self) -> None:
        self._waits_for_host = False
        self.pump()

    def _when_room(self, provider: str) -> Callable[[], None]:
        """What is called when a provider has a place: one and the same, so that it can be withdrawn."""
        if provider not in self._room:
            self._room[provider] = lambda: self._has_room(provider)
        return self._room[provider]

    def _has_room(self, provider: str) -> None:
        self._queue.extendleft(reversed(self._crowded.pop(provider, [])))
        self.pump()

    def _leave_place(self, agent: Agent) -> None:
        if agent.place is not None:
            place, agent.place = agent.place, None
            self.places.give_back(place)

    def _is_decided(self, provider: str) -> None:
        # Later: whoever decided it is in the middle of an end, and what begins now must not come in between.
        self._loop.call_soon(self._go_on_with, provider)

    def _go_on_with(self, provider: str) -> None:
        self._queue.extendleft(reversed(self._held.pop(provider, [])))
        self.pump()

    def _free_slot(self) -> None:
        self._live_slots -= 1
        self.slots.give_back()
