"""What an attack finds around it, made by the runner and cleaned by it: files, sockets, memory, a victim."""

import ctypes
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final, Self

from loopwarden.attack_facts import find_facts
from loopwarden.machine_programs import SHELL, find_library
from loopwarden_engine.attacks.catalogue import Attack

__all__ = ["SECRET_VARIABLE", "STAGE_NEEDS", "Scene", "Stage", "Victim"]

SECRET_VARIABLE: Final = "LOOPWARDEN_MATRIX_SECRET"  # noqa: S105 -- the name of a variable
STAGE_NEEDS: Final[Mapping[str, tuple[str, ...]]] = {
    "library": ("library",),
    "terminal": ("terminals",),
    "victim": ("shell",),
}
"""What a machine must have for each `stage` of the catalogue, besides what the attack itself `needs`."""

_TARGET: Final = b"before\n"
_WRITABLE: Final = b"writable\n"
_MEMORY_BYTES: Final = 64
_HEARD_BYTES: Final = 4096
_LONGEST_PLACE: Final = 40


class Stage:
    """What all attacks of one matrix share. Use it with `with`; belongs to one thread.

    `secret` is a word that nobody outside may learn: it stands in files, in memory, in an environment variable of
    this process, and in what the victims have.
    """

    def __init__(self) -> None:
        self.secret = secrets.token_hex(16)
        self.heard = bytearray()
        self._resources = ExitStack()
        self._listeners: list[socket.socket] = []
        self._receivers: list[socket.socket] = []

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            undo.callback(self._resources.close)
            self.folder = _make_short_folder()
            self._resources.callback(shutil.rmtree, self.folder, ignore_errors=True)
            # Others may walk through, so that the rights of the files are what is attacked.
            self.folder.chmod(0o755)
            self._set_variable()
            self.host_fd = self._open_host_file()
            self._facts = self._open_sockets() | find_facts()
            undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        for receiver in self._receivers:
            receiver.close()
        self._resources.close()

    def scene(self, attack: Attack, launcher_pid: int) -> "Scene":
        """The surroundings of one attempt; the caller closes them."""
        facts = self._facts | {"launcher": launcher_pid, "host": os.getpid(), "host_fd": self.host_fd}
        return Scene(self.folder, self.secret, attack, facts)

    def listen(self) -> None:
        """Take whatever has arrived at the sockets."""
        for listener in self._listeners:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    connection.settimeout(0)
                    self._receivers.append(connection)
        still_open = []
        for receiver in self._receivers:
            is_open = True
            with suppress(OSError):
                while data := receiver.recv(_HEARD_BYTES):
                    self.heard += data
                is_open = receiver.type == socket.SOCK_DGRAM
            if is_open:
                still_open.append(receiver)
            else:
                receiver.close()
        self._receivers = still_open

    def _set_variable(self) -> None:
        os.environ[SECRET_VARIABLE] = self.secret
        self._resources.callback(os.environ.pop, SECRET_VARIABLE, None)

    def _open_host_file(self) -> int:
        """A file of this process alone, through a descriptor that is inheritable, as careless libraries leave them."""
        path = self.folder / "host-file"
        _write(path, self.secret.encode(), 0o600)
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._resources.callback(os.close, descriptor)
        os.set_inheritable(descriptor, True)
        return descriptor

    def _open_sockets(self) -> dict[str, Any]:
        own = f"loopwarden-{self.secret[:8]}"
        stream, datagram = socket.SOCK_STREAM, socket.SOCK_DGRAM
        facts: dict[str, Any] = {
            "unix_path": self._open(socket.AF_UNIX, stream, str(self.folder / "stream")),
            "unix_datagram_path": self._open(socket.AF_UNIX, datagram, str(self.folder / "datagram")),
        }
        for name in ("stream", "datagram"):
            # Only the user connects, whatever this process leaves to others of what it makes.
            (self.folder / name).chmod(0o700)
        self._open(socket.AF_UNIX, stream, f"\0{own}-stream")
        self._open(socket.AF_UNIX, datagram, f"\0{own}-datagram")
        facts |= {"abstract": f"{own}-stream", "abstract_datagram": f"{own}-datagram"}
        for name, family, kind, address in (
            ("port", socket.AF_INET, stream, "127.0.0.1"),
            ("udp_port", socket.AF_INET, datagram, "127.0.0.1"),
            ("port6", socket.AF_INET6, stream, "::1"),
        ):
            facts[name] = 0
            with suppress(OSError):
                facts[name] = self._open(family, kind, (address, 0))[1]
        return facts

    def _open(self, family: int, kind: int, address: Any) -> Any:
        opened = socket.socket(family, kind)
        self._resources.callback(opened.close)
        opened.settimeout(0)
        opened.bind(address)
        if kind == socket.SOCK_STREAM:
            opened.listen(64)
            self._listeners.append(opened)
        else:
            self._receivers.append(opened)
        return opened.getsockname()


class Victim:
    """Another process of this user, with the secret in its arguments and environment. It reads, and does nothing."""

    def __init__(self, secret: str) -> None:
        self._process = subprocess.Popen(
            [SHELL, "-c", "echo; read line", f"victim-{secret}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={SECRET_VARIABLE: secret},
            start_new_session=True,
        )
        self.pid = self._process.pid
        self.pidfd = os.pidfd_open(self.pid)
        # It speaks once its arguments and variables are in place.
        assert self._process.stdout is not None
        self._process.stdout.read(1)

    def find_status(self) -> int | None:
        """How it ended, negative for the signal that ended it; None while it lives."""
        return self._process.poll()

    def has_left(self) -> bool:
        """Let it leave by itself; whether it has. A signal that was sent before ends it first."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self.find_status() is not None

    def close(self) -> None:
        """End it, and wait for that."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        os.close(self.pidfd)


class Scene:
    """The surroundings of one attempt: a folder, descriptors that are left open, memory of the host.

    `facts` are what the attack is told, `descriptors` what it inherits, by the names under which its code finds them.
    `nonce` is a word of this attempt alone. Raises `OSError` when this machine does not have what the attack's stage is
    made of.
    """

    def __init__(self, parent: Path, secret: str, attack: Attack, facts: dict[str, Any]) -> None:
        self.nonce = secrets.token_hex(8)
        self.memory = ctypes.create_string_buffer(secret.encode(), _MEMORY_BYTES)
        self.victim: Victim | None = None
        self.descriptors: dict[str, int] = {}
        self.outside: list[int] = []
        self._heard = b""
        self._resources = ExitStack()
        try:
            self.folder = self._make_folder(parent, secret)
            self._open_common(secret)
            self._open_special(attack, secret)
        except BaseException:
            self.close()
            raise
        self.facts = facts | {
            "address": ctypes.addressof(self.memory),
            "folder": str(self.folder),
            "nonce": self.nonce,
            "secret_path": str(self.folder / "secret"),
            "victim": 0 if self.victim is None else self.victim.pid,
        }

    def close(self) -> None:
        """Close and remove everything. The worker must be gone by now."""
        self._resources.close()

    def hear(self) -> bytes:
        """All that arrived so far at the other ends of the descriptors that were left open."""
        for descriptor in self.outside:
            with suppress(OSError):
                while data := os.read(descriptor, _HEARD_BYTES):
                    self._heard += data
        return self._heard

    def _make_folder(self, parent: Path, secret: str) -> Path:
        folder = parent / self.nonce
        folder.mkdir()
        self._resources.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o755)
        _write(folder / "secret", secret.encode(), 0o600)
        _write(folder / "target", _TARGET, 0o644)
        _write(folder / "writable", _WRITABLE, 0o644)
        for name in ("empty", f"named-{secret}"):
            (folder / name).mkdir()
            (folder / name).chmod(0o755)
        (folder / "link").symlink_to(f"named-{secret}")
        with suppress(OSError):
            os.setxattr(folder / "target", "user.secret", secret.encode())
        return folder

    def _open_common(self, secret: str) -> None:
        self._leave_open("SECRET", os.open(self.folder / "secret", os.O_RDONLY | os.O_CLOEXEC))
        self._leave_open("WRITABLE", os.open(self.folder / "writable", os.O_RDWR | os.O_CLOEXEC))
        self._leave_open("FOLDER", os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        ours, theirs = socket.socketpair()
        ours.send(secret.encode())
        ours.settimeout(0)
        self.outside.append(self._hold(ours.detach()))
        self._leave_open("OUTSIDE", theirs.detach())

    def _open_special(self, attack: Attack, secret: str) -> None:
        match attack.stage:
            case "victim":
                self.victim = Victim(secret)
                self._resources.callback(self.victim.close)
                self.descriptors["VICTIM"] = self.victim.pidfd
            case "listener":
                listener = socket.socket(socket.AF_UNIX)
                listener.bind(str(self.folder / "listener"))
                listener.listen()
                self._leave_open("LISTENER", listener.detach())
                client = socket.socket(socket.AF_UNIX)
                self._resources.callback(client.close)
                client.connect(str(self.folder / "listener"))
                client.send(secret.encode())
            case "terminal":
                master, slave = os.openpty()
                os.set_blocking(master, False)
                self.outside.append(self._hold(master))
                self._leave_open("TERMINAL", slave)
            case "library":
                library = find_library()
                if library is not None:
                    self._leave_open("LIBRARY", os.open(library, os.O_RDONLY | os.O_CLOEXEC))
            case _:
                pass

    def _hold(self, descriptor: int) -> int:
        self._resources.callback(os.close, descriptor)
        return descriptor

    def _leave_open(self, name: str, descriptor: int) -> None:
        self.descriptors[name] = self._hold(descriptor)


def _make_short_folder() -> Path:
    """A folder whose sockets can have names: those of Unix sockets are at most 107 bytes long."""
    usual = tempfile.gettempdir()
    place = usual if len(usual) <= _LONGEST_PLACE else "/tmp"  # noqa: S108 -- mkdtemp makes a folder of its own
    return Path(tempfile.mkdtemp(prefix="loopwarden-matrix-", dir=place))


def _write(path: Path, content: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        os.fchmod(descriptor, mode)
        os.write(descriptor, content)
    finally:
        os.close(descriptor)
