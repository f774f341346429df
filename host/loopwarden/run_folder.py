"""What a run leaves on disk: one private folder per run, under the state folder of the user.

    STATE/runs/RUN/receipt.json          the receipt, replaced in one step
    STATE/runs/RUN/launch.json           how a person started it (the command line writes it)
    STATE/runs/RUN/live                  locked while the host that runs it is alive
    STATE/runs/RUN/agents/0001/          prompt.txt, output.txt, error.txt of the first agent

Folders are 0700 and files 0600, whatever the umask says. Every failure of the disk is a `RunFolderError` with a
sentence; what is on disk is for readers, so such a failure never decides how a run ends.
"""

import contextlib
import errno
import fcntl
import os
import re
import shutil
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from loopwarden.failures import LoopwardenError
from loopwarden.receipt import Receipt
from loopwarden_engine.plain import compact_json

RECEIPT: Final = "receipt.json"
LAUNCH: Final = "launch.json"
LIVE: Final = "live"
AGENTS: Final = "agents"
PROMPT: Final = "prompt.txt"
OUTPUT: Final = "output.txt"
ERRORS: Final = "error.txt"

_MOST_NAMED: Final = 4
_RUN_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_ADVICE: Final = {
    errno.ENOSPC: "; free some space or choose another state folder",
    errno.EDQUOT: "; free some space or choose another state folder",
    errno.EACCES: "; make it writable for this user or choose another state folder",
    errno.EPERM: "; make it writable for this user or choose another state folder",
    errno.EROFS: "; choose a state folder on a disk that can be written",
}


class RunFolderError(LoopwardenError):
    """Something under the state folder cannot be read or written. The message is a sentence for a person."""


def default_state_folder() -> Path:
    """`$XDG_STATE_HOME/loopwarden`, else `~/.local/state/loopwarden` (an XDG path must be absolute)."""
    base = os.environ.get("XDG_STATE_HOME", "")
    if base.startswith("/"):
        return Path(base) / "loopwarden"
    try:
        return Path.home() / ".local" / "state" / "loopwarden"
    except RuntimeError:
        raise RunFolderError("this user has no home folder; set HOME, or XDG_STATE_HOME and XDG_CONFIG_HOME") from None


def runs_folder(state_folder: Path) -> Path:
    """Where the folders of all runs lie."""
    return state_folder / "runs"


def disk_error(what: str, path: Path, error: OSError) -> RunFolderError:
    """A failure of the disk as a sentence. `what` is a phrase such as "the receipt"."""
    reason = (error.strerror or "input error").lower()
    return RunFolderError(f"{what} {path} cannot be written: {reason}{_ADVICE.get(error.errno or 0, '')}")


def make_private_folder(path: Path) -> None:
    """Make `path` and its missing parents for this user alone. Raises `RunFolderError`.

    A folder that exists must belong to this user, and nobody else may write it: who can, could plant receipts.
    """
    try:
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        for folder in reversed(missing):
            with contextlib.suppress(FileExistsError):  # two hosts may start at once
                folder.mkdir(mode=0o700)
        status = path.stat()
    except OSError as error:
        raise disk_error("the folder", path, error) from None
    if not stat.S_ISDIR(status.st_mode):
        raise RunFolderError(f"{path} is not a folder; move it away or choose another state folder")
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise RunFolderError(
            f"the folder {path} can be written by others; run `chmod go-w` on it, or choose another state folder"
        )


@dataclass(slots=True)
class RunFolder:
    """The folder of one run, held by the host that runs it. Call `close` when the run is over."""

    path: Path
    _live_fd: int = field(default=-1, repr=False)

    @classmethod
    def create(cls, state_folder: Path, run_id: str, *, again: bool = False) -> "RunFolder":
        """Make the folder of a new run; `again`: of one that may have been here before. Raises `RunFolderError`."""
        if _RUN_ID.fullmatch(run_id) is None:
            raise RunFolderError(f"{run_id[:80]!r} cannot name a run")
        runs = runs_folder(state_folder)
        make_private_folder(state_folder)
        make_private_folder(runs)
        path = runs / run_id
        folder = cls(path)
        try:
            path.mkdir(mode=0o700)
        except FileExistsError as error:
            if again:
                return folder._taken_over()
            raise disk_error("the folder of the run", path, error) from None
        except OSError as error:
            raise disk_error("the folder of the run", path, error) from None
        try:
            (path / AGENTS).mkdir(mode=0o700)
            folder._live_fd = os.open(path / LIVE, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(folder._live_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            folder.discard()  # A disk that is full midway must not leave half of a run behind.
            raise disk_error("the folder of the run", path, error) from None
        return folder

    def _taken_over(self) -> "RunFolder":
        make_private_folder(self.path / AGENTS)
        try:
            self._live_fd = os.open(self.path / LIVE, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            # A host that was stopped and lost the run may still hold the lock; the store says who drives it.
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(self._live_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.close()
            raise disk_error("the folder of the run", self.path, error) from None
        return self

    def close(self) -> None:
        """Say that the run is over. Harmless when called again."""
        if self._live_fd >= 0:
            os.close(self._live_fd)
            self._live_fd = -1

    def discard(self) -> None:
        """Take the folder away again: the run could not begin, so there is nothing to read in it."""
        self.close()
        shutil.rmtree(self.path, ignore_errors=True)

    def agent_folder(self, seq: int) -> Path:
        """The folder of agent number `seq`, made when it is missing. Raises `RunFolderError`."""
        folder = self.path / agent_folder_name(seq)
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise disk_error("the folder of the agent", folder, error) from None
        return folder

    def write_prompt(self, seq: int, text: str) -> None:
        """Keep the prompt of an agent. Raises `RunFolderError`."""
        write_private_file(self.agent_folder(seq) / PROMPT, _encode(text))

    def write_output(self, seq: int, text: str) -> None:
        """Keep the output of an agent, unless its provider has written one itself. Raises `RunFolderError`."""
        path = self.agent_folder(seq) / OUTPUT
        if not path.exists():
            write_private_file(path, _encode(text))

    def write_receipt(self, receipt: Receipt) -> None:
        """Replace the receipt in one step, so that no reader ever sees half of it. Raises `RunFolderError`."""
        write_private_file(self.path / RECEIPT, _encode(compact_json(receipt.to_json()) + "\n"), durable=True)


def agent_folder_name(seq: int) -> str:
    """The folder of agent number `seq`, relative to the run's folder, as receipts name it."""
    return f"{AGENTS}/{seq:04d}"


def write_private_file(path: Path, data: bytes, *, durable: bool = False) -> None:
    """Write a file that only this user reads, in one step. `durable` waits until it is on the disk.

    Raises `RunFolderError`.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.unlink(missing_ok=True)
        fd = os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(fd)
        unfinished.rename(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise disk_error("the file", path, error) from None


def is_live(folder: Path) -> bool:
    """True while a host holds the run in `folder`. False also when that host was killed."""
    try:
        fd = os.open(folder / LIVE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
    return False


def list_runs(state_folder: Path) -> list[Path]:
    """The folders of all runs, the newest first. Raises `RunFolderError` when they cannot be listed."""
    folder = runs_folder(state_folder)
    found: list[tuple[int, str]] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                # Another host may discard a folder meanwhile: a run that could not begin.
                with contextlib.suppress(FileNotFoundError):
                    if entry.is_dir():
                        found.append((entry.stat().st_mtime_ns, entry.name))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunFolderError(f"the runs under {folder} cannot be listed: {(error.strerror or '').lower()}") from None
    return [folder / name for _, name in sorted(found, reverse=True)]


def find_receipt(state_folder: Path, run: str) -> Path:
    """The receipt that a person means: the id of a run, a prefix of it that is unique, or the path of a receipt.

    Raises `RunFolderError` when there is none, or more than one.
    """
    exact = runs_folder(state_folder) / run
    if _RUN_ID.fullmatch(run) and exact.is_dir():
        return exact / RECEIPT
    given = Path(run)
    with contextlib.suppress(OSError, ValueError):
        if "/" in run or run.endswith(".json"):
            if given.is_dir():
                return given / RECEIPT
            if given.exists():
                return given
    matches = [folder for folder in list_runs(state_folder) if run and folder.name.startswith(run)]
    if len(matches) == 1:
        return matches[0] / RECEIPT
    if matches:
        names = ", ".join(folder.name for folder in matches[:_MOST_NAMED]) + (
            " …" if len(matches) > _MOST_NAMED else ""
        )
        raise RunFolderError(f"{run!r} begins the ids of {len(matches)} runs ({names}); type more of it")
    raise RunFolderError(
        f"there is no run {run[:200]!r}; `loopwarden runs` lists them, and the path of a receipt works too"
    )


def _encode(text: str) -> bytes:
    # Agent text is Unicode text by then; an embedder's provider may still hand over a lone surrogate.
    return text.encode("utf-8", "surrogatepass")
