"""Opening the store of the settings, and bringing into it what they say."""

import asyncio
import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from loopwarden.failures import InvalidRequest, StoreRefused
from loopwarden.settings import Settings
from loopwarden.store.api import Store
from loopwarden.store.declared import declare_queues, declare_scopes
from loopwarden.store.opening import open_store
from loopwarden.store.shared import Scope
from loopwarden.store_settings import QueueSettings, ScopeSettings, StoreSettings

BY = f"settings on {socket.gethostname()}"


def settings(tmp_path: Path, url: str = "sqlite") -> Settings:
    return Settings(state_folder=tmp_path / "state", store=StoreSettings(url=url))


def opened(given: Settings) -> tuple[bool, str]:
    async def main() -> tuple[bool, str]:
        store = await open_store(given)
        await store.close()
        return store.durable, store.name

    return asyncio.run(main())


def test_the_store_of_the_shipped_settings_is_a_private_file_of_the_state_folder(tmp_path: Path) -> None:
    durable, name = opened(settings(tmp_path))
    assert durable
    assert str(tmp_path / "state" / "journal.sqlite3") in name
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "state" / "journal.sqlite3").stat().st_mode & 0o777 == 0o600


def test_a_store_elsewhere_is_opened_there(tmp_path: Path) -> None:
    assert opened(settings(tmp_path, f"sqlite:{tmp_path}/own/j.db"))[0]
    assert (tmp_path / "own" / "j.db").exists()
    assert not (tmp_path / "state").exists()


def test_a_store_in_memory_says_that_it_does_not_last(tmp_path: Path) -> None:
    assert opened(settings(tmp_path, "memory"))[0] is False


def test_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match='this deployment has no store: the settings say url = "none"'):
        opened(settings(tmp_path, "none"))


def test_a_folder_that_others_may_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(0o777)
    with pytest.raises(StoreRefused, match="can be written by others"):
        opened(settings(tmp_path))


@pytest.mark.parametrize("missing", ["psycopg", "procrastinate"])
def test_a_database_without_its_driver_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(InvalidRequest, match=r"is not installed; run `pip install 'loopwarden\[postgres\]'`"):
        opened(settings(tmp_path, "postgresql:///loopwarden"))


# ---- what the settings declare


async def scopes_and_log(store: Store, name: str) -> tuple[list[Scope], list[tuple[str, Scope]]]:
    log = [(change.by, change.scope) for change in await store.scope_log(name)]
    return [use.scope for use in await store.scopes()], log


def test_a_budget_of_the_settings_is_written_once_until_it_says_something_new(tmp_path: Path) -> None:
    first = replace(settings(tmp_path, "memory"), scopes={"nightly": ScopeSettings(max_agents=200)})
    later = replace(first, scopes={"nightly": ScopeSettings(max_agents=250)})
    one, by_hand, two = (Scope(name="nightly", max_agents=number) for number in (200, 300, 250))

    async def main() -> None:
        store = await open_store(first)
        try:
            await declare_scopes(store, first)
            await declare_scopes(store, first)
            assert await scopes_and_log(store, "nightly") == ([one], [(BY, one)])
            await store.set_scope(by_hand, "ada")
            await declare_scopes(store, first)
            assert await scopes_and_log(store, "nightly") == ([by_hand], [(BY, one), ("ada", by_hand)])
            await declare_scopes(store, later)
            assert await scopes_and_log(store, "nightly") == ([two], [(BY, one), ("ada", by_hand), (BY, two)])
        finally:
            await store.close()

    asyncio.run(main())


def test_bounds_of_queues_are_written_and_what_is_not_said_stays(tmp_path: Path) -> None:
    given = replace(
        settings(tmp_path, "memory"),
        queues={"nightly": QueueSettings(max_running=3), "by-hand": QueueSettings(drive=1)},
    )

    async def main() -> None:
        store = await open_store(given)
        try:
            await store.set_queue("by-hand", max_running=7)
            await store.set_queue("nightly", is_paused=True, max_running=9)
            await declare_queues(store, given)
            found = {queue.name: (queue.is_paused, queue.max_running) for queue in await store.queues()}
            assert found == {"nightly": (True, 3), "by-hand": (False, 7)}
        finally:
            await store.close()

    asyncio.run(main())
