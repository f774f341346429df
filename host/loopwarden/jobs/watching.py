"""Following a run of a store to its end, whoever drives it: its events, and its outcome."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

from loopwarden.events import Event
from loopwarden.following import LOOK_AGAIN_SECONDS, Following, outcome_of
from loopwarden.live_run import LiveRun
from loopwarden.outcome import Outcome
from loopwarden.store.api import Store
from loopwarden.store.errors import StoreUnavailable


async def outcome_of_job(store: Store, run_id: str) -> Outcome[Any]:
    """Wait until a run has ended or is held. Raises `StoreCorrupt`."""
    return outcome_of(await Following(store, run_id).until_over(lambda _: None))


async def events_of(
    store: Store, run_id: str, after: int, live_run: Callable[[str], LiveRun[Any] | None]
) -> AsyncIterator[Event]:
    """Events with a number above `after`, until the run has ended or is held. Raises `StoreCorrupt`.

    `live_run`: the run while this host drives it. Its events come from there, with what the journal does not keep.
    """
    following = Following(store, run_id)
    while True:
        run = live_run(run_id)
        if run is not None:
            async with contextlib.aclosing(_live_events(run, after)) as live:
                async for event in live:
                    after = max(after, event.number)
                    yield event
        try:
            committed = await following.more_or_damage()
        except StoreUnavailable:
            await asyncio.sleep(LOOK_AGAIN_SECONDS)
            continue
        for event in committed:
            if event.number > after:
                after = event.number
                yield event
        if following.is_over:
            return
        with contextlib.suppress(StoreUnavailable):
            await store.changed(run_id, after=following.state.seq, timeout_seconds=LOOK_AGAIN_SECONDS)


async def _live_events(run: LiveRun[Any], after: int) -> AsyncGenerator[Event, None]:
    """Events of a run of this host, until it has left: then the store tells the rest."""
    events = run.events(after)
    gone = asyncio.ensure_future(run.gone())
    try:
        while True:
            coming = asyncio.ensure_future(anext(events, None))
            try:
                await asyncio.wait({coming, gone}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not coming.done():
                    coming.cancel()
            event = None if not coming.done() or coming.cancelled() else coming.result()
            if event is None:
                return
            yield event
    finally:
        gone.cancel()
