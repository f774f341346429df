"""Waking hosts on Postgres by Procrastinate, an existing job engine. A job holds a run's id and nothing else.

    create, give back   in the run's own transaction, on its connection: a job with queue, priority and time
    Procrastinate       LISTEN/NOTIFY, order, delay, which of the hosts gets it
    the job             marks its queue as rung, and ends

The status of a job means nothing: a job may be lost, done twice, or finished by a worker that was thought dead. Whether
a run is due, and whose it is, the claim decides from the store's own rows, at each poll too.
"""

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Collection, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import procrastinate
import psycopg
from procrastinate.exceptions import ProcrastinateException
from procrastinate.schema import SchemaManager
from psycopg import sql

from loopwarden.logs import host_logger
from loopwarden.store.postgres_link import Place

TASK: Final = "loopwarden:wake"
_MAX_QUEUE_BYTES: Final = 40
"""Procrastinate names a channel after its queue, and Postgres takes 63 bytes for the name of a channel."""
_MAX_PRIORITY: Final = 2**31 - 1
_LAST_MOMENT: Final = datetime(9999, 1, 1, tzinfo=UTC).timestamp()
_POLL_SECONDS: Final = 1.0
"""How soon a job that was put off is found once it is due, and one whose notification was missed."""
_PATIENCE_SECONDS: Final = 3.0
"""How long the worker waits for a connection."""
_JOBS_AT_ONCE: Final = 8
_FIRST_PAUSE_SECONDS: Final = 0.2
_LAST_PAUSE_SECONDS: Final = 15.0
_GONE_SECONDS: Final = 120.0
"""A worker without a heartbeat for so long is gone, and the jobs that it had are deleted."""


_OURS: Final[ContextVar[bool]] = ContextVar("loopwarden_wakes", default=False)
"""True in the task of a worker of ours, and in all that it starts."""
_LOGGERS: Final = (
    "procrastinate.connector",
    "procrastinate.periodic",
    "procrastinate.psycopg_connector",
    "procrastinate.utils",
    "procrastinate.worker",
    "procrastinate.worker.loopwarden",
    "psycopg.pool",
)


def _is_of_others(_record: logging.LogRecord) -> bool:
    """A filter of logs: drops tracebacks of libraries about our worker, of whose troubles we say one line ourselves.

    The embedder may use the same libraries; what concerns its own use of them stays.
    """
    return not _OURS.get()


def wake_schema() -> str:
    """The schema in which this version of Procrastinate keeps its tables: one per version of them.

    So a newer Procrastinate finds no tables of an older one that it would have to change under running hosts. Jobs in
    the schema of another version wake nobody here; their runs are found by the poll.
    """
    newest = max(path.name for path in Path(SchemaManager.get_migrations_path()).glob("*.sql"))
    return "loopwarden_wake_" + "".join(part for part in newest[:8] if part.isdigit())


def install(connection: psycopg.Connection[Any], schema: str) -> None:
    """Make Procrastinate's tables in `schema`, unless they are there. Inside of the caller's transaction."""
    there = connection.execute("SELECT to_regclass(%s)", (f"{schema}.procrastinate_jobs",)).fetchone()
    if there is not None and there[0] is not None:
        return
    name = sql.Identifier(schema)
    connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(name))
    before = connection.execute("SELECT current_setting('search_path')").fetchone()
    assert before is not None
    connection.execute(sql.SQL("SET LOCAL search_path TO {}").format(name))
    connection.execute(SchemaManager.get_schema())
    connection.execute("SELECT set_config('search_path', %s, true)", (before[0],))


def queue_name(queue: str) -> str:
    """What Procrastinate calls a queue: its name, or a digest when that is too long for the name of a channel."""
    if len(queue.encode()) <= _MAX_QUEUE_BYTES:
        return queue
    return "#" + hashlib.sha256(queue.encode()).hexdigest()[: _MAX_QUEUE_BYTES - 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A run that begins to wait for a host."""

    run_id: str
    queue: str
    priority: int
    not_before: float
    """Unix time in seconds; 0 for at once."""


class WakeJobs:
    """Defers jobs on a connection of the store, in whatever transaction it is in. Opens nothing of its own."""

    def __init__(self) -> None:
        app = procrastinate.App(connector=procrastinate.SyncPsycopgConnector())
        self._task = app.task(name=TASK)(_nothing)

    def defer(self, connection: psycopg.Connection[Any], runs: Sequence[Waiting]) -> None:
        """One job for each run that waits in a queue, or none of them: then the poll finds the runs.

        Raises psycopg's errors when the connection is lost.
        """
        if not runs:
            return
        try:
            with connection.transaction():  # a savepoint: what goes wrong here harms no run
                self._defer(connection, runs)
        except ProcrastinateException as error:
            if connection.closed:
                raise psycopg.OperationalError("the connection was lost") from None
            host_logger().warning("nobody is woken for new runs; they are found by the poll", why=type(error).__name__)

    def _defer(self, connection: psycopg.Connection[Any], runs: Sequence[Waiting]) -> None:
        alike: dict[tuple[str, int, float], list[dict[str, Any]]] = {}
        for run in runs:
            kind = (queue_name(run.queue), run.priority, run.not_before)
            alike.setdefault(kind, []).append({"run": run.run_id})
        for (queue, priority, not_before), jobs in alike.items():
            self._task.configure(
                connection=connection,
                queue=queue,
                priority=max(-_MAX_PRIORITY, min(priority, _MAX_PRIORITY)),
                schedule_at=_time(not_before),
            ).batch_defer(*jobs)


def _time(moment: float) -> datetime | None:
    """When a job is due; None for at once. A moment that no calendar has is one that the poll has to find."""
    if moment <= 0:
        return None
    return datetime.fromtimestamp(min(moment, _LAST_MOMENT), UTC)


def _nothing(run: str) -> None:
    """What a job does where none is run."""


class WakeListener:
    """Runs a worker of Procrastinate in the host's event loop, and tells who waits that a queue was rung.

    The worker starts with the first wait. It is started again when the queues become more, and after the database was
    gone; it never ends the host, handles no signals, and deletes every job that it had.
    """

    def __init__(self, place: Place, schema: str) -> None:
        self._place = place
        self._schema = schema
        self._queues: frozenset[str] = frozenset()
        self._rung: dict[str, int] = {}
        self._seen: dict[frozenset[str], int] = {}
        self._bell = asyncio.Condition()
        self._worker: asyncio.Task[None] | None = None
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(_is_of_others)

    async def woken(self, queues: Collection[str], timeout_seconds: float) -> bool:
        """See `Store.woken`."""
        asked = frozenset(queue_name(queue) for queue in queues)
        await self._listen_to(asked)
        seen = self._seen.get(asked, 0)
        async with self._bell:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_seconds):
                    await self._bell.wait_for(lambda: self._count(asked) > seen)
            self._seen[asked] = self._count(asked)
        return self._seen[asked] > seen

    async def close(self) -> None:
        """Stop the worker. Harmless when repeated."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await worker

    def _count(self, queues: frozenset[str]) -> int:
        return sum(self._rung.get(queue, 0) for queue in queues)

    async def _listen_to(self, queues: frozenset[str]) -> None:
        if queues <= self._queues and self._worker is not None and not self._worker.done():
            return
        await self.close()
        self._queues |= queues
        if self._queues:
            self._worker = asyncio.create_task(self._work(sorted(self._queues)), name="loopwarden wakes")

    async def _work(self, queues: list[str]) -> None:
        """Run the worker, again and again while the database comes and goes."""
        _OURS.set(True)
        loop, this = asyncio.get_running_loop(), asyncio.current_task()
        pause = _FIRST_PAUSE_SECONDS
        while True:
            begun = loop.time()
            try:
                await self._work_once(queues)
            except (ProcrastinateException, psycopg.Error, OSError, TimeoutError) as error:
                if this is not None and this.cancelling():
                    return  # the worker could not say goodbye to its database
                why = type(error).__name__
                host_logger().warning("runs are found by the poll alone for a while", store=self._place.name, why=why)
            if loop.time() - begun > _LAST_PAUSE_SECONDS:
                pause = _FIRST_PAUSE_SECONDS
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LAST_PAUSE_SECONDS)

    async def _work_once(self, queues: list[str]) -> None:
        connector = procrastinate.PsycopgConnector(
            conninfo=self._place.conninfo,
            kwargs=dict(self._place.parameters),
            configure=self._set_up,
            min_size=1,
            max_size=2,
            timeout=_PATIENCE_SECONDS,
            name="loopwarden wakes",
        )
        app = procrastinate.App(connector=connector)
        app.task(name=TASK, pass_context=True)(self._ring)
        async with app.open_async():
            await self._sweep(connector)
            await app.run_worker_async(
                queues=queues,
                name="loopwarden",
                concurrency=_JOBS_AT_ONCE,
                fetch_job_polling_interval=_POLL_SECONDS,
                abort_job_polling_interval=60.0,
                shutdown_graceful_timeout=1.0,
                stalled_worker_timeout=_GONE_SECONDS,
                listen_notify=True,
                delete_jobs="always",
                install_signal_handlers=False,
            )

    async def _set_up(self, connection: psycopg.AsyncConnection[Any]) -> None:
        await connection.execute(sql.SQL("SET search_path TO {}").format(sql.Identifier(self._schema)))
        if not connection.autocommit:
            await connection.commit()

    async def _sweep(self, connector: procrastinate.PsycopgConnector) -> None:
        """Delete jobs whose worker is gone: nobody will end them, and their runs are in the store."""
        await connector.execute_query_async(
            "DELETE FROM procrastinate_jobs WHERE status = 'doing' AND (worker_id IS NULL OR worker_id IN "
            "(SELECT id FROM procrastinate_workers WHERE last_heartbeat < now() - make_interval(secs => %(gone)s)))",
            gone=_GONE_SECONDS,
        )

    async def _ring(self, context: procrastinate.JobContext, /, **_arguments: object) -> None:
        job = asyncio.current_task()
        if job is not None:
            # The end of a job fails when the database is gone, or when somebody deleted the job. Nobody needs to know.
            job.add_done_callback(_forget)
        async with self._bell:
            self._rung[context.job.queue] = self._rung.get(context.job.queue, 0) + 1
            self._bell.notify_all()


def _forget(job: asyncio.Task[Any]) -> None:
    if not job.cancelled():
        job.exception()
