"""`loopwarden verify`, `export` and `replay`: what a journal proves, and what damage they find."""

import sqlite3
import stat
from pathlib import Path

import pytest

from support.command_line import Home
from support.durable_home import asked, asking, durable_home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return durable_home(tmp_path)


@pytest.fixture
def run_id(home: Home) -> str:
    done = asking(home, "run", 3)
    assert done.exit == 0, done.err
    found: str = done.json["runId"]
    return found


def edit(home: Home, sql: str) -> None:
    """What somebody does to the store by hand."""
    connection = sqlite3.connect(home.state / "journal.sqlite3")
    with connection:
        assert connection.execute(sql).rowcount
    connection.close()


def test_a_journal_proves_its_promises_and_says_what_it_does_not_prove(home: Home, run_id: str) -> None:
    verified = home.run("verify", run_id)
    assert verified.exit == 0
    assert verified.out.startswith(f"run {run_id}: the journal keeps every promise\n")
    assert "3 for 3 calls, 0 of them redos" in verified.out
    assert "it does not find a journal that was rewritten as a whole" in verified.out.replace("\n", " ")


def test_a_head_that_was_noted_before_is_found_again(home: Home, run_id: str) -> None:
    head = home.run("show", run_id, "--json").json["receipt"]["journal"]
    verified = home.run("verify", run_id, "--head", head["head"], "--json").json
    assert (verified["exit"], verified["knownHeadAt"]) == (0, head["seq"])
    cut = home.run("verify", run_id, "--head", head["head"][:20])
    assert (cut.exit, "--head takes a whole hash" in cut.err) == (2, True)
    other = home.run("verify", run_id, "--head", "sha256:" + "1" * 64)
    assert other.exit == 1
    assert "the journal was cut off, or rewritten" in other.out


def test_an_edited_row_is_found_and_named(home: Home, run_id: str) -> None:
    changed = "CAST(REPLACE(CAST(body AS TEXT), 'answer 1', 'answer 9') AS BLOB)"
    edit(home, f"UPDATE entries SET body = {changed} WHERE CAST(body AS TEXT) LIKE '%answer 1%'")
    verified = home.run("verify", run_id, "--json")
    assert verified.exit == 1
    assert "does not fit its hash" in verified.json["findings"][0]
    assert home.run("runs").exit == 0


def test_a_journal_that_was_cut_off_is_found_by_the_list_of_runs(home: Home, run_id: str) -> None:
    edit(home, "DELETE FROM entries WHERE seq = (SELECT MAX(seq) FROM entries)")
    verified = home.run("verify", run_id)
    assert verified.exit == 1
    assert "the list of runs of the store names entry" in verified.out


def test_an_exported_journal_verifies_without_the_store(home: Home, run_id: str) -> None:
    exported = home.run("export", run_id, "--output", "out.journal", "--json").json
    file = home.root / "out.journal"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    (home.state / "journal.sqlite3").unlink()
    verified = home.run("verify", "out.journal", "--head", exported["head"], "--json").json
    assert (verified["exit"], verified["runId"], verified["knownHeadAt"]) == (0, run_id, exported["seq"])
    again = home.run("export", run_id, "--output", "out.journal")
    assert again.exit == 2
    file.write_bytes(file.read_bytes().replace(b"answer 1", b"answer 9"))
    assert home.run("verify", "out.journal").exit == 1
    file.write_bytes(file.read_bytes()[:-40])
    refused = home.run("verify", "out.journal")
    assert (refused.exit, "was cut off" in refused.err) == (2, True)


def test_a_replay_asks_nobody_and_compares(home: Home, run_id: str) -> None:
    replayed = home.run("replay", run_id, "--json").json
    assert (replayed["exit"], replayed["isSame"], replayed["calls"]) == (0, True, 3)
    assert asked(home) == 3


def test_a_run_that_nobody_knows_is_refused_by_every_command(home: Home, run_id: str) -> None:
    for command in ("verify", "export", "replay", "events", "cancel", "resume", "rerun"):
        refused = home.run(command, "nothing-like-that")
        assert (refused.exit, "holds no run 'nothing-like-that'" in refused.err) == (2, True), command
    assert home.run("verify", run_id[:-3]).exit == 0
