"""Replaying a run only to look: its script runs again in a worker, is answered from the journal, and is compared.

Nobody is asked, nothing is written. What is recorded must come again, call by call; then the script must end as it did,
unless the end came from outside of it: a cancel, a deadline, a budget, a fault of a provider or of the worker.
"""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, assert_never

from loopwarden.agent import Agent, BrokerPorts
from loopwarden.breaker import BreakerBoard
from loopwarden.broker import Broker
from loopwarden.clock import LoopClock
from loopwarden.contract import Facts
from loopwarden.custody import Custody
from loopwarden.failures import Code, Failure
from loopwarden.following import Following
from loopwarden.journal import entries
from loopwarden.journal.fold import RunState
from loopwarden.judge import Judge, Refused
from loopwarden.launching import Launcher, WorkerLimits
from loopwarden.plan import Deployment, Plan
from loopwarden.provider import AgentReply, AgentRequest, FunctionProvider, Provider
from loopwarden.replaying import Replay
from loopwarden.resuming import plan_from
from loopwarden.session import Session
from loopwarden.slots import AgentSlots
from loopwarden.worker_process import WorkerProcess
from loopwarden_engine import messages
from loopwarden_engine.plain import JsonValue, canonical_bytes

FROM_OUTSIDE: Final = frozenset(
    code.value
    for code in (
        Code.CANCELLED,
        Code.DEADLINE,
        Code.COST_CAP,
        Code.SCOPE_BUDGET,
        Code.AGENT_START,
        Code.AGENT_RESULT,
        Code.CPU_LIMIT,
        Code.MEMORY_LIMIT,
        Code.WORKER_LOST,
        Code.PROTOCOL,
    )
)
"""Ends that the script did not bring about by what it does, or not in a way that comes again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a replay found."""

    run_id: str
    is_same: bool
    difference: str | None
    """Where the replay differs from the journal, as a sentence; None when it does not."""
    calls: int
    """Calls that were compared."""
    head_seq: int
    head_hash: str
    """Of the journal that was replayed."""


async def compare(
    custody: Custody, run_id: str, deployment: Deployment, launcher: Callable[[], Awaitable[Launcher]]
) -> Verdict:
    """Replay a run and compare. Raises `StartRefused` when this host cannot, and `StoreError`."""
    following = Following(custody.store, run_id)
    await following.more()
    state = following.state
    silent = dataclasses.replace(deployment, providers=_silent(state, deployment), policies={}, workspaces={})
    plan = plan_from(_without_place(state), custody.scripts, silent)
    limits = WorkerLimits(memory_bytes=plan.limits.memory_bytes, cpu_seconds=int(plan.limits.cpu_seconds_per_run) + 1)
    worker = await (await launcher()).fork(limits)
    comparison = _Comparison(state, plan, worker)
    difference = await comparison.carry_out()
    return Verdict(
        run_id=run_id,
        is_same=difference is None,
        difference=difference,
        calls=len(state.calls),
        head_seq=state.seq,
        head_hash=state.hash,
    )


class _Comparison:
    """One worker that goes through one journal."""

    def __init__(self, state: RunState, plan: Plan[Any, Any], worker: WorkerProcess) -> None:
        self._state = state
        self._plan = plan
        self._loop = asyncio.get_running_loop()
        self._verdict: asyncio.Future[str | None] = self._loop.create_future()
        self._session = Session(
            worker,
            plan.limits,
            on_message=self._received,
            on_broken=self._broken,
            on_drained=lambda: None,
            on_idle=self._idle,
        )
        facts, clock = Facts(opening=plan.opening), LoopClock()
        self._judge: Judge[Any, Any] = Judge(plan.script.contract, plan.args, facts, lambda *_, **__: None)
        self._broker = Broker(
            run_id=state.run_id,
            limits=plan.limits,
            providers=plan.deployment.providers,
            policies={},
            board=BreakerBoard({}, None, clock.wall),
            default_provider=plan.provider,
            workspace=None,
            slots=AgentSlots(1),
            clock=clock,
            facts=facts,
            ports=BrokerPorts(
                emit=lambda *_, **__: None,
                reply=lambda seq, value: self._session.reply(seq, value, more_may_follow=False),
                fail=self._refused,
                is_stuck=lambda: self._session.is_stuck,
                check_call=self._judge.check_call,
                restore=self._restore,
            ),
            keeper=None,
        )
        self._broker.hold()  # and never let go on: nobody is asked
        self._replay = Replay(
            state=state,
            restore=self._broker.past.restore,
            deliver=self._broker.past.deliver_recorded,
            live=self._waits,
            diverged=self._settle,
        )

    async def carry_out(self) -> str | None:
        """Where the replay differs; None when it does not."""
        self._session.start(self._plan.script.source, self._plan.script_args)
        try:
            async with asyncio.timeout(self._plan.limits.run_deadline_seconds):
                return await self._verdict
        except TimeoutError:
            return "the replay took longer than the run was allowed to take"
        finally:
            self._session.close()
            await self._session.gone()

    def _idle(self) -> None:
        self._replay.idle()

    def _restore(self, agent: Agent) -> bool:
        return self._replay.accepted(agent)

    def _settle(self, difference: str | None) -> None:
        if not self._verdict.done():
            self._verdict.set_result(difference)

    # ---- what comes from the worker

    def _received(self, message: messages.FromWorker) -> None:
        if self._verdict.done():
            return
        match message:
            case messages.Call():
                self._broker.accept(message)
            case messages.Phase(title=title):
                self._broker.phase = title
                self._replay.narrated(entries.PhaseNamed(at=0.0, title=title))
            case messages.Log(message=text):
                self._replay.narrated(entries.Logged(at=0.0, message=text))
            case messages.ItemFailed():
                self._replay.narrated(
                    entries.ItemFailed(
                        at=0.0,
                        combinator=message.key,
                        index=message.index,
                        line=message.line or None,
                        message=message.message,
                    )
                )
            case messages.Result() | messages.Fatal() | messages.Failed():
                if self._replay.may_end():
                    self._ended(message)
            case messages.Ready():
                self._session.compiled()
                self._loop.call_soon(self._session.go)
            case messages.Rejected(violations=violations):
                self._settle(f"the script is refused now: line {violations[0].line}: {violations[0].message}")
            case messages.Idle():
                pass
            case _:
                assert_never(message)

    def _ended(self, message: messages.Result | messages.Fatal | messages.Failed) -> None:
        match message:
            case messages.Result(value=value):
                self._returned(value)
            case messages.Fatal(code=code, message=text, line=line):
                self._failed(Failure(code=Code(code), message=text, line=line or None))
            case messages.Failed(code=failed_code, message=text, lines=lines):
                self._failed(Failure(code=Code(failed_code), message=text, line=lines[-1] if lines else None))
            case _:
                assert_never(message)

    # ---- the end

    @property
    def _is_from_outside(self) -> bool:
        """Whether the recorded part ends for a reason that no replay brings about, or has not ended."""
        stopping = self._state.stopping
        return stopping is None or (stopping.failure is not None and stopping.failure.code in FROM_OUTSIDE)

    def _waits(self) -> None:
        """All that is recorded came again, and the script waits for an agent."""
        if self._is_from_outside:
            self._settle(None)
        else:
            self._settle(f"the script waits for an agent, and the run {self._recorded_end()}")

    def _returned(self, value: JsonValue) -> None:
        try:
            self._judge.decode(value)
        except Refused as refused:
            self._failed(refused.failure)
            return
        stopping = self._state.stopping
        if self._is_from_outside:
            self._settle(None)
        elif stopping is None or stopping.failure is not None:
            self._settle(f"the script returns a result, and the run {self._recorded_end()}")
        elif canonical_bytes(stopping.result) != canonical_bytes(value):
            self._settle("the script returns another result than the one that is recorded")
        else:
            self._settle(None)

    def _failed(self, failure: Failure) -> None:
        stopping = self._state.stopping
        recorded = None if stopping is None else stopping.failure
        if self._is_from_outside or (
            recorded is not None and (recorded.code, recorded.line) == (failure.code.value, failure.line)
        ):
            self._settle(None)
        else:
            self._settle(f"the script ends with {failure.code} ({failure.message}), and the run {self._recorded_end()}")

    def _refused(self, failure: Failure) -> None:
        """The host ends the run at a call: what is recorded must have come again before."""
        if self._replay.may_end():
            self._failed(failure)

    def _broken(self, failure: Failure) -> None:
        if self._replay.is_over:
            self._failed(failure)
        else:
            self._settle(f"{failure.code} while it was replayed: {failure.message}")

    def _recorded_end(self) -> str:
        stopping = self._state.stopping
        if stopping is None:
            return "has not ended"
        return "completed" if stopping.failure is None else f"ended with {stopping.failure.code}"


def _without_place(state: RunState) -> RunState:
    """The run without its workspace, which a replay has no use for."""
    created = state.created.model_copy(
        update={"workspace": None, "share_workspace": False, "isolation": None, "checks": []}
    )
    return dataclasses.replace(state, _created=created)


def _silent(state: RunState, deployment: Deployment) -> dict[str, Provider]:
    """Providers by all names that the run may use, none of which is ever asked."""
    names = {state.created.provider, *deployment.providers}
    names.update(ask.provider for call in state.calls.values() for ask in call.asks)
    return {name: FunctionProvider(_never_asked) for name in names}


async def _never_asked(_request: AgentRequest) -> AgentReply:
    raise AssertionError("a replay asks nobody")
