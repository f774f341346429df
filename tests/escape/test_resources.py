"""Promise 3: resource bombs. Each ends typed and in time, and hurts neither its host nor the runs beside it."""

import asyncio
import gc
import os
from collections.abc import Iterator
from typing import Any

import pytest

from loopwarden import StartRefused
from support.bomb_lab import BEAT_SECONDS, Measured, bomb_range, rows_by_family
from support.census import descendants, descriptors

FAMILIES = rows_by_family()
MAX_HELD_SECONDS = 0.05
MAX_GROWN_BYTES = 64 * 1024 * 1024
LONG_SECONDS = 6 * BEAT_SECONDS


@pytest.fixture
def only_what_the_host_makes() -> Iterator[None]:
    """Keep the collector from walking through what the tests before this one left."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("only_what_the_host_makes")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_bomb_hurts_only_itself(family: str) -> None:
    """It ends as it must, the event loop is never held for long, memory stays bounded, 20 honest runs go on."""
    assert descendants(os.getpid()) == set()
    open_before = descriptors()
    problems = asyncio.run(_problems(FAMILIES[family]))
    assert problems == []
    assert descendants(os.getpid()) == set()
    assert descriptors() == open_before


async def _problems(rows: list[dict[str, Any]]) -> list[str]:
    problems: list[str] = []
    async with bomb_range() as place:
        for row in rows:
            found = list(judged(row, await place.set_off(row)))
            if found:
                # Once more: a busy machine makes the same work take longer, but a fault is there every time.
                found = list(judged(row, await place.set_off(row)))
            problems += [f"{row['id']}: {problem}" for problem in found]
    if len(asyncio.all_tasks()) > 1:
        problems.append(f"tasks are left: {asyncio.all_tasks()}")
    return problems


def judged(row: dict[str, Any], measured: Measured) -> Iterator[str]:
    """What is wrong with a bomb's end."""
    expected = row["expect"]
    ending = measured.code or "value"
    if isinstance(expected, dict):
        assert not isinstance(measured.ending, StartRefused), measured.ending
        if ending != "value" or measured.ending.value != expected["value"]:
            yield f"it ended with {str(measured.ending)[:300]}"
    elif ending not in expected:
        yield f"it ended with {str(measured.ending)[:300]}"
    if measured.held_seconds >= MAX_HELD_SECONDS:
        yield f"the host held its event loop for {measured.held_seconds * 1000:.1f} ms"
    if measured.grown_bytes >= MAX_GROWN_BYTES:
        yield f"the host grew by {measured.grown_bytes} bytes"
    if measured.seconds > LONG_SECONDS and measured.rounds == 0:
        yield f"an honest run stood still for {measured.seconds:.1f} s"
