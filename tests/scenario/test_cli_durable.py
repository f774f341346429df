"""`loopwarden run` killed in the middle, and what goes on with it: same result, no ended call asked again."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.command_line import COMPLETE, PROGRAM, REPORT, Home, is_alive, until

STORE = "[store]\nlease_seconds = 60.0\nkill_grace_seconds = 0.5\npoll_seconds = 0.2\n"
PROVIDER = '[providers.mine]\ntype = "command"\nargv = ["{agent}"]\n'
THREE_ROUNDS = """
cat > prompt
echo $$ > pid
n=$(($(cat asked 2>/dev/null | wc -l) + 1))
echo "asked $n" >> asked
done=$(cat ended 2>/dev/null | wc -l)
if [ $done = 1 ] && [ ! -e go ]; then exec sleep 600; fi
echo ended >> ended
if [ $done = 2 ]; then cat {root}/complete.json; else cat {root}/report.json; fi
"""
"""The second of three rounds blocks until there is a file `go`."""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path)
    (tmp_path / "report.json").write_text(json.dumps(REPORT))
    (tmp_path / "complete.json").write_text(json.dumps(COMPLETE))
    return home


def three_rounds(home: Home) -> Path:
    return home.agent(THREE_ROUNDS.replace("{root}", str(home.root)))


def submitted(home: Home) -> tuple[Path, str]:
    """Settings with a store, and the id of a run that waits in it."""
    config = home.settings(STORE + PROVIDER.format(agent=three_rounds(home)))
    options = ("--config", str(config), "--objective", "x", "--workspace", str(home.workspace), "--max-rounds", "5")
    return config, home.run("submit", "ralph", *options).out.strip()


def lines(home: Home, name: str) -> int:
    path = home.workspace / name
    return len(path.read_text().splitlines()) if path.exists() else 0


@contextmanager
def started(home: Home, *argv: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [*PROGRAM, *argv], env=home.environment, cwd=home.root, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def killed_in_round_two(home: Home, config: Path, *program: str) -> str:
    """Start a run, kill its host in the second round, and return the id of the run."""
    options = ("--config", str(config), "--objective", "x", "--workspace", str(home.workspace), "--max-rounds", "5")
    with started(home, "run", "ralph", *options, *program) as process:
        until(lambda: lines(home, "asked") == 2)
        process.send_signal(signal.SIGKILL)
        process.wait()
    agent = int((home.workspace / "pid").read_text())
    until(lambda: not is_alive(agent))  # by its supervisor, although its host is dead
    (home.workspace / "go").touch()
    (row,) = home.run("runs", "--json", "--config", str(config)).json["runs"]
    assert (row["state"], row["status"]) == ("lost", "running")
    run_id: str = row["runId"]
    return run_id


def test_a_run_whose_host_was_killed_is_resumed_and_asks_no_ended_call_again(home: Home) -> None:
    config = home.settings(STORE)
    run_id = killed_in_round_two(home, config, "--", str(three_rounds(home)))
    assert f"`loopwarden resume {run_id}`" in home.run("show", run_id, "--config", str(config)).out
    with started(home, "resume", run_id, "--json", "--config", str(config)) as resumed:
        assert resumed.stderr is not None
        until(lambda: b"its host was killed; its lease ends" in os.read(resumed.stderr.fileno(), 65536))
        home.end_leases()
        out, err = resumed.communicate(timeout=60)
    assert resumed.returncode == 0, err
    receipt = json.loads(out)["receipt"]
    assert receipt["result"] == {"status": "complete", "roundsStarted": 3, "report": COMPLETE}
    assert [[ask["kind"] for ask in agent["asks"]] for agent in receipt["agents"]] == [
        ["first"],
        ["first", "redo"],
        ["first"],
    ]
    assert (lines(home, "asked"), lines(home, "ended")) == (4, 3)
    assert home.run("verify", run_id, "--config", str(config)).exit == 0
    assert home.run("replay", run_id, "--config", str(config)).exit == 0


def test_a_run_whose_host_was_killed_is_finished_by_a_host_of_its_queue(home: Home) -> None:
    config = home.settings(STORE + PROVIDER.format(agent=three_rounds(home)))
    run_id = killed_in_round_two(home, config)
    home.end_leases()
    with started(home, "host", "--config", str(config)) as host:
        until(lambda: home.run("runs", "--status", "finished", "--json", "--config", str(config)).json["runs"])
        host.send_signal(signal.SIGTERM)
        _, err = host.communicate(timeout=60)
    assert host.returncode == 0
    assert f"run {run_id} began: ralph, queue default, claim 2" in err.decode()
    assert f"run {run_id} ended: agent reported completion after 3 rounds (3 agents)" in err.decode()
    shown = home.run("show", run_id, "--config", str(config))
    assert "agent reported completion after 3 rounds" in shown.out
    assert "again after an interruption" in shown.out
    assert (lines(home, "asked"), lines(home, "ended")) == (4, 3)


def test_a_host_that_is_told_to_end_gives_its_runs_back_at_once(home: Home) -> None:
    config, run_id = submitted(home)
    with started(home, "host", "--config", str(config)) as host:
        until(lambda: lines(home, "asked") == 2)
        host.send_signal(signal.SIGTERM)
        _, err = host.communicate(timeout=60)
    assert host.returncode == 0
    assert f"run {run_id} left this host: it was given back" in err.decode()
    assert not is_alive(int((home.workspace / "pid").read_text()))
    (row,) = home.run("runs", "--json", "--config", str(config)).json["runs"]
    assert (row["status"], row["agentsStarted"]) == ("queued", 2)
    (home.workspace / "go").touch()
    assert home.run("resume", run_id, "--config", str(config)).exit == 0
    assert (lines(home, "asked"), lines(home, "ended")) == (4, 3)


def test_agents_may_finish_while_their_host_drains(home: Home) -> None:
    config, run_id = submitted(home)
    slow = (home.root / "agent").read_text().replace("exec sleep 600", "while [ ! -e go ]; do sleep 0.05; done")
    (home.root / "agent").write_text(slow)
    with started(home, "host", "--drain", "60", "--config", str(config)) as host:
        until(lambda: lines(home, "asked") == 2)
        host.send_signal(signal.SIGTERM)
        assert host.stderr is not None
        until(lambda: b"may finish for 60 s" in os.read(host.stderr.fileno(), 65536))
        (home.workspace / "go").touch()
        host.communicate(timeout=60)
    assert (lines(home, "asked"), lines(home, "ended")) == (2, 2)
    assert home.run("resume", run_id, "--config", str(config)).exit == 0
    assert (lines(home, "asked"), lines(home, "ended")) == (3, 3)


def test_a_second_signal_ends_the_drain(home: Home) -> None:
    config, run_id = submitted(home)
    with started(home, "host", "--drain", "10m", "--config", str(config)) as host:
        until(lambda: lines(home, "asked") == 2)
        host.send_signal(signal.SIGTERM)
        assert host.stderr is not None
        until(lambda: b"may finish for 10 min" in os.read(host.stderr.fileno(), 65536))
        host.send_signal(signal.SIGTERM)
        host.communicate(timeout=60)
    assert not is_alive(int((home.workspace / "pid").read_text()))
    (row,) = home.run("runs", "--json", "--config", str(config)).json["runs"]
    assert (row["runId"], row["status"]) == (run_id, "queued")
    (home.workspace / "go").touch()
    assert home.run("resume", run_id, "--config", str(config)).exit == 0
    assert (lines(home, "asked"), lines(home, "ended")) == (4, 3)
