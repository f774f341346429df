"""Promises 2 and 8 while the store is away: nobody is asked, ends are kept in memory, and nothing is lost."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from loopwarden import Host, Run
from loopwarden.lease_keeper import LeaseRules
from loopwarden.store.errors import StoreUnavailable
from support.agents import until
from support.crash_host import Place, begin, make_host, opened, take_over, told
from support.crash_lab import AN_HOUR, CrashLab, Found, Trace, judge, look, private
from support.crash_scenes import SCENES, Order
from support.embedded_postgres import EmbeddedPostgres

SCENE = SCENES["fan-out"]
ANSWERED = 3
"""Agents that answer while the store is away, before the lease ends."""


class Outage:
    """One host cannot reach its store."""

    def __init__(self, store: Any) -> None:
        self.refused = 0
        self.is_away = False
        for thread in {store._writer, store._reader}:
            self._join(thread._session)

    def _join(self, session: Any) -> None:
        begin = session.begin

        def began() -> Any:
            if self.is_away:
                self.refused += 1
                raise StoreUnavailable("the network is down")
            return begin()

        session.begin = began

    async def until_tried(self, times: int = 2) -> None:
        """Wait until the host has tried again."""
        before = self.refused
        await until(lambda: self.refused >= before + times)


@pytest.fixture(scope="module")
def trace(crashes: CrashLab) -> Trace:
    return crashes.trace("fan-out")


@contextmanager
def closed(order: Order) -> Iterator[Order]:
    """Nobody answers meanwhile."""
    order.is_closed = True
    yield order
    order.open()


async def at_work(host: Host, order: Order) -> Run[Any]:
    """A run whose agents wait for their turn."""
    run = await begin(host, SCENE)
    order.follow(run)
    await until(lambda: len(order.at_work) == SCENE.live)
    return run


async def answer_unheard(place: Place, order: Order) -> None:
    """Some agents answer, which the store does not hear, and the lease ends."""
    for seq in order.at_work[:ANSWERED]:
        order.let_answer(seq)
    await until(lambda: order.in_flight == ANSWERED)
    place.time.move(AN_HOUR)


def test_a_store_that_comes_back_within_the_lease_gets_every_end_and_no_agent_is_disturbed(
    place: Place, crashes: CrashLab, trace: Trace
) -> None:
    async def scene() -> Found:
        async with opened(place) as store:
            order, outage = Order(waits=False), Outage(store)
            host = make_host(place, store, SCENE, order)
            crashes.launcher.lend_to(host)
            async with host:
                with closed(order):
                    run = await at_work(host, order)
                    outage.is_away = True
                await until(lambda: order.in_flight == SCENE.live)
                await outage.until_tried()
                # All have answered, slots are free, four more calls wait: and nobody is asked.
                assert len(place.log.asks()) == SCENE.live
                assert order.at_work == []
                outage.is_away = False
                outcome = await run.wait()
                assert outcome.value == trace.result
                return await look(store, run.id)

    found = crashes.runner.run(scene())
    judge(place, SCENE, found, trace=trace, interruptions=0)
    assert len(place.log.asks()) == SCENE.calls


@pytest.mark.parametrize("kills", [True, False])
def test_when_the_lease_ends_while_the_store_is_away_agents_end_unless_they_are_to_be_held(
    kills: bool, place: Place, crashes: CrashLab, trace: Trace
) -> None:
    async def scene() -> Found:
        async with opened(place) as store:
            order, outage = Order(waits=False), Outage(store)
            host = make_host(place, store, SCENE, order, leases=LeaseRules(poll_seconds=0.02, kills=kills))
            crashes.launcher.lend_to(host)
            async with host:
                with closed(order):
                    run = await at_work(host, order)
                    outage.is_away = True
                    await answer_unheard(place, order)
                    if kills:
                        await until(lambda: order.at_work == [])
                    await outage.until_tried(4)
                    assert len(place.log.asks()) == SCENE.live
                    assert len(order.at_work) == (0 if kills else SCENE.live - ANSWERED)
                    outage.is_away = False
                outcome = await run.wait()
                assert outcome.value == trace.result
                events = told([event async for event in run.events()])
                found = await look(store, run.id)
                assert events == found.events
                return found

    found = crashes.runner.run(scene())
    judge(place, SCENE, found, trace=trace, interruptions=1 if kills else 0)
    assert len(place.log.asks()) == SCENE.calls + (SCENE.live - ANSWERED if kills else 0)
    assert {ask.epoch for ask in place.log.asks()} == {1}


def test_a_host_that_is_cut_off_beyond_its_lease_keeps_nothing_when_another_one_took_the_run(
    place: Place, crashes: CrashLab, trace: Trace
) -> None:
    async def scene() -> tuple[Found, Found]:
        async with opened(place) as far, opened(place) as near:
            order, outage = Order(waits=False), Outage(far)
            first, second = make_host(place, far, SCENE, order), make_host(place, near, SCENE, Order(waits=False))
            crashes.launcher.lend_to(first)
            crashes.launcher.lend_to(second)
            async with first, second:
                with closed(order):
                    run = await at_work(first, order)
                    outage.is_away = True
                    await answer_unheard(place, order)
                    await until(lambda: order.at_work == [])
                    before = await look(near, run.id)
                    taken = await take_over(second, run.id)
                    assert taken is not None
                    outcome = await taken.wait()
                    assert outcome.value == trace.result
                    outage.is_away = False
                    lost = await run.wait()
                assert (lost.value, lost.stop_reason) == (trace.result, "completed")
                found = await look(near, run.id)
                assert told([event async for event in run.events()]) == found.events
                return before, found

    before, found = crashes.runner.run(scene())
    judge(place, SCENE, found, before=before, trace=trace, interruptions=1)
    assert [ask.epoch for ask in place.log.asks()] == [1] * SCENE.live + [2] * SCENE.calls


def test_a_run_goes_on_over_a_postgres_server_that_is_stopped_and_started(
    crashes: CrashLab, trace: Trace, tmp_path: Path
) -> None:
    server = EmbeddedPostgres(fsync=True)
    place = Place(private(tmp_path / "place"), server.url())

    async def scene() -> Found:
        async with opened(place) as store:
            order = Order(waits=False)
            host = make_host(place, store, SCENE, order)
            crashes.launcher.lend_to(host)
            async with host:
                with closed(order):
                    run = await at_work(host, order)
                    await asyncio.to_thread(server.shut_down_at_once)
                await until(lambda: order.in_flight == SCENE.live)
                with pytest.raises(StoreUnavailable):
                    await store.get(run.id)
                assert len(place.log.asks()) == SCENE.live
                await asyncio.to_thread(server.start)
                outcome = await run.wait()
                assert outcome.value == trace.result
                return await look(store, run.id)

    try:
        found = crashes.runner.run(scene())
    finally:
        server.close()
    judge(place, SCENE, found, trace=trace, interruptions=0)
    assert len(place.log.asks()) == SCENE.calls
