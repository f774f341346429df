"""Stores in a SQLite file, or in memory: one writer and one reader, each with a connection in a thread of its own.

WAL, so that readers and the writer do not wait for each other, with `synchronous=FULL`: a commit is on the disk when
it is reported (https://sqlite.org/pragma.html#pragma_synchronous). Several processes may use one file on one machine.
"""

import asyncio
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Final, TypeAlias

from loopwarden.journal.codec import PLAIN, Codec
from loopwarden.run_folder import RunFolderError, make_private_folder
from loopwarden.store.errors import StoreError, StoreUnavailable
from loopwarden.store.sql.migrations import migrate
from loopwarden.store.sql.store import SqlStore
from loopwarden.store.sql.transaction import Dialect, Parameters, Row, Session, Transaction

BUSY_SECONDS: Final = 5.0
"""How long another process may keep the file locked before it is said to be."""
_LOOK_AGAIN_SECONDS: Final = 0.01
_MEMORY: Final = ":memory:"
_NEEDED: Final = (3, 35)

DIALECT: Final = Dialect(
    text="TEXT",
    integer="INTEGER",
    real="REAL",
    blob="BLOB",
    numbered="INTEGER PRIMARY KEY AUTOINCREMENT",
    lock="",
    lock_free="",
    is_one_machine=True,
)

Clock: TypeAlias = Callable[[], float]

_MEANINGS: Final[dict[int, tuple[type[StoreError], str | None]]] = {
    sqlite3.SQLITE_BUSY: (
        StoreUnavailable,
        "is locked by another program; wait until that one is done with it, or end it",
    ),
    sqlite3.SQLITE_FULL: (StoreUnavailable, "cannot grow: its disk is full; free some space"),
    sqlite3.SQLITE_IOERR: (
        StoreUnavailable,
        "cannot be read or written: its disk reports an error; see whether it is full, or broken",
    ),
    sqlite3.SQLITE_CANTOPEN: (
        StoreUnavailable,
        "cannot be opened; see that it exists and that this user may write it and its folder",
    ),
    sqlite3.SQLITE_READONLY: (StoreError, "is read-only; make it and its folder writable for this user"),
    sqlite3.SQLITE_NOTADB: (StoreError, "is not a SQLite file; choose another path"),
    sqlite3.SQLITE_CORRUPT: (StoreError, "is damaged; restore it from a backup, or choose another path"),
}
"""By primary result code (https://sqlite.org/rescode.html); None: SQLite's own words."""


class SqliteStore(SqlStore):
    """A store in a SQLite file, or in memory. Made by `open_sqlite` and `open_memory`."""

    async def make_tables(self) -> None:
        """Bring a store in memory to the newest format."""
        await self._write(lambda tx: migrate(tx, self.name))


async def open_sqlite(
    path: Path | str, *, codec: Codec = PLAIN, clock: Clock = time.time, busy_seconds: float = BUSY_SECONDS
) -> SqliteStore:
    """Open the store in the file `path`, which is made when it is missing, for this user alone.

    `clock` gives the store's time. Raises `StoreError`: `StoreUnavailable` when trying again later may help,
    `StoreTooNew` for a store of a newer Loopwarden.
    """
    file = Path(path).expanduser().absolute()  # noqa: ASYNC240 -- looks at nothing but the path itself
    await asyncio.to_thread(_prepare, file, clock, busy_seconds)
    return SqliteStore(
        name=str(file),
        durable=True,
        writer=SqliteSession(str(file), clock, busy_seconds, begin="BEGIN IMMEDIATE"),
        reader=SqliteSession(str(file), clock, busy_seconds, begin="BEGIN"),
        codec=codec,
    )


async def open_memory(*, codec: Codec = PLAIN, clock: Clock = time.time) -> SqliteStore:
    """A store that ends with this process."""
    session = SqliteSession(_MEMORY, clock, BUSY_SECONDS, begin="BEGIN")
    store = SqliteStore(name="memory", durable=False, writer=session, reader=None, codec=codec)
    await store.make_tables()
    return store


class SqliteTransaction(Transaction):
    """A transaction of a SQLite connection."""

    dialect = DIALECT

    def __init__(self, connection: sqlite3.Connection, clock: Clock) -> None:
        self._connection = connection
        self._clock = clock
        self.touched = set()

    def rows(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        """What a query gives."""
        return self._connection.execute(sql, parameters).fetchall()

    def execute(self, sql: str, parameters: Parameters = ()) -> int:
        """Run a statement; the number of rows that it changed."""
        return self._connection.execute(sql, parameters).rowcount

    def execute_many(self, sql: str, rows: Iterable[Parameters]) -> int:
        """Run a statement for each of the rows; the number of rows changed in all."""
        return self._connection.executemany(sql, rows).rowcount

    def now(self) -> float:
        """Unix time by the clock of this machine."""
        return self._clock()


class SqliteSession(Session):
    """One connection to a file, or to a database in memory."""

    def __init__(self, path: str, clock: Clock, busy_seconds: float, *, begin: str) -> None:
        self._path = path
        self._clock = clock
        self._busy_seconds = busy_seconds
        self._begin = begin
        self._connection: sqlite3.Connection | None = None

    def begin(self) -> Transaction:
        """Begin a transaction, connecting when that is needed."""
        connection = self._connected()
        connection.execute(self._begin)
        return SqliteTransaction(connection, self._clock)

    def commit(self) -> None:
        """Commit what was begun: what fails here has not happened."""
        self._connected().execute("COMMIT")

    def rollback(self) -> None:
        """Forget what was begun."""
        try:
            if self._connection is not None and self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            self.close()

    def explain(self, error: Exception) -> Exception:
        """What an exception of SQLite means."""
        return explain(error, self._path)

    def version(self) -> object:
        """Differs once another connection has committed."""
        return self._connected().execute("PRAGMA data_version").fetchone()[0]

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = _connect(self._path, self._busy_seconds)
        return self._connection


def explain(error: Exception, path: str) -> Exception:
    """What an exception of SQLite means, as a sentence that names the file; another exception is given back."""
    if not isinstance(error, sqlite3.Error):
        return error
    store = "the store in memory" if path == _MEMORY else f"the store {path}"
    kind, what = _MEANINGS.get((getattr(error, "sqlite_errorcode", None) or 0) & 0xFF, (StoreError, None))
    # The words of SQLite name tables and columns, never values.
    return kind(f"{store} {what or f'refused what was asked: {error}'}")


def _prepare(file: Path, clock: Clock, busy_seconds: float) -> None:
    """Make the file when it is missing, see that it can be trusted, and bring it to the newest format."""
    if sqlite3.sqlite_version_info < _NEEDED:
        raise StoreError(f"this Python has SQLite {sqlite3.sqlite_version}; a store needs 3.35 or later")
    try:
        make_private_folder(file.parent)
    except RunFolderError as error:
        raise StoreError(str(error)) from None
    _make_private_file(file)
    with closing(SqliteSession(str(file), clock, busy_seconds, begin="BEGIN IMMEDIATE")) as session:
        try:
            tx = session.begin()
            migrate(tx, str(file))
            session.commit()
        except Exception as error:  # noqa: BLE001 -- what it means is asked at once
            session.rollback()
            raise session.explain(error) from None


def _make_private_file(file: Path) -> None:
    try:
        # Never opened when it exists: closing it again would take the locks away that SQLite holds in this process.
        if not file.is_symlink() and not file.exists():
            os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    except FileExistsError:
        pass  # another host made it meanwhile
    except OSError as error:
        raise StoreError(f"the store {file} cannot be made: {(error.strerror or 'input error').lower()}") from None
    status = file.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise StoreError(f"{file} is not a regular file; name the file of the store itself")
    if status.st_uid != os.geteuid():
        raise StoreError(f"the store {file} belongs to another user; choose another path")
    if status.st_mode & 0o077:
        raise StoreError(f"the store {file} can be read or written by others; run `chmod 600` on it")


def _connect(path: str, busy_seconds: float) -> sqlite3.Connection:
    # Never made here: a file that vanished while it was in use is an error, not an empty store.
    target = path if path == _MEMORY else f"{Path(path).as_uri()}?mode=rw"
    connection = sqlite3.connect(
        target, timeout=busy_seconds, isolation_level=None, cached_statements=256, uri=path != _MEMORY
    )
    try:
        # What is no UTF-8 must harm the row that it stands in, not the query: decoding is strict later on.
        connection.text_factory = _text
        connection.execute("PRAGMA trusted_schema = OFF")
        if path != _MEMORY:
            if _journal_mode(connection, busy_seconds) != "wal":
                raise StoreError(f"the store {path} lies where SQLite cannot keep its log; use a local disk")
            connection.execute("PRAGMA synchronous = FULL")
    except BaseException:
        connection.close()
        raise
    return connection


def _journal_mode(connection: sqlite3.Connection, busy_seconds: float) -> str:
    """Have a write-ahead log. SQLite itself does not wait for others who ask for one at the same moment."""
    until = time.monotonic() + busy_seconds
    while True:
        try:
            return str(connection.execute("PRAGMA journal_mode = WAL").fetchone()[0])
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= until:
                raise
            time.sleep(_LOOK_AGAIN_SECONDS)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
