"""Workspaces that several hosts declare by name: one run at a time, over all hosts, unless all of them share it.

A name has no `/`; a path means something on one machine only, and the hosts there guard it themselves. A workspace is
held by the runs that are `running` in it, also by one whose lease expired: its agents may still live.
"""

from typing import Final

from loopwarden.store.errors import WorkspaceBusy
from loopwarden.store.sql.transaction import Transaction

HELD_BY_ANOTHER: Final = (
    "SELECT other.run_id FROM runs other WHERE other.workspace = runs.workspace AND other.status = 'running' "
    "AND other.run_id <> runs.run_id AND (other.is_exclusive = 1 OR runs.is_exclusive = 1) "
    "AND REPLACE(runs.workspace, '/', '') = runs.workspace"
)
"""For a run of the table `runs`: the runs that keep it out of its workspace, if that has a name."""


def is_named(workspace: str | None) -> bool:
    """True for the name of a workspace, which this store guards."""
    return workspace is not None and "/" not in workspace


def lock_workspaces(tx: Transaction, names: set[str]) -> None:
    """Let nobody else take these workspaces until this transaction is over."""
    if not names or not tx.dialect.lock:
        return
    ordered = sorted(names)
    tx.execute_many(
        "INSERT INTO workspaces (name) VALUES (?) ON CONFLICT (name) DO NOTHING", [(name,) for name in ordered]
    )
    marks = ", ".join("?" * len(ordered))
    tx.rows(f"SELECT name FROM workspaces WHERE name IN ({marks}) ORDER BY name{tx.dialect.lock}", ordered)


def take_workspace(tx: Transaction, run_id: str, workspace: str | None, *, is_exclusive: bool) -> None:
    """Make sure that the run `run_id` may work in its workspace now. Raises `WorkspaceBusy`."""
    if workspace is None or not is_named(workspace):
        return
    lock_workspaces(tx, {workspace})
    exclusive = "" if is_exclusive else " AND is_exclusive = 1"
    holders = tx.rows(
        f"SELECT run_id FROM runs WHERE workspace = ? AND status = 'running' AND run_id <> ?{exclusive} LIMIT 1",
        (workspace, run_id),
    )
    if holders:
        raise WorkspaceBusy(f"run {holders[0][0]} works in the workspace {workspace!r}; wait until it is over")
