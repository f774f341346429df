"""`require_bound`: no run begins whose script could start more agents than it may, whichever way it would begin."""

import logging
from typing import Any

import pytest

from loopwarden import Code, Host, InvalidRequest, Limits, Script, ScriptRejected
from loopwarden.store.runs import Status
from loopwarden.store.scheduled import ScheduledRun
from loopwarden.store.shared import Schedule
from support.job_lab import CHAIN, FAN, InLab, JobLab, row_of

UNBOUNDED = Script.from_text(
    """
from loopwarden_engine import agent

def main(args):
    n = 0
    while agent(f"p{n}") != "answer to p2":
        n += 1
    return n
""",
    name="unbounded",
)
CAP = Limits(max_total_agents=5, agent_grace_seconds=0.2)


async def bounded(lab: JobLab, **more: Any) -> Host:
    return await lab.host(**({"require_bound": True, "limits": CAP} | more))


def test_a_script_that_is_bounded_by_its_cap_runs(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        host = await bounded(lab)
        outcome = await host.run(FAN, {"n": 5})
        assert (outcome.stop_reason, outcome.agents_started) == ("completed", 5)
        run_id = await host.submit(CHAIN, {"n": 2}, max_total_agents=2)
        async with host.drive():
            assert (await host.wait_for(run_id)).stop_reason == "completed"

    in_lab(case)


def test_a_script_without_a_bound_is_refused_with_the_line_that_makes_it_so(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        host = await bounded(lab)
        for begin in (host.start, host.submit):
            with pytest.raises(
                ScriptRejected, match=r"vetting finds no bound for the script 'unbounded': line 6: "
            ) as no:
                await begin(UNBOUNDED)
            assert no.value.line == 6
            assert no.value.details["bound"]["isKnown"] is False
        assert lab.agents.asked == []
        assert await host.list_runs() == []

    in_lab(case)


def test_more_agents_than_the_cap_with_these_arguments_are_refused_with_both_numbers(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        host = await bounded(lab)
        words = r"with these arguments the script 'fan' could start 6 agents \(agents <= args\.n\), above the 5"
        for begin in (host.start, host.submit):
            with pytest.raises(InvalidRequest, match=words) as caught:
                await begin(FAN, {"n": 6})
            assert (caught.value.details["agents"], caught.value.details["maxTotalAgents"]) == (6, 5)
            with pytest.raises(InvalidRequest, match=r"could start 3 agents .* above the 2"):
                await begin(FAN, {"n": 3}, max_total_agents=2)
        assert await host.list_runs() == []

    in_lab(case)


def test_a_number_that_nobody_can_count_is_refused_in_few_words(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        host = await bounded(lab)
        with pytest.raises(InvalidRequest) as caught:
            await host.start(NESTED, {"n": 2**53 - 1})
        assert "more than 9,007,199,254,740,991 agents" in caught.value.message
        assert len(caught.value.message) < 500

    in_lab(case)


NESTED = Script.from_text(
    """
from loopwarden_engine import agent

def main(args):
    for a in range(args["n"]):
        for b in range(args["n"]):
            for c in range(args["n"]):
                agent("x")
""",
    name="nested",
)


def test_runs_of_hosts_that_do_not_ask_are_held_here(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        lenient, host = await lab.host(limits=CAP), await bounded(lab)
        without, above = await lenient.submit(UNBOUNDED), await lenient.submit(FAN, {"n": 6})
        async with host.drive({"default": 2}):
            for run_id in (without, above):
                await host.wait_for(run_id)
        rows = [await row_of(host, run_id) for run_id in (without, above)]
        assert [row.status for row in rows] == [Status.HELD, Status.HELD]
        assert [row.failure_code for row in rows] == [Code.SCRIPT_REJECTED, Code.INVALID_REQUEST]
        assert lab.agents.asked == []

    in_lab(case)


def test_resuming_and_running_again_ask_for_the_bound_too(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        lenient, host = await lab.host(limits=CAP), await bounded(lab)
        run = await lenient.start(CHAIN, {"n": 3}, max_total_agents=2)
        assert (await run.wait()).failure is not None
        with pytest.raises(InvalidRequest, match="could start 3 agents"):
            await host.rerun(run.id)
        endless = await lenient.start(UNBOUNDED, max_total_agents=2)
        await endless.wait()
        with pytest.raises(ScriptRejected, match="no bound"):
            await host.rerun(endless.id)
        with pytest.raises(ScriptRejected, match="no bound"):
            await host.resume(endless.id, by="ann", max_total_agents=4)
        assert (await row_of(host, endless.id)).status is Status.FINISHED
        resumed = await host.resume(run.id, by="ann", max_total_agents=3)
        assert (await resumed.wait()).stop_reason == "completed"
        assert lab.agents.asked == ["p0", "p1", "p0", "p1", "p2"]

    in_lab(case)


def test_a_schedule_makes_no_run_that_is_not_bounded(in_lab: InLab, caplog: pytest.LogCaptureFixture) -> None:
    async def case(lab: JobLab) -> None:
        host = await bounded(lab, scripts=[FAN])
        assert host.custody is not None
        store = host.custody.store
        due = await store.now() - 1
        request = ScheduledRun(script="fan", args={"n": 9}, queue="nightly")
        await store.set_schedule(
            Schedule(
                name="hourly", cron="0 * * * *", zone="UTC", overlap="skip", is_paused=False, next_at=due,
                request=request.to_json(),
            )
        )  # fmt: skip
        async with host.drive({"nightly": 1}):
            while not any("could start 9 agents" in str(record.__dict__.get("problem")) for record in caplog.records):
                await store.woken(["nightly"], 0.02)
        assert await host.list_runs() == []
        assert [schedule.next_at for schedule in await store.schedules()] == [due]

    caplog.set_level(logging.INFO, logger="loopwarden")
    in_lab(case)
