"""The store of the settings, for the time of one command."""

import asyncio
import os
import pwd
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeVar

from loopwarden.failures import InvalidRequest, StoreRefused
from loopwarden.settings import Settings, load_settings
from loopwarden.store.api import Store
from loopwarden.store.declared import declare_scopes
from loopwarden.store.errors import StoreError
from loopwarden.store.opening import open_store
from loopwarden.store.windows import zone_of

T = TypeVar("T")

_MOST_NAMED: Final = 8


def with_store(config: Path | None, act: Callable[[Store, Settings], Awaitable[T]]) -> T:
    """Open the store of the settings, do something with it, close it. Raises a subclass of `StartRefused`."""
    settings = load_settings(config)
    if settings.store.kind == "memory":
        raise InvalidRequest(
            'the store of the settings is url = "memory": it ends with the process that opened it, so a command finds '
            "nothing in it; name another one under [store]"
        )

    async def run() -> T:
        store = await open_store(settings)
        try:
            await declare_scopes(store, settings)
            return await act(store, settings)
        except ValueError as error:  # the rules of names, budgets, zones and cron expressions speak in sentences
            raise InvalidRequest(str(error)) from None
        finally:
            await store.close()

    try:
        return asyncio.run(run())
    except StoreError as error:
        raise StoreRefused(str(error)) from None


def no_such(what: str, name: str, known: Sequence[str]) -> InvalidRequest:
    """The refusal of a name that the store does not know. `what` is such as "queue"."""
    shown = ", ".join(known[:_MOST_NAMED]) + (" …" if len(known) > _MOST_NAMED else "")
    return InvalidRequest(f"there is no {what} {name[:200]!r}; there are: {shown or 'none'}")


def person() -> str:
    """The login name of the user of this process, for logs of who did what."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # as in containers that run under any number
        return f"user {os.geteuid()}"


def shown_time(at: float | None, zone: str | None = None) -> str:
    """A moment for a person, in a time zone; in that of this machine."""
    if at is None:
        return "never"
    try:
        return (
            datetime.fromtimestamp(at, UTC)
            .astimezone(None if zone is None else zone_of(zone))
            .strftime("%Y-%m-%d %H:%M")
        )
    except (ValueError, OverflowError, OSError):
        return "?"
