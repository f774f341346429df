"""The thread that has one connection: it takes whatever has gathered and does it in one transaction.

- Nothing waits for company: a batch is what came while the batch before was committed.
- Each operation has a savepoint, so one that fails is rolled back alone. Appends that stand next to each other are one
  operation, until one of them fails; then each is done apart.
- Results go to the event loop together, after the commit.
- While the database is away, operations fail with `StoreUnavailable`, and appends wait: they are done in order once it
  is back. The last renewal of each host that failed meanwhile is done before them.
"""

import asyncio
import contextlib
import queue
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar

from loopwarden.logs import run_logger
from loopwarden.store.appends import Append, AppendFailed, AppendResult
from loopwarden.store.errors import StoreError, StoreUnavailable
from loopwarden.store.sql.transaction import CommitUnknown, MustRetry, Session, Transaction

T = TypeVar("T")

_MOST_AT_ONCE: Final = 512
"""Operations of one transaction."""
_FIRST_PAUSE_SECONDS: Final = 0.05
_LONGEST_PAUSE_SECONDS: Final = 2.0
_MOST_RETRIES: Final = 20
"""Of a transaction that the database gave up for another one."""

AppendAll: TypeAlias = Callable[[Transaction, Sequence[Append]], list[AppendResult]]


@dataclass(slots=True, eq=False)
class _Job:
    operation: Callable[[Transaction], Any]
    future: "asyncio.Future[Any] | None"
    renews: str | None = None
    """The host whose leases this extends."""


_Unit: TypeAlias = list[Append] | _Job
_Result: TypeAlias = tuple[Append, AppendResult] | tuple[_Job, Any, Exception | None]


@dataclass(slots=True)
class _Done:
    results: list[_Result] = field(default_factory=list)
    touched: set[str] = field(default_factory=set)


class DatabaseThread:
    """One connection in a thread of its own, fed from one event loop.

    `on_change` is called on the event loop with the runs that a commit changed.
    """

    def __init__(
        self, session: Session, append_all: AppendAll, on_change: Callable[[set[str]], None], *, name: str
    ) -> None:
        self._session = session
        self._append_all = append_all
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[Append | _Job | None] = queue.SimpleQueue()
        self._kept: list[Append] = []
        self._missed: dict[str, _Job] = {}
        self._pause_seconds = _FIRST_PAUSE_SECONDS
        self._is_closing = threading.Event()
        self._is_closed = False
        self._ended: asyncio.Future[None] = self._loop.create_future()
        # A host that is not closed must still be able to end.
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    async def do(self, operation: Callable[[Transaction], T], *, renews: str | None = None) -> T:
        """Do an operation in a transaction and return its result. Raises what it raised, or `StoreError`."""
        if self._is_closed:
            raise StoreError("the store is closed")
        future: asyncio.Future[T] = self._loop.create_future()
        self._queue.put(_Job(operation, future, renews))
        return await future

    def append(self, append: Append) -> None:
        """Hand an append over. Never blocks."""
        if self._is_closed:
            self._loop.call_soon(append.done, AppendFailed(StoreError("the store is closed")))
            return
        self._queue.put(append)

    async def close(self) -> None:
        """Do what was handed over, then close the connection. Harmless when repeated."""
        if not self._is_closed:
            self._is_closed = True
            self._is_closing.set()
            self._queue.put(None)
        await asyncio.shield(self._ended)
        self._thread.join()

    # ---- the thread

    def _main(self) -> None:
        try:
            while self._round():
                pass
        finally:
            self._session.close()
            self._tell(self._loop_ended)

    def _round(self) -> bool:
        """Take what has gathered and do it; False when the store was closed."""
        batch: list[Append | _Job] = [*self._missed.values(), *self._kept] if self._kept else []
        is_last = False
        with contextlib.suppress(queue.Empty):
            item = self._queue.get(timeout=self._pause_seconds if self._kept else None)
            while True:
                if item is None:
                    is_last = True
                    break
                batch.append(item)
                if len(batch) >= _MOST_AT_ONCE:
                    break
                item = self._queue.get_nowait()
        self._kept = []
        if batch:
            self._do(batch, is_last=is_last)
        return not is_last

    def _do(self, batch: list[Append | _Job], *, is_last: bool) -> None:
        for part in _parts(batch) if self._session.locks_rows else [batch]:
            self._do_part(_units(part), is_last=is_last)

    def _do_part(self, units: list[_Unit], *, is_last: bool) -> None:
        if not units:
            return
        try:
            done = self._transact(units)
        except MustRetry:
            done = _Done()
            for unit in units:
                self._do_apart(unit, done, is_last=is_last)
        except StoreUnavailable as error:
            done = _Done()
            for unit in units:
                self._put_off(unit, error, done, is_last=is_last)
        except Exception as error:  # noqa: BLE001 -- this thread must live on, and somebody waits for each result
            done = _Done([result for unit in units for result in _failed(unit, error)])
        else:
            self._pause_seconds = _FIRST_PAUSE_SECONDS
            if not self._kept:
                self._missed.clear()
        if done.results or done.touched:
            self._tell(lambda: self._deliver(done))

    def _do_apart(self, unit: _Unit, done: _Done, *, is_last: bool) -> None:
        """Do a unit in a transaction of its own, again when the database gives it up."""
        if self._kept and isinstance(unit, list):
            self._kept += unit  # not before those that were put off
            return
        for _ in range(_MOST_RETRIES):
            try:
                found = self._transact([unit])
            except MustRetry:
                time.sleep(random.uniform(0.001, 0.02))  # noqa: S311 -- two that met must not meet again
                continue
            except StoreUnavailable as error:
                self._put_off(unit, error, done, is_last=is_last)
                return
            done.results += found.results
            done.touched |= found.touched
            return
        self._put_off(unit, StoreUnavailable("the database is too busy: it gave up every try"), done, is_last=is_last)

    def _put_off(self, unit: _Unit, error: StoreUnavailable, done: _Done, *, is_last: bool) -> None:
        """Keep appends for later, and let an operation fail."""
        if isinstance(unit, _Job):
            if unit.renews is not None:
                self._missed[unit.renews] = _Job(unit.operation, None, unit.renews)
            done.results.append((unit, None, error))
        elif is_last:
            done.results += [(append, AppendFailed(error)) for append in unit]
        else:
            if not self._kept:
                self._pause_seconds = min(2 * self._pause_seconds, _LONGEST_PAUSE_SECONDS)
            self._kept += unit

    def _transact(self, units: list[_Unit]) -> _Done:
        """Do units in one transaction. Raises `MustRetry` or `StoreUnavailable`; then none of them has happened."""
        is_careful = len(units) > 1
        while True:
            done = _Done()
            try:
                tx = self._session.begin()
                done.touched = tx.touched
                for unit in units:
                    done.results += self._do_unit(tx, unit) if is_careful else self._do_plainly(tx, unit)
                self._session.commit()
            except CommitUnknown:
                try:
                    happened = self._find_out()
                except StoreUnavailable as error:
                    # The store closes and cannot find out. What may be there already must not be done again.
                    return _Done([result for unit in units for result in _failed(unit, error)])
                if not happened:
                    continue
            except Exception as error:  # noqa: BLE001 -- what it means is asked at once
                self._session.rollback()
                meaning = self._meaning(error)
                if isinstance(meaning, MustRetry | StoreUnavailable):
                    raise meaning from None
                if not is_careful and isinstance(units[0], list):
                    is_careful = True
                    continue
                # A single operation failed, or the transaction itself could not be begun or committed.
                return _Done([result for unit in units for result in _failed(unit, meaning)])
            return done

    def _find_out(self) -> bool:
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                return self._session.find_out()
            except StoreUnavailable:
                if self._is_closing.wait(pause):
                    raise
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _do_plainly(self, tx: Transaction, unit: _Unit) -> list[_Result]:
        if isinstance(unit, _Job):
            return [(unit, unit.operation(tx), None)]
        return list(zip(unit, self._append_all(tx, unit), strict=True))

    def _do_unit(self, tx: Transaction, unit: _Unit) -> list[_Result]:
        """Do a unit within a savepoint; when it fails, it alone is undone."""
        tx.execute("SAVEPOINT unit")
        proof = tx.proof
        try:
            results = self._do_plainly(tx, unit)
        except Exception as error:  # noqa: BLE001 -- what it means is asked at once
            meaning = self._meaning(error)
            if isinstance(meaning, MustRetry | StoreUnavailable):
                raise meaning from None
            tx.execute("ROLLBACK TO SAVEPOINT unit")
            tx.proof = proof
            tx.execute("RELEASE SAVEPOINT unit")
            if isinstance(unit, list) and len(unit) > 1:
                return [result for append in unit for result in self._do_unit(tx, [append])]
            return _failed(unit, meaning)
        tx.execute("RELEASE SAVEPOINT unit")
        return results

    def _meaning(self, error: Exception) -> Exception:
        if isinstance(error, StoreError | MustRetry):
            return error
        if isinstance(error, UnicodeEncodeError | OverflowError):
            return StoreError(
                "a text that is not Unicode, or a number of more than 64 bits, cannot be stored or looked for"
            )
        return self._session.explain(error)

    # ---- the event loop

    def _tell(self, callback: Callable[[], None]) -> None:
        # A loop that is closed has nobody left who waits.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback)

    def _deliver(self, done: _Done) -> None:
        for result in done.results:
            if len(result) == 2:
                append, outcome = result
                try:
                    append.done(outcome)
                except Exception as error:  # noqa: BLE001 -- it must not raise, and others wait for their results
                    self._loop.call_exception_handler({"message": "the end of an append raised", "exception": error})
                continue
            job, value, problem = result
            if job.future is None or job.future.done():
                continue
            if problem is None:
                job.future.set_result(value)
            else:
                job.future.set_exception(problem)
        if done.touched:
            self._on_change(done.touched)

    def _loop_ended(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)


def _parts(batch: Sequence[Append | _Job]) -> list[list[Append | _Job]]:
    """Renewals and appends, and then the rest: each has a transaction of its own."""
    first: list[Append | _Job] = [item for item in batch if isinstance(item, _Job) and item.renews is not None]
    first += [item for item in batch if isinstance(item, Append)]
    others: list[Append | _Job] = [item for item in batch if isinstance(item, _Job) and item.renews is None]
    return [part for part in (first, others) if part]


def _units(batch: Sequence[Append | _Job]) -> list[_Unit]:
    units: list[_Unit] = []
    appends: list[Append] | None = None
    for item in batch:
        if isinstance(item, _Job):
            if item.future is not None and item.future.cancelled():
                continue  # nobody waits for it any more
            units.append(item)
            appends = None
        elif appends is None:
            appends = [item]
            units.append(appends)
        else:
            appends.append(item)
    return units


def _failed(unit: _Unit, error: Exception) -> list[_Result]:
    if isinstance(unit, _Job):
        return [(unit, None, error)]
    if isinstance(error, StoreError):
        return [(append, AppendFailed(error)) for append in unit]
    for append in unit:
        run_logger(append.run_id).error("an append failed by a fault of Loopwarden", error=repr(error))
    fault = StoreError(f"a fault of Loopwarden kept the entries from being stored: {type(error).__name__}")
    return [(append, AppendFailed(fault)) for append in unit]
