"""The workspace: what can be one, what may not lie in it, and that one run holds it."""

import contextlib
import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from loopwarden.failures import InvalidRequest, SettingsInWorkspace, WorkspaceBusy
from loopwarden.run_folder import RunFolderError
from loopwarden.workspace import WorkspaceLock, lock_folder, refuse_inside, resolve_workspace


def test_a_link_to_a_folder_is_followed_once(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert resolve_workspace(tmp_path / "link") == tmp_path / "real"


def test_what_is_no_folder_is_refused_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(InvalidRequest, match=r"the workspace .*gone does not exist; create it or give another one"):
        resolve_workspace(tmp_path / "gone")
    with pytest.raises(InvalidRequest, match=r"the workspace .*file is a file; give the folder that agents work in"):
        resolve_workspace(tmp_path / "file")
    with pytest.raises(InvalidRequest, match="cannot be used"):
        resolve_workspace(tmp_path / "loop")
    with pytest.raises(InvalidRequest, match="cannot be used"):
        resolve_workspace(Path("nul\0l"))


def test_what_lies_in_the_workspace_is_refused_also_behind_links(tmp_path: Path) -> None:
    workspace = tmp_path / "ws"
    (workspace / "deep").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "link").symlink_to(workspace / "deep")
    (workspace / "out").symlink_to(tmp_path / "outside")
    for path in (workspace, workspace / "a.toml", tmp_path / "link" / "a.toml", workspace / "out" / "a.toml"):
        with pytest.raises(SettingsInWorkspace, match=r"the settings file .* lies inside the workspace"):
            refuse_inside(workspace, path, "the settings file")
    refuse_inside(workspace, tmp_path / "outside" / "a.toml", "the settings file")
    refuse_inside(workspace, tmp_path / "ws-beside", "the settings file")
    refuse_inside(workspace, None, "the settings file")


def test_a_second_run_is_told_who_holds_the_workspace(tmp_path: Path) -> None:
    state, workspace = tmp_path / "state", tmp_path / "ws"
    first = WorkspaceLock.acquire(workspace, state)
    first.name_holder("run-1")
    with pytest.raises(WorkspaceBusy, match=f"another run works in {workspace} \\(run run-1, process {os.getpid()}\\)"):
        WorkspaceLock.acquire(workspace, state)
    other = WorkspaceLock.acquire(tmp_path / "other", state)
    first.release()
    first.release()
    again = WorkspaceLock.acquire(workspace, state)
    again.release()
    other.release()


HOLD = """
import pathlib, sys
from loopwarden.workspace import WorkspaceLock
workspace, state = map(pathlib.Path, sys.argv[1:3])
lock = WorkspaceLock.acquire(workspace, state, share=sys.argv[3] == "share")
lock.name_holder(sys.argv[4])
print("held" if lock.is_held else "not held", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def another_host(tmp_path: Path, how: str, run_id: str = "run-9") -> Iterator["subprocess.Popen[str]"]:
    """A process that holds the workspace until it is killed."""
    argv = [sys.executable, "-c", HOLD, str(tmp_path / "ws"), str(tmp_path / "state"), how, run_id]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            yield holder
        finally:
            holder.kill()


@pytest.mark.parametrize("how", ["alone", "share"])
def test_the_workspace_is_free_again_when_its_holder_was_killed(tmp_path: Path, how: str) -> None:
    """The kernel lets go; what the dead one wrote down names nobody any more."""
    with another_host(tmp_path, how) as holder:
        with pytest.raises(WorkspaceBusy, match=f"run run-9, process {holder.pid}"):
            WorkspaceLock.acquire(tmp_path / "ws", tmp_path / "state")
        holder.kill()
        holder.wait()
        WorkspaceLock.acquire(tmp_path / "ws", tmp_path / "state").release()
    assert [path.suffix for path in (tmp_path / "state" / "locks").iterdir()] == [".lock"]
    sharer = WorkspaceLock.acquire(tmp_path / "ws", tmp_path / "state", share=True)
    assert busy(tmp_path) == f"process {os.getpid()}"
    sharer.release()


def busy(tmp_path: Path) -> object:
    """Whom a run that wants the workspace alone is told to wait for."""
    with pytest.raises(WorkspaceBusy) as refused:
        WorkspaceLock.acquire(tmp_path / "ws", tmp_path / "state")
    return refused.value.details["holder"]


def test_the_refusal_says_what_can_be_done(tmp_path: Path) -> None:
    with (
        another_host(tmp_path, "alone"),
        pytest.raises(WorkspaceBusy, match=r"; wait for it, stop it, or .* --share-workspace .*share_workspace=True"),
    ):
        WorkspaceLock.acquire(tmp_path / "ws", tmp_path / "state")


def test_sharers_hold_the_workspace_together_and_keep_out_who_wants_it_alone(tmp_path: Path) -> None:
    one, two = (WorkspaceLock.acquire(tmp_path / "ws", tmp_path / "state", share=True) for _ in range(2))
    assert (one.is_held, two.is_held) == (True, True)
    one.name_holder("run-1")
    two.name_holder("run-2")
    me = f"process {os.getpid()}"
    assert set(str(busy(tmp_path)).split("; ")) == {f"run run-1, {me}", f"run run-2, {me}"}
    one.release()
    assert busy(tmp_path) == f"run run-2, {me}"
    two.release()
    two.release()
    WorkspaceLock.acquire(tmp_path / "ws", tmp_path / "state").release()
    assert [path.suffix for path in (tmp_path / "state" / "locks").iterdir()] == [".lock"]


def test_many_sharers_are_not_all_named(tmp_path: Path) -> None:
    sharers = [WorkspaceLock.acquire(tmp_path / "ws", tmp_path / "state", share=True) for _ in range(5)]
    assert str(busy(tmp_path)).endswith("; and 2 more")
    for sharer in sharers:
        sharer.release()


def test_a_sharer_beside_one_that_has_it_alone_goes_on_without_a_hold(tmp_path: Path) -> None:
    alone = WorkspaceLock.acquire(tmp_path / "ws", tmp_path / "state")
    alone.name_holder("run-1")
    sharer = WorkspaceLock.acquire(tmp_path / "ws", tmp_path / "state", share=True)
    sharer.name_holder("run-2")
    assert not sharer.is_held
    assert busy(tmp_path) == f"run run-1, process {os.getpid()}"
    alone.release()
    WorkspaceLock.acquire(tmp_path / "ws", tmp_path / "state").release()
    sharer.release()


def test_the_note_of_a_sharer_that_was_killed_names_nobody_and_is_removed(tmp_path: Path) -> None:
    with another_host(tmp_path, "share") as holder:
        mine = WorkspaceLock.acquire(tmp_path / "ws", tmp_path / "state", share=True)
        holder.kill()
        holder.wait()
        assert busy(tmp_path) == f"process {os.getpid()}"
        assert len(list((tmp_path / "state" / "locks").glob("*.sharer"))) == 1
        mine.release()


def test_a_sharer_that_cannot_write_its_note_still_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(self: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "rename", no_space)
    sharer = WorkspaceLock.acquire(tmp_path / "ws", tmp_path / "state", share=True)
    sharer.name_holder("run-1")
    assert busy(tmp_path) == f"run run-1, process {os.getpid()}"
    assert list((tmp_path / "state" / "locks").glob("*.new")) == []
    sharer.release()


def test_every_way_through_the_workspace_is_refused_also_behind_aliases_of_it(tmp_path: Path) -> None:
    """A link that lies in the workspace can be made to lead elsewhere, however the workspace is called on the way."""
    workspace = tmp_path / "real"
    workspace.mkdir()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "ok.toml").touch()
    (tmp_path / "alias").symlink_to(workspace)
    (workspace / "lw.toml").symlink_to(outside / "ok.toml")
    (workspace / "folder").symlink_to(outside)
    (tmp_path / "far").symlink_to(Path("alias") / "folder")
    for path in (tmp_path / "alias" / "lw.toml", tmp_path / "far" / "ok.toml", outside / ".." / "real" / "lw.toml"):
        with pytest.raises(SettingsInWorkspace):
            refuse_inside(workspace, path, "the settings file")
    refuse_inside(workspace, outside / "ok.toml", "the settings file")
    refuse_inside(workspace, tmp_path / "real-not" / "x.toml", "the settings file")


def test_a_disk_without_locks_is_no_busy_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Try later would never help."""

    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(RunFolderError, match="no locks available"):
        WorkspaceLock.acquire(tmp_path / "ws", tmp_path / "state")


def test_all_hosts_of_a_user_lock_in_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two settings files with two state folders do not make two holders of one workspace."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "user"))
    assert lock_folder(None) == lock_folder(tmp_path / "a") == lock_folder(tmp_path / "b")
