"""Cancel and run again: what an operator does with a run, whoever drives it."""

import pytest

from loopwarden import Host, InvalidRequest, Limits
from loopwarden.jobs.schedules import LABEL
from loopwarden.store.runs import Status
from support.job_lab import CHAIN, FAN, InLab, JobLab, held_run, row_of

# ---- cancel


def test_a_queued_run_is_cancelled_without_a_worker(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        host, other = await lab.host(), await lab.host()
        run_id = await other.submit(FAN, {"n": 1})
        row = await host.cancel(run_id, "not needed", "ann")
        assert row is not None
        assert (row.status, row.stop_reason, row.cancel_reason) == (Status.FINISHED, "cancelled", "not needed")
        outcome = await other.wait_for(run_id)
        assert outcome.failure is not None
        assert outcome.failure.message == "the run was cancelled: not needed"
        async with other.drive():
            await other.wait_for(await other.submit(FAN, {"n": 1, "name": "next"}))
        assert lab.agents.asked == ["next0"]

    in_lab(case)


def test_a_run_of_this_host_is_cancelled_at_once(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        lab.agents.kept = {"p0"}
        host = await lab.host()
        run_id = await host.submit(FAN, {"n": 1})
        async with host.drive():
            await lab.agents.until_asked("p0")
            await host.cancel(run_id, "enough", "ann")
            outcome = await host.wait_for(run_id)
        assert outcome.failure is not None
        assert outcome.failure.message == "the run was cancelled: enough (asked for by ann)"

    in_lab(case)


def test_a_run_of_another_host_is_cancelled_by_a_request(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        lab.agents.kept = {"p0"}
        driver, other = await lab.host(), await lab.host()
        run_id = await other.submit(CHAIN, {"n": 2})
        async with driver.drive():
            await lab.agents.until_asked("p0")
            row = await other.cancel(run_id, "enough", "ann")
            assert row is not None
            assert (row.status, row.cancel_reason) == (Status.RUNNING, "enough")
            outcome = await other.wait_for(run_id)
        assert outcome.failure is not None
        assert outcome.failure.message == "the run was cancelled: enough (asked for by ann)"
        assert lab.agents.asked == ["p0"]

    in_lab(case)


def test_cancelling_a_run_that_is_over_changes_nothing(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        host = await lab.host()
        run_id = await host.submit(FAN, {"n": 1})
        async with host.drive():
            await host.wait_for(run_id)
        before = await row_of(host, run_id)
        assert await host.cancel(run_id, "too late") == before

    in_lab(case)


def test_a_held_run_is_cancelled_by_whoever_asks(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        host = await lab.host()
        run_id = await held_run(host)
        row = await host.cancel(run_id, "give it up")
        assert row is not None
        assert (row.status, row.failure_code) == (Status.FINISHED, "CANCELLED")

    in_lab(case)


def test_a_run_without_a_journal_is_cancelled_like_any_other(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        lab.agents.kept = {"p0"}
        async with Host(providers={"default": lab.agents}) as host:
            run = await host.start(FAN, {"n": 1})
            await lab.agents.until_asked("p0")
            assert await host.cancel(run.id, "enough") is None
            assert (await run.wait()).stop_reason == "cancelled"

    in_lab(case)


# ---- run again


def test_a_run_is_run_again_with_the_same_content(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        host = await lab.host()
        first = await host.submit(
            FAN, {"n": 1}, queue="nightly", labels={LABEL: "x"}, priority=3, max_total_agents=5, key="once"
        )
        async with host.drive({"nightly": 1}):
            await host.wait_for(first)
            second = await host.rerun(first, by="ann")
            outcome = await host.wait_for(second)
        assert outcome.value == ["answer to p0"]
        assert lab.agents.asked == ["p0", "p0"]
        one, two = await row_of(host, first), await row_of(host, second)
        assert (two.queue, two.labels, two.priority, two.max_calls, two.key) == ("nightly", {LABEL: "x"}, 3, 5, None)
        assert two.content_digest == one.content_digest
        assert await host.rerun(first, key="twice") == await host.rerun(second, key="twice")

    in_lab(case)


def test_a_run_is_not_run_again_above_the_ceiling_of_the_deployment(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        run_id = await (await lab.host()).submit(FAN, {"n": 1}, max_total_agents=100)
        poorer = await lab.host(limits=Limits(max_total_agents=50))
        with pytest.raises(InvalidRequest, match="max_total_agents 100 is above the ceiling of this deployment, 50"):
            await poorer.rerun(run_id)

    in_lab(case)
