"""The workflow corpus, end to end in confined workers, on virtual time."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from loopwarden import Host, Limits, Run, Script, StartRefused, events
from support.corpus import cases, same_json
from support.lent_launcher import LentLauncher
from support.ticks import TickClock, TickProvider, until_quiet

CASES = cases(Path(__file__).parent / "workflow.jsonl")
MAX_TICKS = 500
# Limits of a case that reach the request itself; the others are those of the deployment.
OVERRIDES = {
    "max_total_agents": "max_total_agents",
    "max_narration": "max_narration",
    "deadline_ticks": "run_deadline_seconds",
    "agent_timeout_ticks": "agent_timeout_seconds",
}
KINDS = {"runStarted": "start", "agentStarted": "agent-start", "agentEnded": "agent-end", "runEnded": "end"}


@pytest.mark.parametrize("case", CASES)
def test_workflow_case(case: dict[str, Any], runner: asyncio.Runner, launcher: LentLauncher) -> None:
    """The case ends as it says, begins with one start event, ends with one end event, and pairs its agents."""
    seen = runner.run(play(case, launcher))
    expected = case["expect"]
    variants = expected.get("either", [expected])
    problems = [mismatch(case, variant, seen) for variant in variants]
    assert None in problems, problems


async def play(case: dict[str, Any], launcher: LentLauncher) -> dict[str, Any]:
    """Run the case; return what was observable of it."""
    clock = TickClock()
    provider = TickProvider(clock, case["provider"]["table"])
    wanted = case["limits"]
    limits = Limits(
        max_total_agents=case.get("engine_ceiling", 1000),
        max_items_per_call=wanted.get("max_items_per_call", 4096),
        max_concurrent_agents=wanted.get("max_concurrent", 16),
        max_frame_bytes=wanted.get("max_frame_bytes", 1024 * 1024),
        agent_grace_seconds=5,
    )
    overrides: dict[str, Any] = {OVERRIDES[name]: value for name, value in wanted.items() if name in OVERRIDES}
    async with Host(providers={"default": provider}, limits=limits, clock=clock) as host:
        launcher.lend_to(host)
        try:
            run = await host.start(Script.from_text(case["source"]), case["args"], **overrides)
        except StartRefused as refusal:
            return {"status": "refused", "error_code": refusal.code.value, "events": [], "message": refusal.message}
        await drive(run, provider, clock, case.get("actions", []))
        outcome = await run.wait()
        for action in case.get("actions", []):
            if action["at"] == "after-end":
                run.cancel("late")
                assert (await run.wait()) is outcome
        seen = observed(outcome, provider, [event async for event in run.events()])
        provider.let_go()
        return seen


async def drive(run: Run[Any], provider: TickProvider, clock: TickClock, actions: list[dict[str, Any]]) -> None:
    """Let time pass until the run is over, doing what the case asks for on the way."""
    pending = [action for action in actions if action["at"] != "after-end"]
    for _ in range(MAX_TICKS):
        for action in list(pending):
            due = (
                action["at"] == "before-start"
                or (action["at"] == "tick" and clock.ticks >= action["tick"])
                or (action["at"] == "in-flight" and provider.in_flight == action["count"])
            )
            if action["at"] == "wall":
                await asyncio.sleep(action["ms"] / 1000)
                due = True
            if due:
                pending.remove(action)
                run.cancel(action.get("reason", "cancelled"))
        await until_quiet(run, provider)
        if run.is_over:
            return
        if any(action["at"] == "in-flight" and provider.in_flight == action["count"] for action in pending):
            continue
        clock.tick()
    raise AssertionError(f"the run did not end within {MAX_TICKS} ticks")


def observed(outcome: Any, provider: TickProvider, seen: list[Any]) -> dict[str, Any]:
    """What a case may ask about, in its own terms."""
    started = [event for event in seen if isinstance(event, events.AgentStarted)]
    ended = [event for event in seen if isinstance(event, events.AgentEnded)]
    assert [event.number for event in seen] == list(range(1, len(seen) + 1))
    assert isinstance(seen[0], events.RunStarted)
    assert isinstance(seen[-1], events.RunEnded)
    assert sum(isinstance(event, events.RunStarted | events.RunEnded) for event in seen) == 2
    assert sorted(event.seq for event in ended) == sorted(event.seq for event in started)
    assert provider.in_flight == 0 or any(row.get("ignores_abort") for row in provider.table)
    return {
        "status": {"completed": "completed", "error": "error", "cancelled": "cancelled"}[outcome.stop_reason],
        "value": outcome.value,
        "error_code": None if outcome.failure is None else outcome.failure.code.value,
        "message": "" if outcome.failure is None else outcome.failure.message,
        "line": None if outcome.failure is None else outcome.failure.line,
        "agents_started": outcome.agents_started,
        "provider_starts": len(provider.starts),
        "starts": provider.starts,
        "history": provider.history,
        "max_in_flight": provider.max_in_flight,
        "labels": [event.label for event in started],
        "agent_phases": [event.phase for event in started],
        "outcomes": [event.outcome.value for event in sorted(ended, key=lambda event: event.seq)],
        "reasons": [event.reason for event in sorted(ended, key=lambda event: event.seq)],
        "items_failed": [
            [event.combinator, event.index, event.line, event.message]
            for event in seen
            if isinstance(event, events.ItemFailed)
        ],
        "logs": [event.message for event in seen if isinstance(event, events.Log)],
        "phases": [event.title for event in seen if isinstance(event, events.Phase)],
        "events": [short(event) for event in seen if event.kind in KINDS],
        "paired": True,
    }


def short(event: Any) -> list[Any]:
    """An event as the corpus writes it."""
    kind = KINDS[event.kind]
    if isinstance(event, events.AgentStarted):
        return [kind, event.seq, event.label, event.phase]
    if isinstance(event, events.AgentEnded):
        return [kind, event.seq, event.outcome.value]
    if isinstance(event, events.RunEnded):
        return [kind, event.stop_reason]
    return [kind]


def mismatch(case: dict[str, Any], expected: dict[str, Any], seen: dict[str, Any]) -> str | None:
    """The first thing that is not as expected; None when all is."""
    for key, wanted in expected.items():
        if key == "message_names":
            text = seen["message"]
            for name in wanted:
                head, *rest = name.split("_")
                if name not in text and head + "".join(part.capitalize() for part in rest) not in text:
                    return f"{name!r} is not named in {text!r}"
        elif key == "last_event":
            if seen["events"][-1] != wanted:
                return f"last event {seen['events'][-1]}"
        elif key == "outcomes_any":
            if not any(sorted(seen["outcomes"]) == sorted(variant) for variant in wanted):
                return f"outcomes {seen['outcomes']}"
        elif key == "events_unordered_between":
            inner = [event[:2] for event in seen["events"][1:-1]]
            if sorted(inner) != sorted(wanted):
                return f"events {inner}"
        elif not same_json(seen.get(key), wanted):
            return f"{key}: {seen.get(key)!r}, expected {wanted!r}"
    for early, late in case.get("starts_before_end", []):
        if seen["history"].index(("start", early)) > seen["history"].index(("end", late)):
            return f"{early} started after {late} ended"
    return None
