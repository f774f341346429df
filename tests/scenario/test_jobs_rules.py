"""What deployment and operator decide while runs are in the store: approval, more agents, an end without the store."""

import asyncio
from typing import Any

import pytest

from loopwarden import Code, InvalidRequest, Limits, Script, ScriptRejected
from loopwarden.approvals import ApprovedSources
from loopwarden.journal.entries import Held, LimitsRaised
from loopwarden.journal.verify import verify
from loopwarden.lease_keeper import LeaseRules
from loopwarden.store.errors import StoreUnavailable
from loopwarden.store.runs import Status
from support.job_lab import CHAIN, FAN, QUICK, Agents, InLab, JobLab, row_of
from support.store_lab import journal

ENDLESS = Script.from_text(
    """
from loopwarden_engine import agent

def main(args):
    n = 0
    while agent(f"p{n}") != "answer to p4":
        n += 1
    return n
""",
    name="endless",
)


def test_a_host_runs_only_approved_sources_wherever_they_come_from(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        anything = await lab.host()
        strict = await lab.host(approvals=ApprovedSources([FAN.digest]))
        with pytest.raises(ScriptRejected, match="is not approved by this deployment"):
            await strict.start(CHAIN, {"n": 1})
        with pytest.raises(ScriptRejected, match="is not approved by this deployment"):
            await strict.submit(CHAIN, {"n": 1})
        foreign = await anything.submit(CHAIN, {"n": 1})
        known = await strict.submit(FAN, {"n": 1})
        async with strict.drive({"default": 4}):
            assert (await strict.wait_for(known)).stop_reason == "completed"
            assert (await row_of(strict, foreign)).status is Status.QUEUED
        # A row cannot supply code to one who claims it by its id either.
        assert strict.custody is not None
        await strict.adopt(*await strict.custody.claim_one(foreign))
        row = await row_of(strict, foreign)
        assert (row.status, row.failure_code) == (Status.HELD, Code.SCRIPT_REJECTED)
        assert isinstance((await journal(strict.custody.store, foreign))[-1].entry, Held)

    in_lab(case)


def test_a_live_run_of_another_host_is_given_more_agents_and_its_journal_says_so(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        driver, operator = await lab.host(), await lab.host()
        lab.agents.kept = {"p1"}
        run = await driver.start(ENDLESS, max_total_agents=2)
        await lab.agents.until_asked("p1")
        with pytest.raises(InvalidRequest, match="holds no run"):
            await operator.raise_limits("nobody", by="ann", max_total_agents=9)
        await operator.raise_limits(run.id, by="ann", max_total_agents=5)
        assert operator.custody is not None
        while not any(isinstance(one.entry, LimitsRaised) for one in await journal(operator.custody.store, run.id)):
            await operator.custody.store.changed(run.id, after=0, timeout_seconds=0.05)
        lab.agents.let_go("p1")
        outcome = await run.wait()
        assert (outcome.value, outcome.agents_started) == (4, 5)
        store = operator.custody.store
        assert verify(await store.read(run.id), await store.blobs(run.id)).findings == ()
        with pytest.raises(InvalidRequest, match="only a live run can be given more"):
            await operator.raise_limits(run.id, by="ann", max_total_agents=9)

    in_lab(case)


def test_more_than_the_deployment_allows_is_not_given_and_the_receipt_says_so(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        host = await lab.host(limits=Limits(max_total_agents=3, agent_grace_seconds=0.2))
        lab.agents.kept = {"p1"}
        run = await host.start(ENDLESS, max_total_agents=2)
        await lab.agents.until_asked("p1")
        await host.raise_limits(run.id, by="ann", max_total_agents=4)
        while not run.receipt().problems:
            await asyncio.sleep(0.01)
        lab.agents.let_go("p1")
        outcome = await run.wait()
        assert outcome.failure is not None
        assert outcome.failure.code is Code.AGENT_CAP
        assert outcome.receipt.problems == [
            "limits that ann asked for were not raised: max_total_agents 4 is above the ceiling of this deployment, 3"
        ]

    in_lab(case)


def test_a_host_closes_though_its_store_is_away_and_another_one_goes_on(in_lab: InLab) -> None:
    """What could not be written is lost with the host; what was committed is not."""

    async def case(lab: JobLab) -> None:
        short = LeaseRules(lease_seconds=0.6, kill_grace_seconds=0.1, poll_seconds=0.05)
        agents = Agents()
        agents.kept = {"p1"}
        first = await lab.host(leases=short, providers={"default": agents})
        run_id = await first.submit(CHAIN, {"n": 2})
        async with first.drive({"default": 1}):
            await agents.until_asked("p1")
        assert first.custody is not None
        away(first.custody.store)
        await first.close()
        second = await lab.host(leases=QUICK)
        async with second.drive({"default": 1}):
            outcome = await second.wait_for(run_id)
        assert outcome.value == ["answer to p0", "answer to p1"]
        assert (agents.asked, lab.agents.asked) == (["p0", "p1"], ["p1"])

    in_lab(case)


def away(store: Any) -> None:
    """From here on nothing reaches the store: appends wait for ever, and everything else fails at once."""

    async def fail(*_: object, **__: object) -> Any:
        raise StoreUnavailable("the store is away")

    store.append = lambda append: None
    for name in ("renew", "take_requests", "changed", "read", "claim", "get"):
        setattr(store, name, fail)
