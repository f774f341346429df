"""Resume: a run that was held, or that a cap or a budget ended, goes on and pays nothing twice."""

import asyncio
import contextlib
import sqlite3
from typing import Any

import pytest

from loopwarden import Host, InvalidRequest, Limits, Script
from loopwarden.failures import Code, StoreRefused
from loopwarden.journal.entries import Reopened
from loopwarden.store.errors import StoreCorrupt
from loopwarden.store.runs import Owner, Status
from loopwarden.store.shared import Scope
from loopwarden_scripts import ralph
from support.durable_lab import entries_of
from support.job_lab import CHAIN, FAN, SHORT, InLab, JobLab, held_run, row_of


async def ended_run(host: Host, script: Script[Any, Any] = CHAIN, n: int = 4, cap: int = 2) -> str:
    """A run that ended by its agent cap."""
    run_id = await host.submit(script, {"n": n}, max_total_agents=cap)
    async with host.drive():
        outcome = await host.wait_for(run_id)
    assert outcome.failure is not None
    assert outcome.failure.code == Code.AGENT_CAP
    return run_id


def test_a_run_that_ended_by_its_cap_goes_on_under_a_higher_one_and_pays_nothing_twice(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        host, operator = await lab.host(), await lab.host()
        run_id = await ended_run(host)
        assert lab.agents.asked == ["p0", "p1"]
        run = await operator.resume(run_id, by="ann", why="it was worth it", max_total_agents=4)
        outcome = await run.wait()
        assert outcome.value == [f"answer to p{i}" for i in range(4)]
        assert (await host.wait_for(run_id)).value == outcome.value
        assert lab.agents.asked == ["p0", "p1", "p2", "p3"]
        row = await row_of(host, run_id)
        assert (row.status, row.max_calls, row.calls, row.stop_reason) == (Status.FINISHED, 4, 4, "completed")
        [reopened] = [entry for entry in await entries_of(host, run_id) if isinstance(entry, Reopened)]
        assert (reopened.by, reopened.why, reopened.limits) == ("ann", "it was worth it", {"max_total_agents": 4})
        kinds = [event.kind async for event in host.events_of(run_id)]
        assert (kinds.count("runEnded"), kinds.count("agentStarted"), kinds[-1]) == (2, 4, "runEnded")
        assert (await host.replay(run_id)).is_same

    in_lab(case)


def test_agents_that_were_at_work_when_the_cap_ended_the_run_are_not_asked_again(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        lab.agents.kept = {"slow"}
        host = await lab.host()
        source = """
from loopwarden_engine import agent, parallel

def main(args):
    return parallel([lambda: agent("slow"), lambda: [agent("a"), agent("b")]])
"""
        run_id = await host.submit(Script.from_text(source), max_total_agents=2)
        async with host.drive():
            await lab.agents.until_asked("slow")
            while (row := await row_of(host, run_id)).failure_code is None:
                await asyncio.sleep(0.01)
            assert (row.failure_code, row.status) == ("AGENT_CAP", Status.RUNNING)
            lab.agents.let_go("slow")
            assert (await host.wait_for(run_id)).stop_reason == "error"
        assert (await host.replay(run_id)).difference is None
        outcome = await (await host.resume(run_id, by="ann", max_total_agents=3)).wait()
        assert outcome.value == ["answer to slow", ["answer to a", "answer to b"]]
        assert sorted(lab.agents.asked) == ["a", "b", "slow"]

    in_lab(case)


def test_calls_that_were_charged_when_the_cap_ended_the_run_are_made_and_paid_for_once(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        host = await lab.host()
        run_id = await ended_run(host, FAN)  # all calls are made in one breath, so all asks are on their way then
        made = len(lab.agents.asked)
        assert made == (await row_of(host, run_id)).calls > 0
        outcome = await (await host.resume(run_id, by="ann", max_total_agents=4)).wait()
        assert outcome.value == [f"answer to p{i}" for i in range(4)]
        assert sorted(lab.agents.asked) == ["p0", "p1", "p2", "p3"]
        assert (await row_of(host, run_id)).extra == 0

    in_lab(case)


def test_more_rounds_of_ralph_come_with_more_agents(in_lab: InLab) -> None:
    rounds: list[str] = []

    async def reply(request: Any) -> dict[str, Any]:
        rounds.append(request.label)
        is_last = len(rounds) == 4
        return {
            "status": "complete" if is_last else "continue", "summary": "a plank more", "evidence": ["bridge.txt"],
            "nextSteps": [] if is_last else ["the next plank"], "blocker": "",
        }  # fmt: skip

    async def case(lab: JobLab) -> None:
        host = await lab.host(providers={"default": reply})
        run_id = await host.submit(ralph.script, {"objective": "build a bridge", "maxRounds": 2})
        async with host.drive():
            outcome = await host.wait_for(run_id)
        assert outcome.value["status"] == "budget-limited"
        with pytest.raises(InvalidRequest) as refusal:
            await host.resume(run_id, by="ann", max_total_agents=5)
        assert refusal.value.message == (
            f"run {run_id} completed; only a run that ended by a cap, a budget, its deadline or a cancel, or that is "
            "held, can be resumed. Run it again with `loopwarden rerun`"
        )

    in_lab(case)


def test_a_cancelled_ralph_goes_on_with_more_rounds_than_it_had(in_lab: InLab) -> None:
    rounds: list[str] = []

    async def case(lab: JobLab) -> None:
        async def reply(request: Any) -> dict[str, Any]:
            rounds.append(request.label)
            if len(rounds) == 2:
                await host.cancel(request.run_id, "wait for the wood")
            is_last = len(rounds) == 5
            return {
                "status": "complete" if is_last else "continue", "summary": "a plank more", "evidence": ["bridge.txt"],
                "nextSteps": [] if is_last else ["the next plank"], "blocker": "",
            }  # fmt: skip

        host = await lab.host(providers={"default": reply})
        run_id = await host.submit(ralph.script, {"objective": "build a bridge", "maxRounds": 2})
        async with host.drive():
            assert (await host.wait_for(run_id)).stop_reason == "cancelled"
        too_many = ralph.script.contract.settings.max_rounds + 1  # type: ignore[attr-defined]
        with pytest.raises(Exception, match="maxRounds"):
            await host.resume(run_id, by="ann", max_total_agents=too_many)
        run = await host.resume(run_id, by="ann", max_total_agents=6)
        outcome = await run.wait()
        assert outcome.failure is None
        assert (await host.wait_for(run_id)).value["roundsStarted"] == 4
        assert [int(label.split()[-1]) for label in rounds] == [1, 2, 2, 3, 4]
        assert (await host.replay(run_id)).difference is None

    in_lab(case)


@pytest.mark.parametrize(
    ("raised", "message"),
    [
        ({}, "ended with AGENT_CAP, and would end so again; give a max_total_agents above 2"),
        ({"max_concurrent_agents": 16}, "and would end so again; give a max_total_agents above 2"),
        ({"max_total_agents": 1}, "resuming a run raises limits, and 1 would lower it"),
        ({"max_total_agents": 51}, "max_total_agents 51 is above the ceiling of this deployment, 50; ask for less"),
        ({"max_frame_bytes": 2**20}, "max_frame_bytes is set by the deployment; a request cannot change it"),
    ],
)
def test_what_may_not_rise_is_refused_before_anything_changes(
    in_lab: InLab, raised: dict[str, Any], message: str
) -> None:
    async def case(lab: JobLab) -> None:
        host = await lab.host(limits=Limits(max_total_agents=50))
        run_id = await ended_run(host)
        before = await row_of(host, run_id)
        with pytest.raises(InvalidRequest) as refusal:
            await host.resume(run_id, by="ann", **raised)
        assert message in refusal.value.message
        assert await row_of(host, run_id) == before

    in_lab(case)


def test_a_run_that_is_not_over_is_not_resumed(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        host = await lab.host()
        run_id = await host.submit(FAN, {"n": 1})
        with pytest.raises(InvalidRequest) as refusal:
            await host.resume(run_id, by="ann")
        assert refusal.value.message == f"run {run_id} is not over; there is nothing to resume"
        assert (await row_of(host, run_id)).epoch == 0

    in_lab(case)


def test_a_held_run_goes_on_once_it_is_resumed(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        host = await lab.host()
        run_id = await held_run(host)
        async with host.drive():
            await host.wait_for(await host.submit(FAN, {"n": 1, "name": "other"}))
            assert (await row_of(host, run_id)).status is Status.HELD
        run = await host.resume(run_id, by="ann", why="mended")
        assert (await run.wait()).stop_reason == "completed"
        assert lab.agents.asked == ["other0", "p0"]

    in_lab(case)


def test_a_run_that_is_held_as_damaged_is_told_as_such_and_goes_on_once_it_is_repaired(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        host = await lab.host()
        run_id = await host.submit(CHAIN, {"n": 1})
        of_run = (run_id,)
        with contextlib.closing(sqlite3.connect(lab.file)) as editor, editor:
            [taken] = editor.execute("SELECT * FROM entries WHERE run_id = ?", of_run).fetchall()
            editor.execute("DELETE FROM entries WHERE run_id = ?", of_run)
        async with host.drive():
            with pytest.raises(StoreCorrupt, match="its journal does not end with entry 1, as its row says"):
                await host.wait_for(run_id)
            with pytest.raises(StoreCorrupt, match="its journal does not end with entry 1"):
                [event async for event in host.events_of(run_id)]
        with pytest.raises(StoreRefused, match="is damaged: its journal is empty"):
            await host.resume(run_id, by="ann")
        with contextlib.closing(sqlite3.connect(lab.file)) as editor, editor:
            editor.execute("INSERT INTO entries VALUES (?, ?, ?, ?)", taken)
        with pytest.raises(InvalidRequest, match="limits rise only for a run that is"):
            await host.resume(run_id, by="ann", max_total_agents=5)
        assert (await (await host.resume(run_id, by="ann")).wait()).stop_reason == "completed"
        assert lab.agents.asked == ["p0"]

    in_lab(case)


def test_a_run_that_a_budget_ended_goes_on_when_the_budget_has_risen(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        host = await lab.host()
        assert host.custody is not None
        await host.custody.store.set_scope(Scope(name="acme", max_agents=1), "test")
        run_id = await host.submit(CHAIN, {"n": 2}, scopes=["acme"])
        async with host.drive():
            outcome = await host.wait_for(run_id)
        assert outcome.failure is not None
        assert outcome.failure.code == Code.SCOPE_BUDGET
        await host.custody.store.set_scope(Scope(name="acme", max_agents=2), "test")
        assert (await (await host.resume(run_id, by="ann")).wait()).stop_reason == "completed"
        assert lab.agents.asked == ["p0", "p1"]

    in_lab(case)


def test_a_run_whose_resumer_died_before_it_reopened_it_is_put_back(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        host = await lab.host(leases=SHORT)
        run_id = await ended_run(host)
        assert host.custody is not None
        store = host.custody.store
        await store.claim_one(Owner(host_id="dead", lease_seconds=0.1), run_id, kill_grace_seconds=0.0)
        assert (await row_of(host, run_id)).status is Status.RUNNING
        async with host.drive():
            while (await row_of(host, run_id)).status is Status.RUNNING:
                await store.changed(run_id, after=10**6, timeout_seconds=0.2)
        row = await row_of(host, run_id)
        assert (row.status, row.failure_code, row.owner) == (Status.FINISHED, "AGENT_CAP", None)
        assert lab.agents.asked == ["p0", "p1"]
        assert (await (await host.resume(run_id, by="ann", max_total_agents=9)).wait()).stop_reason == "completed"

    in_lab(case)


def test_a_run_that_another_host_drives_is_not_resumed(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        host = await lab.host()
        run_id = await ended_run(host)
        assert host.custody is not None
        owner = Owner(host_id="other host", lease_seconds=60)
        await host.custody.store.claim_one(owner, run_id, kill_grace_seconds=0.0)
        with pytest.raises(InvalidRequest, match="another host, other host, drives run"):
            await host.resume(run_id, by="ann", max_total_agents=9)

    in_lab(case)
