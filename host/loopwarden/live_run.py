"""One run at work: from a compiled script to its one end. The first terminal event wins; later ones change nothing.

launched --Ready--> live --result | failure | limit | death | cancel--> ending --> ended
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from loopwarden import events
from loopwarden.agent import BrokerPorts
from loopwarden.agent_journal import AgentJournal
from loopwarden.breaker import BreakerBoard
from loopwarden.broker import Broker
from loopwarden.checking import Checking
from loopwarden.clock import Clock, Timer
from loopwarden.contract import Facts, Standing
from loopwarden.departure import Departure
from loopwarden.failures import Code, Failure, InvalidRequest, LaunchFailed, ScriptRejected, StartRefused
from loopwarden.following import held_sentence
from loopwarden.journal.entries import LimitsRaised
from loopwarden.journal.run_journal import Loss
from loopwarden.judge import Judge, Refused
from loopwarden.limits import Limits
from loopwarden.logs import run_logger
from loopwarden.outcome import Outcome
from loopwarden.plan import Plan
from loopwarden.raising import raised_limits
from loopwarden.receipt import Receipt
from loopwarden.run import ResultT, Run
from loopwarden.run_record import Ending, RunRecord
from loopwarden.session import Session
from loopwarden.slots import AgentSlots, ProviderPlaces
from loopwarden.store.appends import FencedOut
from loopwarden.tenure import DRAINED, Tenure
from loopwarden.worker_process import WorkerProcess
from loopwarden.worker_voice import WorkerVoice
from loopwarden_engine.plain import JsonValue


class LiveRun(Run[ResultT]):
    """A run that this host drives, until it has ended, or leaves this host."""

    def __init__(
        self,
        record: RunRecord,
        worker: WorkerProcess,
        *,
        slots: AgentSlots,
        board: BreakerBoard,
        places: ProviderPlaces,
        clock: Clock,
        on_end: "Callable[[LiveRun[Any]], None]",
    ) -> None:
        super().__init__(record)
        self._plan: Plan[Any, ResultT] = record.plan
        self._clock = clock
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._logger: Any = run_logger(record.run_id)
        self._compiled: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._refusal: StartRefused | None = None
        self._is_live = False
        self._deadline: Timer | None = None
        self._finishing: asyncio.Task[None] | None = None
        self._gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tenure: Tenure | None = None
        self._promised: Limits | None = None
        """The limits as they will be once what raises them is committed."""
        self._is_unplayed = False
        """The run ended in a replay, before all that is recorded was seen here."""
        self._voice = WorkerVoice(
            script_name=self._plan.script.name,
            events=self._events,
            clock=clock,
            ready=self._is_ready,
            refuse=self._refuse,
            result=self._accept_result,
            fail=self._fail,
            note=self._note,
        )
        self._session = Session(
            worker,
            self._plan.limits,
            on_message=self._voice.hear,
            on_broken=self._broken,
            on_drained=lambda: self._broker.drained(),  # noqa: PLW0108 -- it is made after this
            on_idle=self._voice.idle,
        )
        deployment = self._plan.deployment
        facts = Facts(opening=self._plan.opening)
        self._judge: Judge[Any, ResultT] = Judge(self._plan.script.contract, self._plan.args, facts, self._note)
        self._checking = Checking(self._plan, record, self._note)
        self._broker = Broker(
            run_id=record.run_id,
            limits=self._plan.limits,
            providers=deployment.providers,
            policies=deployment.policies,
            board=board,
            default_provider=self._plan.provider,
            workspace=self._plan.workspace,
            slots=slots,
            places=places,
            clock=clock,
            facts=facts,
            ports=BrokerPorts(
                emit=self._events.emit,
                reply=self._reply,
                fail=self._fail,
                is_stuck=lambda: self._session.is_stuck,
                check_call=self._judge.check_call,
                cancel=self.cancel,
                restore=self._voice.restore,
                refused=self._voice.refused,
            ),
            keeper=record if deployment.state_folder is not None else None,
        )
        self._voice.broker = self._broker
        self._departure = Departure(
            session=self._session,
            broker=self._broker,
            events=self._events,
            gone=self._is_gone,
            settle=self._settle,
        )

    @property
    def tenure(self) -> Tenure | None:
        """This host's ownership of the run in its store; None without one. For Host alone."""
        return self._tenure

    def cancel(self, reason: str = "cancelled") -> None:
        """As `Run.cancel`."""
        if _running_loop() is not self._loop:
            raise RuntimeError("this run belongs to another event loop; use its call_soon_threadsafe(run.cancel)")
        if self._record.ending is not None:
            self._checking.cancel()
            return
        if self._departure.has_left:
            self._ask_owner_to_cancel(reason)
            return
        self._decide(
            Ending(
                stop_reason="cancelled",
                failure=Failure(code=Code.CANCELLED, message=f"the run was cancelled: {reason}"),
            )
        )

    def _ask_owner_to_cancel(self, reason: str) -> None:
        assert self._tenure is not None
        request = self._tenure.store.request(self.id, "cancel", {"reason": reason}, "the host that drove it before")
        task = self._loop.create_task(request)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())

    # ---- begin

    async def launch(self, begin: "Callable[[], Awaitable[Tenure]] | None" = None, *, is_claimed: bool = False) -> None:
        """Let the worker compile the script. Raises `StartRefused`; then nothing of the run is left. For Host alone.

        `begin` is asked for the run's journal once the script is compiled; what it raises goes through. `is_claimed`:
        the run began before, perhaps on this host.
        """
        self._session.start(self._plan.script.source, self._plan.script_args)
        allowed = self._plan.limits.run_deadline_seconds
        deadline = self._clock.call_later(allowed, self._deadline_passed)
        try:
            summary = await self._compiled
            if self._refusal is not None:
                # What came in one breath with `ready`, before anybody woke up to hear that.
                raise self._refusal
            # Only now: a run that could not begin leaves no folder. And before its journal: one that has no folder
            # does not begin, so it must not stand in a store.
            self._record.make_folder(again=is_claimed)
            tenure = None if begin is None else await begin()
        except BaseException:
            deadline.cancel()
            if not is_claimed:
                self._record.discard_folder()
            self._session.close()
            await self._session.gone()
            raise
        deadline.cancel()
        self._session.compiled()
        if tenure is not None:
            self._attach(tenure)
            allowed = max(0.0, allowed - tenure.active_seconds)
        self._deadline = self._clock.call_later(allowed, self._deadline_passed)
        self._broker.set_deadline(self._clock.now() + allowed)
        self._is_live = True
        self._record.write(self._broker, now=True)
        self._note("info", "run started", script=self._plan.script.name, summary=summary)
        if tenure is None:
            self._events.emit(
                events.RunStarted,
                script=self._plan.script.name,
                max_total_agents=self._plan.limits.max_total_agents,
            )
        # Not at once: who just got the run may still cancel it before any of the script's body ran.
        asyncio.get_running_loop().call_soon(self._go)

    def _attach(self, tenure: Tenure) -> None:
        """The run has a journal from here on, and perhaps a past."""
        self._tenure = tenure
        tenure.on_lost, tenure.on_fault = self._lost, self._voice.failed_at_entry
        self._record.head = tenure.head
        self._checking.lease = tenure.lease
        self._record.started_at = tenure.recorded.claims[0].at
        tenure.fill(self._events)
        self._broker.attach(
            AgentJournal(
                journal=tenure.journal, wall=self._clock.wall, keep_prompts=tenure.recorded.created.keep_prompts
            ),
            lease=tenure.lease,
            epoch=tenure.epoch,
        )
        self._voice.attach(
            self._broker,
            tenure,
            lambda where: self._hold(Code.REPLAY_DIVERGED, f"the replay differs from the journal: {where}"),
        )

    def _go(self) -> None:
        if self._record.ending is None and not self._departure.has_left:
            self._session.go()

    # ---- what comes from the worker

    def _is_ready(self, summary: str) -> None:
        if not self._compiled.done():
            self._compiled.set_result(summary)

    def _broken(self, failure: Failure) -> None:
        if self._is_live and self._voice.is_replaying:
            # The script did this once without trouble: what differs is this host, or what is recorded.
            self._broken_replay(failure)
            return
        if self._is_live:
            self._fail(failure)
            return
        worker = self._session.worker
        refusal: StartRefused | None = worker.refusal() if worker.exited.done() else None
        if refusal is None and failure.code is Code.PROTOCOL:
            refusal = LaunchFailed(failure.message)
        if refusal is None:
            name = self._plan.script.name
            refusal = ScriptRejected(f"the script {name!r} could not be compiled: {failure.message}")
        self._refuse(refusal)

    def _refuse(self, refusal: StartRefused) -> None:
        if not self._compiled.done():
            self._compiled.set_exception(refusal)
        elif self._refusal is None:
            self._refusal = refusal

    def _reply(self, seq: int, value: JsonValue) -> None:
        self._session.reply(seq, value, more_may_follow=self._broker.has_live_agents)

    def give_up(self, refusal: StartRefused) -> None:
        """Let `launch` raise `refusal`. For Host alone, before `launch` has returned."""
        self._refuse(refusal)

    def launcher_lost(self) -> None:
        """The launcher died, and the worker with it. For Host alone."""
        message = "the launcher process died, and with it the worker of this run; start the run again"
        if self._is_live:
            self._broken(Failure(code=Code.WORKER_LOST, message=message))
        else:
            self._refuse(LaunchFailed(message))

    # ---- the contract

    def _accept_result(self, value: JsonValue) -> None:
        try:
            result, conclusion = self._judge.decode(value)
        except Refused as refused:
            self._fail(refused.failure)
        else:
            self._value = result
            self._decide(Ending(stop_reason="completed", result=value, conclusion=conclusion))

    # ---- the end

    def _deadline_passed(self) -> None:
        seconds = self._plan.limits.run_deadline_seconds
        message = f"the run took longer than runDeadlineSeconds allows, {seconds:g} s"
        if self._is_live:
            self._fail(Failure(code=Code.DEADLINE, message=message))
        else:
            self._refuse(LaunchFailed(message))

    def _fail(self, failure: Failure) -> None:
        if not self._is_live:
            self._refuse(LaunchFailed(failure.message))
            return
        self._decide(Ending(stop_reason="error", failure=failure))

    def _decide(self, ending: Ending) -> None:
        if self._record.ending is not None or self._departure.has_left:
            return
        self._record.ending = ending
        if self._deadline is not None:
            self._deadline.cancel()
        self._session.close()
        drain_seconds = 0.0
        if self._tenure is not None and ending.held is None:
            self._tenure.stop(ending)
            if self._voice.is_unplayed:
                self._is_unplayed = self._tenure.close_asks("its host died, and the run ended while it was replayed")
            if ending.failure is not None and ending.failure.code in DRAINED:
                drain_seconds = self._plan.limits.seconds_to_drain
        self._broker.stop(drain_seconds=drain_seconds)
        self._finishing = asyncio.get_running_loop().create_task(self._finish(ending))

    async def _finish(self, ending: Ending) -> None:
        await self._broker.ended()
        await self._session.gone()
        conclusion = ending.conclusion
        if conclusion is not None and conclusion.standing is Standing.COMPLETE:
            await self._checking.run()
        await self._record.look_at_worktree()
        self._record.ended_at = time.time()
        if self._tenure is None:
            self._events.emit(
                events.RunEnded,
                stop_reason=ending.stop_reason,
                failure=ending.failure,
                agents_started=self.agents_started,
            )
        elif not await self._tenure.end(ending, self._receipt_for_journal()):
            self._lost(FencedOut())
            return
        elif ending.held is not None or self._is_unplayed:
            self._record.final = await self._tenure.read_receipt()
        self._record.write(self._broker, now=True)
        self._note("info", "run ended", stop_reason=ending.stop_reason, agents_started=self.agents_started)
        self._finished.set_result(self._outcome(ending, conclusion))
        self._is_gone()

    def _receipt_for_journal(self) -> Receipt:
        receipt = self._record.receipt(self._broker)
        if self._tenure is None or not self._voice.is_unplayed:
            return receipt
        recorded = self._tenure.recorded
        self._is_unplayed = self._is_unplayed or recorded.agents_started != receipt.agents_started
        return receipt.model_copy(update={"agents_started": recorded.agents_started, "attempts": recorded.attempts})

    def _is_gone(self) -> None:
        """Nothing of the run is left on this host."""
        if self._deadline is not None:
            self._deadline.cancel()
        if self._record.folder is not None:
            self._record.folder.close()
        self._gone.set_result(None)
        self._on_end(self)

    # ---- a run that is held, given back, or lost

    def _hold(self, code: Code, reason: str) -> None:
        failure = Failure(code=code, message=held_sentence(self.id, reason, code))
        self._decide(Ending(stop_reason="error", failure=failure, held=code, reason=reason))

    def _broken_replay(self, failure: Failure) -> None:
        if failure.code is Code.WORKER_LOST:
            # Killed from outside, perhaps with its launcher: the next claim tries again.
            self.leave()
        else:
            self._hold(Code.REPLAY_DIVERGED, f"{failure.code} while it was replayed: {failure.message}")

    def leave(self, *, drain_seconds: float = 0.0) -> None:
        """Give the run back to its store: let agents finish for so long, then interrupt them. For Host alone."""
        assert self._tenure is not None
        if self._record.ending is None:
            self._departure.give_back(self._tenure, drain_seconds, lambda: self._record.ending is not None)

    def _lost(self, loss: Loss) -> None:
        """Another host owns the run, or its rows are damaged."""
        assert self._tenure is not None
        self._note("warning", "run lost", why=type(loss).__name__)
        if self._deadline is not None:
            self._deadline.cancel()
        self._checking.cancel()
        self._departure.lose(self._tenure, loss)

    def _settle(self, end: Outcome[Any] | Failure) -> None:
        """The end of a run that left this host; a failure when it could not be learnt."""
        if isinstance(end, Failure):
            end = self._outcome(Ending(stop_reason="error", failure=end), None)
        else:
            self._record.final = end.receipt
        self._finished.set_result(end)

    def lease_ended(self) -> None:
        """The lease ended, for all that this host knows: interrupt what is at work. For the keeper of leases alone."""
        self._broker.past.interrupt()

    def raise_limits(self, asked: Mapping[str, Any], by: str) -> None:
        """An operator asked for more, through the store. For the keeper of leases alone.

        Nobody waits for an answer: what cannot be is a line in the log and in the receipt.
        """
        assert self._tenure is not None
        if self._record.ending is not None or self._departure.has_left:
            return
        try:
            limits, changes = raised_limits(self._promised or self._broker.limits, asked, self._plan)
        except InvalidRequest as refusal:
            self._note("warning", "limits were not raised", by=by, problem=refusal.message)
            self._record.note(f"limits that {by} asked for were not raised: {refusal.message}")
            return
        self._promised = limits
        entry = LimitsRaised(at=self._clock.wall(), by=by, limits=changes)
        self._tenure.journal.write(entry, then=lambda: self._broker.raise_limits(limits))

    def when_over(self, told: "Callable[[LiveRun[Any]], None]") -> None:
        """Call `told` once `wait()` would return at once. For Host alone."""
        self._finished.add_done_callback(lambda _: told(self))

    async def gone(self) -> None:
        """Wait until nothing of the run is left on this host; its end may still be to come. For Host alone."""
        await asyncio.shield(self._gone)

    async def is_gone_within(self, seconds: float) -> bool:
        """As `gone`, waiting for so long at most."""
        await asyncio.wait([self._gone], timeout=seconds)
        return self._gone.done()

    def stop_following(self) -> None:
        """The host is closed: wait no longer for what another host makes of the run. For Host alone."""
        self._departure.stop_following()

    def _note(self, level: str, event: str, **content: Any) -> None:
        # A full disk behind the error stream, a processor of the embedder: a log that fails must change nothing.
        with contextlib.suppress(Exception):
            getattr(self._logger, level)(event, **content)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
