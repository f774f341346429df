"""The end of a run that needs no worker any more: its outcome was fixed when its host died, or it was cancelled."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loopwarden.checks import Check, run_leased_check
from loopwarden.contract import Standing
from loopwarden.journal.moves import Stage
from loopwarden.journal.receipt_fold import receipt_of
from loopwarden.limits import Limits
from loopwarden.receipt import CheckRecord, WorktreeRecord
from loopwarden.run_record import Ending
from loopwarden.tenure import Tenure


@dataclass(frozen=True, slots=True, kw_only=True)
class Remains:
    """What this host knows of a run beside its journal."""

    limits: Limits
    workspace: Path | None = None
    """Where its checks run; None when this host does not have it, or when there is none."""
    worktree: WorktreeRecord | None = None
    last_handoff: dict[str, Any] | None = None


class Unattended:
    """A run that is wound up, as the keeper of its lease knows it: no agent works for it, and its end is fixed."""

    def lease_ended(self) -> None:
        """Nothing is at work that could be interrupted."""

    def cancel(self, reason: str = "") -> None:
        """Its end is fixed."""

    def raise_limits(self, asked: Any, by: str) -> None:
        """It asks nothing more."""


async def wind_up(tenure: Tenure, ending: Ending | None, remains: Remains) -> None:
    """Bring a run to its recorded end, or to `ending` when none is recorded. Its checks run once more.

    Nobody knows how far the checks came on the host that died, so they begin again: they only look.
    """
    state = tenure.recorded
    if state.stage is not Stage.STOPPING:
        assert ending is not None
        tenure.stop(ending)
    # Only now: what is written of a call's last attempt stands behind the end of its run.
    tenure.close_asks("its host died, and the run had ended")
    receipt = receipt_of(state)
    stopping = state.stopping
    conclusion = None if stopping is None else stopping.conclusion
    checks: list[CheckRecord] = []
    problems: list[str] = []
    if conclusion is not None and conclusion.standing == Standing.COMPLETE and state.created.checks:
        if remains.workspace is None:
            problems.append("this host does not have the workspace of the run, so its checks did not run")
        else:
            specs = [Check(argv=tuple(spec.argv)) for spec in state.created.checks]
            checks = [
                await run_leased_check(check, workspace=remains.workspace, limits=remains.limits, lease=tenure.lease)
                for check in specs
            ]
    handoff = remains.last_handoff if remains.last_handoff is not None else receipt.last_handoff
    known = {
        "checks": checks,
        "verified": all(check.passed for check in checks) if checks else None,
        "problems": problems,
        "worktree": remains.worktree,
        "last_handoff": handoff,
    }
    await tenure.finish(receipt.model_copy(update=known))
