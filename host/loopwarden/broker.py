"""Agents of one run: acceptance, charge, slots, asks, ends. The exact agent budget is kept here.

Rules kept here (design section 5): a call is accepted in call order, and the one beyond the cap is refused at that
point, whatever still waits. It starts in one step when it gets its slot: charged first, then handed to the provider.
Charges are never given back. Every agent that started has exactly one end, however many attempts its policy grants.

With a store each of these steps is an entry of the run's journal, and takes effect once the entry is committed: an ask
that is not committed is not made, an end that is not committed does not reach the script.
"""

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, assert_never

from loopwarden import events
from loopwarden.acceptance import accept_call
from loopwarden.admission import Admission
from loopwarden.agent import Agent, BrokerPorts, Keeper
from loopwarden.agent_ends import AgentEnds
from loopwarden.agent_journal import AgentJournal
from loopwarden.agent_reply import provider_words
from loopwarden.attempt import Answered, Attempt, AttemptEnd, Failed, Faulty, remembered
from loopwarden.attendance import Attendance
from loopwarden.breaker import BreakerBoard
from loopwarden.clock import Clock
from loopwarden.closing import Closing
from loopwarden.contract import AgentOutcome, Facts
from loopwarden.failure_class import FailureClass
from loopwarden.failures import Code, Failure
from loopwarden.holding import Holding
from loopwarden.journal.run_journal import AskRefused
from loopwarden.lease_view import LeaseView
from loopwarden.limits import Limits
from loopwarden.patience import Patience
from loopwarden.policy import FallbackStep, GiveUp, Policy, RetryStep, WaitStep
from loopwarden.provider import Provider
from loopwarden.repeats import Repeats
from loopwarden.resumption import Resumption
from loopwarden.scope_words import scope_failure, scope_sentence
from loopwarden.slots import AgentSlots, ProviderPlaces
from loopwarden.spending import Spending
from loopwarden.store.appends import CancelPending, CapReached, ScopeSpent
from loopwarden_engine.messages import Call

LEASE_LOST: Final = "the host lost the lease of the run"
BUDGET_POLL_SECONDS: Final = 30.0
"""A budget that is waited for is looked at so often: an operator may raise it before its window ends."""


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
    places: ProviderPlaces | None = None
    """How many agents of each provider may be live over all runs of the host; None: no such bound."""
    jitter: Callable[[], float] = random.random
    """In [0, 1): spreads what many calls would otherwise ask at the same moment."""
    agents: list[Agent] = field(default_factory=list)
    phase: str | None = None
    spending: Spending = field(init=False)
    _journal: AgentJournal = field(init=False)
    _attendance: Attendance = field(init=False)
    _patience: Patience = field(init=False)
    _repeats: Repeats = field(init=False)
    _admission: Admission = field(init=False)
    _closing: Closing = field(init=False)
    _holding: Holding = field(init=False)
    _ends: AgentEnds = field(init=False)
    past: Resumption = field(init=False)
    """What becomes of calls that were asked before."""
    _live: set[Agent] = field(init=False)

    def __post_init__(self) -> None:
        self.spending = Spending(cap_usd=self.limits.max_cost_usd)
        self._holding = Holding(self.limits.max_held_bytes)
        self._journal = AgentJournal(journal=None, wall=self.clock.wall)
        self._attendance = Attendance(
            run_id=self.run_id,
            limits=self.limits,
            workspace=self.workspace,
            clock=self.clock,
            pace=self.slots.pace,
            keeper=self.keeper,
            tell=self._tell,
            over=self._attempt_over,
            is_stopped=lambda: self._closing.is_closed,
        )
        self._patience = Patience(limits=self.limits, clock=self.clock, on_over=self._too_late)
        self._repeats = Repeats(
            max_extra_attempts=self.limits.extra_attempts,
            policies=self.policies,
            providers=self.providers,
            clock=self.clock,
            remark=lambda agent, message: self._remark(agent, message, is_policy=True),
            resume=lambda agent: self._admission.add(agent, first=True),
            jitter=self.jitter,
            is_told=lambda: self._journal.is_kept,
        )
        self._admission = Admission(
            limits=self.limits,
            slots=self.slots,
            board=self.board,
            spending=self.spending,
            repeats=self._repeats,
            places=self.places or ProviderPlaces({}),
            clock=self.clock,
            begin=self._begin,
            fail=self.ports.fail,
        )
        self._closing = Closing(
            admission=self._admission,
            patience=self._patience,
            attendance=self._attendance,
            repeats=self._repeats,
            clock=self.clock,
            end_cancelled=lambda agent: self._ends.cancelled(agent),  # noqa: PLW0108 -- made after this
            is_lost=lambda: self._journal.is_lost,
        )
        self._live = self._closing.live
        self._ends = AgentEnds(
            limits=self.limits,
            clock=self.clock,
            facts=self.facts,
            ports=self.ports,
            keeper=self.keeper,
            journal=self._journal,
            admission=self._admission,
            closing=self._closing,
            holding=self._holding,
            write=self._write,
        )
        self.past = Resumption(
            providers=self.providers,
            clock=self.clock,
            facts=self.facts,
            board=self.board,
            spending=self.spending,
            repeats=self._repeats,
            admission=self._admission,
            attendance=self._attendance,
            closing=self._closing,
            ends=self._ends,
        )

    @property
    def has_live_agents(self) -> bool:
        """True while an agent works, or waits to be asked again."""
        return bool(self._live)

    def _write(self) -> None:
        if self.keeper is not None:
            self.keeper.write(self, now=False)

    def waiting_until(self, agent: Agent) -> float | None:
        """Unix time until which a call waits to be asked again; None when it does not."""
        return self._repeats.waiting_until(agent)

    def set_deadline(self, ends_at: float) -> None:
        """Say when the run ends at the latest, on the scale of the host's clock."""
        self._repeats.ends_at = ends_at

    # ---- acceptance

    def accept(self, call: Call) -> Agent | None:
        """Accept a call, or end the run. In call order, whatever still waits. The agent, unless the run ends."""
        accepted = accept_call(
            call,
            phase=self.phase,
            accepted=len(self.agents),
            max_total_agents=self.limits.max_total_agents,
            providers=self.providers,
            default_provider=self.default_provider,
            check_call=self.ports.check_call,
        )
        self._holding.add(call.prompt, call.options)
        if not isinstance(accepted, Failure):
            accepted = self._holding.failure(call.line or None) or accepted
        if isinstance(accepted, Failure):
            if self.ports.refused is None or not self.ports.refused(call.id, accepted):
                self.ports.fail(accepted)
            return None
        self.facts.calls.append(accepted.call.facts)
        self.agents.append(accepted)
        if self.ports.restore is None or not self.ports.restore(accepted):
            self._admission.add(accepted)
        return accepted

    # ---- a run with a store

    def attach(self, journal: AgentJournal, *, lease: LeaseView, epoch: int) -> None:
        """Every step goes through the journal from here on. Before the first call."""
        self._journal = self._ends.journal = journal
        self._attendance.lease, self._attendance.epoch = lease, epoch

    def raise_limits(self, limits: Limits) -> None:
        """An operator raised caps, and the journal says so."""
        self.limits = self._admission.limits = self._attendance.limits = limits
        self._repeats.max_extra_attempts = limits.extra_attempts
        self.spending.cap_usd = limits.max_cost_usd
        self._admission.pump()

    def hold(self) -> None:
        """Begin no agent until `past.go_live`: what is recorded is replayed first."""
        self._admission.hold()

    # ---- start: charged, then asked

    def _begin(self, agent: Agent) -> None:
        """An agent has its slot: charge its call, unless that was done, and ask."""
        agent.is_asking = True
        self._live.add(agent)
        self._journal.ask(
            agent,
            then=lambda windows: self._charged(agent, windows),
            refused=lambda why: self._not_charged(agent, why),
        )

    def _charged(self, agent: Agent, windows: Mapping[str, str]) -> None:
        now = self.clock.now()
        agent.is_asking = False
        if not agent.attempts:
            self._start(agent, now)
        attempt = Attempt(
            number=len(agent.attempts) + 1,
            provider_name=agent.provider_name,
            provider=agent.provider,
            kind=agent.next_kind,
            paused_seconds=0.0 if agent.paused_at is None else now - agent.paused_at,
            started_at=now,
            last_sign=now,
            windows=windows,
        )
        agent.paused_at = None
        agent.attempts.append(attempt)
        if self._closing.is_closed and not self._closing.is_draining:
            # The run ended while the ask was on its way into the journal: charged, and never handed over.
            self._attempt_over(agent, attempt, None)
            return
        self._write()
        wrap_up = self._patience.watch(attempt)
        self._attendance.begin(agent, attempt, wrap_up, max_cost_usd=self.spending.left_usd)

    def _start(self, agent: Agent, now: float) -> None:
        self.facts.agents_started += 1
        agent.started_at = now
        facts = agent.call.facts
        if not self._journal.is_kept:
            self.ports.emit(
                events.AgentStarted,
                seq=agent.seq,
                label=agent.call.label,
                phase=facts.phase,
                provider=agent.provider_name,
            )
        if self.keeper is not None:
            self.keeper.keep_prompt(agent.seq, facts.prompt)

    def _not_charged(self, agent: Agent, why: AskRefused) -> None:
        agent.is_asking = False
        self.board.undecided(agent.provider_name, agent)
        self._admission.give_back(agent)
        if not agent.attempts:
            self._live.discard(agent)
        if self._closing.is_closed:
            self._closing.stop_waiting(agent)
            self._closing.notice()
            return
        match why:
            case CancelPending(reason=reason):
                self.ports.cancel(reason)
            case CapReached():
                message = f"the journal of the run holds more asks than this host counted ({why.which}); see verify"
                self.ports.fail(Failure(code=Code.AGENT_CAP, message=message, line=agent.line or None))
            case ScopeSpent(wait=True):
                self._wait_for_budget(why)
                self._admission.add(agent, first=True)
            case ScopeSpent():
                self._admission.clear()
                self.ports.fail(scope_failure(why, agent.line or None))
            case _:
                assert_never(why)

    def _wait_for_budget(self, spent: ScopeSpent) -> None:
        if not self._admission.hold():
            return
        self.ports.emit(events.RunWaiting, message=scope_sentence(spent), until=spent.frees_at)
        left = math.inf if spent.frees_at is None else spent.frees_at - self.clock.wall()
        self.clock.call_later(max(1.0, min(left, BUDGET_POLL_SECONDS)), self._admission.go_on)

    # ---- signs of life, and stops

    def _tell(self, agent: Agent, attempt: Attempt, message: str) -> None:
        if not attempt.is_over:
            attempt.last_words = message
            self._remark(agent, message, is_policy=False)

    def _remark(self, agent: Agent, message: str, *, is_policy: bool) -> None:
        if agent.outcome is None and not self._closing.is_stopped:
            words = provider_words(message)[:1000]
            self.ports.emit(events.AgentProgress, seq=agent.seq, message=words, is_policy=is_policy)

    def _too_late(self, attempt: Attempt) -> None:
        agent = next(agent for agent in self._live if agent.attempts and agent.attempts[-1] is attempt)
        self._attendance.stop(agent, attempt)

    # ---- ends of attempts

    def _attempt_over(self, agent: Agent, attempt: Attempt, end: AttemptEnd | None) -> None:
        """Take the end of an attempt, once. None: it was stopped, and its provider had nothing more to say."""
        if attempt.is_over:
            return
        attempt.seconds = self.clock.now() - attempt.started_at
        self._patience.forget(attempt)
        self._attendance.forget(agent)
        attempt.usage = None if end is None else end.usage
        self.spending.add(attempt.usage)
        closing = self._closing
        if closing.is_closed and not closing.is_draining:
            self._cut_short(agent, attempt, end)
            return
        if attempt.stopped_because is not None:
            end = attempt.as_stopped(end)
        if end is None:
            assert closing.is_draining
            self._cut_short(agent, attempt, end)
            return
        if (
            isinstance(end, Failed)
            and end.failure_class is FailureClass.CANCELLED
            and self._attendance.lost_its_lease(attempt)
        ):
            self.past.interrupted(agent, attempt)
            return
        attempt.end = remembered(end)
        match end:
            case Answered(text=text, value=value, notes=notes):
                self._ends.keep(agent, text)
                self.board.succeeded(attempt.provider_name)
                self._ends.end(agent, AgentOutcome.COMPLETED, value, None, notes)
            case Failed():
                self._ends.keep(agent, end.text)
                if closing.is_draining:
                    self.board.undecided(attempt.provider_name, agent)
                    self._ends.failed(agent, end, deliver=False)
                else:
                    self._failed(agent, attempt, end)
            case Faulty(code=code, reason=reason):
                self.board.undecided(attempt.provider_name, agent)
                self._ends.fault(agent, code, reason)
            case _:
                assert_never(end)

    def _cut_short(self, agent: Agent, attempt: Attempt, end: AttemptEnd | None) -> None:
        """The run ended, or goes to another host, before the attempt did."""
        attempt.is_cancelled, attempt.is_interrupted = not self._closing.is_leaving, self._closing.is_leaving
        attempt.end = None if end is None or isinstance(end, Faulty) else remembered(end)
        self.board.undecided(attempt.provider_name, agent)
        if not self._closing.is_leaving:
            self._ends.cancelled(agent)
            return
        self._journal.interrupted(agent, attempt)
        self._closing.release(agent)

    def _failed(self, agent: Agent, attempt: Attempt, failed: Failed) -> None:
        if failed.failure_class is FailureClass.LIMIT and self.spending.used_up is not None:
            # The cap was handed on to the agent, which kept it: the run ends by its cap, not by a failed agent.
            self.board.failed(attempt.provider_name, agent, failed.failure_class, failed.evidence, is_repeated=True)
            used_up = self.spending.used_up
            self._ends.failed_last(agent, failed, lambda: self._admission.fail_cost_cap(agent, used_up))
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
                    self._ends.failed_last(agent, failed, partial(self._admission.fail_out_of_use, agent, state))
                    return
                step = FallbackStep(provider=fallback)
                is_granted = is_granted or self._repeats.reserve()
        if isinstance(step, GiveUp):
            self._ends.failed(agent, failed, more=self._repeats.why_not_waited(agent, failed))
        elif not is_granted:
            cap = self.limits.extra_attempts
            self._ends.failed(agent, failed, more=f"not asked again: maxExtraAttempts of this run, {cap}, is used up")
        else:
            self._admission.give_back(agent)
            if not self._closing.is_closed:  # by an agent of this run that got the slot, and may not be asked any more
                self._journal.goes_on(agent, attempt, *self._repeats.until(step))
                self._repeats.carry_out(agent, step, failed)
                self._write()
                self._closing.notice()
                self._admission.pump()

    def drained(self) -> None:
        """The worker took everything that was sent to it."""
        self._admission.drained()

    # ---- the end of the run

    def stop(self, *, drain_seconds: float = 0.0) -> None:
        """The run ended: start nothing more, cancel what is live. The ends follow; `ended` waits for them.

        With `drain_seconds`, agents that work may go on for so long, and the journal keeps what they bring.
        """
        self._closing.stop(drain_seconds)

    def leave(self, *, drain_seconds: float = 0.0) -> None:
        """This host gives the run back: ask nothing more, let agents finish for so long, then interrupt them."""
        self._closing.leave(drain_seconds)

    def abandon(self) -> None:
        """The run belongs to another host now: end what works here. Nothing is journaled, nothing is reported."""
        self._closing.abandon()

    async def ended(self) -> None:
        """Wait until every agent has its end. After `stop`, `leave` or `abandon`."""
        await self._closing.ended()
