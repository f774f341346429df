"""Schedules of a store: each time that comes makes one run, on whichever driving host sees it first.

Moving the schedule and creating its run is one transaction, so a time fires once over all hosts. Times that passed
while no host looked make one run together.
"""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final

from loopwarden.checks import Check
from loopwarden.custody import Custody, host_note
from loopwarden.failures import StartRefused
from loopwarden.jobs.request import JobRequest
from loopwarden.limits import LimitOverrides
from loopwarden.script import Script
from loopwarden.store.cron import next_after_missed
from loopwarden.store.errors import KeyConflict
from loopwarden.store.runs import NewRun, RunFilter, Status
from loopwarden.store.scheduled import ScheduledRun
from loopwarden.store.shared import Schedule

LABEL: Final = "schedule"
"""Runs of a schedule carry its name under this label."""
_MOST_REMEMBERED: Final = 1000


class Schedules:
    """Fires what is due. One per driver."""

    def __init__(self, custody: Custody, accept: Callable[[JobRequest], Awaitable[NewRun]]) -> None:
        self._custody = custody
        self._accept = accept
        self._refused: dict[tuple[str, float], str] = {}
        """Why a time of a schedule was not fired here; so it is said once, not at each poll."""

    async def fire_due(self) -> None:
        """Fire all schedules that are due. Raises `StoreError`."""
        listed = [schedule for schedule in await self._custody.store.schedules() if not schedule.is_paused]
        if not listed:
            return
        now = await self._custody.store.now()
        for schedule in listed:
            if schedule.next_at <= now:
                await self._fire(schedule, now)

    async def _fire(self, schedule: Schedule, now: float) -> None:
        try:
            request = _request(schedule, self._custody)
            if request is None:
                return  # another host has the loop
            next_at = next_after_missed(schedule.cron, schedule.zone, schedule.next_at, now)
            is_skipped = schedule.overlap == "skip" and await self._is_going(schedule, request)
            run = None if is_skipped else await self._accept(request)
        except (StartRefused, ValueError) as error:
            # The time stays due: a host that can take it does, or this one once the reason is mended.
            self._note_refusal(schedule, str(error))
            return
        fire, name = self._custody.store.fire, schedule.name
        try:
            row = await fire(name, due_at=schedule.next_at, next_at=next_at, run=run)
        except KeyConflict as error:
            # The schedule was changed after this time had been fired, so the time has its run.
            row = await fire(name, due_at=schedule.next_at, next_at=next_at, run=None)
            host_note("warning", "schedule skipped", schedule=name, why=str(error))
        if is_skipped:
            host_note("info", "schedule skipped", schedule=name, why="its run before is not over")
        elif row is not None:
            host_note("info", "schedule fired", schedule=name, run_id=row.run_id)

    async def _is_going(self, schedule: Schedule, request: JobRequest) -> bool:
        """Whether the run before waits or runs. One that is held goes on by nobody's will but a person's."""
        wanted = RunFilter(script=request.script.name, labels={LABEL: schedule.name}, limit=1)
        return any(row.status in (Status.QUEUED, Status.RUNNING) for row in await self._custody.store.find(wanted))

    def _note_refusal(self, schedule: Schedule, problem: str) -> None:
        time = (schedule.name, schedule.next_at)
        if self._refused.get(time) != problem:
            if len(self._refused) >= _MOST_REMEMBERED:
                self._refused.clear()
            self._refused[time] = problem
            host_note("error", "a schedule cannot be fired", schedule=schedule.name, problem=problem)


def key_of(name: str, due_at: float) -> str:
    """The key of the run that a schedule makes at a time: `schedule:NAME:2026-11-30T03:00:00Z`."""
    return f"schedule:{name}:{datetime.fromtimestamp(due_at, UTC).strftime('%Y-%m-%dT%H:%M:%SZ')}"


def _request(schedule: Schedule, custody: Custody) -> JobRequest | None:
    """What a schedule submits; None when this host does not have its loop. Raises ValueError."""
    scheduled = ScheduledRun.from_json(schedule.request)
    script: Script[object, object] | None = custody.scripts.get(scheduled.script)
    if script is None:
        return None
    return JobRequest(
        script=script,
        args=scheduled.args,
        queue=scheduled.queue,
        key=key_of(schedule.name, schedule.next_at),
        priority=scheduled.priority,
        labels={**scheduled.labels, LABEL: schedule.name},
        scopes=scheduled.scopes,
        workspace=scheduled.workspace,
        share_workspace=scheduled.share_workspace,
        isolation=scheduled.isolation,
        provider=scheduled.provider,
        checks=[Check(argv=tuple(check.argv)) for check in scheduled.checks],
        by=f"the schedule {schedule.name}" + (f", made by {scheduled.by}" if scheduled.by else ""),
        overrides=LimitOverrides(**scheduled.limits),  # type: ignore[typeddict-item]
    )
