"""A connection to Postgres: how it is opened and set up, and what its errors say to a person. Never a password."""

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, LiteralString

import psycopg
from psycopg import errors, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from loopwarden.store.errors import StoreError, StoreUnavailable

SCHEMA: Final = "loopwarden"
"""Where the tables of the store are."""
LOST: Final = (psycopg.OperationalError, psycopg.InterfaceError)
"""What psycopg raises when the connection is gone; see `is_lost`."""
AGAIN: Final = (errors.SerializationFailure, errors.DeadlockDetected, errors.LockNotAvailable)
"""The database asks to try the whole transaction again."""

_PARAMETERS: Final[Mapping[str, Any]] = {
    "connect_timeout": 5,
    "application_name": "loopwarden",
    "client_encoding": "utf8",
    # A server that is gone without a word is noticed well within a lease.
    "keepalives_idle": 5,
    "keepalives_interval": 3,
    "keepalives_count": 3,
    "tcp_user_timeout": 12_000,
}
_SETTINGS: Final[tuple[LiteralString, ...]] = (
    # A host that was stopped in the middle of a transaction must not keep rows locked that others need.
    "SET idle_in_transaction_session_timeout = '8s'",
    "SET lock_timeout = '15s'",
    "SET default_transaction_isolation = 'read committed'",
    "SET default_transaction_read_only = off",
    "SET extra_float_digits = 1",
    # A commit that was reported is on the disk, whatever the database's default; stronger settings are left alone.
    "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'",
)
_UNAVAILABLE: Final[tuple[tuple[tuple[type[Exception], ...], str], ...]] = (
    ((errors.DiskFull,), "the disk of the database {place} is full: free space there, then ask again"),
    ((errors.ReadOnlySqlTransaction,), "the database {place} is read-only: name the server that takes writes"),
    (
        (errors.AdminShutdown, errors.CrashShutdown, errors.CannotConnectNow, errors.QueryCanceled),
        "the database {place} is stopping or starting; ask again when it is up",
    ),
    (AGAIN, "the database {place} is too busy with transactions that wait for each other; ask again"),
    ((*LOST, OSError), "the database {place} cannot be reached: {words}"),
)
"""What passes by itself or by an operator's hand; the first that fits. The most special first."""


@dataclass(frozen=True, slots=True)
class Place:
    """Which database, for the driver and for people."""

    conninfo: str = field(repr=False)
    name: str
    """Host and database, without secrets."""
    parameters: Mapping[str, Any] = field(repr=False)
    """What is given to the driver beside the conninfo."""


def place_of(conninfo: str) -> Place:
    """Read a conninfo or URL. Raises `StoreError` when it is neither."""
    try:
        said = conninfo_to_dict(conninfo)
    except psycopg.Error:
        # The driver's words quote what was given, with whatever it holds.
        raise StoreError(
            "the address of the Postgres store cannot be read; write it as postgresql://HOST/DATABASE"
        ) from None
    host = str(said.get("host") or said.get("hostaddr") or "the local socket")
    port = f":{said['port']}" if said.get("port") else ""
    database = str(said.get("dbname") or "(default)")
    parameters = {name: value for name, value in _PARAMETERS.items() if name not in said}
    return Place(make_conninfo(conninfo), f"{database} on {host}{port}", parameters)


def connect(place: Place, *, search_path: tuple[str, ...]) -> psycopg.Connection[Any]:
    """A connection that is set up for a store, between transactions. Raises psycopg's errors."""
    connection = psycopg.connect(place.conninfo, autocommit=True, **place.parameters)
    try:
        for setting in _SETTINGS:
            connection.execute(setting)
        path = sql.SQL(", ").join(sql.Identifier(name) for name in search_path)
        connection.execute(sql.SQL("SET search_path TO {}").format(path))
    except BaseException:
        connection.close()
        raise
    return connection


def is_lost(connection: psycopg.Connection[Any], error: BaseException) -> bool:
    """True when nothing can be said to the database over this connection any more."""
    return isinstance(error, LOST) and (connection.closed or connection.broken)


def drop(connection: psycopg.Connection[Any] | None) -> None:
    """Close without a word to the database, which may be gone."""
    if connection is not None:
        with contextlib.suppress(psycopg.Error, OSError):
            connection.close()


def said_by(place: Place, error: BaseException) -> StoreError:
    """The sentence for an operator."""
    if isinstance(error, StoreError):
        return error
    for kinds, sentence in _UNAVAILABLE:
        if isinstance(error, kinds):
            return StoreUnavailable(sentence.format(place=place.name, words=_words(place, error)))
    if isinstance(error, errors.InsufficientPrivilege):
        return StoreError(f"the user of the database {place.name} lacks a right: {_words(place, error)}")
    return StoreError(f"the database {place.name} refused what it was asked: {_words(place, error)}")


def _words(place: Place, error: BaseException) -> str:
    """The driver's or server's own words in one line, without anything that the conninfo holds as a secret."""
    words = " ".join(str(error).split()) or type(error).__name__
    password = conninfo_to_dict(place.conninfo).get("password")
    if password:
        words = words.replace(str(password), "***")
    words = re.sub(r"(?i)password=\S+", "password=***", words)
    return words if len(words) <= 400 else words[:399] + "…"
