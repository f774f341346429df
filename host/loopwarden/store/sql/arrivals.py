"""Waiting for runs to claim, where the database wakes nobody: told by the commits of this process, and by looking."""

from collections.abc import Awaitable, Callable, Collection
from typing import TypeAlias

from loopwarden.store.errors import StoreUnavailable
from loopwarden.store.sql.changes import Changes
from loopwarden.store.sql.transaction import Transaction, arrival

Waiting: TypeAlias = tuple[int, int]
"""Of the runs that are due in some queues: how many there are, and the number of the newest."""


class Arrivals:
    """Tells whether more runs wait than were seen before. Belongs to one event loop."""

    def __init__(self, look: Callable[[Collection[str]], Awaitable[Waiting]], changes: Changes) -> None:
        self._look = look
        self._changes = changes
        self._seen: dict[frozenset[str], Waiting] = {}

    async def woken(self, queues: Collection[str], timeout_seconds: float) -> bool:
        """See `Store.woken`."""
        names = frozenset(queues)
        # Runs that were claimed meanwhile are seen no more, so that one that is given back is seen again.
        least = found = self._seen.get(names, (0, 0))

        async def are_more() -> bool:
            nonlocal least, found
            try:
                found = await self._look(names)
            except StoreUnavailable:
                return False
            least = (min(least[0], found[0]), min(least[1], found[1]))
            return found != least

        rung = await are_more() or await self._changes.wait(
            {arrival(name) for name in names}, are_more, timeout_seconds
        )
        self._seen[names] = found
        return rung


def count_waiting(tx: Transaction, queues: Collection[str]) -> Waiting:
    """What waits in these queues and is due."""
    if not queues:
        return (0, 0)
    marks = ", ".join("?" * len(queues))
    count, newest = tx.rows(
        f"SELECT COUNT(*), COALESCE(MAX(number), 0) FROM runs WHERE queue IN ({marks}) AND status = 'queued' "
        "AND not_before <= ?",
        (*sorted(queues), tx.now()),
    )[0]
    return int(count), int(newest)
