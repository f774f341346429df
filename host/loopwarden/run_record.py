"""What a run leaves for people: its receipt, and on disk the prompt and output of every agent."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from loopwarden.agent import Agent
from loopwarden.attempt import Answered, Attempt, Failed, Faulty
from loopwarden.broker import Broker
from loopwarden.contract import Conclusion
from loopwarden.deciders import decided_by
from loopwarden.failures import Code, Failure, InvalidRequest
from loopwarden.plan import Plan
from loopwarden.receipt import (
    AgentRecord,
    AttemptRecord,
    CheckRecord,
    FailureRecord,
    JournalRecord,
    Receipt,
    StopReason,
    UsageRecord,
    WorktreeRecord,
)
from loopwarden.run_folder import RunFolder, RunFolderError, agent_folder_name
from loopwarden.worktree import Worktree, note_at_the_end

_WRITE_EVERY_SECONDS: Final = 1.0
_PAUSE_PER_WRITE: Final = 50.0
_MAX_PROBLEMS: Final = 20

ValueT = TypeVar("ValueT")


@dataclass(slots=True, kw_only=True)
class Ending:
    """How a run ended, as decided by the first terminal event."""

    stop_reason: StopReason
    failure: Failure | None = None
    result: Any = None
    conclusion: Conclusion | None = None
    held: Code | None = None
    """The run is held in its store instead of ended, with this code."""
    reason: str = ""
    """Why it is held."""


@dataclass(slots=True, kw_only=True)
class RunRecord:
    """Collects what the receipt of one run needs, and keeps its folder. Disk trouble becomes a line in the receipt."""

    run_id: str
    plan: Plan[Any, Any]
    walls: Mapping[str, str]
    started_at: float
    worktree: Worktree | None = None
    folder: RunFolder | None = None
    head: Callable[[], JournalRecord] | None = None
    """Where the journal of the run stands; None without a store."""
    ending: Ending | None = None
    ended_at: float | None = None
    checks: list[CheckRecord] = field(default_factory=list)
    verified: bool | None = None
    problems: list[str] = field(default_factory=list)
    final: Receipt | None = None
    """Of a run whose journal knows more than this host saw: it ended in a replay, is held, or ended elsewhere."""
    _later: asyncio.TimerHandle | None = None
    _write_after: float = 0.0

    def make_folder(self, *, again: bool = False) -> None:
        """Make the run's folder, if anything is kept on disk; `again`: it may exist. Raises `InvalidRequest`."""
        state_folder = self.plan.deployment.state_folder
        if state_folder is not None:
            try:
                self.folder = RunFolder.create(state_folder, self.run_id, again=again)
            except RunFolderError as error:
                raise InvalidRequest(str(error)) from None

    def discard_folder(self) -> None:
        """Take the folder away again: the run could not begin."""
        if self.folder is not None:
            self.folder.discard()
            self.folder = None

    async def look_at_worktree(self) -> None:
        """The agents have ended: see whether their work is on the branch that is to be merged."""
        if self.worktree is None:
            return
        try:
            note = await note_at_the_end(self.worktree)
        except Exception as error:  # noqa: BLE001 -- a look at a folder that agents could fill must not keep a run from ending
            note = f"whether the work in it is committed is not known: {type(error).__name__}"
        if note is not None:
            self.worktree = replace(self.worktree, notes=(*self.worktree.notes, note))

    # ---- Keeper, for the broker

    def agent_folder(self, seq: int) -> Path | None:
        """A private folder for the agent; None when there is no disk to keep it on."""
        made: list[Path] = []
        self._try(lambda folder: made.append(folder.agent_folder(seq)))
        return made[0] if made else None

    def keep_prompt(self, seq: int, prompt: str) -> None:
        """Keep what the agent was asked."""
        self._try(lambda folder: folder.write_prompt(seq, prompt))

    def keep_output(self, seq: int, output: str) -> None:
        """Keep what the agent answered, unless its provider kept more."""
        self._try(lambda folder: folder.write_output(seq, output))

    def _try(self, write: Callable[[RunFolder], None]) -> None:
        if self.folder is None:
            return
        try:
            write(self.folder)
        except RunFolderError as error:
            self._note(str(error))
        except Exception as error:  # noqa: BLE001 -- what is on disk is for readers; it must not keep a run from ending
            self._note(f"the folder of the run could not be written: {type(error).__name__}")

    def _note(self, problem: str) -> None:
        if len(self.problems) < _MAX_PROBLEMS and problem not in self.problems:
            self.problems.append(problem)

    # ---- the receipt

    def note(self, problem: str) -> None:
        """Keep a line about what went wrong beside the run."""
        self._note(problem)

    def write(self, broker: Broker, *, now: bool) -> None:
        """Write the receipt; unless `now`, at most once a second, and then a little later."""
        if self.folder is None:
            return
        began = time.monotonic()
        if not now and began < self._write_after:
            # Who kills the host next finds a receipt that is a second old, not one from before the agents.
            if self._later is None:
                loop = asyncio.get_running_loop()
                self._later = loop.call_later(self._write_after - began, lambda: self.write(broker, now=True))
        else:
            if self._later is not None:
                self._later.cancel()
                self._later = None
            self._try(lambda folder: folder.write_receipt(self.receipt(broker)))
            # A receipt of very many agents takes long: writing it must stay a small part of what the host does.
            took = time.monotonic() - began
            self._write_after = began + max(_WRITE_EVERY_SECONDS, took * _PAUSE_PER_WRITE)

    def receipt(self, broker: Broker) -> Receipt:
        """The receipt as things stand."""
        if self.final is not None:
            return self.final
        plan, ending = self.plan, self.ending
        contract = plan.script.contract
        conclusion = ending.conclusion if ending is not None else None
        handoff = self._from_contract(lambda: contract.last_handoff(plan.args, broker.facts.deliveries), None)
        if handoff is None and plan.opening is not None:
            handoff = plan.opening.handoff
        no_args: dict[str, Any] = {}
        # Every value below is the host's own, so the checks of reading a receipt back are not repeated.
        return Receipt.model_construct(
            format=1,
            run_id=self.run_id,
            script=plan.script.name,
            script_digest=plan.script.digest,
            workspace=None if plan.workspace is None else str(plan.workspace),
            provider=plan.provider,
            args=self._from_contract(lambda: contract.args_json(plan.args), no_args),
            limits=_camel(asdict(broker.limits)),
            walls=dict(self.walls),
            settings_digest=plan.deployment.settings_digest,
            continues=None if plan.opening is None else plan.opening.run_id,
            started_at=self.started_at,
            ended_at=self.ended_at,
            stop_reason=None if self.ended_at is None or ending is None else ending.stop_reason,
            standing=None if conclusion is None else conclusion.standing.value,
            sentence=None if conclusion is None else conclusion.sentence,
            result=None if ending is None else ending.result,
            failure=_failure_record(ending),
            verified=self.verified,
            checks=list(self.checks),
            agents_started=broker.facts.agents_started,
            attempts=sum(len(agent.attempts) for agent in broker.agents),
            usage=UsageRecord.of(broker.spending.usage),
            attempts_of_unknown_cost=broker.spending.unknown_attempts,
            worktree=None if self.worktree is None else worktree_record(self.worktree),
            agents=[self._agent(agent, broker) for agent in broker.agents if agent.started_at is not None],
            last_handoff=handoff,
            decided_by=None if ending is None else decided_by(None if ending.failure is None else ending.failure.code),
            problems=[*self.problems, *([broker.board.problem] if broker.board.problem else [])],
            journal=None if self.head is None else self.head(),
        )

    def _from_contract(self, question: Callable[[], ValueT], otherwise: ValueT) -> ValueT:
        """A contract's mistake is a line in the receipt; it must not keep a run from ending."""
        try:
            return question()
        except Exception as error:  # noqa: BLE001 -- a contract is foreign code here
            problem = f"the contract failed with {type(error).__name__} when the receipt was made"
            if problem not in self.problems:
                self.problems.append(problem)
            return otherwise

    def _agent(self, agent: Agent, broker: Broker) -> AgentRecord:
        if agent.digest is None:
            agent.digest = agent.call.digest
        return AgentRecord.model_construct(
            seq=agent.seq,
            key=agent.call.written.key,
            digest=agent.digest,
            label=agent.call.label,
            phase=agent.call.facts.phase,
            provider=agent.provider_name,
            outcome=None if agent.outcome is None else agent.outcome.value,
            reason=agent.reason,
            seconds=None if agent.seconds is None else round(agent.seconds, 6),
            attempts=len(agent.attempts),
            failure_class=None if agent.failure_class is None else agent.failure_class.value,
            asks=[_attempt_record(attempt) for attempt in agent.attempts],
            waiting_until=broker.waiting_until(agent),
            notes=list(agent.notes),
            folder=None if self.folder is None else agent_folder_name(agent.seq),
        )


def _attempt_record(attempt: Attempt) -> AttemptRecord:
    end = attempt.end
    failed = end if isinstance(end, Failed) else None
    reason = end.reason if isinstance(end, Failed | Faulty) else None
    outcome: Literal["completed", "failed", "cancelled", "interrupted"] | None = None
    if attempt.is_cancelled:
        outcome = "cancelled"
    elif attempt.is_interrupted:
        outcome = "interrupted"
    elif end is not None:
        outcome = "completed" if isinstance(end, Answered) else "failed"
    return AttemptRecord.model_construct(
        number=attempt.number,
        provider=attempt.provider_name,
        kind=attempt.kind,
        paused_seconds=round(attempt.paused_seconds, 6),
        seconds=None if attempt.seconds is None else round(attempt.seconds, 6),
        outcome=outcome,
        failure_class=None if failed is None else failed.failure_class.value,
        reason=reason,
        evidence=None if failed is None else failed.evidence,
        usage=UsageRecord.of(attempt.usage),
    )


def worktree_record(worktree: Worktree) -> WorktreeRecord:
    """A worktree in the form of receipts."""
    return WorktreeRecord.model_construct(
        path=str(worktree.path),
        branch=worktree.branch,
        commit=worktree.commit,
        repository=str(worktree.repository),
        notes=list(worktree.notes),
    )


def _failure_record(ending: Ending | None) -> FailureRecord | None:
    if ending is None or ending.failure is None:
        return None
    failure = ending.failure
    return FailureRecord(
        code=failure.code.value, message=failure.message, line=failure.line, details=dict(failure.details)
    )


def _camel(fields: Mapping[str, int | float | None]) -> dict[str, int | float | None]:
    shown: dict[str, int | float | None] = {}
    for name, value in fields.items():
        head, *rest = name.split("_")
        shown[head + "".join(part.capitalize() for part in rest)] = value
    return shown
