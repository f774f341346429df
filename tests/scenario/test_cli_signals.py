"""Ctrl-C on a terminal, and the other ways to end a run from outside: a receipt, an exit code, no process left."""

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from loopwarden.host import Host
from support.command_line import COMPLETE, PROGRAM, Home, is_alive, until

# Who leads a session and opens a terminal gets it as its own: then the keyboard sends signals.
TAKE_TERMINAL = (
    sys.executable,
    "-c",
    "import os, sys; os.open(os.ttyname(0), os.O_RDWR); os.execv(sys.argv[1], sys.argv[1:])",
)
STUBBORN = "trap '' TERM INT HUP\n"
WAIT = "cat > /dev/null\n(setsid sleep 600 & echo $! >> pids)\necho $$ >> pids\nwhile :; do sleep 1; done\n"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@dataclass
class Terminal:
    """A person at a terminal who started `loopwarden`."""

    home: Home
    master: int
    process: subprocess.Popen[bytes]
    seen: bytearray = field(default_factory=bytearray)

    def pids(self) -> list[int]:
        """The processes of the agent, once both wrote themselves down."""
        path = self.home.workspace / "pids"
        lines = path.read_text().split() if path.exists() else []
        return [int(line) for line in lines] if len(lines) == 2 else []

    def type(self, keys: bytes) -> None:
        """Press keys."""
        os.write(self.master, keys)

    def read_to_end(self) -> str:
        """Everything until the program closed the terminal."""
        while True:
            try:
                data = os.read(self.master, 65536)
            except OSError:  # Linux: nobody holds the other end any more
                return self.seen.decode()
            if not data:
                return self.seen.decode()
            self.seen += data

    def read_until(self, text: bytes) -> None:
        """Read until `text` was printed."""
        while text not in self.seen:
            self.seen += os.read(self.master, 65536)


@pytest.fixture
def terminal(home: Home, request: pytest.FixtureRequest) -> Iterator[Terminal]:
    agent = home.agent(getattr(request, "param", "") + WAIT)
    master, slave = pty.openpty()
    argv = [*PROGRAM, "run", "ralph", "--objective", "x", "--workspace", str(home.workspace), "--", str(agent)]
    environment = {**home.environment, "TERM": "xterm"}
    process = subprocess.Popen(
        [*TAKE_TERMINAL, *argv], stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
    )
    os.close(slave)
    at = Terminal(home, master, process)
    yield at
    if process.poll() is None:
        process.kill()
    process.wait()
    os.close(master)


def receipt(home: Home) -> dict[str, object]:
    value = json.loads(next((home.state / "runs").glob("*/receipt.json")).read_text())
    assert isinstance(value, dict)
    return value


def check_nothing_is_left(at: Terminal) -> None:
    assert [pid for pid in at.pids() if is_alive(pid)] == []


def test_ctrl_c_winds_down_prints_the_receipt_and_leaves_nothing(terminal: Terminal) -> None:
    until(terminal.pids)
    terminal.type(b"\x03")
    text = terminal.read_to_end()
    assert terminal.process.wait() == 130
    assert "interrupted from the keyboard (Ctrl-C); ending the agents" in text
    assert "CANCELLED: the run was cancelled: interrupted from the keyboard (Ctrl-C)" in text
    assert receipt(terminal.home)["stopReason"] == "cancelled"
    check_nothing_is_left(terminal)


@pytest.mark.parametrize("terminal", [STUBBORN], indirect=True)
def test_a_second_ctrl_c_does_not_wait_for_the_grace_and_leaves_nothing(terminal: Terminal) -> None:
    until(terminal.pids)
    terminal.type(b"\x03")
    terminal.read_until(b"ending the agents")
    assert any(is_alive(pid) for pid in terminal.pids())
    terminal.type(b"\x03")
    text = terminal.read_to_end()
    assert terminal.process.wait() == 130
    assert "killing the agents" in text
    agent = receipt(terminal.home)["agents"]
    assert isinstance(agent, list)
    assert agent[0]["outcome"] == "cancelled"
    check_nothing_is_left(terminal)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_other_signals_end_a_run_the_same_way(terminal: Terminal, number: signal.Signals, code: int) -> None:
    until(terminal.pids)
    terminal.process.send_signal(number)
    text = terminal.read_to_end()
    assert terminal.process.wait() == code
    assert f"({number.name})" in text
    check_nothing_is_left(terminal)


def test_a_killed_host_leaves_no_process_and_a_run_that_is_called_lost(terminal: Terminal) -> None:
    until(terminal.pids)
    terminal.process.kill()
    terminal.process.wait()
    until(lambda: not [pid for pid in terminal.pids() if is_alive(pid)])
    rows = terminal.home.run("runs", "--json").json["runs"]
    assert [row["state"] for row in rows] == ["lost"]
    assert "did not end: its host was killed" in terminal.home.run("show", rows[0]["runId"]).out
    done = terminal.home.run("continue", rows[0]["runId"], "--", str(terminal.home.reporting(COMPLETE)))
    assert done.exit == 0


def test_a_run_that_is_live_is_shown_as_running_and_cannot_be_continued(terminal: Terminal) -> None:
    until(terminal.pids)
    rows = terminal.home.run("runs", "--json").json["runs"]
    assert [row["state"] for row in rows] == ["running"]
    refused = terminal.home.run("continue", rows[0]["runId"])
    assert refused.exit == 2
    assert "is still running" in refused.err
    terminal.type(b"\x03")
    terminal.read_to_end()
    assert terminal.process.wait() == 130


def test_an_interrupt_before_the_run_began_starts_nothing(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    async def slow_start(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(Host, "start", slow_start)
    done = home.ralph("--json", agent=home.reporting(COMPLETE))
    assert done.exit == 130
    assert done.json["receipt"] is None
    assert done.json["verdict"] == "interrupted before the run began"


def test_ctrl_c_while_a_check_runs_verifies_nothing(home: Home) -> None:
    home.reporting(COMPLETE)
    command = f"sh -c 'echo $$ > {home.root}/check; exec sleep 600'"
    argv = [
        *PROGRAM,
        "run",
        "ralph",
        "--objective",
        "x",
        "--workspace",
        str(home.workspace),
        "--check",
        command,
        "--json",
    ]
    process = subprocess.Popen(
        [*argv, "--", str(home.root / "agent")], env=home.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    check = home.root / "check"
    until(lambda: check.exists() and check.read_text().strip())
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert json.loads(out)["receipt"]["verified"] is None
    assert b"(Ctrl-C); ending the run\n" in err
    assert b"the agents" not in err
    assert not is_alive(int(check.read_text()))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_probe_that_is_interrupted_leaves_neither_an_agent_nor_a_folder(
    home: Home, number: signal.Signals, code: int
) -> None:
    agent = home.agent(f"touch {home.root}/up; {WAIT}")
    settings = home.settings(f'[providers.slow]\ntype = "command"\nargv = ["{agent}"]\n')
    folders = home.root / "temporary"
    folders.mkdir()
    process = subprocess.Popen(
        [*PROGRAM, "providers", "--probe", "slow", "--config", str(settings)],
        env={**home.environment, "TMPDIR": str(folders)}, cwd=home.root, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    until((home.root / "up").exists)
    process.send_signal(number)
    _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors.splitlines()[-1]) == (
        code,
        "loopwarden: interrupted; nothing of the agent is left",
    )
    assert list(folders.iterdir()) == []
