"""The private folders of agents: outside of every workspace, for their user only, gone when their agent is.

A home holds configuration and credentials of one attempt of one agent program. It lies in the agent's folder of the
run, or in a temporary folder when the host keeps nothing on disk.
"""

import asyncio
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Final

from loopwarden.provider import AgentRequest, ProviderStartError
from loopwarden.providers.supervision.removal import remove_tree
from loopwarden_engine.plain import compact_json

TEMPORARY_FOLDERS: Final = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - mkdtemp makes private folders in them
MAX_CREDENTIAL_BYTES: Final = 1024 * 1024
MAX_TMPDIR_BYTES: Final = 60
"""Programs put sockets below TMPDIR, and the path of a socket has at most 107 bytes (unix(7)). Python's multiprocessing
adds 32 to TMPDIR, others more."""
SCHEMA_NAME: Final = "schema.json"


def private_folder(workspace: Path | None) -> Path:
    """Make a folder for this user only, in a temporary folder outside of `workspace`.

    Raises OSError, and `ProviderStartError` when there is no such place.
    """
    for base in (tempfile.gettempdir(), *TEMPORARY_FOLDERS):
        if workspace is not None and Path(base).resolve().is_relative_to(workspace.resolve()):
            continue
        if Path(base).is_dir():
            return Path(tempfile.mkdtemp(prefix="loopwarden-", dir=base))
    raise ProviderStartError(
        "there is no folder for temporary files outside of the workspace; "
        "set TMPDIR to one, or give a workspace that does not hold everything"
    )


def write_private(path: Path, data: bytes) -> None:
    """Write a new file that only this user can read. Raises OSError, also when it exists."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        file.write(data)


def is_inside(path: str) -> bool:
    """Say whether a relative path stays below the home that it is meant for."""
    parts = PurePosixPath(path).parts
    return bool(parts) and not path.startswith("/") and ".." not in parts and "\0" not in path


class AgentHome:
    """One home. Make it with `make`; then `remove` must be awaited, whatever happens.

    `path` is HOME of the program, `temporary` its TMPDIR, `schema_file` holds the schema of the call, if any. `problem`
    says after `remove` what is left, None when nothing is.
    """

    def __init__(self, path: Path, workspace: Path | None) -> None:
        self.path = path
        self.temporary = path / "tmp"
        self.schema_file: Path | None = None
        self.problem: str | None = None
        self._folders = [path]
        if len(os.fsencode(self.temporary)) > MAX_TMPDIR_BYTES:
            self.temporary = private_folder(workspace)
            self._folders.append(self.temporary)
        else:
            self.temporary.mkdir(mode=0o700)

    @classmethod
    def make(cls, request: AgentRequest) -> "AgentHome":
        """Make the home of one attempt. Raises `ProviderStartError` and leaves nothing."""
        path = None
        try:
            if request.folder is None:
                path = private_folder(request.workspace)
            else:
                # A name that nobody can know: an earlier agent, which has our rights, may have put something there.
                path = Path(tempfile.mkdtemp(prefix=f"home-{request.attempt}-", dir=request.folder))
            home = cls(path, request.workspace)
        except OSError as error:
            if path is not None:
                remove_tree(path)
            raise ProviderStartError(f"no private folder could be made for the agent: {_reason(error)}") from None
        except ProviderStartError:
            if path is not None:
                remove_tree(path)
            raise
        if request.schema is not None:
            home.schema_file = path / SCHEMA_NAME
            try:
                write_private(home.schema_file, compact_json(request.schema).encode())
            except OSError as error:
                home.remove_now()
                raise ProviderStartError(f"the schema could not be written to a file: {_reason(error)}") from None
        return home

    def fill(self, files: Mapping[str, str], folders: tuple[str, ...], credentials: Mapping[str, str]) -> None:
        """Write the files and folders of a program, and copy the files that the settings name.

        `credentials` maps paths below the home to paths on this machine. Raises `ProviderStartError`.
        """
        for name in folders:
            self._make_folder(self._below(name))
        for name, text in files.items():
            self._write(name, text.encode())
        for name, source in credentials.items():
            self._write(name, read_credentials(source))

    async def remove(self) -> None:
        """Remove what is left, in a thread. A cancellation meanwhile is raised when nothing is left.

        There is something only when no supervisor had these folders in its order, or when it was killed.
        """
        if not self._left():
            return
        try:
            removal = asyncio.get_running_loop().run_in_executor(None, self.remove_now)
        except RuntimeError:
            # No thread can be had any more, as at the very end of a program.
            self.remove_now()
            return
        cancelled: asyncio.CancelledError | None = None
        while not removal.done():
            try:
                await asyncio.wait([removal])
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled

    def remove_now(self) -> None:
        """Remove everything, and wait for it."""
        for folder in self._folders:
            remove_tree(folder)
        left = self._left()
        if left:
            self.problem = f"its private folder could not be removed in full: {', '.join(left)}"

    def _left(self) -> list[str]:
        return [os.fspath(folder) for folder in self._folders if os.path.lexists(folder)]

    @property
    def folders(self) -> tuple[Path, ...]:
        """All that there is to remove."""
        return tuple(self._folders)

    def _below(self, name: str) -> Path:
        if not is_inside(name):
            raise ProviderStartError(f"{name!r} does not lie below the home of the agent; give a relative path")
        return self.path / name

    def _make_folder(self, path: Path) -> None:
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ProviderStartError(f"{path.name!r} could not be made for the agent: {_reason(error)}") from None

    def _write(self, name: str, data: bytes) -> None:
        path = self._below(name)
        self._make_folder(path.parent)
        try:
            # A file of the settings takes the place of one of ours.
            path.unlink(missing_ok=True)
            write_private(path, data)
        except OSError as error:
            raise ProviderStartError(f"{name!r} could not be written for the agent: {_reason(error)}") from None


def read_credentials(source: str) -> bytes:
    """The content of a file of credentials on this machine. Raises `ProviderStartError`."""
    path = os.path.expanduser(source)
    try:
        # Never waits, should it be a pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise ProviderStartError(
            f"the credential file {source!r} does not exist; "
            "log in with the program on this machine, or take the file out of credential_files"
        ) from None
    except OSError as error:
        raise ProviderStartError(
            f"the credential file {source!r} cannot be read: {_reason(error)}; check who may read it"
        ) from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ProviderStartError(f"the credential file {source!r} is not a file; name the file itself")
        data = b""
        while len(data) <= MAX_CREDENTIAL_BYTES and (piece := os.read(descriptor, MAX_CREDENTIAL_BYTES)):
            data += piece
    except OSError as error:
        raise ProviderStartError(f"the credential file {source!r} cannot be read: {_reason(error)}") from None
    finally:
        os.close(descriptor)
    if len(data) > MAX_CREDENTIAL_BYTES:
        raise ProviderStartError(
            f"the credential file {source!r} is larger than {MAX_CREDENTIAL_BYTES} bytes; "
            "name the one file that the program needs"
        )
    return data


def _reason(error: OSError) -> str:
    return (error.strerror or "system error").lower()
