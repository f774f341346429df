"""A run whose start was refused, or given up, is not left in the store for another host to drive."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loopwarden.run_folder import RunFolderError
from loopwarden.run_record import RunRecord
from loopwarden.store.api import Store
from loopwarden.store.runs import RunFilter, Status
from support.crash_host import Place, begin, make_host, opened
from support.crash_lab import private
from support.crash_scenes import SCENES, Order
from support.lent_launcher import LentLauncher, lent_launcher

SCENE = SCENES["ralph"]


@pytest.fixture(scope="module")
def launcher(runner: asyncio.Runner) -> Iterator[LentLauncher]:
    with lent_launcher(runner) as launcher:
        yield launcher


async def unfinished(store: Store) -> list[str]:
    """Runs that some host would drive, now or once a lease has ended."""
    return [row.run_id for row in await store.find(RunFilter()) if row.status is not Status.FINISHED]


def test_a_run_that_got_no_folder_was_not_started(
    runner: asyncio.Runner, launcher: LentLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(record: RunRecord, **options: Any) -> None:
        raise RunFolderError("the disk is full")

    async def scene() -> None:
        place = Place(private(tmp_path / "place"))
        async with opened(place) as store:
            host = make_host(place, store, SCENE, Order())
            launcher.lend_to(host)
            async with host:
                monkeypatch.setattr(RunRecord, "make_folder", refuse)
                with pytest.raises(RunFolderError):
                    await begin(host, SCENE)
            assert await unfinished(store) == []

    runner.run(scene())


def test_a_start_that_is_cancelled_while_the_store_answers_leaves_no_run(
    runner: asyncio.Runner, launcher: LentLauncher, tmp_path: Path
) -> None:
    async def scene() -> None:
        place = Place(private(tmp_path / "place"))
        async with opened(place) as store:
            create, is_committed = store.create, asyncio.Event()

            async def created(*arguments: Any, **options: Any) -> Any:
                rows = await create(*arguments, **options)
                is_committed.set()
                await asyncio.Event().wait()
                return rows

            store.create = created  # type: ignore[method-assign]
            host = make_host(place, store, SCENE, Order())
            launcher.lend_to(host)
            async with host:
                starting = asyncio.create_task(begin(host, SCENE))
                await is_committed.wait()
                starting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await starting
            assert await unfinished(store) == []

    runner.run(scene())
