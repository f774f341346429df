"""Schedules: each time that comes makes one run, over all hosts; missed times make one together."""

import logging
from typing import Any, Final, Literal

import pytest

from loopwarden import Code, Host, Script
from loopwarden.jobs.schedules import key_of
from loopwarden.lease_keeper import LeaseRules
from loopwarden.store.api import Store
from loopwarden.store.runs import RunRow, Status
from loopwarden.store.scheduled import ScheduledRun
from loopwarden.store.shared import Schedule
from support.job_lab import FAN, InLab, JobLab
from support.store_lab import TickingClock

NINE: Final = 1_796_029_200.0
"""2026-11-30 09:00 UTC."""
HOUR: Final = 3600.0
LONG: Final = LeaseRules(lease_seconds=1e7, kill_grace_seconds=1.0, poll_seconds=0.05)
"""No lease ends when a test moves the time."""


class Timed:
    """A lab whose stores have a time that the test moves."""

    def __init__(self, lab: JobLab) -> None:
        self.lab = lab
        self.clock = TickingClock(NINE - 60)

    async def host(self, **more: Any) -> Host:
        return await self.lab.host(clock=self.clock, leases=LONG, **({"scripts": [FAN]} | more))


def store_of(host: Host) -> Store:
    assert host.custody is not None
    return host.custody.store


async def add(host: Host, *, overlap: Literal["skip", "queue"] = "skip", **request: Any) -> None:
    """A schedule for every full hour."""
    await store_of(host).set_schedule(
        Schedule(
            name="hourly",
            cron="0 * * * *",
            zone="UTC",
            overlap=overlap,
            is_paused=request.pop("is_paused", False),
            next_at=NINE,
            request=ScheduledRun(**({"script": "fan", "args": {"n": 1}, "queue": "nightly"} | request)).to_json(),
        )
    )


async def until_next(host: Host, next_at: float) -> None:
    """Wait until the schedule is due at that time."""
    store = store_of(host)
    while [schedule.next_at for schedule in await store.schedules()] != [next_at]:
        await store.woken(["nightly"], 0.02)


async def rows(host: Host) -> list[RunRow]:
    return list(reversed(await host.list_runs()))


def test_a_time_that_comes_makes_one_run_with_all_that_the_schedule_says(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        timed = Timed(lab)
        host = await timed.host()
        await add(host, labels={"team": "red"}, priority=4, limits={"max_total_agents": 7}, by="ann")
        async with host.drive({"nightly": 1}):
            await host.wait_for(await host.submit(FAN, {"n": 1, "name": "first"}, queue="nightly"))
            assert len(await rows(host)) == 1
            timed.clock.now = NINE
            await until_next(host, NINE + HOUR)
            row = (await rows(host))[1]
            assert row.key == "schedule:hourly:2026-11-30T09:00:00Z" == key_of("hourly", NINE)
            assert (row.queue, row.priority, row.max_calls) == ("nightly", 4, 7)
            assert dict(row.labels) == {"team": "red", "schedule": "hourly"}
            assert (await host.wait_for(row.run_id)).value == ["answer to p0"]
            timed.clock.now = NINE + HOUR
            await until_next(host, NINE + 2 * HOUR)
        assert [row.key for row in await rows(host)][1:] == [key_of("hourly", NINE), key_of("hourly", NINE + HOUR)]

    in_lab(case)


def test_times_that_were_missed_make_one_run(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        timed = Timed(lab)
        host = await timed.host()
        await add(host)
        timed.clock.now = NINE + 5.5 * HOUR
        async with host.drive({"nightly": 1}):
            await until_next(host, NINE + 6 * HOUR)
        assert [row.key for row in await rows(host)] == [key_of("hourly", NINE)]

    in_lab(case)


@pytest.mark.parametrize(("overlap", "made"), [("skip", 1), ("queue", 2)])
def test_a_time_that_comes_while_the_run_before_is_going(
    in_lab: InLab, overlap: Literal["skip", "queue"], made: int
) -> None:
    async def case(lab: JobLab) -> None:
        timed = Timed(lab)
        lab.agents.kept = {"p0"}
        host = await timed.host()
        await add(host, overlap=overlap)
        timed.clock.now = NINE
        async with host.drive({"nightly": 1}):
            await lab.agents.until_asked("p0")
            timed.clock.now = NINE + HOUR
            await until_next(host, NINE + 2 * HOUR)
            assert len(await rows(host)) == made
            lab.agents.let_go("p0")
            for row in await rows(host):
                await host.wait_for(row.run_id)
            timed.clock.now = NINE + 2 * HOUR
            await until_next(host, NINE + 3 * HOUR)
            assert len(await rows(host)) == made + 1

    in_lab(case)


def test_two_hosts_make_one_run_of_one_time(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        timed = Timed(lab)
        one, other = await timed.host(), await timed.host()
        await add(one, overlap="queue")
        async with one.drive({"nightly": 1}), other.drive({"nightly": 1}):
            for hour in range(5):
                timed.clock.now = NINE + hour * HOUR
                await until_next(one, NINE + (hour + 1) * HOUR)
        assert [row.key for row in await rows(one)] == [key_of("hourly", NINE + hour * HOUR) for hour in range(5)]

    in_lab(case)


def test_a_schedule_that_is_paused_makes_no_run(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        timed = Timed(lab)
        host = await timed.host()
        await add(host, is_paused=True)
        timed.clock.now = NINE
        async with host.drive({"nightly": 1}):
            await host.wait_for(await host.submit(FAN, {"n": 1}, queue="nightly"))
        assert len(await rows(host)) == 1

    in_lab(case)


def test_a_schedule_of_a_loop_that_this_host_does_not_have_is_left_to_others(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        timed = Timed(lab)
        without, with_it = await timed.host(scripts=[]), await timed.host()
        await add(without)
        timed.clock.now = NINE
        async with without.drive({"nightly": 1}):
            plain = Script.from_text(FAN.source, name="plain")
            await without.wait_for(await without.submit(plain, {"n": 1}, queue="nightly"))
            assert len(await rows(without)) == 1
            async with with_it.drive({"other": 1}):  # it fires for queues that it does not drive, too
                await until_next(without, NINE + HOUR)
        assert len(await rows(without)) == 2

    in_lab(case)


def test_what_cannot_be_submitted_stays_due_and_is_said_once(in_lab: InLab, caplog: pytest.LogCaptureFixture) -> None:
    async def case(lab: JobLab) -> None:
        timed = Timed(lab)
        host = await timed.host()
        await add(host, provider="gone")
        timed.clock.now = NINE
        async with host.drive({"nightly": 1}):
            for n in range(3):
                await host.wait_for(await host.submit(FAN, {"n": 1, "name": f"{n}"}, queue="nightly"))
            assert [schedule.next_at for schedule in await store_of(host).schedules()] == [NINE]
            await add(host)
            await until_next(host, NINE + HOUR)
        assert [row.key for row in await rows(host)][3:] == [key_of("hourly", NINE)]

    with caplog.at_level(logging.ERROR, logger="loopwarden"):
        in_lab(case)
    said = [record for record in caplog.records if record.getMessage() == "a schedule cannot be fired"]
    assert len(said) == 1
    assert "the provider 'gone' does not exist; configured: default" in str(said[0].__dict__)


def test_a_scheduled_run_that_is_held_does_not_keep_the_next_one(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        timed = Timed(lab)
        host = await timed.host()
        await add(host)
        timed.clock.now = NINE
        async with host.drive({"other": 1}):
            await until_next(host, NINE + HOUR)
            [row] = await rows(host)
            assert host.custody is not None
            claim, asked_at = await host.custody.claim_one(row.run_id)
            await host.custody.tenure(claim, asked_at).hold(Code.REPLAY_DIVERGED, "x")
            timed.clock.now = NINE + HOUR
            await until_next(host, NINE + 2 * HOUR)
        assert [row.status for row in await rows(host)] == [Status.HELD, Status.QUEUED]

    in_lab(case)


def test_a_time_that_has_its_run_is_left_out_after_the_schedule_was_changed(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        timed = Timed(lab)
        host = await timed.host()
        before = await host.submit(FAN, {"n": 2}, key=key_of("hourly", NINE), queue="other")
        await add(host)
        timed.clock.now = NINE
        async with host.drive({"nightly": 1}):
            await until_next(host, NINE + HOUR)
        assert [row.run_id for row in await rows(host)] == [before]

    in_lab(case)
