"""`loopwarden budget`: in a store of its own state folder, as a person types it."""

import os
import pwd
from pathlib import Path

import pytest

from support.command_line import Home

NIGHTLY = """
[queues.nightly]

[scopes.nightly]
max_agents = 200
per = "day"
zone = "Europe/Berlin"
queues = ["nightly"]
"""
ME = pwd.getpwuid(os.geteuid()).pw_name


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_without_a_budget_the_way_to_one_is_shown(home: Home) -> None:
    done = home.run("budget", "show")
    assert (done.exit, done.out) == (0, "no budgets yet; `loopwarden budget set NAME --max-agents N` makes one\n")
    assert home.run("budget", "show", "--json").json == {"exit": 0, "budgets": []}
    assert (home.state / "journal.sqlite3").stat().st_mode & 0o777 == 0o600


def test_a_budget_is_made_changed_and_logged(home: Home) -> None:
    made = home.run("budget", "set", "tenant:acme", "--max-agents", "5", "--max-cost", "2.5", "--per", "month",
                    "--zone", "Europe/Berlin", "--on-budget", "wait", "--json")  # fmt: skip
    assert made.exit == 0
    budget = made.json["budget"]
    wanted = {
        "name": "tenant:acme", "maxAgents": 5, "maxTokens": None, "maxCostUsd": 2.5, "per": "month",
        "zone": "Europe/Berlin", "onBudget": "wait",
    }  # fmt: skip
    assert {name: budget[name] for name in wanted} == wanted
    assert (budget["agents"], budget["tokens"], budget["costUsd"], budget["unknownUsage"]) == (0, 0, 0, 0)
    assert budget["freesAt"] > 0

    changed = home.run("budget", "set", "tenant:acme", "--max-cost", "none", "--max-tokens", "1000000", "--json")
    assert [changed.json["budget"][name] for name in ("maxAgents", "maxTokens", "maxCostUsd")] == [5, 1000000, None]

    log = home.run("budget", "log", "tenant:acme", "--json").json["changes"]
    assert [(item["by"], item["maxTokens"], item["maxCostUsd"]) for item in log] == [
        (ME, None, 2.5),
        (ME, 1000000, None),
    ]
    assert (
        "5 agents, 1,000,000 tokens a month in Europe/Berlin, then wait" in home.run("budget", "log", "tenant:acme").out
    )


def test_a_budget_is_shown_with_what_is_used_and_when_it_frees(home: Home) -> None:
    home.run("budget", "set", "a", "--max-agents", "1200", "--max-cost", "0")
    home.run("budget", "set", "b", "--per", "day", "--zone", "Pacific/Kiritimati", "--max-tokens", "5")
    head, a, b = home.run("budget", "show").out.splitlines()
    assert head.split("  ")[0] == "budget"
    assert a.split() == ["a", "forever", "0", "of", "1,200", "0", "$0.00", "of", "$0.00", "0", "end", "never"]
    assert "(Pacific/Kiritimati)" in b
    assert b.endswith(" 00:00")  # as clocks there show it
    assert len(home.run("budget", "show", "b").out.splitlines()) == 2


def test_the_budgets_of_the_settings_are_there_and_hold_until_the_settings_change(home: Home) -> None:
    config = ("--config", str(home.settings(NIGHTLY)))
    assert home.run(*config, "budget", "show", "nightly", "--json").json["budgets"][0]["maxAgents"] == 200
    home.run(*config, "budget", "set", "nightly", "--max-agents", "300")
    assert home.run(*config, "budget", "show", "nightly", "--json").json["budgets"][0]["maxAgents"] == 300
    home.settings(NIGHTLY.replace("200", "250"))
    assert home.run(*config, "budget", "show", "nightly", "--json").json["budgets"][0]["maxAgents"] == 250
    log = home.run(*config, "budget", "log", "nightly", "--json").json["changes"]
    assert [item["maxAgents"] for item in log] == [200, 300, 250]
    assert [item["by"].startswith("settings on ") for item in log] == [True, False, True]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("set", "x"), "say what to set, such as --max-agents 200; `--help` shows what there is"),
        (("set", "a b", "--max-agents", "1"), "'a b' cannot name a budget; use letters (a to z), digits and : . _ - /"),
        (("set", "x", "--max-agents", "-1"), "-1 is too small; it must be at least 0"),
        (("set", "x", "--max-tokens", "1e6"), "'1e6' is not a whole number"),
        (("set", "x", "--max-cost", "-1"), "'-1' is no amount to stay within"),
        (("set", "x", "--max-agents", "9999999999999999"), "max_agents of the budget x is a whole number from 0"),
        (
            ("set", "x", "--zone", "Berlin"),
            "there is no time zone 'Berlin'; write an IANA name, such as UTC or Europe/Berlin",
        ),
        (("set", "x", "--per", "year"), "'year' cannot be; choose one of forever, day, week, month"),
        (("set", "x", "--on-budget", "hold"), "'hold' cannot be; choose one of end, wait"),
        (("show", "nope"), "there is no budget 'nope'; there are: known"),
        (("log", "nope"), "there is no budget 'nope'; there are: known"),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(home: Home, words: tuple[str, ...], sentence: str) -> None:
    home.run("budget", "set", "known", "--max-agents", "1")
    done = home.run("budget", *words)
    assert (done.exit, done.out) == (2, "")
    assert sentence in done.err
    refused = home.run("budget", *words, "--json")
    assert refused.json["failure"]["code"] == "INVALID_REQUEST"
    assert [item["name"] for item in home.run("budget", "show", "--json").json["budgets"]] == ["known"]


def test_the_group_alone_shows_its_commands(home: Home) -> None:
    for group in ("budget", "queue", "schedule"):
        done = home.run(group)
        assert done.exit == 2
        assert "Commands:" in done.out


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("none", 'this deployment has no store: the settings say url = "none"'),
        ("memory", "a command finds nothing in it"),
    ],
)
def test_a_store_that_holds_nothing_is_refused(home: Home, url: str, sentence: str) -> None:
    done = home.run("--config", str(home.settings(f'[store]\nurl = "{url}"\n')), "budget", "show")
    assert (done.exit, sentence in done.err) == (2, True)


def test_a_store_that_cannot_be_opened_is_a_sentence_and_an_exit_that_says_try_later(home: Home) -> None:
    (home.root / "j.db").mkdir()
    done = home.run("--config", str(home.settings('[store]\nurl = "sqlite:j.db"\n')), "budget", "show", "--json")
    assert done.json["failure"]["code"] == "STORE_UNAVAILABLE"
    assert done.exit == done.json["exit"] != 0
