"""Promise 2: however often a policy asks again, the number of asks is exact.

Policies x classes: expected attempts, waits and charges, on a virtual clock. One row of the data file per case."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from loopwarden import BreakerRule, FailureClass, Limits, Policy, Retry, Wait
from support.broker_lab import EPOCH, BrokerLab, ScriptedProvider, VirtualClock, failure
from support.corpus import cases

ROWS = cases(Path(__file__).with_name("policies.jsonl"))
POLICIES = {"off", "retry", "wait", "fallback", "breaker", "all"}


class RelativeProvider(ScriptedProvider):
    """Resets lie so many seconds after the ask that meets them."""

    def __init__(self, answers: list[Any], clock: VirtualClock) -> None:
        super().__init__(answers)
        self.clock = clock

    async def reply(self, request: Any) -> Any:
        answer = self.answers[min(len(self.requests), len(self.answers) - 1)]
        self.requests.append(request)
        if answer == "ok":
            return answer
        resets_in = answer.get("resets_in")
        raise failure(
            FailureClass(answer["class"]),
            resets_at=None if resets_in is None else EPOCH + self.clock.time + resets_in,
            retry_after_seconds=answer.get("retry_after"),
        )


def policy_of(row: dict[str, Any]) -> Policy:
    given = row["policy"]
    retry = dict(given["retry"]) if "retry" in given else None
    if retry is not None:
        retry["classes"] = frozenset(map(FailureClass, retry["classes"]))
    return Policy(
        retry=None if retry is None else Retry(**retry),
        wait=Wait(**given["wait"]) if "wait" in given else None,
        fallback=given.get("fallback"),
        breaker=BreakerRule(**given["breaker"]) if "breaker" in given else None,
    )


def lab_of(row: dict[str, Any]) -> BrokerLab:
    clock = VirtualClock()
    return BrokerLab(
        providers={"main": RelativeProvider(row["main"], clock), "other": RelativeProvider(row["other"], clock)},
        policies={"main": policy_of(row)},
        limits=Limits(max_extra_attempts=row["max_extra_attempts"], max_concurrent_agents=1),
        clock=clock,
    )


async def play(row: dict[str, Any]) -> BrokerLab:
    lab = lab_of(row)
    for _ in range(row["calls"]):
        lab.call()
    await lab.run_out()
    lab.broker.stop()
    await lab.broker.ended()
    return lab


@pytest.mark.parametrize("row", ROWS)
def test_a_policy_gives_these_attempts_waits_and_charges(row: dict[str, Any]) -> None:
    lab = asyncio.run(play(row))
    expect = row["expect"]
    agents = lab.broker.agents
    if expect["asks"] is not None:
        asks = [[list(ask) for ask in lab.asks(seq)] for seq in range(1, len(agents) + 1)]
        assert asks == expect["asks"], row["because"]
    assert [[end.outcome.value, end.failure_class] for end in lab.ends] == expect["ends"], row["because"]
    asked = sum(len(provider.requests) for provider in lab.providers.values())
    started = lab.broker.facts.agents_started
    assert asked - started == expect["extra"] <= row["max_extra_attempts"]
    assert [end.attempts for end in lab.ends] == [len(agent.attempts) for agent in agents if agent.attempts]
    found = [(failure.code.value, failure.details["class"]) for failure in lab.failures]
    assert found == ([] if expect["failure"] is None else [tuple(expect["failure"])])


def test_the_table_has_every_class_under_every_policy() -> None:
    names = [str(row.id) for row in ROWS]
    missing = [
        f"{policy}-{each.value}"
        for policy in POLICIES
        for each in FailureClass
        if not any(name == f"{policy}-{each.value}" or name.startswith(f"{policy}-{each.value}-") for name in names)
    ]
    assert missing == []
