"""The workspace of a run: the folder in which agents work, and so the one place that nothing of ours may come from."""

import contextlib
import fcntl
import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path

from loopwarden.failures import InvalidRequest, SettingsInWorkspace, WorkspaceBusy
from loopwarden.run_folder import disk_error, make_private_folder
from loopwarden_engine.plain import PlainDataError, compact_json, decode_object

_MAX_HOLDER_BYTES = 4096


def resolve_workspace(path: Path) -> Path:
    """The folder that `path` means, with symbolic links followed once and for all. Raises `InvalidRequest`."""
    try:
        resolved = path.resolve(strict=True)
        is_folder = resolved.is_dir()
    except FileNotFoundError:
        raise InvalidRequest(f"the workspace {path} does not exist; create it or give another one") from None
    except (OSError, ValueError, RuntimeError) as error:
        reason = (getattr(error, "strerror", None) or "the path cannot be used").lower()
        raise InvalidRequest(f"the workspace {path} cannot be used: {reason}") from None
    if not is_folder:
        raise InvalidRequest(f"the workspace {path} is a file; give the folder that agents work in")
    if not os.access(resolved, os.R_OK | os.W_OK | os.X_OK):
        raise InvalidRequest(f"the workspace {path} cannot be written by this user; agents could not work in it")
    return resolved


def lies_inside(path: Path, workspace: Path) -> bool:
    """True when `path`, as given or behind its symbolic links, is in the workspace or is the workspace."""
    absolute = Path(os.path.abspath(path))
    return absolute.is_relative_to(workspace) or absolute.resolve().is_relative_to(workspace)


def refuse_inside(workspace: Path, path: Path | None, what: str) -> None:
    """Refuse what agents could rewrite. `what` is a phrase such as "the settings file".

    Raises `SettingsInWorkspace`.
    """
    if path is not None and lies_inside(path, workspace):
        raise SettingsInWorkspace(
            f"{what} {path} lies inside the workspace {workspace}, where an agent could change it; "
            "move it out, or choose another workspace",
            details={"path": str(path), "workspace": str(workspace)},
        )


@dataclass(slots=True)
class WorkspaceLock:
    """The hold of one run on its workspace. The kernel lets go when the host dies, however it dies."""

    _fd: int = field(repr=False)

    @classmethod
    def acquire(cls, workspace: Path, state_folder: Path) -> "WorkspaceLock":
        """Hold a resolved workspace. Raises `WorkspaceBusy`, which names the holder, and `RunFolderError`."""
        locks = state_folder / "locks"
        make_private_folder(state_folder)
        make_private_folder(locks)
        path = locks / f"{hashlib.sha256(os.fsencode(workspace)).hexdigest()}.lock"
        try:
            fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise disk_error("the lock of the workspace", path, error) from None
        lock = cls(fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = _holder(fd)
            lock.release()
            raise WorkspaceBusy(
                f"another run works in {workspace} ({holder}); wait for it, or stop it", details={"holder": holder}
            ) from None
        lock.name_holder(None)
        return lock

    def name_holder(self, run_id: str | None) -> None:
        """Write down who holds the workspace, for those who are refused."""
        note = compact_json({"pid": os.getpid(), "runId": run_id}).encode()
        # What is written only explains a refusal; the lock itself is the kernel's, so a full disk does not matter.
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, note, 0)

    def release(self) -> None:
        """Let go. Harmless when called again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _holder(fd: int) -> str:
    try:
        note = decode_object(os.pread(fd, _MAX_HOLDER_BYTES, 0))
    except (OSError, PlainDataError):
        return "it has not said who it is"
    run_id, pid = note.get("runId"), note.get("pid")
    return (f"run {run_id}, " if isinstance(run_id, str) else "") + f"process {pid}"
