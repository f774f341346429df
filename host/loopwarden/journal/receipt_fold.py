"""The receipt of a run as its journal tells it: for runs of other hosts, and for those whose folder is gone."""

from pydantic.alias_generators import to_camel

from loopwarden.deciders import decided_by
from loopwarden.journal.calls import CallState
from loopwarden.journal.entries import AttemptEnded
from loopwarden.journal.fold import RunState
from loopwarden.journal.observed import failure_of
from loopwarden.receipt import AgentRecord, AttemptRecord, JournalRecord, Receipt, UsageRecord

_RUN_ENDED = "the run ended"


def receipt_of(state: RunState) -> Receipt:
    """The receipt as things stand. What only a disk holds, such as the folders of agents, is not in it.

    Raises `JournalBroken` when nothing was applied to the state.
    """
    created, stopping, finished = state.created, state.stopping, state.finished
    conclusion = None if stopping is None else stopping.conclusion
    failure = None if stopping is None else stopping.failure
    handoff = None if finished is None else finished.last_handoff
    if handoff is None and created.opening is not None:
        handoff = created.opening.handoff
    return Receipt(
        run_id=state.run_id,
        script=created.script,
        script_digest=created.source_digest,
        workspace=created.workspace,
        provider=created.provider,
        args=state.args,
        limits={to_camel(name): value for name, value in state.limits.items()},
        walls={} if finished is None else finished.walls,
        settings_digest=created.settings_digest,
        continues=None if created.opening is None else created.opening.run_id,
        started_at=state.claims[0].at if state.claims else created.at,
        ended_at=None if finished is None else finished.at,
        stop_reason=None if finished is None or stopping is None else stopping.stop_reason,
        standing=None if conclusion is None else conclusion.standing,
        sentence=None if conclusion is None else conclusion.sentence,
        result=None if stopping is None else stopping.result,
        failure=failure,
        verified=None if finished is None else finished.verified,
        checks=[] if finished is None else finished.checks,
        agents_started=state.agents_started,
        attempts=state.attempts,
        usage=UsageRecord.of(state.usage),
        attempts_of_unknown_cost=state.attempts_of_unknown_cost,
        worktree=None if finished is None else finished.worktree,
        agents=[_agent(state, call) for call in sorted(state.calls.values(), key=lambda call: call.seq)],
        last_handoff=handoff,
        decided_by=None if stopping is None else decided_by(None if failure is None else failure_of(failure).code),
        problems=_problems(state),
        journal=JournalRecord(seq=state.seq, head=state.hash, epoch=state.epoch),
    )


def _problems(state: RunState) -> list[str]:
    problems = [] if state.finished is None else list(state.finished.problems)
    if state.held is not None:
        problems.append(f"the run is held ({state.held.code}): {state.held.reason}")
    return problems


def _agent(state: RunState, call: CallState) -> AgentRecord:
    ended, stopped, last = call.ended, call.stopped, call.asks[-1]
    outcome: str | None = None
    reason: str | None = None
    failure_class: str | None = None
    ended_at: float | None = None
    if ended is not None:
        outcome, reason, failure_class, ended_at = ended.outcome, ended.reason, ended.failure_class, ended.at
    elif isinstance(stopped, AttemptEnded):
        outcome, ended_at = "failed" if stopped.outcome == "failed" else "cancelled", stopped.at
        if outcome == "failed":
            reason, failure_class = stopped.reason, stopped.failure_class
        elif stopped.outcome == "interrupted":
            reason = stopped.reason
    elif stopped is not None:
        outcome, ended_at = "cancelled", stopped.at
    elif state.finished is not None:
        outcome, ended_at = "cancelled", state.finished.at
    if outcome == "cancelled" and reason is None:
        reason = _RUN_ENDED
    return AgentRecord.model_validate(
        {
            "seq": call.seq,
            "key": call.key,
            "digest": call.digest,
            "label": call.label,
            "phase": call.phase,
            "provider": last.provider,
            "outcome": outcome,
            "reason": reason,
            "seconds": None if ended_at is None else _between(call.asks[0].at, ended_at),
            "attempts": len(call.asks),
            "notes": [] if ended is None else ended.notes,
            "folder": None,
            "failure_class": failure_class,
            "asks": [_attempt(call, index) for index in range(len(call.asks))],
            "waiting_until": state.waiting_until(call.seq),
        }
    )


def _attempt(call: CallState, index: int) -> AttemptRecord:
    ask = call.asks[index]
    end = ask.end
    return AttemptRecord(
        number=ask.attempt,
        provider=ask.provider,
        kind=ask.ask,
        paused_seconds=round(call.paused_seconds(index), 6),
        # Nobody knows how long an attempt took whose host died.
        seconds=None if end is None or end.seconds is None else round(end.seconds, 6),
        outcome=None if end is None else end.outcome,
        failure_class=None if end is None else end.failure_class,
        reason=None if end is None else end.reason,
        evidence=None if end is None else end.evidence,
        usage=None if end is None else end.usage,
    )


def _between(start: float, end: float) -> float:
    # Two hosts, two clocks: what would be below zero took no time that anybody could tell.
    return round(max(0.0, end - start), 6)
