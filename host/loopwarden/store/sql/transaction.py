"""What a database gives to the shared SQL: a dialect, transactions and a session. Each store brings its own.

The shared SQL is written with `?` for parameters and with nothing that only one of the two knows. Neither `?` nor `%`
occurs in it otherwise. Text sorts by its bytes, everywhere.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from loopwarden.store.errors import StoreUnavailable

Row: TypeAlias = tuple[Any, ...]
Parameters: TypeAlias = Sequence[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How one database writes what SQL leaves open."""

    text: str
    """Type of text that compares and sorts by its bytes."""
    integer: str
    """Type of integers of 64 bits."""
    real: str
    """Type of floats of 64 bits."""
    blob: str
    """Type of bytes."""
    numbered: str
    """Type and constraints of a primary key that counts up by itself."""
    lock: str
    """Ends a SELECT whose rows this transaction is going to change; empty when a transaction has the whole file."""
    lock_free: str
    """The same, without the rows that somebody else has locked."""
    is_one_machine: bool
    """True: every host of this store runs on this machine, so that a path means the same to all of them."""


class Transaction(ABC):
    """One transaction. Used by one thread. What the database raises passes through; the session explains it."""

    dialect: Dialect
    touched: set[str]
    """Runs whose row or journal this transaction changed: those who wait for them are told after the commit."""
    proof: tuple[str, int, str] | None = None
    """Run, number and hash of the last entry that this transaction wrote; None when it wrote none. Entries are chained,
    so this row proves after a lost connection that the whole transaction happened. Whoever inserts entries sets it, and
    who goes back to a savepoint sets it back."""

    @abstractmethod
    def rows(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        """What a query gives. A row is a tuple; bytes are `bytes`, integers `int`, floats `float`, text `str`."""

    @abstractmethod
    def execute(self, sql: str, parameters: Parameters = ()) -> int:
        """Run a statement; the number of rows that it changed."""

    @abstractmethod
    def execute_many(self, sql: str, rows: Iterable[Parameters]) -> int:
        """Run a statement for each of the rows; the number of rows changed in all."""

    @abstractmethod
    def now(self) -> float:
        """Unix time as the store sees it at this moment: later than the wait for the locks that are held."""

    def run_waits(self, run_id: str, *, queue: str, priority: int, not_before: float) -> None:  # noqa: ARG002
        """Told of each run that begins to wait for a host in a queue. A database that can wake hosts does it here."""
        self.touched.add(arrival(queue))


def arrival(queue: str) -> str:
    """What stands among the runs that were touched for a queue in which a run waits now. The id of no run."""
    return f"queue {queue}"


class CommitUnknown(StoreUnavailable):
    """The connection was lost during a commit. `Session.find_out` says what became of it."""


class MustRetry(Exception):
    """The database gave this transaction up for another one (a deadlock): nothing happened, and it can be run again."""


class Session(ABC):
    """One connection, used by one thread alone. It is opened at the first `begin`, and again after it was lost."""

    locks_rows: bool = False
    """True: hosts lock rows, not the whole store, so that two transactions can wait for each other. Then renewals and
    appends, which lock runs and scopes in one order, are done apart from whatever else has gathered."""

    @abstractmethod
    def begin(self) -> Transaction:
        """Begin a transaction, connecting when that is needed."""

    @abstractmethod
    def commit(self) -> None:
        """Commit what was begun. Raises `CommitUnknown` only when nobody can tell whether it happened."""

    @abstractmethod
    def rollback(self) -> None:
        """Forget what was begun. Never raises: a connection on which that fails is closed."""

    @abstractmethod
    def explain(self, error: Exception) -> Exception:
        """What an exception of the database means: a `StoreError`, or `MustRetry`.

        `StoreUnavailable` when asking again later helps. One that does not come from the database is given back.
        """

    def find_out(self) -> bool:
        """True when the last commit, which ended in `CommitUnknown`, did happen. Raises `StoreUnavailable`.

        For a database that always knows there is nothing to find out.
        """
        raise AssertionError("a database that knows what became of a commit was asked about one that is unknown")

    @abstractmethod
    def version(self) -> object:
        """Something that differs once another connection has committed. Outside of transactions."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection. Harmless when repeated."""
