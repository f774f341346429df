"""The workspace of a run: the folder in which agents work, and so the one place that nothing of ours may come from."""

import contextlib
import fcntl
import hashlib
import os
import secrets
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from loopwarden.failures import InvalidRequest, SettingsInWorkspace, WorkspaceBusy
from loopwarden.run_folder import RunFolderError, default_state_folder, disk_error, make_private_folder
from loopwarden_engine.json_decoding import decode_object
from loopwarden_engine.plain import PlainDataError, compact_json

_MAX_HOLDER_BYTES = 4096
_MOST_NAMED = 3
_MAX_LINKS = 40
"""As many as Linux follows (path_resolution(7))."""


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
    """True when the way to `path` leads through the workspace: whoever writes there could make it lead elsewhere."""
    return any(place.is_relative_to(workspace) for place in _way(path))


def _way(path: Path) -> Iterator[Path]:
    """Every place that the kernel passes on its way to `path`, symbolic links and their targets included."""
    parts = deque(Path.cwd().joinpath(path).parts[1:])
    here, links = Path("/"), 0
    while parts:
        part = parts.popleft()
        if part == "..":
            here = here.parent
            continue
        here /= part
        yield here
        # More links in a row than the kernel follows end nowhere; opening such a path fails by itself.
        if links < _MAX_LINKS and here.is_symlink():
            links += 1
            target = here.readlink()
            parts.extendleft(reversed(target.parts[1:] if target.is_absolute() else target.parts))
            here = Path("/") if target.is_absolute() else here.parent


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


def lock_folder(state_folder: Path | None) -> Path:
    """Where workspaces are locked: in one place for all hosts of a user, whatever state folder each of them has.

    `state_folder` serves a user without a home. Raises `RunFolderError` when there is neither.
    """
    try:
        return default_state_folder()
    except RunFolderError:
        if state_folder is None:
            raise
        return state_folder


@dataclass(slots=True)
class WorkspaceLock:
    """The hold of one run on its workspace. The kernel lets go when the host dies, however it dies.

    A run holds its workspace alone, unless a person lets it share: sharers hold it together, and while they do nobody
    gets it alone. A sharer that comes while a run has it alone goes on without a hold.
    """

    _fd: int = field(repr=False)
    _note: "_SharersNote | None" = field(default=None, repr=False)

    @classmethod
    def acquire(cls, workspace: Path, state_folder: Path, *, share: bool = False) -> "WorkspaceLock":
        """Hold a resolved workspace. Raises `WorkspaceBusy`, which names the holder, and `RunFolderError`.

        With `share` the workspace is never busy; `is_held` says whether there is a hold.
        """
        locks = state_folder / "locks"
        make_private_folder(state_folder)
        make_private_folder(locks)
        path = locks / f"{hashlib.sha256(os.fsencode(workspace)).hexdigest()}.lock"
        # Before the hold: whoever is refused because of it finds a name.
        lock = cls(-1, _SharersNote.write(path) if share else None)
        try:
            lock._fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            fcntl.flock(lock._fd, (fcntl.LOCK_SH if share else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = "" if share else _SharersNote.living(path) or _holder(lock._fd)
            lock.release()
            if not share:
                raise _busy(workspace, holder) from None
        except OSError as error:  # some network disks know no locks
            lock.release()
            raise disk_error("the lock of the workspace", path, error) from None
        if not share:
            _SharersNote.living(path)  # none is; notes of those that were killed go
        lock.name_holder(None)
        return lock

    @property
    def is_held(self) -> bool:
        """False for a sharer while another run has the workspace alone, and after `release`."""
        return self._fd >= 0

    def name_holder(self, run_id: str | None) -> None:
        """Write down who holds the workspace, for those who are refused."""
        if self._note is not None:
            self._note.name(run_id)
        elif self._fd >= 0:  # alone, or a sharer that could write no note of its own
            _write_note(self._fd, run_id)

    def release(self) -> None:
        """Let go. Harmless when called again."""
        if self._note is not None:
            self._note.remove()
            self._note = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


@dataclass(slots=True)
class _SharersNote:
    """Who a sharer is, in a file of its own beside the lock, locked while the sharer lives: others have theirs."""

    _path: Path
    _fd: int

    @classmethod
    def write(cls, lock: Path) -> "_SharersNote | None":
        """A note of this process. None when the disk refuses: it only explains a refusal."""
        path = lock.with_suffix(f".{os.getpid()}-{secrets.token_hex(4)}.sharer")
        unfinished = path.with_suffix(".new")
        fd = -1
        try:
            fd = os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Locked before it has its name, so that nobody takes it for one that was left behind.
            unfinished.rename(path)
        except OSError:
            if fd >= 0:
                os.close(fd)
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)
            return None
        note = cls(path, fd)
        note.name(None)
        return note

    @staticmethod
    def living(lock: Path) -> str:
        """The sharers that live, some of them by name; empty when there is none. Notes of dead ones are removed."""
        found = []
        for path in sorted(lock.parent.glob(f"{lock.stem}.*.sharer")):
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except OSError:
                continue
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                path.unlink(missing_ok=True)
            except BlockingIOError:
                found.append(_holder(fd))
            except OSError:
                continue
            finally:
                os.close(fd)
        more = len(found) - _MOST_NAMED
        return "; ".join(found[:_MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")

    def name(self, run_id: str | None) -> None:
        """Say which run it is."""
        _write_note(self._fd, run_id)

    def remove(self) -> None:
        """The sharer has let go."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)
        os.close(self._fd)


def _busy(workspace: Path, holder: str) -> WorkspaceBusy:
    return WorkspaceBusy(
        f"another run works in {workspace} ({holder}); wait for it, stop it, or let runs share the workspace with "
        "--share-workspace (embedders: share_workspace=True)",
        details={"holder": holder},
    )


def _write_note(fd: int, run_id: str | None) -> None:
    note = compact_json({"pid": os.getpid(), "runId": run_id}).encode()
    # What is written only explains a refusal; the lock itself is the kernel's, so a full disk does not matter.
    with contextlib.suppress(OSError):
        os.ftruncate(fd, 0)
        os.pwrite(fd, note, 0)


def _holder(fd: int) -> str:
    try:
        note = decode_object(os.pread(fd, _MAX_HOLDER_BYTES, 0))
    except (OSError, PlainDataError):
        return "it has not said who it is"
    run_id, pid = note.get("runId"), note.get("pid")
    return (f"run {run_id}, " if isinstance(run_id, str) else "") + f"process {pid}"
