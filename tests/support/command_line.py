"""The command line as a person starts it: in a home of its own, with agents that are small programs."""

import io
import json
import os
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping
from contextlib import closing, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from loopwarden.cli import app
from loopwarden.store_settings import JOURNAL_FILE

PROGRAM = (sys.executable, "-m", "loopwarden")
REPORT = {"status": "continue", "summary": "worked", "evidence": [], "nextSteps": ["go on"], "blocker": ""}
COMPLETE = {"status": "complete", "summary": "done", "evidence": ["saw it"], "nextSteps": [], "blocker": ""}
BLOCKED = {"status": "blocked", "summary": "stuck", "evidence": [], "nextSteps": [], "blocker": "no key"}


@dataclass(frozen=True, slots=True)
class Finished:
    """An invocation that is over."""

    exit: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, which has to be one JSON object."""
        value = json.loads(self.out)
        assert isinstance(value, dict)
        return value


@dataclass(frozen=True, slots=True)
class Home:
    """Folders of one imagined user."""

    root: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    """Further variables of every invocation."""

    @property
    def workspace(self) -> Path:
        """An empty workspace."""
        folder = self.root / "ws"
        folder.mkdir(exist_ok=True)
        return folder

    @property
    def state(self) -> Path:
        """Where runs leave their receipts."""
        return self.root / "state" / "loopwarden"

    @property
    def environment(self) -> dict[str, str]:
        """The environment of every invocation: nothing of the machine's own settings."""
        return {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": str(self.root),
            "XDG_STATE_HOME": str(self.root / "state"),
            "XDG_CONFIG_HOME": str(self.root / "config"),
            **self.variables,
        }

    def run(self, *argv: str, stdin: bytes = b"", cwd: Path | None = None) -> Finished:
        """The command line inside this process: the same code without 0.4 s of imports."""
        here, environment, old_stdin = Path.cwd(), dict(os.environ), sys.stdin
        logging = structlog.get_config() if structlog.is_configured() else None
        out, err = io.StringIO(), io.StringIO()
        try:
            os.chdir(cwd or self.root)
            wanted = self.environment
            os.environ.clear()
            os.environ.update(wanted)
            sys.stdin = io.TextIOWrapper(io.BytesIO(stdin))
            with redirect_stdout(out), redirect_stderr(err):
                code = app.run(argv)
        finally:
            structlog.reset_defaults()
            if logging is not None:
                structlog.configure(**logging)
            sys.stdin = old_stdin
            os.environ.clear()
            os.environ.update(environment)
            os.chdir(here)
        return Finished(code, out.getvalue(), err.getvalue())

    def run_process(self, *argv: str, stdin: bytes = b"", cwd: Path | None = None) -> Finished:
        """Start `loopwarden` as a person does and wait for its end."""
        done = subprocess.run(
            [*PROGRAM, *argv], input=stdin, capture_output=True, cwd=cwd or self.root, env=self.environment, timeout=90,
            check=False,
        )  # fmt: skip
        return Finished(done.returncode, done.stdout.decode(), done.stderr.decode())

    def end_leases(self) -> None:
        """Let the leases of hosts that were killed be over, as if somebody had waited for that."""
        with closing(sqlite3.connect(self.state / JOURNAL_FILE)) as store, store:
            store.execute("UPDATE runs SET lease_until = 0 WHERE lease_until IS NOT NULL")

    def ralph(self, *options: str, agent: Path, objective: str = "do it", cwd: Path | None = None) -> Finished:
        """`loopwarden run ralph` in the workspace with a program as agent."""
        head = ("run", "ralph", "--objective", objective, "--workspace", str(self.workspace))
        return self.run(*head, *options, "--", str(agent), cwd=cwd)

    def agent(self, body: str, name: str = "agent") -> Path:
        """A shell script that plays an agent. `body` finds its prompt on standard input."""
        path = self.root / name
        path.write_text("#!/bin/sh\n" + textwrap.dedent(body))
        path.chmod(0o700)
        return path

    def reporting(self, report: dict[str, Any], name: str = "agent") -> Path:
        """An agent that always gives the same report."""
        return self.agent(f"cat > /dev/null\ncat <<'END'\n{json.dumps(report)}\nEND\n", name)

    def settings(self, text: str) -> Path:
        """A settings file that nobody else may write."""
        path = self.root / "loopwarden.toml"
        path.write_text(text)
        path.chmod(0o600)
        return path


def until(condition: Any, seconds: float = 60.0) -> None:
    """Wait until `condition()` is true; it is a failure when it does not become true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the awaited state did not come"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    """True while the process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] not in ("Z", "X")
