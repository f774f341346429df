"""The place in which the agents of a run work: its workspace, held for it, or a worktree of its own."""

from typing import Any, Final

from loopwarden.failures import InvalidRequest
from loopwarden.plan import Plan
from loopwarden.run_folder import RunFolderError
from loopwarden.workspace import WorkspaceLock, lock_folder
from loopwarden.worktree import Worktree, create_worktree, resume_worktree

WORKTREES: Final = "worktrees"
"""Below the state folder: one worktree per run that was isolated."""


async def isolate(plan: Plan[Any, Any], run_id: str, *, again: bool = False) -> Worktree | None:
    """The worktree of a run that has one; `again`: it was made before. Raises a subclass of `StartRefused`."""
    if plan.isolation is None:
        return None
    assert plan.workspace is not None
    assert plan.deployment.state_folder is not None
    make = resume_worktree if again else create_worktree
    return await make(plan.workspace, plan.deployment.state_folder / WORKTREES, run_id)


def hold_workspace(plan: Plan[Any, Any], run_id: str) -> WorkspaceLock | None:
    """Hold the workspace of a run that has one. Raises `WorkspaceBusy`, `InvalidRequest`."""
    if plan.workspace is None:
        return None
    try:
        folder = lock_folder(plan.deployment.state_folder)
        lock = WorkspaceLock.acquire(plan.workspace, folder, share=plan.share_workspace)
    except RunFolderError as error:
        raise InvalidRequest(str(error)) from None
    lock.name_holder(run_id)
    return lock
