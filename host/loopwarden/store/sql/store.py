"""A store over SQL: the protocol `Store`, each method as an operation of the writer's or the reader's thread."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, TypeVar

from loopwarden.journal.codec import Codec
from loopwarden.store.api import MAX_PAGE
from loopwarden.store.appends import Append
from loopwarden.store.runs import (
    Claim,
    NewRun,
    Owner,
    Request,
    RunFilter,
    RunRow,
    StoredEntry,
    Tombstone,
    Wanted,
)
from loopwarden.store.shared import (
    Queue,
    Schedule,
    Scope,
    ScopeChange,
    ScopeUse,
)
from loopwarden.store.sql import (
    appends,
    claims,
    journal_rows,
    migrations,
    queue_rows,
    requests,
    retention,
    run_rows,
    schedules,
    scope_rows,
)
from loopwarden.store.sql.arrivals import Arrivals, count_waiting
from loopwarden.store.sql.changes import Changes
from loopwarden.store.sql.database_thread import DatabaseThread
from loopwarden.store.sql.transaction import Session, Transaction

T = TypeVar("T")


class SqlStore:
    """One opened store, used on the event loop on which it was made."""

    is_shared = False

    def __init__(self, *, name: str, durable: bool, writer: Session, reader: Session | None, codec: Codec) -> None:
        """Give the threads their connections. `reader` None: reads are done between the writes, by the writer."""
        self.name = name
        self.durable = durable
        self.codec = codec
        self._reader_session = reader or writer
        self._changes = Changes(self._version)
        self._arrivals = Arrivals(lambda names: self._read(lambda tx: count_waiting(tx, names)), self._changes)
        self._writer = self._thread(writer, "loopwarden-store-writer")
        self._reader = self._writer if reader is None else self._thread(reader, "loopwarden-store-reader")

    def _thread(self, session: Session, name: str) -> DatabaseThread:
        codec = self.codec
        expired: appends.Expired = {}
        return DatabaseThread(
            session, lambda tx, batch: appends.append_all(tx, batch, codec, expired), self._changes.tell, name=name
        )

    async def close(self) -> None:
        """Commit what was handed over, then close. Harmless when repeated."""
        await self._changes.close()
        await self._writer.close()
        await self._reader.close()
        # Who looked between the two, and found nothing new, looks again and is told.
        self._changes.tell_all()

    async def now(self) -> float:
        """Unix time as the store sees it."""
        return await self._read(lambda tx: tx.now())

    # ---- runs

    async def create(self, runs: Sequence[NewRun], *, owner: Owner | None = None) -> list[RunRow]:
        """Create runs, all or none; with an `owner` they are born claimed. Raises `KeyConflict`, `WorkspaceBusy`."""
        return await self._write(lambda tx: run_rows.create_runs(tx, runs, owner, self.codec))

    async def claim(self, owner: Owner, wanted: Wanted, *, limit: int) -> list[Claim]:
        """Claim runs that are due and fit, those of higher priority first, then the older ones."""

        def operation(tx: Transaction) -> list[Claim]:
            migrations.check_format(tx, self.name)
            return claims.claim_runs(tx, owner, wanted, limit, self.codec)

        return await self._write(operation)

    async def claim_one(self, owner: Owner, run_id: str, *, kill_grace_seconds: float) -> Claim | RunRow:
        """Claim one run in any state but a live lease of somebody else. Raises `UnknownRun`, `WorkspaceBusy`."""

        def operation(tx: Transaction) -> Claim | RunRow:
            migrations.check_format(tx, self.name)
            return claims.claim_one(tx, owner, run_id, kill_grace_seconds, self.codec)

        return await self._write(operation)

    async def renew(self, owner: Owner, runs: Mapping[str, int]) -> set[str]:
        """Extend the leases of runs by (id, epoch); returns those that are still the owner's."""
        wanted = dict(runs)
        return await self._writer.do(lambda tx: claims.renew(tx, owner, wanted), renews=owner.host_id)

    def append(self, append: Append) -> None:
        """Hand an append over; its `done` is called once. Never blocks."""
        self._writer.append(append)

    async def get(self, run_id: str) -> RunRow | None:
        """One run."""
        return await self._read(lambda tx: run_rows.get_run(tx, run_id))

    async def find(self, wanted: RunFilter) -> list[RunRow]:
        """Runs, the newest first. A run whose row is damaged is left out, and named in the log."""
        return await self._read(lambda tx: run_rows.find_runs(tx, wanted))

    async def read(self, run_id: str, *, after: int = 0, limit: int = MAX_PAGE) -> list[StoredEntry]:
        """Rows of a journal above `after`, in order."""
        return await self._read(lambda tx: journal_rows.read_entries(tx, run_id, after=after, limit=limit))

    async def blobs(self, run_id: str, digests: Collection[str] | None = None) -> dict[str, bytes]:
        """Large values of a run by digest; None: all of them."""
        return await self._read(lambda tx: journal_rows.read_blobs(tx, run_id, digests))

    async def changed(self, run_id: str, *, after: int, timeout_seconds: float) -> bool:
        """Wait until the journal has a row above `after`, or the row of the run changed; False after the timeout."""
        first = await self._read(lambda tx: run_rows.get_run(tx, run_id))
        if first is not None and first.head_seq > after:
            return True

        async def has_changed() -> bool:
            row = await self._read(lambda tx: run_rows.get_run(tx, run_id))
            return (row is not None and row.head_seq > after) or _visible(row) != _visible(first)

        return await self._changes.wait({run_id}, has_changed, timeout_seconds)

    async def woken(self, queues: Collection[str], timeout_seconds: float) -> bool:
        """Wait until somebody submitted or gave back a run of these queues; False after the timeout. See `Store`."""
        return await self._arrivals.woken(queues, timeout_seconds)

    # ---- requests

    async def request(self, run_id: str, kind: Literal["cancel", "raise"], body: Mapping[str, Any], by: str) -> RunRow:
        """Ask the owner of a run for something. A run that is finished stays as it is. Raises `UnknownRun`."""
        return await self._write(lambda tx: requests.add_request(tx, run_id, kind, body, by))

    async def take_requests(self, owner: Owner) -> list[Request]:
        """Requests for runs that this owner holds, each given once."""
        return await self._write(lambda tx: requests.take_requests(tx, owner))

    # ---- budgets

    async def set_scope(self, scope: Scope, by: str) -> None:
        """Make or change a scope; logged."""
        await self._write(lambda tx: scope_rows.set_scope(tx, scope, by))

    async def scopes(self) -> list[ScopeUse]:
        """All scopes with what their current windows hold."""
        return await self._read(scope_rows.list_scopes)

    async def scope_log(self, name: str) -> list[ScopeChange]:
        """Who changed a scope, and when; the oldest first."""
        return await self._read(lambda tx: scope_rows.scope_log(tx, name))

    # ---- queues and schedules

    async def set_queue(self, name: str, *, is_paused: bool | None = None, max_running: int | None = None) -> None:
        """Pause, resume or bound a queue; None leaves as it is, 0 running means no bound."""
        await self._write(lambda tx: queue_rows.set_queue(tx, name, is_paused=is_paused, max_running=max_running))

    async def queues(self) -> list[Queue]:
        """All queues that have runs or settings."""
        return await self._read(queue_rows.list_queues)

    async def set_schedule(self, schedule: Schedule) -> None:
        """Make or replace a schedule."""
        await self._write(lambda tx: schedules.set_schedule(tx, schedule))

    async def remove_schedule(self, name: str) -> bool:
        """Remove a schedule; False when there is none."""
        return await self._write(lambda tx: schedules.remove_schedule(tx, name))

    async def schedules(self) -> list[Schedule]:
        """All schedules."""
        return await self._read(schedules.list_schedules)

    async def fire(self, name: str, *, due_at: float, next_at: float, run: NewRun | None) -> RunRow | None:
        """Move a schedule from `due_at` to `next_at` and create its run, in one transaction."""
        return await self._write(
            lambda tx: schedules.fire(tx, name, due_at=due_at, next_at=next_at, run=run, codec=self.codec)
        )

    # ---- retention

    async def prune(self, *, finished_before: float, limit: int = 100) -> list[str]:
        """Remove whole finished runs; a tombstone each stays. Returns their ids."""
        return await self._write(lambda tx: retention.prune(tx, finished_before, limit))

    async def tombstones(self) -> list[Tombstone]:
        """What is left of pruned runs."""
        return await self._read(retention.list_tombstones)

    async def _read(self, operation: Callable[[Transaction], T]) -> T:
        return await self._reader.do(operation)

    async def _write(self, operation: Callable[[Transaction], T]) -> T:
        return await self._writer.do(operation)

    async def _version(self) -> object:
        return await self._reader.do(lambda _: self._reader_session.version())


def _visible(row: RunRow | None) -> object:
    """What of a row those who wait for it want to see. Its lease is renewed all the time."""
    if row is None:
        return None
    return (
        row.status, row.epoch, row.owner, row.head_seq, row.max_calls, row.max_extra, row.cancel_reason, row.reason,
    )  # fmt: skip
