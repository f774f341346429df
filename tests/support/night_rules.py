"""What holds for the runs of a shared night: at every moment, whenever nothing is left to happen without time, and
when all is over."""

from collections import Counter
from typing import Final

from loopwarden import FailureClass, Policy
from loopwarden.agent import Agent
from loopwarden.attempt import Answered, Attempt, Failed
from loopwarden.events import AgentEnded, AgentProgress, AgentStarted
from loopwarden.policy import NEVER_REPEATED, NO_POLICY, RESET_MARGIN_SECONDS
from loopwarden.slots import AgentSlots
from support.broker_lab import BrokerLab
from support.watched_board import WatchedBoard

DONE: Final = "done"
"""What every agent answers."""


def attempts_of(lab: BrokerLab) -> list[tuple[Agent, Attempt]]:
    """All attempts of a run, with their agents."""
    return [(agent, attempt) for agent in lab.broker.agents for attempt in agent.attempts]


def is_over(lab: BrokerLab) -> bool:
    """True when a run ended, and all of its agents."""
    return lab.broker._closing._all_ended is not None and lab.broker._closing._all_ended.done()


def unended(lab: BrokerLab) -> list[Agent]:
    """Calls that still have to end. Those that never started end with their run."""
    return [
        agent
        for agent in lab.broker.agents
        if agent.outcome is None and (agent.attempts or not lab.broker._closing.is_stopped)
    ]


def as_told(attempt: Attempt) -> str:
    """What the breaker has to be told of the end of an attempt."""
    if attempt.is_cancelled or attempt.end is None:
        return "undecided"
    if isinstance(attempt.end, Answered):
        return "answered"
    untold = {*NEVER_REPEATED, FailureClass.RATE_LIMITED}
    is_told = isinstance(attempt.end, Failed) and attempt.end.failure_class not in untold
    return attempt.end.failure_class.value if is_told else "undecided"


def check_numbers(lab: BrokerLab) -> None:
    """Budgets and slots are exact."""
    limits, broker = lab.limits, lab.broker
    attempts = attempts_of(lab)
    assert len(attempts) <= limits.max_total_agents + limits.max_extra_attempts
    started = sum(1 for agent in broker.agents if agent.attempts)
    assert broker.facts.agents_started == started <= limits.max_total_agents
    live = [agent for agent, attempt in attempts if not attempt.is_over]
    assert len(live) == len(set(live)) <= limits.max_concurrent_agents
    assert all(agent.has_slot for agent in live)
    with_slot = [agent for agent in broker.agents if agent.has_slot]
    assert broker._admission._live_slots == len(with_slot) + broker._admission._unsent <= limits.max_concurrent_agents
    assert set(with_slot) == set(live), "a call that waits, or that is over, holds a slot"


def check_reports(lab: BrokerLab, stopped_at: int | None) -> None:
    """Each agent has one start, one end and one reply; after the end of its run (an index of events) only its end."""
    started = [event.seq for event in lab.events if isinstance(event, AgentStarted)]
    ended = [event.seq for event in lab.events if isinstance(event, AgentEnded)]
    assert sorted(started) == [agent.seq for agent in lab.broker.agents if agent.attempts]
    assert len(ended) == len(set(ended))
    assert set(ended) == {agent.seq for agent in lab.broker.agents if agent.outcome is not None}
    assert len(lab.replied) == len(set(lab.replied)), "a call got two replies"
    assert set(lab.replied) <= set(ended)
    if stopped_at is None:
        assert set(lab.replied) == set(ended)
    else:
        assert {getattr(event, "outcome", event.kind) for event in lab.events[stopped_at:]} <= {"cancelled"}
    for agent in lab.broker.agents:
        if agent.seq in lab.replies:
            assert lab.replies[agent.seq] == (DONE if agent.outcome == "completed" else None)


def check_waits(lab: BrokerLab, slots: AgentSlots, board: WatchedBoard) -> None:
    """Whoever waits, waits for something. Once everything happened that needs no time."""
    admission = lab.broker._admission
    if lab.broker._closing.is_stopped:
        assert not admission._queue
        assert not admission._held
        assert admission._host_slot_is_free not in slots._waiting
        assert not board.is_asked_by(admission._is_decided)
    held = [(name, agent) for name, agents in admission._held.items() for agent in agents]
    for name, _ in held:
        prober = board.prober(name)
        assert isinstance(prober, Agent)
        assert not prober.attempts[-1].is_over, f"nobody tries {name} out, and calls wait for that"
    if admission._queue:
        is_full = admission._live_slots == lab.limits.max_concurrent_agents
        assert is_full or slots._free == 0, "there are slots, and calls wait"
    for agent in unended(lab):
        is_live = bool(agent.attempts) and not agent.attempts[-1].is_over
        places = [
            is_live,
            agent.pause_timer is not None,
            agent in admission._queue,
            (agent.provider_name, agent) in held,
        ]
        assert places.count(True) == 1, f"call {agent.seq} is in {places.count(True)} places"


def check_history(lab: BrokerLab) -> None:
    """The attempts of each call are what its policies grant, and nothing was said after its end."""
    ended: set[int] = set()
    for event in lab.events:
        if isinstance(event, AgentEnded):
            ended.add(event.seq)
        elif isinstance(event, AgentStarted | AgentProgress):
            assert event.seq not in ended
    assert {event.seq for event in lab.events if isinstance(event, AgentStarted)} == ended
    for agent in lab.broker.agents:
        fallbacks = Counter(attempt.kind for attempt in agent.attempts)["fallback"]
        assert fallbacks <= 1
        for before, attempt in zip(agent.attempts, agent.attempts[1:], strict=False):
            _check_repeat(lab.policies.get(before.provider_name, NO_POLICY), before, attempt)
        retries = Counter(attempt.provider_name for attempt in agent.attempts if attempt.kind == "retry")
        for name, count in retries.items():
            retry = lab.policies[name].retry
            assert retry is not None
            assert count <= retry.times
    known = [attempt.end.usage for _, attempt in attempts_of(lab) if isinstance(attempt.end, Answered | Failed)]
    assert lab.broker.spending.cost_usd == sum(usage.cost_usd or 0.0 for usage in known if usage is not None)
    unknown = sum(1 for _, each in attempts_of(lab) if each.end is None or each.end.usage is None)
    assert lab.broker.spending.unknown_attempts == unknown


def _check_repeat(policy: Policy, before: Attempt, attempt: Attempt) -> None:
    assert isinstance(before.end, Failed), "only what failed is asked again"
    assert before.end.failure_class not in NEVER_REPEATED
    match attempt.kind:
        case "fallback":
            assert attempt.provider_name == policy.fallback
        case "wait":
            assert attempt.provider_name == before.provider_name
            assert policy.wait is not None
            assert before.end.failure_class is FailureClass.RATE_LIMITED
            assert attempt.paused_seconds >= RESET_MARGIN_SECONDS
        case "retry":
            assert attempt.provider_name == before.provider_name
            assert policy.retry is not None
            assert before.end.failure_class in policy.retry.classes
            assert attempt.paused_seconds >= (before.end.retry_after_seconds or 0.0)
        case _:
            raise AssertionError(f"a repeat of kind {attempt.kind}")
