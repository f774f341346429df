"""The Postgres server of a test session: `LOOPWARDEN_TEST_POSTGRES`, or one embedded server for all xdist workers.

The first process that needs the embedded server starts a keeper, which owns it. Every process that uses it holds a
shared lock on one file for as long as it lives; when the keeper gets that lock for itself, everybody has left, however
they went, and it stops the server and removes what there was. Nothing is skipped: without a server a test fails, and
the reason is its message.
"""

import atexit
import contextlib
import fcntl
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from support.embedded_postgres import EmbeddedPostgres, NoPostgres

VARIABLE = "LOOPWARDEN_TEST_POSTGRES"
_held: list[int] = []
"""The descriptor of the shared lock, once this process uses the embedded server."""
_known: list[str] = []
_reused: list[str] = []


def server_url() -> str:
    """A conninfo of a database on the server of this session, whose user may create databases."""
    if not _known:
        named = os.environ.get(VARIABLE)
        _known.append(named or _embedded(_session_folder()))
    return _known[0]


@contextlib.contextmanager
def fresh_database() -> Iterator[str]:
    """The conninfo of an empty database, which is dropped afterwards, whoever is still connected."""
    name = _create(f"loopwarden_test_{os.getpid()}_{secrets.token_hex(4)}")
    try:
        yield make_conninfo(server_url(), dbname=name)
    finally:
        _drop(name)


@contextlib.contextmanager
def emptied_database() -> Iterator[str]:
    """The conninfo of one database of this process that is used again and again: faster than a fresh one.

    Tables stay as they are, and their rows are deleted before each use. For tests that change no tables.
    """
    if not _reused:
        name = _create(f"loopwarden_test_{os.getpid()}_reused")
        atexit.register(_drop, name)
        _reused.append(make_conninfo(server_url(), dbname=name))
    with psycopg.connect(_reused[0], autocommit=True) as connection:
        tables = connection.execute(
            "SELECT schemaname, tablename FROM pg_tables WHERE schemaname LIKE 'loopwarden%' AND tablename <> 'meta' "
            "ORDER BY tablename = 'procrastinate_jobs', tablename"  # what refers to jobs goes first
        ).fetchall()
        # Faster than TRUNCATE, which makes new files.
        with connection.transaction():
            for schema, table in tables:
                connection.execute("SELECT set_config('search_path', %s, true)", (schema,))
                connection.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(schema, table)))
    yield _reused[0]


def _create(name: str) -> str:
    with psycopg.connect(server_url(), autocommit=True) as connection:
        connection.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE template0 ENCODING 'UTF8'").format(sql.Identifier(name))
        )
    return name


def _drop(name: str) -> None:
    """Drop a database, whoever is still connected to it."""
    with psycopg.connect(server_url(), autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def _session_folder() -> Path:
    """The same for all workers of one xdist session; otherwise of this process alone."""
    session = os.environ.get("PYTEST_XDIST_TESTRUNUID") or f"pid-{os.getpid()}"
    return Path(tempfile.gettempdir()) / f"loopwarden-tests-{os.getuid()}-{session}"


def _embedded(folder: Path) -> str:
    """The conninfo of the embedded server; starts it when this process is the first that needs it."""
    with _exclusively(folder):
        users = os.open(folder / "users", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(users, fcntl.LOCK_SH)
        _held.append(users)
        atexit.register(_leave)
        said = folder / "server.json"
        if not said.exists():
            argv = [sys.executable, str(Path(__file__)), str(folder)]
            environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent.parent), *sys.path])}
            subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, env=environment)
        answer = json.loads(said.read_text())
    if "error" in answer:
        raise NoPostgres(answer["error"])
    return str(answer["url"])


def _leave() -> None:
    while _held:
        os.close(_held.pop())


@contextlib.contextmanager
def _exclusively(folder: Path) -> Iterator[None]:
    """One process at a time, on a lock inside `folder`, which may be removed while we wait for it."""
    lock = _locked(folder)
    try:
        yield
    finally:
        os.close(lock)


def _locked(folder: Path) -> int:
    while True:
        folder.mkdir(mode=0o700, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if (folder / "lock").exists() and os.path.samestat(os.fstat(lock), (folder / "lock").stat()):
                return lock
            os.close(lock)


def _keep(folder: Path, spoken: Callable[[], None]) -> None:
    """The keeper: start the server, say so, wait until everybody has left, stop it."""
    server, answer = _start()
    fresh = folder / "server.json.new"
    fresh.write_text(json.dumps(answer))
    fresh.rename(folder / "server.json")
    spoken()
    while True:
        users = os.open(folder / "users", os.O_RDWR)
        fcntl.flock(users, fcntl.LOCK_EX)
        os.close(users)  # whoever comes now is found below
        with _exclusively(folder):
            users = os.open(folder / "users", os.O_RDWR)
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if server is not None:
                    server.close()
                shutil.rmtree(folder)
                return
            os.close(users)


def _start() -> tuple[EmbeddedPostgres | None, dict[str, object]]:
    try:
        server = EmbeddedPostgres(fsync=False)
    except Exception as error:
        return None, {"error": str(error)}
    return server, {"url": server.url(), "pid": server.pid, "keeper": os.getpid()}


def _start_keeper(folder: Path) -> None:
    """Run as a program: leave a keeper behind that is nobody's child, and return when it has spoken."""
    ears, mouth = os.pipe()
    if os.fork() > 0:
        os.close(mouth)
        os.read(ears, 1)
        return
    os.close(ears)
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    _keep(folder, lambda: os.close(mouth))


if __name__ == "__main__":
    _start_keeper(Path(sys.argv[1]))
