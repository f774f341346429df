"""What a store does for a host: one protocol for SQLite, Postgres and memory.

Rules kept by every store (one conformance suite holds all of them to it):

- Every method is one transaction: all of it is committed, or nothing happened.
- An append is a compare-and-swap on (epoch, head) with the lease alive in the store's own time. It checks the caps of
  the run and the budget of every scope, charges them, allots sequence numbers and chains the entries, or does nothing.
- Lock order: run rows in byte order of their ids, then scopes in byte order of their names.
- Whatever is read back is hostile: rows are decoded strictly, and a row that cannot be is `StoreCorrupt`, which names
  its run and leaves the other runs alone.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Literal, Protocol

from loopwarden.journal.codec import Codec
from loopwarden.store.appends import Append
from loopwarden.store.runs import Claim, NewRun, Owner, Request, RunFilter, RunRow, StoredEntry, Tombstone, Wanted
from loopwarden.store.shared import Queue, Schedule, Scope, ScopeChange, ScopeUse

MAX_PAGE: Final = 1000
"""Rows that one read gives at most; who wants more asks again."""


class Store(Protocol):
    """One store, opened. Belongs to the event loop on which it was opened. Errors are `StoreError`s."""

    durable: bool
    """False: it ends with this process."""
    is_shared: bool
    """True: hosts of other machines may use it, too, so that a path means nothing in it."""
    name: str
    """For people, without secrets: a path, or host and database."""
    codec: Codec
    """What bodies and large values went through before they were hashed."""

    async def close(self) -> None:
        """Commit what was handed over, then close. Harmless when repeated."""
        ...

    async def now(self) -> float:
        """Unix time as the store sees it."""
        ...

    # ---- runs

    async def create(self, runs: Sequence[NewRun], *, owner: Owner | None = None) -> list[RunRow]:
        """Create runs, all or none. With an `owner` they are born claimed, epoch 1, with the entry `claimed`.

        A run whose key exists already with the same content is not made again: its row is returned. Raises
        `KeyConflict` when the content differs.
        """
        ...

    async def claim(self, owner: Owner, wanted: Wanted, *, limit: int) -> list[Claim]:
        """Claim runs that are due and fit, those of higher priority first, then the older ones.

        Due: queued and `not_before` has come, or running and its lease expired more than the kill grace ago. Raises
        the epoch, appends `claimed`. A run that was claimed `MAX_IDLE_CLAIMS` times without progress is held instead.
        A workspace that another live run holds exclusively keeps its run waiting.
        """
        ...

    async def claim_one(self, owner: Owner, run_id: str, *, kill_grace_seconds: float) -> Claim | RunRow:
        """Claim one run in any state but a live lease of somebody else; then, its row is returned as it is."""
        ...

    async def renew(self, owner: Owner, runs: Mapping[str, int]) -> set[str]:
        """Extend the leases of runs by (id, epoch); returns those that are still the owner's."""
        ...

    def append(self, append: Append) -> None:
        """Hand an append over; its `done` is called once. Never blocks. See the rules above."""
        ...

    async def get(self, run_id: str) -> RunRow | None:
        """One run."""
        ...

    async def find(self, wanted: RunFilter) -> list[RunRow]:
        """Runs, the newest first."""
        ...

    async def read(self, run_id: str, *, after: int = 0, limit: int = MAX_PAGE) -> list[StoredEntry]:
        """Rows of a journal above `after`, in order."""
        ...

    async def blobs(self, run_id: str, digests: Collection[str] | None = None) -> dict[str, bytes]:
        """Large values of a run by digest; None: all of them."""
        ...

    async def changed(self, run_id: str, *, after: int, timeout_seconds: float) -> bool:
        """Wait until the journal has a row above `after`, or the row of the run changed; False after the timeout."""
        ...

    async def woken(self, queues: Collection[str], timeout_seconds: float) -> bool:
        """Wait until somebody submitted or gave back a run of these queues, at most so long; False after the timeout.

        A hint that saves a host the time to its next poll, and no more than that: one may be missed (a lease that
        expires, a queue that is resumed, a host that was not listening), and one may come for a run that is taken
        already. `claim` at each poll is what guarantees progress. What happened since the call before this one for
        the same queues ended counts: nothing falls between two calls.
        """
        ...

    # ---- requests

    async def request(self, run_id: str, kind: Literal["cancel", "raise"], body: Mapping[str, Any], by: str) -> RunRow:
        """Ask the owner of a run for something. A cancel is committed at once: no ask commits after it."""
        ...

    async def take_requests(self, owner: Owner) -> list[Request]:
        """Requests for runs that this owner holds, each given once in an epoch."""
        ...

    # ---- budgets

    async def set_scope(self, scope: Scope, by: str) -> None:
        """Make or change a scope; logged."""
        ...

    async def scopes(self) -> list[ScopeUse]:
        """All scopes with what their current windows hold."""
        ...

    async def scope_log(self, name: str) -> list[ScopeChange]:
        """Who changed a scope, and when."""
        ...

    # ---- queues and schedules

    async def set_queue(self, name: str, *, is_paused: bool | None = None, max_running: int | None = None) -> None:
        """Pause, resume or bound a queue; None leaves as it is, 0 running means no bound."""
        ...

    async def queues(self) -> list[Queue]:
        """All queues that have runs or settings."""
        ...

    async def set_schedule(self, schedule: Schedule) -> None:
        """Make or replace a schedule."""
        ...

    async def remove_schedule(self, name: str) -> bool:
        """Remove a schedule; False when there is none."""
        ...

    async def schedules(self) -> list[Schedule]:
        """All schedules."""
        ...

    async def fire(self, name: str, *, due_at: float, next_at: float, run: NewRun | None) -> RunRow | None:
        """Move a schedule from `due_at` to `next_at` and create its run, in one transaction.

        None when another host did it first. `run` None: skipped, because the run before is not over.
        """
        ...

    # ---- retention

    async def prune(self, *, finished_before: float, limit: int = 100) -> list[str]:
        """Remove whole finished runs; a tombstone each stays. Returns their ids."""
        ...

    async def tombstones(self) -> list[Tombstone]:
        """What is left of pruned runs."""
        ...
