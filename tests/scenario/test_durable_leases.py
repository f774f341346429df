"""Durable runs whose lease ended or passed to another host, and limits that rise while they are driven."""

import asyncio
import time

import pytest

from loopwarden.clock import LoopClock
from loopwarden.failures import Code
from loopwarden.journal.entries import Asked, LimitsRaised
from loopwarden.lease_keeper import LeaseRules
from support.durable_lab import (
    check_receipt,
    check_sound,
    claim_by,
    crashed,
    entries_of,
    freeze,
    observed,
    seen_live,
    sleeper,
    store_of,
    thaw,
    until_claimed,
)
from support.job_lab import CHAIN, InLab, JobLab
from support.store_lab import TickingClock


def test_a_lease_that_ended_and_came_back_interrupts_agents_and_loses_nothing(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        lab.agents.kept = {"p1"}
        host = await lab.host()
        sleep = sleeper(host)
        run = await host.start(CHAIN, {"n": 3})
        await lab.agents.until_asked("p1")
        await freeze(lab, host)
        sleep(100.0)
        agent = run._broker.agents[1]
        while agent.task is not None:
            await asyncio.sleep(0)
        assert lab.agents.asked == ["p0", "p1"]
        lab.agents.let_go("p1")
        thaw(host)
        assert (await run.wait()).value == ["answer to p0", "answer to p1", "answer to p2"]
        assert lab.agents.asked == ["p0", "p1", "p1", "p2"]
        asks = [(entry.seq, entry.ask) for entry in await entries_of(host, run.id) if isinstance(entry, Asked)]
        assert asks == [(1, "first"), (2, "first"), (2, "redo"), (3, "first")]
        await check_receipt(host, run)
        assert await seen_live(run) == await observed(host, run.id)
        await check_sound(host, run.id)

    in_lab(case)


def test_agents_go_on_without_a_lease_when_the_deployment_says_so(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        lab.agents.kept = {"p0"}
        host = await lab.host(leases=LeaseRules(kill_grace_seconds=1.0, poll_seconds=0.05, kills=False))
        sleep = sleeper(host)
        run = await host.start(CHAIN, {"n": 2})
        await lab.agents.until_asked("p0")
        await freeze(lab, host)
        sleep(100.0)
        lab.agents.let_go("p0")
        await asyncio.sleep(0)
        thaw(host)
        assert (await run.wait()).value == ["answer to p0", "answer to p1"]
        assert lab.agents.asked == ["p0", "p1"]

    in_lab(case)


def test_a_host_that_is_closed_while_another_one_drives_its_run_says_so(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        first, run_id = await crashed(lab, "p0")
        second = await lab.host()
        run = await second.adopt(*await until_claimed(second, run_id))
        assert run is not None
        loser = first.get(run_id)
        assert loser is not None
        thaw(first)
        await loser.gone()
        await first.close()
        outcome = await loser.wait()
        assert outcome.failure is not None
        assert outcome.failure.code is Code.HOST_LOST
        lab.agents.let_go("p0")
        assert (await run.wait()).stop_reason == "completed"

    in_lab(case)


def test_the_deadline_counts_the_time_that_hosts_drove_the_run(in_lab: InLab) -> None:
    class Ahead(LoopClock):
        ahead = 0.0

        def wall(self) -> float:
            return super().wall() + self.ahead

    async def case(lab: JobLab) -> None:
        clock = Ahead()
        lab.agents.kept = {"p1"}
        first = await lab.host()
        first._clock = clock
        run_id = await first.submit(CHAIN, {"n": 2}, run_deadline_seconds=50)
        async with first.drive():
            await lab.agents.until_asked("p0")
            await lab.agents.until_asked("p1")
            clock.ahead = 60.0
        await first.close()
        second = await lab.host()
        run = await second.adopt(*await claim_by(second, run_id))
        assert run is not None
        outcome = await run.wait()
        assert outcome.failure is not None
        assert outcome.failure.code is Code.DEADLINE
        assert lab.agents.asked == ["p0", "p1"]
        await check_sound(second, run_id)

    in_lab(case)


@pytest.mark.parametrize("days", [-400, 400])
def test_a_store_whose_clock_is_far_off_takes_nothing_from_the_deadline(in_lab: InLab, days: int) -> None:
    async def case(lab: JobLab) -> None:
        clock = TickingClock(time.time() + days * 86400)
        lab.agents.kept = {"p1"}
        first = await lab.host(clock=clock)
        run_id = await first.submit(CHAIN, {"n": 2}, run_deadline_seconds=50)
        async with first.drive():
            await lab.agents.until_asked("p1")
        await first.close()
        lab.agents.let_go("p1")
        second = await lab.host(clock=clock)
        run = await second.adopt(*await claim_by(second, run_id))
        assert run is not None
        assert (await run.wait()).value == ["answer to p0", "answer to p1"]
        await check_sound(second, run_id)

    in_lab(case)


# ---- limits that rise


def test_limits_of_a_live_run_rise_through_its_journal(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        lab.agents.kept = {"p1"}
        host = await lab.host()
        run = await host.start(CHAIN, {"n": 3}, max_total_agents=2, max_extra_attempts=1)
        await lab.agents.until_asked("p1")
        store = store_of(host)
        await store.request(run.id, "raise", {"max_total_agents": 3}, "olga")
        await store.request(run.id, "raise", {"max_extra_attempts": 2}, "olga")
        await store.request(run.id, "raise", {"max_total_agents": 2}, "piet")
        async with asyncio.timeout(10):
            while sum(isinstance(entry, LimitsRaised) for entry in await entries_of(host, run.id)) < 2:
                await store.changed(run.id, after=10**6, timeout_seconds=0.05)
        lab.agents.let_go("p1")
        assert (await run.wait()).value == ["answer to p0", "answer to p1", "answer to p2"]
        receipt = run.receipt()
        assert (receipt.limits["maxTotalAgents"], receipt.limits["maxExtraAttempts"]) == (3, 2)
        assert receipt.problems == [
            "limits that piet asked for were not raised: max_total_agents is 3; a live run can only be given more"
        ]
        await check_receipt(host, run)
        await check_sound(host, run.id)

    in_lab(case)


def test_limits_that_are_asked_for_while_the_run_begins_are_all_heard(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        host = await lab.host()
        assert host.custody is not None
        lab.agents.kept = {"p0"}
        run_id = await host.submit(CHAIN, {"n": 3}, max_total_agents=1, max_extra_attempts=1)
        claim, asked_at = await claim_by(host, run_id)
        store = store_of(host)
        await store.request(run_id, "raise", {"max_total_agents": 3}, "olga")
        await store.request(run_id, "raise", {"max_extra_attempts": 2}, "olga")
        await host.custody.keeper._ask()
        lab.agents.let_go("p0")
        run = await host.adopt(claim, asked_at)
        assert run is not None
        assert (await run.wait()).stop_reason == "completed"
        assert run.receipt().limits["maxExtraAttempts"] == 2

    in_lab(case)
