"""Agents of one run: acceptance, charge, slots, asks, ends. The exact agent budget is kept here.

Rules kept here (design section 5): a call is accepted in call order, and the one beyond the cap is refused at that
point, whatever still waits. It starts in one step when it gets its slot: charged first, then handed to the provider.
Charges are never given back. Every agent that started has exactly one end, however many attempts its policy grants.
"""

import asyncio
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, assert_never

from loopwarden import events
from loopwarden.admission import Admission
from loopwarden.agent import Agent, BrokerPorts, Keeper, Signs
from loopwarden.agent_reply import provider_error, provider_words
from loopwarden.attempt import Answered, Attempt, AttemptEnd, Failed, Faulty, ask, remembered
from loopwarden.breaker import BreakerBoard
from loopwarden.call_options import CallRefused, decode_call
from loopwarden.clock import Clock
from loopwarden.contract import AgentOutcome, ContractBroken, Delivery, Facts
from loopwarden.failure_class import FailureClass
from loopwarden.failures import Code, Failure
from loopwarden.limits import Limits
from loopwarden.patience import Patience
from loopwarden.policy import FallbackStep, GiveUp, Policy, RetryStep, WaitStep
from loopwarden.provider import AgentRequest, Provider
from loopwarden.repeats import Repeats
from loopwarden.slots import AgentSlots
from loopwarden.spending import Spending
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
    policies: Mapping[str, Policy]
    board: BreakerBoard
    default_provider: str
    workspace: Path | None
    slots: AgentSlots
    clock: Clock
    facts: Facts
    ports: BrokerPorts
    keeper: Keeper | None
    jitter: Callable[[], float] = random.random
    """In [0, 1): spreads what many calls would otherwise ask at the same moment."""
    agents: list[Agent] = field(default_factory=list)
    phase: str | None = None
    spending: Spending = field(init=False)
    _patience: Patience = field(init=False)
    _repeats: Repeats = field(init=False)
    _admission: Admission = field(init=False)
    _live: set[Agent] = field(default_factory=set)
    """Started, and not ended: with a slot, or waiting by its policy."""
    _stopped: bool = False
    _all_ended: "asyncio.Future[None] | None" = None
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    def __post_init__(self) -> None:
        self.spending = Spending(cap_usd=self.limits.max_cost_usd)
        self._patience = Patience(limits=self.limits, clock=self.clock, on_over=self._too_late)
        self._repeats = Repeats(
            max_extra_attempts=self.limits.max_extra_attempts,
            policies=self.policies,
            providers=self.providers,
            clock=self.clock,
            remark=lambda agent, message: self._remark(agent, message, is_policy=True),
            resume=lambda agent: self._admission.add(agent, first=True),
            jitter=self.jitter,
        )
        self._admission = Admission(
            limits=self.limits,
            slots=self.slots,
            board=self.board,
            spending=self.spending,
            repeats=self._repeats,
            clock=self.clock,
            begin=self._begin,
            fail=self.ports.fail,
        )

    @property
    def has_live_agents(self) -> bool:
        """True while an agent works, or waits to be asked again."""
        return bool(self._live)

    def waiting_until(self, agent: Agent) -> float | None:
        """Unix time until which a call waits to be asked again; None when it does not."""
        return self._repeats.waiting_until(agent)

    def set_deadline(self, ends_at: float) -> None:
        """Say when the run ends at the latest, on the scale of the host's clock."""
        self._repeats.ends_at = ends_at

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
        self._admission.add(agent)

    # ---- start: charged, then asked

    def _begin(self, agent: Agent) -> None:
        """An agent has its slot: charge its call, unless that was done, and ask."""
        now = self.clock.now()
        if not agent.attempts:
            self._charge(agent, now)
        attempt = Attempt(
            number=len(agent.attempts) + 1,
            provider_name=agent.provider_name,
            provider=agent.provider,
            kind=agent.next_kind,
            paused_seconds=0.0 if agent.paused_at is None else now - agent.paused_at,
            started_at=now,
            last_sign=now,
        )
        agent.paused_at = None
        agent.attempts.append(attempt)
        if self.keeper is not None:
            self.keeper.write(self, now=False)
        request = self._request(agent, attempt, self._patience.watch(attempt))
        agent.task = self._loop.create_task(self._attend(agent, attempt, request))

    def _charge(self, agent: Agent, now: float) -> None:
        self.facts.agents_started += 1
        agent.started_at = now
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

    def _request(self, agent: Agent, attempt: Attempt, wrap_up: asyncio.Event | None) -> AgentRequest:
        facts = agent.call.facts
        signs = Signs(agent, attempt, tell=self._tell, sign=self._sign, loop=self._loop)
        return AgentRequest(
            run_id=self.run_id,
            seq=agent.seq,
            attempt=attempt.number,
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
            idempotency_key=f"{self.run_id}/{agent.seq}/{attempt.number}",
            progress=signs.progress,
            remark=signs.remark,
            alive=signs.alive,
            wrap_up=wrap_up,
            max_cost_usd=self.spending.left_usd,
        )

    async def _attend(self, agent: Agent, attempt: Attempt, request: AgentRequest) -> None:
        end: AttemptEnd | None
        try:
            end = await ask(attempt.provider, request, agent.call.schema, self.limits.max_frame_bytes)
        except asyncio.CancelledError:
            # Whoever cancelled the task said why; a provider that cancels itself broke its promise.
            is_ours = attempt.stopped_because is not None or self._stopped
            end = None if is_ours else Faulty(code=Code.AGENT_RESULT, reason="the provider cancelled its own call")
        except (KeyboardInterrupt, GeneratorExit) as error:
            # Meant for the whole program, or for this coroutine, which end now. Should the loop go on, so does the run.
            fault = Faulty(code=Code.AGENT_RESULT, reason=provider_error(error))
            with suppress(RuntimeError):
                self._loop.call_soon(self._attempt_over, agent, attempt, fault)
            raise
        except BaseException as error:  # noqa: BLE001 -- a provider is foreign code: what it raises is its fault, typed
            end = Faulty(code=Code.AGENT_RESULT, reason=provider_error(error))
        self._attempt_over(agent, attempt, end)

    # ---- signs of life, and stops

    def _tell(self, agent: Agent, attempt: Attempt, message: str) -> None:
        if not attempt.is_over:
            attempt.last_words = message
            self._remark(agent, message, is_policy=False)

    def _sign(self, attempt: Attempt) -> None:
        attempt.last_sign = self.clock.now()

    def _remark(self, agent: Agent, message: str, *, is_policy: bool) -> None:
        if agent.outcome is None and not self._stopped:
            words = provider_words(message)[:1000]
            self.ports.emit(events.AgentProgress, seq=agent.seq, message=words, is_policy=is_policy)

    def _too_late(self, attempt: Attempt) -> None:
        agent = next(agent for agent in self._live if agent.attempts[-1] is attempt)
        self._stop(agent, attempt)

    def _stop(self, agent: Agent, attempt: Attempt) -> None:
        """Cancel the task of an attempt that is still live, and do not wait for it for ever."""
        if agent.task is None or attempt.is_over:
            return
        # A task that never ran its first line would end without a word.
        agent.task.add_done_callback(lambda task: self._task_is_over(agent, attempt, task))
        # Charged and handed over is one step, so an agent that is to be asked in this very turn of the loop still is:
        # what was charged and what the provider saw never differ.
        self._loop.call_soon(agent.task.cancel)
        if agent.abandon_timer is not None:
            agent.abandon_timer.cancel()
        agent.abandon_timer = self.clock.call_later(
            self.limits.agent_grace_seconds + ABANDON_SECONDS, lambda: self._attempt_over(agent, attempt, None)
        )

    def _task_is_over(self, agent: Agent, attempt: Attempt, task: "asyncio.Task[None]") -> None:
        # Looked at, so that asyncio does not complain of an interrupt that went its way through the task.
        if not task.cancelled():
            task.exception()
        self._attempt_over(agent, attempt, None)

    # ---- ends of attempts

    def _attempt_over(self, agent: Agent, attempt: Attempt, end: AttemptEnd | None) -> None:
        """Take the end of an attempt, once. None: it was stopped, and its provider had nothing more to say."""
        if attempt.is_over:
            return
        attempt.seconds = self.clock.now() - attempt.started_at
        self._patience.forget(attempt)
        agent.task = None
        if agent.abandon_timer is not None:
            agent.abandon_timer.cancel()
            agent.abandon_timer = None
        self.spending.add(None if end is None else end.usage)
        if self._stopped:
            attempt.is_cancelled = True
            attempt.end = None if end is None or isinstance(end, Faulty) else remembered(end)
            self.board.undecided(attempt.provider_name, agent)
            self._end(agent, AgentOutcome.CANCELLED, None, "the run ended", ())
            return
        if attempt.stopped_because is not None:
            end = attempt.as_stopped(end)
        assert end is not None
        attempt.end = remembered(end)
        match end:
            case Answered(text=text, value=value, notes=notes):
                self._keep(agent, text)
                self.board.succeeded(attempt.provider_name)
                self._end(agent, AgentOutcome.COMPLETED, value, None, notes)
            case Failed():
                self._keep(agent, end.text)
                self._failed(agent, attempt, end)
            case Faulty(code=code, reason=reason):
                self.board.undecided(attempt.provider_name, agent)
                self._end_fault(agent, code, reason)
            case _:
                assert_never(end)

    def _failed(self, agent: Agent, attempt: Attempt, failed: Failed) -> None:
        if failed.failure_class is FailureClass.LIMIT and self.spending.used_up is not None:
            # The cap was handed on to the agent, which kept it: the run ends by its cap, not by a failed agent.
            self.board.failed(attempt.provider_name, agent, failed.failure_class, failed.evidence, is_repeated=True)
            self._admission.clear()
            self._end_failed(agent, failed, deliver=False)
            self._admission.fail_cost_cap(agent, self.spending.used_up)
            return
        step = self._repeats.step_after(agent, failed)
        is_granted = not isinstance(step, GiveUp) and self._repeats.reserve()
        if is_granted and isinstance(step, WaitStep):
            # What is waited for is no reason to take the provider out of use.
            self.board.undecided(attempt.provider_name, agent)
        else:
            evidence = failed.evidence if failed.evidence is not None else failed.reason
            is_repeated = is_granted and isinstance(step, RetryStep)
            state = self.board.failed(
                attempt.provider_name, agent, failed.failure_class, evidence, is_repeated=is_repeated
            )
            if state is not None:
                fallback = self._repeats.fallback_of(agent)
                if fallback is None or self.board.out_of_use(fallback) is not None:
                    # The run ends with this: the slot that comes free must not start one more agent on the way.
                    self._admission.clear()
                    self._end_failed(agent, failed, deliver=False)
                    self._admission.fail_out_of_use(agent, state)
                    return
                step = FallbackStep(provider=fallback)
                is_granted = is_granted or self._repeats.reserve()
        if isinstance(step, GiveUp):
            self._end_failed(agent, failed, more=self._repeats.why_not_waited(agent, failed))
        elif not is_granted:
            cap = self.limits.max_extra_attempts
            self._end_failed(agent, failed, more=f"not asked again: maxExtraAttempts of this run, {cap}, is used up")
        else:
            self._admission.give_back(agent)
            if not self._stopped:  # by an agent of this run that got the slot, and may not be asked any more
                self._repeats.carry_out(agent, step, failed)
                if self.keeper is not None:
                    self.keeper.write(self, now=False)
                self._admission.pump()

    def _keep(self, agent: Agent, text: str) -> None:
        if self.keeper is not None and text and not agent.output_kept:
            agent.output_kept = True
            self.keeper.keep_output(agent.seq, _cut_bytes(text, self.limits.max_output_bytes))

    # ---- ends of agents

    def _end_failed(self, agent: Agent, failed: Failed, *, more: str = "", deliver: bool = True) -> None:
        agent.failure_class = failed.failure_class
        notes = (*failed.notes, more) if more else failed.notes
        self._end(agent, AgentOutcome.FAILED, None, failed.reason, notes, deliver=deliver)

    def _end_fault(self, agent: Agent, code: Code, reason: str) -> None:
        self._admission.clear()  # as above
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
        agent.outcome, agent.reason, agent.notes = outcome, reason, notes
        agent.seconds = self.clock.now() - agent.started_at
        self._live.discard(agent)
        self.ports.emit(
            events.AgentEnded,
            seq=agent.seq,
            outcome=outcome,
            reason=reason,
            seconds=round(agent.seconds, 6),
            failure_class=agent.failure_class,
            attempts=len(agent.attempts),
        )
        if self.keeper is not None:
            self.keeper.write(self, now=False)
        if deliver and not self._stopped:
            self.facts.deliveries.append(Delivery(seq=agent.seq, outcome=outcome, value=value))
            self.ports.reply(agent.seq, value)
        if self.ports.is_stuck() and not self._stopped:
            self._admission.keep_until_drained(agent)
            return
        self._admission.give_back(agent)
        if self._stopped:
            self._notice_end()
        else:
            self._admission.pump()

    def drained(self) -> None:
        """The worker took everything that was sent to it."""
        self._admission.drained()

    # ---- the end of the run

    def stop(self) -> None:
        """The run ended: start nothing more, cancel what is live. The ends follow; `ended` waits for them."""
        if self._stopped:
            return
        self._stopped = True
        self._admission.close()
        self._patience.stop()
        self._all_ended = self._loop.create_future()
        for agent in sorted(self._live, key=lambda agent: agent.seq):
            if agent.task is None:
                self._repeats.stop(agent)
                self._end(agent, AgentOutcome.CANCELLED, None, "the run ended", ())
            else:
                self._stop(agent, agent.attempts[-1])
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
