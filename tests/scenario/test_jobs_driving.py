"""Driving: which runs a host claims, in which order, how many at a time; and each run exactly once."""

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from loopwarden import (
    BreakerRule,
    FailureClass,
    Host,
    InvalidRequest,
    JsonObject,
    LaunchFailed,
    Limits,
    PlainContract,
    Policy,
    Script,
)
from loopwarden.journal.entries import Claimed
from loopwarden.store.errors import StoreUnavailable
from loopwarden.store.runs import Claim, Owner, Status, Wanted
from support.job_lab import FAN, InLab, JobLab, row_of
from support.lent_launcher import LentLauncher
from support.store_lab import TickingClock, journal


class Own(PlainContract):
    """A contract that not every host has."""


OWN = Script(name="own", source=FAN.source, contract=Own())


async def until_looked(host: Host, times: int = 3) -> None:
    """Wait until the host has looked for runs so often."""
    assert host.custody is not None
    store, looked = host.custody.store, asyncio.Semaphore(0)
    claim = store.claim

    async def counted(owner: Owner, wanted: Wanted, *, limit: int) -> list[Claim]:
        claims = await claim(owner, wanted, limit=limit)
        looked.release()
        return claims

    store.claim = counted  # type: ignore[method-assign]
    try:
        for _ in range(times):
            await looked.acquire()
    finally:
        store.claim = claim  # type: ignore[method-assign]


def test_higher_priority_goes_first_and_then_who_came_first(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        host = await lab.host()
        ids = [
            await host.submit(FAN, {"n": 1, "name": name}, priority=priority)
            for name, priority in (("low", -1), ("a", 0), ("b", 0), ("high", 5))
        ]
        async with host.drive({"default": 1}) as driver:
            for run_id in ids:
                await host.wait_for(run_id)
            assert driver.queues == {"default": 1}
        assert lab.agents.asked == ["high0", "a0", "b0", "low0"]

    in_lab(case)


def test_a_run_is_not_driven_before_its_time(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        clock = TickingClock()
        host = await lab.host(clock=clock)
        later = await host.submit(FAN, {"n": 1, "name": "later"}, not_before=clock.now + 60)
        now = await host.submit(FAN, {"n": 1, "name": "now"}, not_before=clock.now)
        async with host.drive():
            await host.wait_for(now)
            await until_looked(host)
            assert (await row_of(host, later)).status is Status.QUEUED
            clock.now += 60
            assert (await host.wait_for(later)).stop_reason == "completed"

    in_lab(case)


def test_a_paused_queue_gives_nothing_until_it_is_resumed(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        host = await lab.host()
        assert host.custody is not None
        store = host.custody.store
        await store.set_queue("a", is_paused=True)
        waits = await host.submit(FAN, {"n": 1}, queue="a")
        goes = await host.submit(FAN, {"n": 1}, queue="b")
        async with host.drive({"a": 1, "b": 1}):
            await host.wait_for(goes)
            await until_looked(host)
            assert (await row_of(host, waits)).status is Status.QUEUED
            await store.set_queue("a", is_paused=False)
            assert (await host.wait_for(waits)).stop_reason == "completed"

    in_lab(case)


def test_a_host_has_so_many_live_runs_of_a_queue_as_it_has_places(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        lab.agents.kept = {"a0", "b0", "c0"}
        host = await lab.host()
        ids = {name: await host.submit(FAN, {"n": 1, "name": name}) for name in ("a", "b", "c")}
        async with host.drive({"default": 2}) as driver:
            await lab.agents.until_asked("a0")
            await lab.agents.until_asked("b0")
            await until_looked_or_full(host)
            assert (await row_of(host, ids["c"])).status is Status.QUEUED
            assert sorted(driver.live) == sorted([ids["a"], ids["b"]])
            lab.agents.let_go("b0")
            await lab.agents.until_asked("c0")
            lab.agents.let_go("a0", "c0")
            for run_id in ids.values():
                await host.wait_for(run_id)

    in_lab(case)


async def until_looked_or_full(host: Host) -> None:
    """Give a driver that has no place the time of some polls."""
    assert host.custody is not None
    await asyncio.sleep(3 * host.custody.rules.poll_seconds)


def test_max_running_bounds_a_queue_over_all_hosts(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        lab.agents.kept = {"a0", "b0"}
        one, other = await lab.host(), await lab.host()
        assert one.custody is not None
        await one.custody.store.set_queue("default", max_running=1)
        a = await one.submit(FAN, {"n": 1, "name": "a"})
        b = await one.submit(FAN, {"n": 1, "name": "b"})
        async with one.drive(), other.drive():
            await lab.agents.until_asked("a0")
            await until_looked(other)
            assert (await row_of(one, b)).status is Status.QUEUED
            lab.agents.let_go("a0", "b0")
            await one.wait_for(a)
            await one.wait_for(b)

    in_lab(case)


def test_max_live_runs_bounds_what_a_host_claims(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        lab.agents.kept = {"mine0", "a0"}
        host = await lab.host(limits=Limits(max_live_runs=2))
        mine = await host.start(FAN, {"n": 1, "name": "mine"})
        a = await host.submit(FAN, {"n": 1, "name": "a"})
        b = await host.submit(FAN, {"n": 1, "name": "b"})
        async with host.drive():
            await lab.agents.until_asked("a0")
            await until_looked_or_full(host)
            assert host.free_places == 0
            assert (await row_of(host, b)).status is Status.QUEUED
            with pytest.raises(InvalidRequest, match="maxLiveRuns"):
                await host.start(FAN, {"n": 1})
            lab.agents.let_go("mine0", "a0")
            assert (await host.wait_for(b)).stop_reason == "completed"
            await mine.wait()
            await host.wait_for(a)

    in_lab(case)


def test_two_hosts_drive_each_run_exactly_once(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        hosts = [await lab.host() for _ in range(2)]
        ids = [await hosts[0].submit(FAN, {"n": 2, "name": f"run{n}-"}) for n in range(30)]
        async with hosts[0].drive({"default": 4}), hosts[1].drive({"default": 4}):
            outcomes = await asyncio.gather(*(hosts[1].wait_for(run_id) for run_id in ids))
        assert [outcome.stop_reason for outcome in outcomes] == ["completed"] * 30
        assert sorted(lab.agents.asked) == sorted(f"run{n}-{i}" for n in range(30) for i in range(2))
        assert hosts[0].custody is not None
        for run_id in ids:
            entries = [chained.entry for chained in await journal(hosts[0].custody.store, run_id)]
            assert sum(isinstance(entry, Claimed) for entry in entries) == 1

    in_lab(case)


def test_runs_of_one_loop_go_only_to_hosts_that_have_its_contract(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        submitter, without, with_it = await lab.host(), await lab.host(), await lab.host(scripts=[OWN])
        own = await submitter.submit(OWN, {"n": 1})
        plain = await submitter.submit(Script.from_text(FAN.source, name="never heard of"), {"n": 1})
        async with without.drive():
            assert (await submitter.wait_for(plain)).stop_reason == "completed"
            await until_looked(without)
            assert (await row_of(submitter, own)).status is Status.QUEUED
            async with with_it.drive():
                assert (await submitter.wait_for(own)).stop_reason == "completed"

    in_lab(case)


def test_a_script_without_a_contract_may_have_the_name_of_a_loop(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        host = await lab.host(scripts=[OWN])
        plain = await host.submit(Script.from_text(FAN.source, name="own"), {"n": 1})
        async with host.drive():
            assert (await host.wait_for(plain)).stop_reason == "completed"

    in_lab(case)


@pytest.mark.parametrize("has_fallback", [False, True])
def test_a_provider_that_is_out_of_use_gets_no_run_unless_a_fallback_takes_over(
    in_lab: InLab, has_fallback: bool
) -> None:
    async def case(lab: JobLab) -> None:
        fallback = "spare" if has_fallback else None
        host = await lab.host(
            providers={"main": lab.agents, "spare": lab.agents, "third": lab.agents},
            default_provider="main",
            policies={"main": Policy(fallback=fallback, breaker=BreakerRule(failures=1, reopen_seconds=3600))},
            limits=Limits(max_extra_attempts=1),
        )
        run_id = await host.submit(FAN, {"n": 1})
        host.board.failed("main", object(), FailureClass.AUTH, "key revoked")
        elsewhere = await host.submit(FAN, {"n": 1, "name": "third"}, provider="third")
        async with host.drive():
            assert (await host.wait_for(elsewhere)).stop_reason == "completed"
            if not has_fallback:
                await until_looked(host)
                assert (await row_of(host, run_id)).status is Status.QUEUED
                host.board.succeeded("main")
            assert (await host.wait_for(run_id)).stop_reason == "completed"

    in_lab(case)


def test_a_store_that_cannot_be_asked_is_asked_again(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        host = await lab.host()
        assert host.custody is not None
        store = host.custody.store
        claim, woken, failures = store.claim, store.woken, 3

        async def away(owner: Owner, wanted: Wanted, *, limit: int) -> list[Claim]:
            nonlocal failures
            if failures:
                failures -= 1
                raise StoreUnavailable("the database cannot be reached")
            return await claim(owner, wanted, limit=limit)

        async def deaf(queues: Any, timeout_seconds: float) -> bool:
            if failures:
                raise StoreUnavailable("the database cannot be reached")
            return await woken(queues, timeout_seconds)

        store.claim, store.woken = away, deaf  # type: ignore[method-assign]
        async with host.drive():
            run_id = await host.submit(FAN, {"n": 1})
            assert (await host.wait_for(run_id)).stop_reason == "completed"
        assert failures == 0

    in_lab(case)


def test_a_host_that_cannot_start_workers_claims_nothing(in_lab: InLab, lent: LentLauncher) -> None:
    async def case(lab: JobLab) -> None:
        host, submitter = await lab.host(), await lab.host()
        run_id = await submitter.submit(FAN, {"n": 1})

        async def no_launcher() -> Any:
            raise LaunchFailed("no process can be made")

        host._ready_launcher = no_launcher  # type: ignore[method-assign]
        with pytest.raises(LaunchFailed):
            async with host.drive():
                raise AssertionError("it must not begin")
        with pytest.raises(LaunchFailed):
            await host.drive()
        row = await row_of(submitter, run_id)
        assert (row.status, row.epoch) == (Status.QUEUED, 0)

    in_lab(case)


def test_a_run_that_cannot_begin_here_is_given_back_and_begins_later(in_lab: InLab, lent: LentLauncher) -> None:
    async def case(lab: JobLab) -> None:
        host = await lab.host()
        run_id = await host.submit(FAN, {"n": 1})
        fork, failures = lent.fork, 2

        async def failing(*limits: Any) -> Any:
            nonlocal failures
            if failures:
                failures -= 1
                raise LaunchFailed("too many processes")
            return await fork(*limits)

        lent.fork = failing  # type: ignore[method-assign]
        try:
            async with host.drive():
                assert (await host.wait_for(run_id)).stop_reason == "completed"
        finally:
            lent.fork = fork  # type: ignore[method-assign]
        assert failures == 0
        assert lab.agents.asked == ["p0"]
        assert (await row_of(host, run_id)).epoch == 3

    in_lab(case)


def test_driving_by_await_goes_on_until_it_is_cancelled_or_the_host_is_closed(in_lab: InLab) -> None:
    async def drive(host: Host, queues: Mapping[str, int]) -> None:
        await host.drive(queues)

    async def case(lab: JobLab) -> None:
        host, submitter = await lab.host(), await lab.host()
        driving = asyncio.create_task(drive(host, {"default": 1}))
        await submitter.wait_for(await submitter.submit(FAN, {"n": 1}))
        driving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await driving
        waits = await submitter.submit(FAN, {"n": 1, "name": "b"})
        assert (await row_of(submitter, waits)).status is Status.QUEUED
        again = asyncio.create_task(drive(host, {"default": 1}))
        await submitter.wait_for(waits)
        await host.close()
        await again
        assert lab.agents.asked == ["p0", "b0"]

    in_lab(case)


def test_runs_that_are_live_when_the_driving_ends_go_on(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        lab.agents.kept = {"p0"}
        host = await lab.host()
        run_id = await host.submit(FAN, {"n": 1})
        async with host.drive():
            await lab.agents.until_asked("p0")
        lab.agents.let_go("p0")
        assert (await host.wait_for(run_id)).stop_reason == "completed"
        assert lab.agents.asked == ["p0"]

    in_lab(case)


@pytest.mark.parametrize(
    ("queues", "message"),
    [
        ({}, "there is no queue to drive; name at least one"),
        ({"a": 0}, "the queue 'a' has at least one place, not 0"),
        ({"a b": 1}, "'a b' cannot name a queue; use letters (a to z), digits and : . _ - /"),
    ],
)
def test_queues_that_cannot_be_driven_are_refused(in_lab: InLab, queues: dict[str, int], message: str) -> None:
    async def case(lab: JobLab) -> None:
        host = await lab.host()
        with pytest.raises(InvalidRequest) as refusal:
            host.drive(queues)
        assert refusal.value.message == message

    in_lab(case)


def test_a_driver_is_used_once(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        host = await lab.host()
        async with host.drive() as driver:
            pass
        with pytest.raises(RuntimeError, match="this driver was used before"):
            await driver

    in_lab(case)


def test_a_contract_that_fails_at_the_recorded_arguments_holds_the_run(in_lab: InLab) -> None:
    class Moody(PlainContract):
        """Takes everything once."""

        is_sour = False

        def decode_args(self, args: object) -> JsonObject:
            if Moody.is_sour:
                raise RuntimeError("not today")
            return super().decode_args(args)

    async def case(lab: JobLab) -> None:
        script = Script(name="moody", source=FAN.source, contract=Moody())
        host = await lab.host(scripts=[script])
        run_id = await host.submit(script, {"n": 1})
        Moody.is_sour = True
        async with host.drive():
            outcome = await host.wait_for(run_id)
        row = await row_of(host, run_id)
        assert (row.status, row.failure_code) == (Status.HELD, "INVALID_REQUEST")
        assert row.reason == "the contract of the loop failed with RuntimeError at the recorded arguments"
        assert outcome.failure is not None

    in_lab(case)


def test_a_run_that_waits_for_its_workspace_is_no_error_and_is_said_once(
    in_lab: InLab, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def case(lab: JobLab) -> None:
        folder = tmp_path / "tree"
        folder.mkdir()
        host = await lab.host()
        lab.agents.kept.add("a0")
        first, second = [await host.submit(FAN, {"n": 1, "name": name}, workspace=folder) for name in "ab"]
        async with host.drive({"default": 2}):
            await lab.agents.until_asked("a0")
            while (await row_of(host, second)).epoch < 3:  # so often it was claimed here
                await until_looked(host, 1)
            lab.agents.let_go("a0")
            assert (await host.wait_for(first)).failure is None
            assert (await host.wait_for(second)).failure is None

    caplog.set_level(logging.INFO, logger="loopwarden")
    in_lab(case)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []
    said = [record for record in caplog.records if record.getMessage() == "a run waits for its workspace"]
    assert [record.levelname for record in said] == ["INFO"]
    assert "another run works in" in str(said[0].__dict__)
