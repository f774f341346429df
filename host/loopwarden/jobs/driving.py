"""The driver of a host: claims runs of its queues when a place frees, when somebody submits, and at each poll.

The poll alone guarantees progress; everything else only makes it sooner. A store that cannot be asked is asked again at
the next poll. Schedules that are due are fired on the way.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

from loopwarden.custody import Custody, host_note
from loopwarden.failures import InvalidRequest, StartRefused, WorkspaceBusy
from loopwarden.jobs.request import JobRequest
from loopwarden.jobs.schedules import Schedules
from loopwarden.live_run import LiveRun
from loopwarden.plan import Deployment
from loopwarden.store.errors import StoreError
from loopwarden.store.names import check_name
from loopwarden.store.runs import Claim, NewRun

_MOST_AT_ONCE: Final = 32
"""Runs of one claim: each comes with its whole journal, and the store does nothing else meanwhile."""
_LONGEST_REST_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverPorts:
    """What a driver asks of its host."""

    custody: Callable[[], Awaitable[Custody]]
    ready_launcher: Callable[[], Awaitable[object]]
    free_places: Callable[[], int]
    """How many runs the host could begin now."""
    providers: Callable[[], Sequence[str]]
    """Those that may be asked now."""
    deployment: Deployment
    """What the deployment of the host decided."""
    adopt: Callable[[Claim, float], Awaitable[LiveRun[Any] | None]]
    accept: Callable[[JobRequest], Awaitable[NewRun]]
    """Check what a schedule submits."""
    begins: "Callable[[Driver], None]"
    ends: "Callable[[Driver], None]"


class Driver:
    """Drives queues for one host. Await it, or use it as a context manager; see `Host.drive`. Not for use twice."""

    def __init__(self, ports: DriverPorts, queues: Mapping[str, int]) -> None:
        """Raises `InvalidRequest` for a queue that cannot be."""
        for name, places in queues.items():
            try:
                check_name(name, "a queue")
            except ValueError as error:
                raise InvalidRequest(str(error)) from None
            if isinstance(places, bool) or not isinstance(places, int) or places < 1:
                raise InvalidRequest(f"the queue {name!r} has at least one place, not {places!r}")
        if not queues:
            raise InvalidRequest("there is no queue to drive; name at least one")
        self._ports = ports
        self.queues = dict(queues)
        """Places by queue."""
        self._driving: dict[tuple[str, int], str] = {}
        """Queues of the runs that have a place, by id and epoch."""
        self._beginning = 0
        """Runs that were claimed, and that the host does not count yet."""
        self._all_begun = asyncio.Event()
        self._all_begun.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._freed = asyncio.Event()
        self._is_closing = False
        self._main: asyncio.Task[None] | None = None
        self._refused = 0
        """Runs in a row that could not begin on this machine."""
        self._waiting: set[str] = set()
        """Runs of which it was said that they wait for their workspace."""

    def __await__(self) -> Generator[Any, None, None]:
        """Drive until this is cancelled, or the host is closed."""
        return self._run().__await__()

    async def __aenter__(self) -> Self:
        """Begin to drive. Raises `LaunchFailed` or `ConfinementUnavailable` when no run could be driven here."""
        await self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Claim nothing more. Runs that are live go on."""
        await self.close()

    @property
    def live(self) -> list[str]:
        """Ids of the runs that have a place now."""
        return [run_id for run_id, _ in self._driving]

    def stop(self) -> None:
        """Claim nothing more, from now on."""
        self._is_closing = True
        self._freed.set()

    async def close(self) -> None:
        """Claim nothing more; returns once no claim is under way. Harmless when repeated."""
        self.stop()
        if self._main is not None:
            await asyncio.shield(self._main)
        # Who closes the host next counts on its knowing of every run that was claimed.
        await self._all_begun.wait()

    async def _run(self) -> None:
        await self._begin()
        assert self._main is not None
        try:
            await asyncio.shield(self._main)
        finally:
            await self.close()

    async def _begin(self) -> None:
        if self._main is not None or self._is_closing:
            raise RuntimeError("this driver was used before; ask the host for a new one")
        custody = await self._ports.custody()
        # A host that cannot start a worker must not take runs from those that can.
        await self._ports.ready_launcher()
        self._ports.begins(self)
        self._main = asyncio.get_running_loop().create_task(self._drive(custody))
        self._main.add_done_callback(lambda _: self._ports.ends(self))

    # ---- the loop

    async def _drive(self, custody: Custody) -> None:
        schedules = Schedules(custody, self._ports.accept)
        poll_seconds = custody.rules.poll_seconds
        clock, fired_at = asyncio.get_running_loop().time, -poll_seconds
        woken: asyncio.Task[bool] | None = None
        try:
            while not self._is_closing:
                if self._refused:
                    # What failed here may work elsewhere, or here a little later: let others have the run first.
                    await self._rest(min(_LONGEST_REST_SECONDS, poll_seconds * 2.0**self._refused))
                self._freed.clear()
                if clock() - fired_at >= poll_seconds:
                    fired_at = clock()
                    await self._fire(schedules)
                await self._fill(custody)
                if woken is None or woken.done():
                    woken = asyncio.ensure_future(custody.store.woken(self.queues, poll_seconds))
                await self._wait(woken, poll_seconds)
        finally:
            if woken is not None:
                woken.cancel()
                await asyncio.gather(woken, return_exceptions=True)

    async def _wait(self, woken: "asyncio.Task[bool]", poll_seconds: float) -> None:
        """Wait for a place, for a run if there is a place, or for the next poll."""
        freed = asyncio.ensure_future(self._freed.wait())
        waited: set[asyncio.Task[bool]] = {freed, woken} if self._places() else {freed}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED, timeout=poll_seconds)
        freed.cancel()
        if woken.done() and woken.exception() is not None:
            # A store that is away answers at once; the poll is soon enough for it.
            await self._rest(poll_seconds)

    async def _rest(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self._is_closing:
                    await self._freed.wait()
                    self._freed.clear()

    async def _fire(self, schedules: Schedules) -> None:
        try:
            await schedules.fire_due()
        except StoreError as error:
            host_note("warning", "the store cannot be asked for schedules", problem=str(error))

    async def _fill(self, custody: Custody) -> None:
        """Claim as many runs as there are places."""
        ports = self._ports
        try:
            while not self._is_closing:
                places = self._places()
                limit = min(sum(places.values()), ports.free_places() - self._beginning, _MOST_AT_ONCE)
                if limit <= 0:
                    return
                await ports.ready_launcher()
                claims = await custody.claim(custody.wanted(places, ports.providers(), ports.deployment), limit=limit)
                for claim, asked_at in claims:
                    self._take(claim, asked_at)
                if not claims:
                    self._refused = 0  # what could not begin here is another host's now, or nobody's
                if len(claims) < limit:
                    return
        except StoreError as error:
            host_note("warning", "the store cannot be asked for runs", problem=str(error))
        except StartRefused as refusal:
            self._refused += 1
            host_note("error", "this host cannot drive runs now", problem=refusal.message)

    def _places(self) -> dict[str, int]:
        taken = list(self._driving.values())
        free = {name: places - taken.count(name) for name, places in self.queues.items()}
        return {name: places for name, places in free.items() if places > 0}

    # ---- runs

    def _take(self, claim: Claim, asked_at: float) -> None:
        self._driving[claim.row.run_id, claim.row.epoch] = claim.row.queue or ""
        self._beginning += 1
        self._all_begun.clear()
        task = asyncio.get_running_loop().create_task(self._drive_one(claim, asked_at))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _drive_one(self, claim: Claim, asked_at: float) -> None:
        """Drive one run until nothing of it is left here. It has its place so long."""
        run_id = claim.row.run_id
        self._beginning -= 1
        if not self._beginning:
            self._all_begun.set()  # heard only when this task waits: by then the host knows of it
        try:
            run = await self._ports.adopt(claim, asked_at)
            self._refused = 0
            self._waiting.discard(run_id)
            if run is not None:
                await run.gone()
        except StartRefused as refusal:
            if not self._is_closing:
                self._refused += 1
                self._note_refusal(run_id, refusal)
        except StoreError as error:
            host_note("warning", "a run that was claimed could not begin", run_id=run_id, problem=str(error))
        except Exception as error:  # noqa: BLE001 -- a mistake with one run must not end the driving of all others
            host_note("error", "a run that was claimed could not begin", run_id=run_id, exc_info=error)
        finally:
            del self._driving[run_id, claim.row.epoch]
            self._freed.set()

    def _note_refusal(self, run_id: str, refusal: StartRefused) -> None:
        """That another run has the workspace is in the order of things: one line for each run that waits so."""
        if not isinstance(refusal, WorkspaceBusy):
            host_note("error", "a run could not begin here, and was given back", run_id=run_id, problem=str(refusal))
        elif run_id not in self._waiting:
            self._waiting.add(run_id)
            host_note("info", "a run waits for its workspace", run_id=run_id, problem=str(refusal))
