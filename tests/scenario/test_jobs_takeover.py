"""A run outlives its host: taken over when a lease ends, handed on when a host stops in order."""

import asyncio

from loopwarden import Host
from loopwarden.journal.entries import Asked, AttemptEnded, Ended
from loopwarden.store.runs import Status
from support.job_lab import CHAIN, FAN, QUICK, SHORT, InLab, JobLab, row_of
from support.store_lab import TickingClock, journal


async def asks_of(host: Host, run_id: str) -> list[tuple[int, str]]:
    """Call and kind of each ask in a journal."""
    assert host.custody is not None
    entries = [chained.entry for chained in await journal(host.custody.store, run_id)]
    return [(entry.seq, entry.ask) for entry in entries if isinstance(entry, Asked)]


async def freeze(host: Host) -> None:
    """Let a host renew nothing and hear nothing, as if it were stopped."""
    assert host.custody is not None
    await host.custody.keeper.close()


def thaw(host: Host) -> None:
    """Let it go on."""
    assert host.custody is not None
    host.custody.keeper.begin()


def go_with(host: Host, clock: TickingClock) -> None:
    """Let a machine see the time pass that passes for the store."""
    assert host.custody is not None
    keeper, began, own = host.custody.keeper, clock.now, host.custody.keeper.clock
    keeper.clock = lambda: own() + clock.now - began


def test_a_run_whose_host_renews_no_more_is_taken_over_and_the_loser_sees_the_real_end(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        lab.agents.kept = {"p1"}
        first, second = await lab.host(leases=SHORT), await lab.host()
        run_id = await first.submit(CHAIN, {"n": 3})
        async with first.drive():
            await lab.agents.until_asked("p1")
        run = first.get(run_id)
        assert run is not None
        await freeze(first)
        async with second.drive():
            await lab.agents.until_asked("p1", times=2)
            lab.agents.let_go("p1")  # also the answer that the first host waits for: it comes too late
            outcome = await second.wait_for(run_id)
            thaw(first)
            lost = await run.wait()
        assert outcome.value == lost.value == ["answer to p0", "answer to p1", "answer to p2"]
        assert lab.agents.asked == ["p0", "p1", "p1", "p2"]
        assert await asks_of(second, run_id) == [(1, "first"), (2, "first"), (2, "redo"), (3, "first")]
        row = await row_of(second, run_id)
        assert (row.status, row.epoch, row.calls, row.extra) == (Status.FINISHED, 2, 3, 1)

    in_lab(case)


def test_a_run_whose_host_renews_is_left_to_it_however_long_it_takes(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        lab.agents.kept = {"p0"}
        clock = TickingClock()
        first, second = await lab.host(clock=clock), await lab.host(clock=clock)
        go_with(first, clock)
        go_with(second, clock)
        run_id = await first.submit(FAN, {"n": 1})
        async with first.drive(), second.drive():
            await lab.agents.until_asked("p0")
            for _ in range(12):  # four times as long as a lease lasts
                clock.now += QUICK.lease_seconds / 3
                while (await row_of(second, run_id)).lease_until != clock.now + QUICK.lease_seconds:
                    await asyncio.sleep(0.01)
            lab.agents.let_go("p0")
            await second.wait_for(run_id)
        assert lab.agents.asked == ["p0"]
        assert (await row_of(second, run_id)).epoch == 1

    in_lab(case)


def test_a_run_that_was_started_and_not_submitted_is_taken_over_too(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        lab.agents.kept = {"p0"}
        first, second = await lab.host(leases=SHORT), await lab.host()
        run = await first.start(FAN, {"n": 1})
        await lab.agents.until_asked("p0")
        await freeze(first)
        async with second.drive():
            await lab.agents.until_asked("p0", times=2)
            lab.agents.let_go("p0")
            assert (await second.wait_for(run.id)).value == ["answer to p0"]
            thaw(first)
            assert (await run.wait()).value == ["answer to p0"]

    in_lab(case)


def test_a_cancel_reaches_a_run_whose_host_is_gone(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        lab.agents.kept = {"p0"}
        first, second = await lab.host(leases=SHORT), await lab.host()
        run_id = await first.submit(CHAIN, {"n": 2})
        async with first.drive():
            await lab.agents.until_asked("p0")
        await freeze(first)
        await second.cancel(run_id, "the house is gone")
        async with second.drive():
            outcome = await second.wait_for(run_id)
        thaw(first)
        assert outcome.failure is not None
        assert outcome.failure.message == "the run was cancelled: the house is gone"
        assert lab.agents.asked == ["p0"]

    in_lab(case)


def test_a_host_that_stops_lets_agents_finish_and_hands_the_run_on(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        lab.agents.kept = {"p0", "p1"}
        first, second = await lab.host(), await lab.host()
        run_id = await first.submit(FAN, {"n": 2})
        async with first.drive():
            await lab.agents.until_asked("p1")
        stopping = asyncio.create_task(first.close(drain_seconds=20))
        await asyncio.sleep(0)
        lab.agents.let_go("p0", "p1")
        await stopping
        row = await row_of(second, run_id)
        assert (row.status, row.owner) == (Status.QUEUED, None)
        async with second.drive():
            assert (await second.wait_for(run_id)).value == ["answer to p0", "answer to p1"]
        assert sorted(lab.agents.asked) == ["p0", "p1"]

    in_lab(case)


def test_an_agent_that_does_not_finish_in_time_is_asked_again_on_the_next_host(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        lab.agents.kept = {"p1"}
        first, second = await lab.host(), await lab.host()
        run_id = await first.submit(FAN, {"n": 2})
        async with first.drive():
            await lab.agents.until_asked("p1")
        await first.close(drain_seconds=0.1)
        lab.agents.let_go("p1")
        async with second.drive():
            assert (await second.wait_for(run_id)).value == ["answer to p0", "answer to p1"]
        assert sorted(lab.agents.asked) == ["p0", "p1", "p1"]
        assert second.custody is not None
        entries = [chained.entry for chained in await journal(second.custody.store, run_id)]
        assert [entry.outcome for entry in entries if isinstance(entry, AttemptEnded)] == ["interrupted"]
        assert sum(isinstance(entry, Ended) for entry in entries) == 2

    in_lab(case)


def test_a_host_that_stops_in_the_middle_of_many_runs_loses_none_and_holds_none(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        first, second = await lab.host(), await lab.host()
        names = [f"run{n}-" for n in range(25)]
        ids = [await second.submit(FAN, {"n": 1, "name": name}) for name in names]
        async with first.drive({"default": 8}):
            await lab.agents.until_asked("run4-0")
            await first.close()
        async with second.drive({"default": 8}):
            outcomes = await asyncio.gather(*(second.wait_for(run_id) for run_id in ids))
        assert [outcome.value for outcome in outcomes] == [[f"answer to {name}0"] for name in names]
        assert set(lab.agents.asked) == {f"{name}0" for name in names}
        assert {row.status for row in await second.list_runs()} == {Status.FINISHED}

    in_lab(case)


def test_a_host_that_lost_its_own_lease_in_the_store_takes_the_run_again_and_asks_no_more_than_once_more(
    in_lab: InLab,
) -> None:
    async def case(lab: JobLab) -> None:
        clock = TickingClock()
        lab.agents.kept = {"p1"}
        host = await lab.host(clock=clock)
        run_id = await host.submit(CHAIN, {"n": 3})
        async with host.drive({"default": 2}) as driver:
            await lab.agents.until_asked("p1")
            run = host.get(run_id)
            assert run is not None
            await freeze(host)
            clock.now += 3600  # for the store: nobody renewed for an hour
            await lab.agents.until_asked("p1", times=2)
            lab.agents.let_go("p1")
            assert (await host.wait_for(run_id)).value == ["answer to p0", "answer to p1", "answer to p2"]
            assert (await run.wait()).value == ["answer to p0", "answer to p1", "answer to p2"]
            await host.wait_for(await host.submit(FAN, {"n": 1, "name": "next"}))
            assert run_id not in driver.live
        assert lab.agents.asked == ["p0", "p1", "p1", "p2", "next0"]
        assert host.free_places == 256

    in_lab(case)
