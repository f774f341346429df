"""The checks of one run: after a claimed completion, by the host, in the workspace. Only they make a run verified."""

import asyncio
from collections.abc import Callable
from typing import Any

from loopwarden.checks import run_leased_check
from loopwarden.lease_view import LeaseView
from loopwarden.plan import Plan
from loopwarden.run_record import RunRecord


class Checking:
    """Runs the checks of a run, one after the other, unless they are cancelled."""

    def __init__(self, plan: Plan[Any, Any], record: RunRecord, note: Callable[..., None]) -> None:
        self._plan = plan
        self._record = record
        self._note = note
        self.lease: LeaseView | None = None
        """Of the run; None without a store."""
        self._task: asyncio.Task[None] | None = None
        self._is_cancelled = False

    def cancel(self) -> None:
        """End the check that runs, and run no more. Then nothing is verified."""
        self._is_cancelled = True
        if self._task is not None:
            self._task.cancel()

    async def run(self) -> None:
        """Run every check and record what came of them. Raises nothing for what a check does."""
        if not self._plan.checks:
            return
        if self._is_cancelled:
            self._record.problems.append("the run was cancelled before its checks began; nothing is verified")
            return
        self._task = asyncio.get_running_loop().create_task(self._run_all())
        await asyncio.wait([self._task])
        if self._task.cancelled():
            self._record.problems.append("the checks were cancelled before they were done; nothing is verified")
        elif (error := self._task.exception()) is not None:
            self._note("error", "a check could not be run", exc_info=error)
            self._record.problems.append(f"a check could not be run: {type(error).__name__}: {error}")

    async def _run_all(self) -> None:
        assert self._plan.workspace is not None
        for check in self._plan.checks:
            record = await run_leased_check(
                check, workspace=self._plan.workspace, limits=self._plan.limits, lease=self.lease
            )
            self._record.checks.append(record)
        # Only now: checks that were cancelled midway verify nothing.
        self._record.verified = all(record.passed for record in self._record.checks)
