"""What the settings say about budgets and queues, brought into the store.

A budget of the settings is written when they say something new. So one that a person changed by hand stays as it is,
however often hosts start, until the settings change.
"""

import socket
from typing import Final

from loopwarden.settings import Settings
from loopwarden.store.api import Store

BY_SETTINGS: Final = "settings on "
"""How a change by the settings is logged, followed by the name of the machine."""


async def declare_scopes(store: Store, settings: Settings) -> None:
    """Write the scopes of the settings into the store, where they say something new. Raises `StoreError`."""
    by = BY_SETTINGS + (socket.gethostname() or "an unnamed machine")
    for name in sorted(settings.scopes):
        scope = settings.scopes[name].to_scope(name)
        declared = [change.scope for change in await store.scope_log(name) if change.by.startswith(BY_SETTINGS)]
        if not declared or declared[-1] != scope:
            await store.set_scope(scope, by)


async def declare_queues(store: Store, settings: Settings) -> None:
    """Write the bounds of queues of the settings into the store. Raises `StoreError`.

    For hosts when they begin to drive: a bound that a person set by hand holds until then.
    """
    known = {queue.name: queue.max_running for queue in await store.queues()}
    for name, given in sorted(settings.queues.items()):
        if given.max_running is not None and known.get(name) != given.max_running:
            await store.set_queue(name, max_running=given.max_running)
