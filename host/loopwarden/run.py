"""One run: from a compiled script to its one end. The first terminal event wins; later ones change nothing.

launched --Ready--> live --result | failure | limit | death | cancel--> ending --> ended
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, assert_never

from loopwarden import events
from loopwarden.agent import BrokerPorts
from loopwarden.breaker import BreakerBoard
from loopwarden.broker import Broker
from loopwarden.checking import Checking
from loopwarden.clock import Clock, Timer
from loopwarden.contract import Conclusion, Facts, Standing
from loopwarden.event_log import EventLog
from loopwarden.failures import Code, Failure, LaunchFailed, ScriptRejected, StartRefused
from loopwarden.judge import Judge, Refused
from loopwarden.logs import run_logger
from loopwarden.outcome import Outcome
from loopwarden.plan import Plan
from loopwarden.receipt import Receipt
from loopwarden.run_record import Ending, RunRecord
from loopwarden.script import rejection
from loopwarden.session import Session
from loopwarden.slots import AgentSlots
from loopwarden.worker_process import WorkerProcess
from loopwarden_engine import messages
from loopwarden_engine.plain import JsonValue

ResultT = TypeVar("ResultT")


class Run(Generic[ResultT]):
    """A run that began. Leaving it as a context manager cancels it and waits for its end."""

    def __init__(
        self,
        record: RunRecord,
        worker: WorkerProcess,
        *,
        slots: AgentSlots,
        board: BreakerBoard,
        clock: Clock,
        on_end: "Callable[[Run[Any]], None]",
    ) -> None:
        self._record = record
        self._plan: Plan[Any, ResultT] = record.plan
        self._clock = clock
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._logger: Any = run_logger(record.run_id)
        self._events = EventLog(record.run_id)
        self._compiled: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._refusal: StartRefused | None = None
        self._is_live = False
        self._deadline: Timer | None = None
        self._finishing: asyncio.Task[None] | None = None
        self._finished: asyncio.Future[Outcome[ResultT]] = asyncio.get_running_loop().create_future()
        self._value: ResultT | None = None
        self._final_receipt: Receipt | None = None
        self._session = Session(
            worker,
            self._plan.limits,
            on_message=self._received,
            on_broken=self._broken,
            on_drained=self._drained,
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
            clock=clock,
            facts=facts,
            ports=BrokerPorts(
                emit=self._events.emit,
                reply=self._reply,
                fail=self._fail,
                is_stuck=lambda: self._session.is_stuck,
                check_call=self._judge.check_call,
            ),
            keeper=record if deployment.state_folder is not None else None,
        )

    # ---- for everybody

    @property
    def id(self) -> str:
        """The run's id, unique over all hosts."""
        return self._record.run_id

    @property
    def folder(self) -> Path | None:
        """Where the run's receipt and the agents' streams lie; None without a state folder."""
        return None if self._record.folder is None else self._record.folder.path

    @property
    def agents_started(self) -> int:
        """Agents charged so far. Exact at every moment."""
        return self._broker.facts.agents_started

    @property
    def is_over(self) -> bool:
        """True once `wait()` would return at once."""
        return self._finished.done()

    def receipt(self) -> Receipt:
        """The receipt as things stand now."""
        if self._final_receipt is not None:
            return self._final_receipt
        receipt = self._record.receipt(self._broker)
        if self.is_over:
            self._final_receipt = receipt
        return receipt

    def events(self, after: int = 0) -> AsyncIterator[events.Event]:
        """Events with a number above `after`, as they come, until `runEnded`. Many may read; nobody is waited for."""
        return self._events.read(after)

    def cancel(self, reason: str = "cancelled") -> None:
        """Fix the outcome as cancelled and kill the worker, now. The first reason wins; after the end it is a no-op.

        Checks that have not ended are left out. Raises RuntimeError on another thread or event loop.
        """
        if _running_loop() is not self._loop:
            raise RuntimeError("this run belongs to another event loop; use its call_soon_threadsafe(run.cancel)")
        if self._record.ending is not None:
            self._checking.cancel()
            return
        self._decide(
            Ending(
                stop_reason="cancelled",
                failure=Failure(code=Code.CANCELLED, message=f"the run was cancelled: {reason}"),
            )
        )

    async def wait(self) -> Outcome[ResultT]:
        """Wait for the end. Never raises for what happened in the run; cancelling the waiter leaves the run alone."""
        return await asyncio.shield(self._finished)

    async def __aenter__(self) -> Self:
        """The run itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Cancel the run unless it is over, and wait for its end."""
        self.cancel("the run was left")
        await self.wait()

    # ---- begin

    async def launch(self) -> None:
        """Let the worker compile the script. Raises `StartRefused`; then nothing of the run is left. For Host alone."""
        self._session.start(self._plan.script.source, self._plan.script_args)
        allowed = self._plan.limits.run_deadline_seconds
        deadline = self._clock.call_later(allowed, self._deadline_passed)
        self._broker.set_deadline(self._clock.now() + allowed)
        try:
            summary = await self._compiled
            if self._refusal is not None:
                # What came in one breath with `ready`, before anybody woke up to hear that.
                raise self._refusal
            # Only now: a run that could not begin leaves no folder.
            self._record.make_folder()
        except BaseException:
            deadline.cancel()
            self._session.close()
            await self._session.gone()
            raise
        self._session.compiled()
        self._deadline = deadline
        self._is_live = True
        self._record.write(self._broker, now=True)
        self._note("info", "run started", script=self._plan.script.name, summary=summary)
        self._events.emit(
            events.RunStarted,
            script=self._plan.script.name,
            max_total_agents=self._plan.limits.max_total_agents,
        )
        # Not at once: who just got the run may still cancel it before any of the script's body ran.
        asyncio.get_running_loop().call_soon(self._go)

    def _go(self) -> None:
        if self._record.ending is None:
            self._session.go()

    # ---- what comes from the worker

    def _received(self, message: messages.FromWorker) -> None:
        try:
            self._handle(message)
        except BaseException as error:
            # Also what is no Exception: a library in Rust that panics raises such a thing, and a contract may.
            self._note("error", "a message of the worker could not be handled", exc_info=error)
            kind = type(message).__name__
            what = (
                f"the host failed at a {kind} message with {type(error).__name__}; please report this mistake of ours"
            )
            self._fail(Failure(code=Code.PROTOCOL, message=what))
            if isinstance(error, KeyboardInterrupt):
                raise

    def _handle(self, message: messages.FromWorker) -> None:
        match message:
            case messages.Call():
                self._broker.accept(message)
            case messages.Phase(title=title):
                self._broker.phase = title
                self._events.emit(events.Phase, title=title)
            case messages.Log(message=text):
                self._events.emit(events.Log, message=text)
            case messages.ItemFailed():
                self._events.emit(
                    events.ItemFailed,
                    combinator=message.key,
                    index=message.index,
                    line=message.line or None,
                    message=message.message,
                )
            case messages.Result(value=value):
                self._accept_result(value)
            case messages.Fatal(code=code, message=text, line=line):
                self._fail(Failure(code=Code(code), message=text, line=line or None))
            case messages.Failed(code=failed_code, message=text, lines=lines):
                details = {"lines": list(lines)} if len(lines) > 1 else {}
                line_or_none = lines[-1] if lines else None
                self._fail(Failure(code=Code(failed_code), message=text, line=line_or_none, details=details))
            case messages.Ready(summary=summary):
                if not self._compiled.done():
                    self._compiled.set_result(summary)
            case messages.Rejected(violations=violations):
                self._refuse(rejection(self._plan.script.name, violations))
            case messages.Idle():
                pass
            case _:
                assert_never(message)

    def _broken(self, failure: Failure) -> None:
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

    def _drained(self) -> None:
        self._broker.drained()

    def give_up(self, refusal: StartRefused) -> None:
        """Let `launch` raise `refusal`. For Host alone, before `launch` has returned."""
        self._refuse(refusal)

    def launcher_lost(self) -> None:
        """The launcher died, and the worker with it. For Host alone."""
        message = "the launcher process died, and with it the worker of this run; start the run again"
        if self._is_live:
            self._fail(Failure(code=Code.WORKER_LOST, message=message))
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
        if self._record.ending is not None:
            return
        self._record.ending = ending
        if self._deadline is not None:
            self._deadline.cancel()
        self._session.close()
        self._broker.stop()
        self._finishing = asyncio.get_running_loop().create_task(self._finish(ending))

    async def _finish(self, ending: Ending) -> None:
        await self._broker.ended()
        await self._session.gone()
        conclusion = ending.conclusion
        if conclusion is not None and conclusion.standing is Standing.COMPLETE:
            await self._checking.run()
        await self._record.look_at_worktree()
        self._record.ended_at = time.time()
        self._events.emit(
            events.RunEnded,
            stop_reason=ending.stop_reason,
            failure=ending.failure,
            agents_started=self.agents_started,
        )
        self._record.write(self._broker, now=True)
        if self._record.folder is not None:
            self._record.folder.close()
        self._note("info", "run ended", stop_reason=ending.stop_reason, agents_started=self.agents_started)
        self._finished.set_result(self._outcome(ending, conclusion))
        self._on_end(self)

    def _outcome(self, ending: Ending, conclusion: Conclusion | None) -> Outcome[ResultT]:
        return Outcome(
            run_id=self.id,
            stop_reason=ending.stop_reason,
            value=self._value if ending.stop_reason == "completed" else None,
            failure=ending.failure,
            agents_started=self.agents_started,
            verified=self._record.verified,
            conclusion=conclusion,
            receipt_source=self.receipt,
        )

    def _note(self, level: str, event: str, **content: Any) -> None:
        # A full disk behind the error stream, a processor of the embedder: a log that fails must change nothing.
        with contextlib.suppress(Exception):
            getattr(self._logger, level)(event, **content)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
