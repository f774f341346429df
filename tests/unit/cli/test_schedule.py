"""`loopwarden schedule`: in a store of its own state folder, as a person types it."""

import os
import pwd
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from loopwarden.store.scheduled import ScheduledRun
from support.command_line import Home

SETTINGS = """
default_provider = "local"

[providers.local]
type = "command"
argv = ["true"]

[queues.nightly]

[scopes."tenant:acme"]
max_agents = 9

[workspaces.site]
path = "ws"
"""
DAILY = ("--cron", "0 3 * * *", "--queue", "nightly")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path)
    folder = tmp_path / "config/loopwarden"
    folder.mkdir(parents=True, mode=0o700)
    home.settings(SETTINGS.replace('"ws"', f'"{home.workspace}"')).rename(folder / "loopwarden.toml")
    return home


def add(home: Home, *words: str) -> Any:
    return home.run("schedule", "add", *words, cwd=home.workspace)


def listed(home: Home) -> list[dict[str, Any]]:
    found = home.run("schedule", "list", "--json").json["schedules"]
    assert isinstance(found, list)
    return found


def test_a_schedule_keeps_what_was_asked_and_no_more(home: Home) -> None:
    done = add(home, "morning", "ralph", *DAILY, "--objective", "do it", "--json")
    (schedule,) = listed(home)
    assert done.json == {"exit": 0, "schedule": schedule}
    assert {name: schedule[name] for name in ("name", "cron", "zone", "overlap", "isPaused")} == {
        "name": "morning", "cron": "0 3 * * *", "zone": "UTC", "overlap": "skip", "isPaused": False,
    }  # fmt: skip
    due = datetime.fromtimestamp(schedule["nextAt"], ZoneInfo("UTC"))
    assert (due.hour, due.minute, due.second) == (3, 0, 0)
    assert ScheduledRun.from_json(schedule["request"]) == ScheduledRun(
        script="ralph", args={"objective": "do it"}, queue="nightly", workspace=str(home.workspace),
        by=pwd.getpwuid(os.geteuid()).pw_name,
    )  # fmt: skip


def test_every_option_of_the_schedule_and_of_the_loop_is_kept(home: Home) -> None:
    done = add(
        home, "--overlap", "queue", "morning", "--zone", "Europe/Berlin", "ralph", "--cron", " 30  8 * * MON-fri ",
        "--queue", "by-hand", "--priority", "-2", "--label", "team=web", "--label", "why=a=b", "--scope", "tenant:acme",
        "--objective=do it", "--max-rounds", "3", "--workspace", "site", "--provider", "local", "--share-workspace",
        "--check", "true --now", "--deadline", "2h", "--agent-timeout", "90s", "--max-extra-attempts", "2",
    )  # fmt: skip
    note = "note: no queue by-hand is known yet; a host has to drive it: drive = N under its [queues.NAME]\n"
    assert (done.exit, done.err) == (0, note)
    (schedule,) = listed(home)
    assert (schedule["cron"], schedule["zone"], schedule["overlap"]) == ("30 8 * * MON-fri", "Europe/Berlin", "queue")
    request = ScheduledRun.from_json(schedule["request"])
    assert request == ScheduledRun(
        script="ralph", args={"objective": "do it", "maxRounds": 3}, queue="by-hand", priority=-2,
        labels={"team": "web", "why": "a=b"}, scopes=["tenant:acme"], provider="local", workspace="site",
        share_workspace=True, checks=request.checks, by=request.by,
        limits={"max_extra_attempts": 2, "agent_timeout_seconds": 90, "run_deadline_seconds": 7200},
    )  # fmt: skip
    assert [Path(check.argv[0]).name for check in request.checks] == ["true"]
    assert "08:30" in done.out  # as clocks in the zone of the schedule show it


def test_a_script_of_a_script_folder_takes_its_arguments_as_json(home: Home) -> None:
    scripts = home.root / "loops"
    scripts.mkdir()
    (scripts / "mine.py").write_text("def main(args):\n    return 1\n")
    file = home.root / "config/loopwarden/loopwarden.toml"
    file.write_text(f'script_folders = ["{scripts}"]\n' + file.read_text())
    assert add(home, "m", "mine", *DAILY, "--args-json", '{"a": [1]}', "--max-total-agents", "4").exit == 0
    request = listed(home)[0]["request"]
    assert (request["args"], request["limits"]) == ({"a": [1]}, {"max_total_agents": 4})


def test_a_schedule_is_paused_resumed_and_removed(home: Home) -> None:
    add(home, "morning", "ralph", *DAILY, "--objective", "x")
    before = listed(home)[0]["nextAt"]
    assert "paused" in home.run("schedule", "pause", "morning").out
    assert (listed(home)[0]["isPaused"], listed(home)[0]["nextAt"]) == (True, None)
    resumed = home.run("schedule", "resume", "morning", "--json").json["schedule"]
    assert (resumed["isPaused"], resumed["nextAt"] >= before) == (False, True)
    assert home.run("schedule", "remove", "morning", "--json").json == {"exit": 0, "removed": "morning"}
    assert listed(home) == []
    assert home.run("schedule", "list").out == "no schedules yet; `loopwarden schedule add` makes one\n"


def test_a_schedule_takes_the_place_of_another_only_when_told(home: Home) -> None:
    add(home, "morning", "ralph", *DAILY, "--objective", "one")
    again = add(home, "morning", "ralph", *DAILY, "--objective", "two")
    assert (again.exit, "there is a schedule morning already; give --replace" in again.err) == (2, True)
    assert add(home, "morning", "ralph", *DAILY, "--objective", "two", "--replace").exit == 0
    assert [item["request"]["args"]["objective"] for item in listed(home)] == ["two"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("a b", "ralph", *DAILY, "--objective", "x"), "'a b' cannot name a schedule"),
        (
            ("m", "ralph", "--cron", "@daily", "--queue", "q", "--objective", "x"),
            "'@daily' is no cron expression of five",
        ),
        (("m", "ralph", "--cron", "0 0 30 2 *", "--queue", "q", "--objective", "x"), "no time ever fits"),
        (("m", "ralph", *DAILY, "--zone", "Berlin", "--objective", "x"), "there is no time zone 'Berlin'"),
        (
            ("m", "ralph", *DAILY, "--overlap", "both", "--objective", "x"),
            "'both' cannot be; choose one of skip, queue",
        ),
        (("m", "ralph", "--cron", "0 3 * * *", "--objective", "x"), "missing option '--queue'"),
        (("m", "ralph", "--cron", "0 3 * * *", "--queue", "ü", "--objective", "x"), "'ü' cannot name a queue"),
        (("m", "ralf", *DAILY), "there is no loop 'ralf'; installed: ralph"),
        (
            ("m", "./mine.py", *DAILY),
            "a schedule names a loop, which every host knows; put the script into a folder of",
        ),
        (("m", "ralph", *DAILY), "missing option '--objective'"),
        (("m", "ralph", *DAILY, "--objectiv", "x"), "no such option: --objectiv"),
        (("m", "ralph", *DAILY, "--objective", "x", "--max-rounds", "0"), "--max-rounds"),
        (("m", "ralph", *DAILY, "--objective", "x", "--max-rounds", "100000"), "--max-rounds"),
        (("m", "ralph", *DAILY, "--objective", "x", "--provider", "nobody"), "nobody"),
        (("m", "ralph", *DAILY, "--objective", "x", "--workspace", "gone"), "gone"),
        (
            ("m", "ralph", *DAILY, "--objective", "x", "--scope", "nope"),
            "there is no budget 'nope'; there are: tenant:acme",
        ),
        (("m", "ralph", *DAILY, "--objective", "x", "--label", "nope"), "'nope' is no label; write NAME=VALUE"),
        (("m", "ralph", *DAILY, "--objective", "x", "--model", "big"), "--model belongs to `run`"),
        (("m", "ralph", *DAILY, "--objective", "x", "--pass-env", "KEY"), "--pass-env belongs to `run`"),
        (("m", "ralph", *DAILY, "--objective", "x", "--dry-run"), "--dry-run belongs to `run`"),
        (("m", "ralph", *DAILY, "--objective", "x", "--check", "no-such-program-here"), "no-such-program-here"),
        (
            ("m", "ralph", *DAILY, "--objective", "x", "--", "agent"),
            "a program after -- belongs to `run`, `continue` and `resume`",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(home: Home, words: tuple[str, ...], sentence: str) -> None:
    done = add(home, *words)
    assert (done.exit, done.out) == (2, "")
    assert sentence in done.err
    assert listed(home) == []


@pytest.mark.parametrize("command", ["pause", "resume", "remove"])
def test_a_schedule_that_is_not_there_is_refused(home: Home, command: str) -> None:
    done = home.run("schedule", command, "nope")
    assert (done.exit, "there is no schedule 'nope'; there are: none" in done.err) == (2, True)


@pytest.mark.parametrize(
    "request_", [{}, {"script": "ralph"}, {"script": 1, "queue": "q"}, {"script": "ralph", "queue": "q", "x": 1}]
)
def test_what_a_store_gives_for_a_schedule_is_read_strictly(request_: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^what a schedule submits cannot be read: "):
        ScheduledRun.from_json(request_)
