"""Replays without workers: agents whose answers are settled beforehand, and what every replay is held to."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from loopwarden import AgentFailed, AgentReply, AgentRequest, Capabilities, Limits, Policy, Usage
from loopwarden.journal.observed import Observed
from support.broker_lab import VirtualClock
from support.journal_lab import JournalLab, Pen
from support.script_trees import Ask, Node, Tell, Then, Together, TreeWorker


@dataclass
class Fate:
    """Answers each ask of a call by its number among those that were made on purpose: a redo gets what is repeated."""

    ends: dict[tuple[str, int], Any] = field(default_factory=dict)
    asked: list[tuple[str, int, str]] = field(default_factory=list)
    """Prompt, number, idempotency key."""
    capabilities: Capabilities = field(default_factory=lambda: Capabilities(structured_output=True, fresh_context=True))

    async def reply(self, request: AgentRequest) -> AgentReply:
        """Answer one ask."""
        number = int(request.idempotency_key.rpartition("/")[2])
        self.asked.append((request.prompt, number, request.idempotency_key))
        end = self.ends.get((request.prompt, number))
        if end == "silence":
            await asyncio.Event().wait()
        usage = Usage(input_tokens=len(request.prompt), output_tokens=number, cost_usd=0.25)
        if isinstance(end, AgentFailed):
            raise AgentFailed(end.reason, failure_class=end.failure_class, resets_at=end.resets_at, usage=usage)
        return AgentReply(text=f"{request.prompt} {number}", usage=usage)


def numbered(tree: Node, prefix: str = "p") -> Node:
    """The same tree, each prompt of its own."""
    match tree:
        case Ask(otherwise=otherwise):
            return Ask(prefix, None if otherwise is None else numbered(otherwise, f"{prefix}o"))
        case Tell():
            return Tell(f"told {prefix}")
        case Then(parts=parts):
            return Then([numbered(part, f"{prefix}{i}") for i, part in enumerate(parts)])
        case Together(parts=parts):
            return Together([numbered(part, f"{prefix}{i}") for i, part in enumerate(parts)])


def lab_of(pen: Pen, fate: Fate, policies: dict[str, Policy], limits: Limits, clock: VirtualClock) -> JournalLab:
    """A host on this journal."""
    return JournalLab(
        providers={"main": fate, "spare": fate}, policies=policies, limits=limits, clock=clock, pen=pen, jitter=0.5
    )


async def drive(lab: JournalLab, tree: Node) -> TreeWorker:
    """Let a host go through a script until it has ended, or diverged."""
    worker = TreeWorker(lab)
    worker.start(tree)
    await worker.run_out()
    return worker


async def leave_behind(lab: JournalLab) -> None:
    """The host died: nothing of it is heard any more."""
    lab.journal.lose()
    lab.broker.abandon()
    await lab.settle()


def prompts(tree: Node) -> list[str]:
    """All that a tree may ask."""
    match tree:
        case Ask(prompt=prompt, otherwise=otherwise):
            return [prompt, *([] if otherwise is None else prompts(otherwise))]
        case Tell():
            return []
        case Then(parts=parts) | Together(parts=parts):
            return [prompt for part in parts for prompt in prompts(part)]


def check_spending(lab: JournalLab) -> None:
    """Counted once per attempt, over all hosts: by the broker, by the journal and by the budgets."""
    state, spending = lab.pen.state, lab.broker.spending
    assert spending.usage == state.usage
    assert spending.unknown_attempts == state.attempts_of_unknown_cost


def check_events(lab: JournalLab, before: int) -> None:
    """Live events are those that the journal gives, apart from progress; and each is seen once."""
    observed = Observed(run_id="lab")
    all_events = [event for one in lab.pen.journal.chained for event in observed.events_of(one)]

    def plain(events: list[Any]) -> list[Any]:
        shown = []
        for event in events:
            if event.kind in ("agentStarted", "agentEnded") and event.number > before:
                body = event.to_json()
                body.pop("at")
                shown.append(body)
        return shown

    assert plain(lab.events) == plain(all_events)


async def first_host(fate: Fate, policies: dict[str, Policy], calls: int = 1, **limits: Any) -> JournalLab:
    """A host that died after so many calls."""
    lab = lab_of(Pen(is_quick=True), fate, policies, Limits(**({"max_extra_attempts": 10} | limits)), VirtualClock())
    for _ in range(calls):
        lab.call()
    await lab.settle()
    await leave_behind(lab)
    return lab
