"""`loopwarden queue`: in a store of its own state folder, as a person types it."""

from pathlib import Path
from typing import Any

import pytest

from support.command_line import Home

QUEUES = "[queues.nightly]\nmax_running = 3\n[queues.by-hand]\n"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path)
    (tmp_path / "config/loopwarden").mkdir(parents=True, mode=0o700)
    home.settings(QUEUES).rename(tmp_path / "config/loopwarden/loopwarden.toml")
    return home


def listed(home: Home) -> dict[str, Any]:
    return {item.pop("name"): item for item in home.run("queue", "list", "--json").json["queues"]}


def queue(*, paused: bool = False, most: int | None = None) -> dict[str, Any]:
    return {"isPaused": paused, "maxRunning": most, "queued": 0, "running": 0}


def test_the_queues_of_the_settings_are_listed(home: Home) -> None:
    assert listed(home) == {"by-hand": queue(), "nightly": queue()}
    assert [line.split() for line in home.run("queue", "list").out.splitlines()] == [
        ["queue", "state", "waiting", "running", "at", "most"],
        ["by-hand", "open", "0", "0", "no", "bound"],
        ["nightly", "open", "0", "0", "no", "bound"],
    ]


def test_without_a_queue_the_way_to_one_is_shown(tmp_path: Path) -> None:
    assert "no queues yet; `loopwarden submit --queue NAME` makes one" in Home(tmp_path).run("queue", "list").out


def test_a_queue_is_paused_resumed_and_bounded(home: Home) -> None:
    paused = home.run("queue", "pause", "nightly")
    assert (paused.exit, "paused" in paused.out) == (0, True)
    assert home.run("queue", "limit", "nightly", "7", "--json").json["queue"] == {"name": "nightly"} | queue(
        paused=True, most=7
    )
    assert listed(home) == {"by-hand": queue(), "nightly": queue(paused=True, most=7)}
    home.run("queue", "resume", "nightly")
    assert home.run("queue", "limit", "nightly", "none").exit == 0
    assert listed(home)["nightly"] == queue()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("pause", "nightli"), "there is no queue 'nightli'; there are: by-hand, nightly"),
        (("resume", "nightli"), "there is no queue 'nightli'"),
        (("limit", "nightli", "3"), "there is no queue 'nightli'"),
        (("limit", "nightly", "0"), "0 is too small; it must be at least 1"),
        (("limit", "nightly", "all"), "'all' is not a whole number"),
        (("limit", "nightly"), "missing argument 'N|none'"),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(home: Home, words: tuple[str, ...], sentence: str) -> None:
    done = home.run("queue", *words)
    assert (done.exit, done.out) == (2, "")
    assert sentence in done.err
    assert listed(home) == {"by-hand": queue(), "nightly": queue()}
