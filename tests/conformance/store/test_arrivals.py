"""Waiting for runs to claim: a hint on every store, told at once by what is submitted or given back."""

import asyncio

from loopwarden.journal.entries import Logged
from loopwarden.store.api import Store
from loopwarden.store.appends import Appended
from support.store_lab import ALICE, append, new_run, started, wanted

LONG_SECONDS = 30.0
"""Longer than any of this takes: a wait that lasts so long has failed."""


async def waiting(store: Store, *queues: str) -> "asyncio.Task[bool]":
    """A wait that has begun, with nothing left from before."""
    while await store.woken(queues, 0.02):
        pass
    return asyncio.ensure_future(store.woken(queues, LONG_SECONDS))


async def test_a_submitted_run_ends_the_wait(store: Store) -> None:
    wait = await waiting(store, "nightly")
    await store.create([new_run("r1")])
    assert await wait


async def test_what_came_before_the_wait_counts_once(store: Store) -> None:
    await store.create([new_run("r1")])
    assert await store.woken(["nightly"], LONG_SECONDS)
    assert not await store.woken(["nightly"], 0.05)


async def test_a_run_of_another_queue_or_none_or_with_an_owner_does_not(store: Store) -> None:
    assert not await store.woken(["nightly"], 0.05)
    await store.create([new_run("r1", queue="daily")])
    await store.create([new_run("r2", queue=None)])
    await started(store, "r3")
    assert not await store.woken(["nightly"], 0.3)


async def test_a_run_of_any_of_the_queues_does(store: Store) -> None:
    wait = await waiting(store, "nightly", "daily")
    await store.create([new_run("r1", queue="daily")])
    assert await wait


async def test_a_run_that_is_given_back_ends_the_wait_of_another_host(store: Store) -> None:
    await store.create([new_run("r1")])
    assert len(await store.claim(ALICE, wanted(), limit=1)) == 1
    wait = await waiting(store, "nightly")
    assert isinstance(await append(store, "r1", 1, Logged(at=1.0, message="bye"), change="queued"), Appended)
    assert await wait


async def test_a_wait_that_ends_without_news_says_so_in_time(store: Store) -> None:
    begun = asyncio.get_running_loop().time()
    assert not await store.woken(["nightly"], 0.1)
    assert asyncio.get_running_loop().time() - begun < 5
