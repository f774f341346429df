"""`loopwarden runs`, `show`, `events`, `cancel` and `prune` for runs of the store."""

import json
import re
import sqlite3
from pathlib import Path

import pytest

from loopwarden.cli import values
from support.command_line import COMPLETE, Home
from support.durable_home import asked, asking, durable_home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return durable_home(tmp_path)


def listed(home: Home, *options: str) -> list[tuple[str, str]]:
    return [(row["runId"], row["status"]) for row in home.run("runs", "--json", *options).json["runs"]]


def test_runs_are_filtered_by_status_queue_and_label(home: Home) -> None:
    done = asking(home, "run", 1).json["runId"]
    nightly = asking(home, "submit", 1, "--queue", "nightly", "--label", "team=a", "--label", "x=1").json["runId"]
    other = asking(home, "submit", 1, "--label", "team=b").json["runId"]
    assert listed(home) == [(other, "queued"), (nightly, "queued"), (done, "finished")]
    assert listed(home, "--status", "queued") == [(other, "queued"), (nightly, "queued")]
    assert listed(home, "--queue", "nightly") == [(nightly, "queued")]
    assert listed(home, "--label", "team=a", "--label", "x=1") == [(nightly, "queued")]
    assert listed(home, "--label", "team=a", "--label", "x=2") == []
    assert "waits in the queue nightly  [team=a x=1]" in home.run("runs").out
    refused = home.run("runs", "--status", "odd")
    assert (refused.exit, "choose one of queued, running, held, finished" in refused.err) == (2, True)


def test_runs_that_are_folders_alone_stay_listed_and_shown(home: Home) -> None:
    without = home.settings('[store]\nurl = "none"\n[providers.mine]\ntype = "command"\nargv = ["true"]\n')
    alone = asking(home, "run", 0, "--config", str(without))
    assert "journal in" not in alone.err
    assert alone.json["receipt"]["journal"] is None
    stored = asking(home, "run", 0)
    assert "journal in" in stored.err
    rows = home.run("runs", "--json").json["runs"]
    assert {row["runId"]: row["inStore"] for row in rows} == {alone.json["runId"]: False, stored.json["runId"]: True}
    assert home.run("show", alone.json["runId"], "--json").json["inStore"] is False
    assert home.run("runs", "--json", "--limit", "1").json["runs"] == rows[:1]


def test_a_run_whose_folder_is_gone_is_shown_from_its_journal(home: Home) -> None:
    done = asking(home, "run", 2)
    before = home.run("show", done.json["runId"], "--json").json
    assert [len(files) for files in before["files"].values()] == [3, 3]
    for path in sorted((home.state / "runs").rglob("*"), reverse=True):
        path.unlink() if not path.is_dir() else path.rmdir()
    (home.state / "runs").rmdir()
    after = home.run("show", done.json["runId"], "--json").json
    assert after["folder"] is None
    assert after["receipt"]["result"] == before["receipt"]["result"] == ["yes\n", "yes\n"]
    assert after["receipt"]["journal"] == before["receipt"]["journal"]
    assert listed(home) == [(done.json["runId"], "finished")]


def test_a_run_that_no_host_here_would_take_says_why(home: Home) -> None:
    head = ("run", "asks.py", "--args-json", '{"n": 2}', "--max-total-agents", "1", "--workspace", str(home.workspace))
    capped = home.run(*head, "--", str(home.root / "agent"))
    assert capped.exit == 1
    connection = sqlite3.connect(home.state / "journal.sqlite3")
    with connection:  # as a host leaves it that was killed long ago
        connection.execute("UPDATE runs SET status = 'running', lease_until = 1, owner = 'elsewhere/1/aa'")
    connection.close()
    (row,) = home.run("runs", "--json").json["runs"]
    assert row["state"] == "lost"
    assert row["cannotBeDrivenHere"] == (
        "its agent is a program that was given after --, which only `resume` can start again"
    )
    assert f"did not end: its host was killed; `loopwarden resume {row['runId']}` goes on" in row["verdict"]
    shown = home.run("show", row["runId"]).out
    assert "no host that is started here takes it: its agent is a program" in shown


def test_events_go_on_from_a_number_and_are_json_lines_on_demand(home: Home) -> None:
    run_id = asking(home, "run", 1).json["runId"]
    words = [
        re.split(r"[+-]\d{4}  ", line, maxsplit=1)[-1].strip() for line in home.run("events", run_id).out.splitlines()
    ]
    assert [word for word in words if word in ("== asking", "answer 0", "#1 question 0 started, by mine")] == [
        "== asking", "#1 question 0 started, by mine", "answer 0",
    ]  # fmt: skip
    events = [json.loads(line) for line in home.run("events", run_id, "--json", "--follow").out.splitlines()]
    assert [event["event"] for event in events] == [
        "runStarted", "phase", "agentStarted", "agentEnded", "log", "runEnded",
    ]  # fmt: skip
    after = events[3]["number"]
    rest = home.run("events", run_id, "--json", "--after", str(after)).out.splitlines()
    assert [json.loads(line) for line in rest] == events[4:]


def test_a_run_that_waits_is_cancelled_at_once_and_one_that_is_over_stays(home: Home) -> None:
    run_id = asking(home, "submit", 1).json["runId"]
    cancelled = home.run("cancel", run_id, "--reason", "not wanted", "--json").json
    assert (cancelled["status"], cancelled["failure"], cancelled["wasOver"]) == ("finished", "CANCELLED", False)
    assert "not wanted" in home.run("show", run_id).out
    assert home.run("cancel", run_id, "--json").json["wasOver"] is True
    assert asked(home) == 0


def test_a_run_that_is_held_as_damaged_says_how_to_look_at_it_and_resume_takes_no_damage(home: Home) -> None:
    run_id = asking(home, "submit", 1).json["runId"]
    connection = sqlite3.connect(home.state / "journal.sqlite3")
    with connection:  # as a host leaves it that claimed it and found damage
        connection.execute(
            "UPDATE runs SET status = 'held', failure_code = 'STORE_CORRUPT', reason = 'odd', head_seq = 2"
        )
    connection.close()
    assert f"held: odd. `loopwarden verify {run_id}` says what is damaged; restore it" in home.run("runs").out
    refused = home.run("resume", run_id)
    assert (refused.exit, "does not end with entry 2" in refused.err) == (75, True)
    followed = home.run("events", run_id, "--follow")
    assert (followed.exit, f"run {run_id} is damaged: odd" in followed.err) == (75, True)


def test_old_runs_are_pruned_with_their_folders_and_young_ones_stay(home: Home) -> None:
    old = asking(home, "run", 1).json["runId"]
    connection = sqlite3.connect(home.state / "journal.sqlite3")
    with connection:
        connection.execute("UPDATE runs SET finished_at = finished_at - 86400")
    connection.close()
    young = asking(home, "run", 1).json["runId"]
    waiting = asking(home, "submit", 1).json["runId"]
    dry = home.run("prune", "--older-than", "1h", "--dry-run", "--json").json
    assert (dry["runs"], dry["isDryRun"]) == ([old], True)
    assert len(listed(home)) == 3
    assert home.run("prune", "--older-than", "1h").out == "1 run removed; what they charged to budgets stays\n"
    assert [run_id for run_id, _ in listed(home)] == [waiting, young]
    assert sorted(path.name for path in (home.state / "runs").iterdir()) == [young]
    assert home.run("show", old).exit == 2


def test_a_receipt_is_continued_from_the_store_when_its_folder_is_gone(home: Home) -> None:
    report = {**COMPLETE, "status": "blocked", "evidence": [], "blocker": "no key", "summary": "half of it"}
    first = home.ralph("--json", agent=home.reporting(report, "blocked"))
    assert first.exit == 3
    (home.state / "runs" / first.json["runId"]).rename(home.root / "moved")
    again = home.run(
        "continue", first.json["runId"], "--workspace", str(home.workspace), "--json", "--provider", "mine"
    )
    assert again.json["receipt"]["continues"] == first.json["runId"], again.err


def test_a_store_that_cannot_be_opened_is_exit_75_with_a_sentence(home: Home) -> None:
    home.state.mkdir(parents=True, mode=0o700)
    (home.state / "journal.sqlite3").write_bytes(b"no database at all" * 100)
    (home.state / "journal.sqlite3").chmod(0o600)
    for done in (asking(home, "run", 1), asking(home, "submit", 1), home.run("runs", "--json")):
        assert done.exit == 75
        assert done.json["failure"]["code"] == "STORE_UNAVAILABLE"
        assert "is not a SQLite file" in done.json["failure"]["message"]
    doctor = home.run("doctor", "--json")
    assert doctor.exit == 1
    assert any("the store cannot be used" in problem for problem in doctor.json["problems"])


def test_doctor_says_which_store_is_in_force(home: Home) -> None:
    found = home.run("doctor", "--json").json["store"]
    assert (found["place"], found["format"]) == (str(home.state / "journal.sqlite3"), 1)
    assert abs(found["clockAheadSeconds"]) < 2


@pytest.mark.parametrize(("text", "seconds"), [("0", 0.0), ("30", 30.0), ("2m", 120.0)])
def test_patience_is_seconds_or_a_time(text: str, seconds: float) -> None:
    assert values.patience(text) == seconds
