"""One attempt at work: its provider is asked in a task of its own, its signs of life go on, its stop is bounded."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from loopwarden.agent import Agent, Keeper, Signs
from loopwarden.agent_reply import provider_error
from loopwarden.attempt import Attempt, AttemptEnd, Faulty, ask
from loopwarden.clock import Clock
from loopwarden.failures import Code
from loopwarden.lease_view import LeaseView
from loopwarden.limits import Limits
from loopwarden.pace import Pace
from loopwarden.provider import AgentRequest
from loopwarden_engine.plain import copy_object

ABANDON_SECONDS: Final = 10.0
"""On top of the grace: a provider that then still runs is left alone, and its end is recorded without it. More than the
supervisor of an agent program can need, so that no process of the run is left when the run ends."""


@dataclass(slots=True, kw_only=True, eq=False)
class Attendance:
    """Asks providers for the calls of one run. `over` is called once per attempt, with None when it was stopped."""

    run_id: str
    limits: Limits
    workspace: Path | None
    clock: Clock
    pace: Pace
    keeper: Keeper | None
    tell: Callable[[Agent, Attempt, str], None]
    over: Callable[[Agent, Attempt, AttemptEnd | None], None]
    is_stopped: Callable[[], bool]
    lease: LeaseView | None = None
    epoch: int = 0
    """0 without a store."""
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    @property
    def lease_is_over(self) -> bool:
        """True while this host may not act for the run, for all that it knows."""
        return self.lease is not None and not self.lease.is_alive()

    def lost_its_lease(self, attempt: Attempt) -> bool:
        """True when the lease ended while the attempt was at work, be it alive again by now."""
        return self.lease is not None and (self.lease_is_over or self.lease.lapses != attempt.lapses)

    def begin(
        self, agent: Agent, attempt: Attempt, wrap_up: asyncio.Event | None, *, max_cost_usd: float | None
    ) -> None:
        """Hand the attempt to its provider."""
        attempt.lapses = 0 if self.lease is None else self.lease.lapses
        request = self._request(agent, attempt, wrap_up, max_cost_usd)
        agent.task = self._loop.create_task(self._attend(agent, attempt, request))

    def stop(self, agent: Agent, attempt: Attempt) -> None:
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
            self.limits.agent_grace_seconds + ABANDON_SECONDS, lambda: self.over(agent, attempt, None)
        )

    def forget(self, agent: Agent) -> None:
        """The attempt of an agent is over."""
        agent.task = None
        if agent.abandon_timer is not None:
            agent.abandon_timer.cancel()
            agent.abandon_timer = None

    def _request(
        self, agent: Agent, attempt: Attempt, wrap_up: asyncio.Event | None, max_cost_usd: float | None
    ) -> AgentRequest:
        facts = agent.call.facts
        signs = Signs(agent, attempt, tell=self.tell, sign=self._sign, loop=self._loop)
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
            idempotency_key=f"{self.run_id}/{agent.seq}/{agent.chosen_asks()}",
            progress=signs.progress,
            remark=signs.remark,
            alive=signs.alive,
            wrap_up=wrap_up,
            max_cost_usd=max_cost_usd,
            lease=self.lease,
            epoch=self.epoch,
        )

    async def _attend(self, agent: Agent, attempt: Attempt, request: AgentRequest) -> None:
        end: AttemptEnd | None
        try:
            if self.lease is not None and self.lease_is_over:
                # This host was paused, or is cut off from its store. It asks when it knows that the run is still its
                # own; when the run is not, this task is cancelled.
                await self.lease.renewed()
            schema = agent.call.facts.schema
            end = await ask(attempt.provider, request, schema, self.limits.max_frame_bytes, self.pace)
        except asyncio.CancelledError:
            # Whoever cancelled the task said why; a provider that cancels itself broke its promise.
            is_ours = attempt.stopped_because is not None or self.is_stopped()
            end = None if is_ours else Faulty(code=Code.AGENT_RESULT, reason="the provider cancelled its own call")
        except (KeyboardInterrupt, GeneratorExit) as error:
            # Meant for the whole program, or for this coroutine, which end now. Should the loop go on, so does the run.
            fault = Faulty(code=Code.AGENT_RESULT, reason=provider_error(error))
            with suppress(RuntimeError):
                self._loop.call_soon(self.over, agent, attempt, fault)
            raise
        except BaseException as error:  # noqa: BLE001 -- a provider is foreign code: what it raises is its fault, typed
            end = Faulty(code=Code.AGENT_RESULT, reason=provider_error(error))
        self.over(agent, attempt, end)

    def _sign(self, attempt: Attempt) -> None:
        attempt.last_sign = self.clock.now()

    def _task_is_over(self, agent: Agent, attempt: Attempt, task: "asyncio.Task[None]") -> None:
        # Looked at, so that asyncio does not complain of an interrupt that went its way through the task.
        if not task.cancelled():
            task.exception()
        self.over(agent, attempt, None)
