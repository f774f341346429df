"""The workspace: what can be one, what may not lie in it, and that one run holds it."""

import errno
import fcntl
import os
import subprocess
import sys
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


def test_the_workspace_is_free_again_when_its_holder_was_killed(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib, time\nfrom loopwarden.workspace import WorkspaceLock\n"
        "lock = WorkspaceLock.acquire(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))\n"
        "print('held', flush=True)\nsys.stdin.read()\n"
    )
    argv = [sys.executable, "-c", code, str(tmp_path / "ws"), str(tmp_path / "state")]
    holder = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdin is not None
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(WorkspaceBusy, match=f"process {holder.pid}"):
        WorkspaceLock.acquire(tmp_path / "ws", tmp_path / "state")
    holder.kill()
    holder.wait()
    holder.stdin.close()
    holder.stdout.close()
    WorkspaceLock.acquire(tmp_path / "ws", tmp_path / "state").release()


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
