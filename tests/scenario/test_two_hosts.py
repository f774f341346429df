"""Promises 2, 6 and 8 on two hosts with one store: one of them is killed, or stopped and continued.

Where a host is stopped, time is moved instead of waited for; where it is killed, leases are short and time is real.
"""

import asyncio
import contextlib
import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from loopwarden import Host, InvalidRequest
from loopwarden.journal.entries import Claimed
from loopwarden.lease_keeper import LeaseRules
from loopwarden.store.api import Store
from support.agents import carrying, kill_all, state, until
from support.crash_host import Place, make_host, opened, take_over
from support.crash_lab import (
    AN_HOUR,
    KILLED,
    CrashLab,
    Found,
    Nursery,
    Trace,
    judge,
    look,
    only_run,
)
from support.crash_scenes import SCENES, Order

LEASE_SECONDS, KILL_GRACE_SECONDS, POLL_SECONDS = 0.6, 0.3, 0.1
SHORT = LeaseRules(lease_seconds=LEASE_SECONDS, kill_grace_seconds=KILL_GRACE_SECONDS, poll_seconds=POLL_SECONDS)
SLACK_SECONDS = 2.0
"""For a machine that is busy with other tests."""
SCENE = "fan-out"
LATE = {"ask.before": 0, "ask.checked": 1, "ask.logged": 0, "answer.given": 0, "append.handed": 0,
        "append.committed": 0, "read.after": 0, "send.before": 0}  # fmt: skip
"""By seam at which a host is stopped: how many asks were past the check of the lease by then, and come late."""


@pytest.fixture(scope="module")
def trace(crashes: CrashLab) -> Trace:
    return crashes.trace(SCENE)


@contextlib.contextmanager
def host(hosts: Nursery, place: Place, scene: str = SCENE, **order: object) -> Iterator[int]:
    """A host in a process of its own; killed in the end, if it still lives."""
    pid = hosts.begin(place, scene, **order)
    try:
        yield pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        hosts.wait(pid)


def is_stopped(pid: int) -> Callable[[], bool]:
    return lambda: state(pid) == b"T"


@pytest.mark.parametrize("at", [2, 5])
@pytest.mark.parametrize("seam", LATE)
def test_a_host_that_was_stopped_beyond_its_lease_does_nothing_more(
    seam: str, at: int, place: Place, crashes: CrashLab, trace: Trace
) -> None:
    async def scene(first: int) -> tuple[Found, Found]:
        await until(is_stopped(first))
        place.time.move(AN_HOUR)
        async with opened(place) as store:
            run_id = await only_run(store)
            assert run_id is not None
            before = await look(store, run_id)
            asked = len(place.log.asks())
            order = Order()
            order.is_closed = True
            second = make_host(place, store, SCENES[SCENE], order)
            crashes.launcher.lend_to(second)
            async with second:
                run = await take_over(second, run_id)
                assert run is not None
                order.follow(run)
                os.kill(first, signal.SIGCONT)
                await until((place.folder / "gone").exists)
                late = [ask for ask in place.log.asks()[asked:] if ask.epoch == 1]
                assert len(late) <= LATE[seam]
                order.open()
                outcome = await run.wait()
                assert outcome.value == trace.result
            return before, await look(store, run_id)

    with host(crashes.hosts, place, seam=seam, at=at, action="stop") as first:
        before, found = crashes.runner.run(scene(first))
        # The loser follows the run to its real end.
        assert crashes.hosts.wait(first)["exit"] == 0
    judge(place, SCENES[SCENE], found, before=before, trace=trace, interruptions=1)
    claims = [place for place, one in enumerate(found.chained) if isinstance(one.entry, Claimed)]
    assert claims == [1, len(before.chained)]
    report = place.report()
    assert report["value"] == trace.result
    assert report["stopReason"] == "completed"
    assert report["events"] == found.events


@pytest.mark.parametrize("seam", LATE)
def test_a_host_that_was_stopped_beyond_its_lease_goes_on_when_nobody_took_the_run(
    seam: str, place: Place, crashes: CrashLab, trace: Trace
) -> None:
    with host(crashes.hosts, place, seam=seam, at=3, action="stop") as only:
        crashes.runner.run(until(is_stopped(only)))
        place.time.move(AN_HOUR)
        os.kill(only, signal.SIGCONT)
        assert crashes.hosts.wait(only)["exit"] == 0
    found = crashes.held(place)
    assert found is not None
    judge(place, SCENES[SCENE], found, trace=trace, interruptions=1)
    assert place.report()["events"] == found.events


def test_a_host_that_is_killed_is_replaced_within_lease_grace_and_poll(
    place: Place, crashes: CrashLab, trace: Trace
) -> None:
    async def scene(first: int) -> tuple[float, float, Found]:
        async with opened(place) as store:
            order = Order()
            second = make_host(place, store, SCENES[SCENE], order, leases=SHORT)
            crashes.launcher.lend_to(second)
            await until(lambda: len(place.log.asks()) == SCENES[SCENE].live)
            run_id = await only_run(store)
            assert run_id is not None
            async with second, second.drive():
                # A live host keeps its run, however long that takes.
                began = await lease_of(store, run_id)
                while await lease_of(store, run_id) < began + 2 * LEASE_SECONDS:
                    await asyncio.sleep(0.02)
                os.kill(first, signal.SIGKILL)
                killed_at = time.time()
                last = await lease_of(store, run_id)
                assert last <= killed_at + LEASE_SECONDS
                outcome = await second.wait_for(run_id)
                assert outcome.value == trace.result
            return last, killed_at, await look(store, run_id)

    with host(crashes.hosts, place, leases=asdict(SHORT), is_mute=True) as first:
        lease_until, killed_at, found = crashes.runner.run(scene(first))
        assert crashes.hosts.wait(first)["exit"] == KILLED
    judge(place, SCENES[SCENE], found, trace=trace, interruptions=1)
    claims = [one.entry for one in found.chained if isinstance(one.entry, Claimed)]
    assert [claim.epoch for claim in claims] == [1, 2]
    # Not before the agents of the old host must be dead, and not later than was promised.
    free_at = lease_until + KILL_GRACE_SECONDS
    assert free_at < claims[1].at <= free_at + POLL_SECONDS + SLACK_SECONDS
    assert claims[1].at - killed_at <= LEASE_SECONDS + KILL_GRACE_SECONDS + POLL_SECONDS + SLACK_SECONDS


async def taken_to_its_end(host: Host, run_id: str) -> None:
    """Take a run over whose script has ended: it is only wound up, unless that was not committed yet."""
    run = await take_over(host, run_id)
    if run is not None:
        await run.wait()


async def lease_of(store: Store, run_id: str) -> float:
    row = await store.get(run_id)
    assert row is not None
    assert row.lease_until is not None
    return row.lease_until


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_after_a_takeover_no_agent_of_the_old_host_lives(
    number: signal.Signals, place: Place, mark: str, crashes: CrashLab
) -> None:
    async def scene(first: int) -> None:
        await until((place.folder / "begun").exists)
        # Two sleeps and a shell for each of three agents.
        await until(lambda: len(carrying("TEST_MARK", mark)) >= 9)
        os.kill(first, number)
        async with opened(place) as store:
            run_id = await only_run(store)
            assert run_id is not None
            order = Order()
            second = make_host(place, store, SCENES["second-thoughts"], order, leases=SHORT)
            crashes.launcher.lend_to(second)
            async with second:
                while True:
                    with contextlib.suppress(InvalidRequest):
                        run = await take_over(second, run_id)
                        break
                    await asyncio.sleep(0.01)
                assert carrying("TEST_MARK", mark) == set()
                assert run is not None
                order.follow(run)
                outcome = await run.wait()
                assert outcome.failure is None
                assert carrying("TEST_MARK", mark) == set()

    with host(crashes.hosts, place, "second-thoughts", leases=asdict(SHORT), mark=mark) as first:
        crashes.runner.run(scene(first))
        if number is signal.SIGSTOP:
            os.kill(first, signal.SIGCONT)
            assert crashes.hosts.wait(first)["exit"] == 0
            assert place.report()["stopReason"] == "completed"
    found = crashes.held(place)
    assert found is not None
    assert found.findings == ()
    assert {ask.epoch for ask in place.log.asks()} == {2}
    assert carrying("TEST_MARK", mark) == set()


@pytest.mark.parametrize("seam", ["check.before", "check.after"])
def test_a_host_that_was_stopped_in_its_checks_leaves_the_end_to_the_other_one(
    seam: str, place: Place, crashes: CrashLab
) -> None:
    async def scene(first: int) -> Found:
        await until(is_stopped(first))
        place.time.move(AN_HOUR)
        async with opened(place) as store:
            run_id = await only_run(store)
            assert run_id is not None
            second = make_host(place, store, SCENES["ralph"], Order())
            crashes.launcher.lend_to(second)
            async with second:
                await taken_to_its_end(second, run_id)
            os.kill(first, signal.SIGCONT)
            return await look(store, run_id)

    with host(crashes.hosts, place, "ralph", seam=seam, at=1, action="stop", checks=["true"]) as first:
        found = crashes.runner.run(scene(first))
        assert crashes.hosts.wait(first)["exit"] == 0
    judge(place, SCENES["ralph"], found, interruptions=0)
    assert found.outcome.verified is True
    assert place.report()["events"] == found.events
    assert len((crashes.held(place) or found).chained) == len(found.chained)


def test_checks_that_take_longer_than_a_lease_are_run_to_their_end_by_the_host_that_took_over(
    place: Place, crashes: CrashLab
) -> None:
    seconds = 2 * LEASE_SECONDS

    async def scene() -> Found:
        place.time.move(AN_HOUR)
        async with opened(place) as store:
            run_id = await only_run(store)
            assert run_id is not None
            second = make_host(place, store, SCENES["ralph"], Order(), leases=SHORT)
            crashes.launcher.lend_to(second)
            async with second:
                await taken_to_its_end(second, run_id)
            return await look(store, run_id)

    with host(crashes.hosts, place, "ralph", seam="append.handed", at=19, checks=[f"sleep {seconds}"]) as first:
        assert crashes.hosts.wait(first)["exit"] == KILLED
    found = crashes.runner.run(scene())
    judge(place, SCENES["ralph"], found, interruptions=0)
    assert found.outcome.verified is True


def test_no_check_of_a_host_that_was_stopped_lives_when_its_run_may_be_taken_over(
    place: Place, crashes: CrashLab
) -> None:
    seconds = f"600.{secrets.randbelow(10**9)}"

    def checking() -> set[int]:
        return {pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if seconds in command_of(pid)}

    async def scene(first: int) -> None:
        await until(lambda: bool(checking()))
        os.kill(first, signal.SIGSTOP)
        async with opened(place) as store:
            run_id = await only_run(store)
            assert run_id is not None
            free_at = await lease_of(store, run_id) + KILL_GRACE_SECONDS
            await until(lambda: place.time.wall() > free_at)
        assert checking() == set()

    try:
        with host(crashes.hosts, place, "ralph", leases=asdict(SHORT), checks=[f"sleep {seconds}"]) as first:
            crashes.runner.run(scene(first))
    finally:
        kill_all(checking())


def command_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []
