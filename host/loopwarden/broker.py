"""Agents of one run: acceptance, charge, slots, asks, ends. The exact agent budget is kept here.

Rules kept here (design section 5): a call is accepted in call order, and the one beyond the cap is refused at that
point, whatever still waits. It starts in one step when it gets its slot: charged first, then handed to the provider.
Charges are never given back. Every agent that started has exactly one end.
"""

import asyncio
import math
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from loopwarden import events
from loopwarden.agent import Agent, BrokerPorts, Keeper, Progress
from loopwarden.agent_reply import ReplyUnusable, decode_reply, provider_error, provider_notes, provider_words
from loopwarden.call_options import CallRefused, decode_call
from loopwarden.clock import Clock, Timer
from loopwarden.contract import AgentOutcome, ContractBroken, Delivery, Facts
from loopwarden.failures import Code, Failure
from loopwarden.limits import Limits
from loopwarden.provider import AgentFailed, AgentRequest, Provider, ProviderStartError
from loopwarden.slots import AgentSlots
from loopwarden_engine.messages import Call
from loopwarden_engine.plain import JsonValue, copy_object

ABANDON_SECONDS: Final = 10.0
"""On top of the grace: a provider that then still runs is left alone, and its end is recorded without it. More than the
supervisor of an agent program can need, so that no process of the run is left when the run ends."""


@dataclass(slots=True, kw_only=True, eq=False)
class Broker:
    """The agents of one run."""

    run_id: str
    limits: Limits
    providers: Mapping[str, Provider]
    default_provider: str
    workspace: Path | None
    slots: AgentSlots
    clock: Clock
    facts: Facts
    ports: BrokerPorts
    keeper: Keeper | None
    agents: list[Agent] = field(default_factory=list)
    phase: str | None = None
    _queue: deque[Agent] = field(default_factory=deque)
    _live: set[Agent] = field(default_factory=set)
    _live_slots: int = 0
    _unsent: int = 0
    _waits_for_host: bool = False
    _stopped: bool = False
    _timer: Timer | None = None
    _timer_due: float = math.inf
    _all_ended: "asyncio.Future[None] | None" = None
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    @property
    def has_live_agents(self) -> bool:
        """True while an agent works."""
        return bool(self._live)

    # ---- acceptance

    def accept(self, call: Call) -> None:
        """Accept a call, or end the run. In call order, whatever still waits."""
        try:
            decoded = decode_call(call, self.phase)
        except CallRefused as refusal:
            self.ports.fail(refusal.failure)
            return
        line = call.line or None
        if len(self.agents) >= self.limits.max_total_agents:
            cap = self.limits.max_total_agents
            self.ports.fail(
                Failure(
                    code=Code.AGENT_CAP,
                    message=f"the script asked for agent {cap + 1}; maxTotalAgents of this run is {cap}",
                    line=line,
                    details={"maxTotalAgents": cap},
                )
            )
            return
        name = decoded.facts.provider or self.default_provider
        provider = self.providers.get(name)
        if provider is None:
            known = ", ".join(sorted(self.providers)) or "none"
            self.ports.fail(
                Failure(
                    code=Code.AGENT_START,
                    message=f"the provider {name[:100]!r} does not exist; configured: {known}",
                    line=line,
                )
            )
            return
        try:
            self.ports.check_call(decoded)
        except ContractBroken as broken:
            self.ports.fail(Failure(code=Code.CONTRACT, message=str(broken), line=line))
            return
        agent = Agent(call=decoded, provider_name=name, provider=provider, line=call.line, seq=call.id)
        self.facts.calls.append(decoded.facts)
        self.agents.append(agent)
        self._queue.append(agent)
        self._pump()

    def _pump(self) -> None:
        while self._queue and not self._stopped and self._live_slots < self.limits.max_concurrent_agents:
            if self._waits_for_host or not self.slots.take(self._host_slot_is_free):
                self._waits_for_host = True
                return
            self._start(self._queue.popleft())

    def _host_slot_is_free(self) -> None:
        self._waits_for_host = False
        self._pump()

    # ---- start: charged, then asked

    def _start(self, agent: Agent) -> None:
        self._live_slots += 1
        self.facts.agents_started += 1
        agent.attempts = 1
        agent.started_at = agent.last_sign = self.clock.now()
        self._live.add(agent)
        facts = agent.call.facts
        self.ports.emit(
            events.AgentStarted,
            seq=agent.seq,
            label=agent.call.label,
            phase=facts.phase,
            provider=agent.provider_name,
        )
        if self.keeper is not None:
            self.keeper.keep_prompt(agent.seq, facts.prompt)
            self.keeper.write(self, now=False)
        agent.task = self._loop.create_task(self._ask(agent))
        due = agent.started_at + self._patience_seconds(agent.provider)
        if due < self._timer_due:
            self._arm(due)

    def _request(self, agent: Agent) -> AgentRequest:
        facts = agent.call.facts
        return AgentRequest(
            run_id=self.run_id,
            seq=agent.seq,
            attempt=agent.attempts,
            prompt=facts.prompt,
            label=agent.call.label,
            phase=facts.phase,
            # Its own copy: what it does with it must change neither the check of its reply nor the digest of the call.
            schema=None if facts.schema is None else copy_object(facts.schema),
            model=facts.model,
            workspace=self.workspace,
            folder=None if self.keeper is None else self.keeper.agent_folder(agent.seq),
            timeout_seconds=self.limits.agent_timeout_seconds,
            idle_seconds=self.limits.agent_idle_seconds,
            grace_seconds=self.limits.agent_grace_seconds,
            max_output_bytes=self.limits.max_output_bytes,
            idempotency_key=f"{self.run_id}/{agent.seq}",
            progress=Progress(agent, self._progress, self._loop),
        )

    async def _ask(self, agent: Agent) -> None:
        try:
            reply = await agent.provider.reply(self._request(agent))
            text, value, notes = decode_reply(reply, agent.call.schema, self.limits.max_frame_bytes)
        except AgentFailed as failed:
            self._end_failed(agent, failed.reason, failed.notes)
        except ReplyUnusable as unusable:
            if unusable.is_provider_fault:
                self._end_fault(agent, Code.AGENT_RESULT, str(unusable))
            else:
                self._keep(agent, unusable.text)
                self._end_failed(agent, str(unusable), unusable.notes)
        except ProviderStartError as error:
            self._end_fault(agent, Code.AGENT_START, error.reason)
        except asyncio.CancelledError:
            # Whoever cancelled the task said why; a provider that cancels itself broke its promise.
            if agent.stopped_because is None and not self._stopped:
                self._end_fault(agent, Code.AGENT_RESULT, "the provider cancelled its own call")
            else:
                self._end_stopped(agent)
        except (KeyboardInterrupt, GeneratorExit) as error:
            # Meant for the whole program, or for this coroutine, which end now. Should the loop go on, so does the run.
            with suppress(RuntimeError):
                self._loop.call_soon(self._end_fault, agent, Code.AGENT_RESULT, provider_error(error))
            raise
        except BaseException as error:  # noqa: BLE001 -- a provider is foreign code: what it raises is its fault, typed
            self._end_fault(agent, Code.AGENT_RESULT, provider_error(error))
        else:
            self._keep(agent, text)
            self._end_completed(agent, value, notes)

    def _keep(self, agent: Agent, text: str) -> None:
        if self.keeper is not None and text and not agent.output_kept:
            agent.output_kept = True
            self.keeper.keep_output(agent.seq, _cut_bytes(text, self.limits.max_output_bytes))

    # ---- progress and time

    def _progress(self, agent: Agent, message: str) -> None:
        if agent.outcome is None and not self._stopped:
            agent.last_sign = self.clock.now()
            self.ports.emit(events.AgentProgress, seq=agent.seq, message=provider_words(message)[:1000])

    def _patience_seconds(self, provider: Provider) -> float:
        """How long an agent may give no sign of life at first."""
        if provider.capabilities.streams:
            return min(self.limits.agent_timeout_seconds, self.limits.agent_idle_seconds)
        return self.limits.agent_timeout_seconds

    def _seconds_left(self, agent: Agent) -> tuple[float, str]:
        assert agent.started_at is not None
        now = self.clock.now()
        left = agent.started_at + self.limits.agent_timeout_seconds - now
        if agent.provider.capabilities.streams:
            idle_left = agent.last_sign + self.limits.agent_idle_seconds - now
            if idle_left < left:
                allowed = f"{self.limits.agent_idle_seconds:g} s"
                return idle_left, f"it was silent for longer than agentIdleSeconds allows, {allowed}"
        return left, f"it took longer than agentTimeoutSeconds allows, {self.limits.agent_timeout_seconds:g} s"

    def _arm(self, due: float) -> None:
        """One timer for all agents, armed for whichever is due first."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = due
        self._timer = self.clock.call_later(max(0.0, due - self.clock.now()), self._look_at_times)

    def _look_at_times(self) -> None:
        self._timer, self._timer_due = None, math.inf
        soonest: float | None = None
        for agent in list(self._live):
            if agent.stopped_because is not None:
                continue
            left, why = self._seconds_left(agent)
            if left <= 0:
                self._stop(agent, why)
            elif soonest is None or left < soonest:
                soonest = left
        if soonest is not None and not self._stopped:
            self._arm(self.clock.now() + soonest)

    def _stop(self, agent: Agent, why: str) -> None:
        """Cancel the task of an agent that is still live, and do not wait for it for ever."""
        if agent.stopped_because is not None or agent.outcome is not None:
            return
        agent.stopped_because = why
        if agent.task is None:
            self._end_stopped(agent)
            return
        # A task that never ran its first line would end without a word.
        agent.task.add_done_callback(lambda task: self._task_is_over(agent, task))
        # Charged and handed over is one step, so an agent that is to be asked in this very turn of the loop still is:
        # what was charged and what the provider saw never differ.
        self._loop.call_soon(agent.task.cancel)
        if agent.abandon_timer is not None:
            agent.abandon_timer.cancel()
        agent.abandon_timer = self.clock.call_later(
            self.limits.agent_grace_seconds + ABANDON_SECONDS, lambda: self._end_stopped(agent)
        )

    # ---- ends

    def _task_is_over(self, agent: Agent, task: "asyncio.Task[None]") -> None:
        # Looked at, so that asyncio does not complain of an interrupt that went its way through the task.
        if not task.cancelled():
            task.exception()
        self._end_stopped(agent)

    def _end_stopped(self, agent: Agent) -> None:
        if self._stopped:
            self._end(agent, AgentOutcome.CANCELLED, None, "the run ended", ())
        else:
            self._end(agent, AgentOutcome.FAILED, None, agent.stopped_because, ())

    def _end_completed(self, agent: Agent, value: JsonValue, notes: tuple[str, ...]) -> None:
        if agent.stopped_because is not None or self._stopped:
            self._end_stopped(agent)
        else:
            self._end(agent, AgentOutcome.COMPLETED, value, None, notes)

    def _end_failed(self, agent: Agent, reason: str, notes: tuple[str, ...]) -> None:
        if agent.stopped_because is not None or self._stopped:
            self._end_stopped(agent)
        else:
            self._end(agent, AgentOutcome.FAILED, None, provider_words(reason), notes)

    def _end_fault(self, agent: Agent, code: Code, reason: str) -> None:
        if agent.stopped_because is not None or self._stopped:
            self._end_stopped(agent)
            return
        reason = provider_words(reason)
        # The run ends with this: the slot that comes free must not start one more agent on the way.
        self._queue.clear()
        what = "could not start an agent" if code is Code.AGENT_START else "gave no usable end of an agent"
        message = f"the provider {agent.provider_name!r} {what}: {reason}"
        self._end(agent, AgentOutcome.FAILED, None, reason, (), deliver=False)
        self.ports.fail(Failure(code=code, message=message, line=agent.line or None))

    def _end(
        self,
        agent: Agent,
        outcome: AgentOutcome,
        value: JsonValue,
        reason: str | None,
        notes: tuple[str, ...],
        *,
        deliver: bool = True,
    ) -> None:
        if agent.outcome is not None:
            return
        assert agent.started_at is not None
        agent.outcome, agent.reason, agent.notes = outcome, reason, provider_notes(notes)
        agent.seconds = self.clock.now() - agent.started_at
        if agent.abandon_timer is not None:
            agent.abandon_timer.cancel()
            agent.abandon_timer = None
        self._live.discard(agent)
        self.ports.emit(
            events.AgentEnded, seq=agent.seq, outcome=outcome, reason=reason, seconds=round(agent.seconds, 6)
        )
        if self.keeper is not None:
            self.keeper.write(self, now=False)
        if deliver and not self._stopped:
            self.facts.deliveries.append(Delivery(seq=agent.seq, outcome=outcome, value=value))
            self.ports.reply(agent.seq, value)
        self._give_slot_back()

    def _give_slot_back(self) -> None:
        if self.ports.is_stuck() and not self._stopped:
            # The worker does not take its replies: its slots stay taken, so that what waits for it stays bounded.
            self._unsent += 1
            return
        self._live_slots -= 1
        self.slots.give_back()
        if self._stopped:
            self._notice_end()
        else:
            self._pump()

    def drained(self) -> None:
        """The worker took everything that was sent to it."""
        unsent, self._unsent = self._unsent, 0
        for _ in range(unsent):
            self._give_slot_back()

    # ---- the end of the run

    def stop(self) -> None:
        """The run ended: start nothing more, cancel what is live. The ends follow; `ended` waits for them."""
        if self._stopped:
            return
        self._stopped = True
        self._queue.clear()
        if self._waits_for_host:
            self.slots.withdraw(self._host_slot_is_free)
        if self._timer is not None:
            self._timer.cancel()
        self._all_ended = self._loop.create_future()
        self.drained()
        for agent in list(self._live):
            agent.stopped_because = None
            self._stop(agent, "the run ended")
        self._notice_end()

    def _notice_end(self) -> None:
        if not self._live and self._all_ended is not None and not self._all_ended.done():
            self._all_ended.set_result(None)

    async def ended(self) -> None:
        """Wait until every agent has its end. After `stop`."""
        assert self._all_ended is not None
        await self._all_ended


def _cut_bytes(text: str, max_bytes: int) -> str:
    if len(text) * 4 <= max_bytes:
        return text
    return text.encode("utf-8", "replace")[:max_bytes].decode("utf-8", "ignore")
