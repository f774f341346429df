"""`[store]`, `[scopes.NAME]`, `[queues.NAME]`, `[workspaces.NAME]`: what is taken, what is refused, what is shown."""

from pathlib import Path

import pytest

from loopwarden.failures import InvalidRequest
from loopwarden.loops import find_loops
from loopwarden.settings import Settings, load_settings
from loopwarden.store.shared import Scope
from loopwarden.store_settings import (
    QueueSettings,
    ScopeSettings,
    StoreKind,
    StoreSettings,
    scopes_of,
    shown_store_url,
)

PASSWORD = "hunter2"
NIGHTLY = "[queues.nightly]\n[scopes.nightly]\n"


def load(tmp_path: Path, text: str) -> Settings:
    path = tmp_path / "loopwarden.toml"
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
    return load_settings(path)


def test_every_key_is_taken(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        '[store]\nurl = "memory"\nlease_seconds = 60\nkill_grace_seconds = 10\npoll_seconds = 1.5\n'
        'lease_lost = "hold"\nkeep_prompts = true\n'
        "[queues.nightly]\nmax_running = 8\ndrive = 4\n[queues.by-hand]\n"
        '[scopes."tenant:acme"]\nmax_agents = 10\nmax_tokens = 1000\nmax_cost_usd = 5\nper = "week"\n'
        'zone = "Europe/Berlin"\non_budget = "wait"\nqueues = ["nightly"]\nloops = ["ralph"]\n'
        '[workspaces.site]\npath = "site"\n',
    )
    assert settings.store == StoreSettings(
        url="memory", lease_seconds=60, kill_grace_seconds=10, poll_seconds=1.5, lease_lost="hold", keep_prompts=True
    )
    assert settings.queues == {"nightly": QueueSettings(max_running=8, drive=4), "by-hand": QueueSettings()}
    assert settings.scopes["tenant:acme"].to_scope("tenant:acme") == Scope(
        name="tenant:acme", max_agents=10, max_tokens=1000, max_cost_usd=5.0, per="week", zone="Europe/Berlin",
        on_budget="wait",
    )  # fmt: skip
    assert settings.workspaces == {"site": tmp_path / "site"}


def test_without_a_table_the_journal_is_a_file_of_the_state_folder() -> None:
    store = Settings().store
    assert (store.kind, store.lease_seconds, store.kill_grace_seconds, store.poll_seconds) == ("sqlite", 30, 5, 2)
    assert store.sqlite_path(Path("/state")) == Path("/state/journal.sqlite3")


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("sqlite", "sqlite"),
        ("sqlite:/srv/j.sqlite3", "sqlite"),
        ("memory", "memory"),
        ("none", "none"),
        ("postgresql://loopwarden@db.example.com/loopwarden", "postgres"),
        ("postgres://db.example.com:5433/loopwarden?sslmode=verify-full", "postgres"),
        ("postgresql:///loopwarden?host=/run/postgresql", "postgres"),
        ("postgresql:///?service=loopwarden", "postgres"),
        ("postgresql://one,two:5433/loopwarden?target_session_attrs=read-write&passfile=/etc/pg", "postgres"),
    ],
)
def test_every_kind_of_store_can_be_named(tmp_path: Path, url: str, kind: StoreKind) -> None:
    store = load(tmp_path, f'[store]\nurl = "{url}"\n').store
    assert (store.kind, store.url) == (kind, url)


def test_the_path_of_a_store_lies_beside_the_settings_or_in_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    for given, wanted in (
        ("j.db", tmp_path / "j.db"),
        ("~/j.db", Path("/home/someone/j.db")),
        ("/j.db", Path("/j.db")),
    ):
        store = load(tmp_path, f'[store]\nurl = "sqlite:{given}"\n').store
        assert store.sqlite_path(Path("/state")) == wanted


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://someone:{PASSWORD}@db.example.com/loopwarden",
        f"postgres://:{PASSWORD}@db.example.com/",
        f"postgresql://db.example.com/loopwarden?password={PASSWORD}",
        f"postgresql://db.example.com/loopwarden?sslmode=require&sslpassword={PASSWORD}",
        f"postgresql://db.example.com/loopwarden?PASSWORD={PASSWORD}",
        f"postgresql://db.example.com/loopwarden#?password={PASSWORD}",
        f"postgresql://db.example.com/loopwarden?pass%77ord={PASSWORD}",
        f"postgresql://someone:{PASSWORD}/x@db.example.com/loopwarden",
        f"postgresql://someone:{PASSWORD}#x@db.example.com/loopwarden",
    ],
)
def test_a_password_in_a_url_is_refused_and_never_shown(tmp_path: Path, url: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        load(tmp_path, f'[store]\nurl = "{url}"\n')
    assert "line 2: store.url: a password does not belong here; put it into ~/.pgpass" in caught.value.message
    assert PASSWORD not in caught.value.message + repr(caught.value) + str(caught.value.details)


@pytest.mark.parametrize(
    "url",
    ["", f"mysql://a:{PASSWORD}@b/c", f"postgresql+psycopg://a:{PASSWORD}@b/c", f"host=b password={PASSWORD}",
     "sqlite3", f"postgresql:a:{PASSWORD}@b", f"http://{PASSWORD}", "/var/lib/j.db", f"postgresql://[a:{PASSWORD}"],
)  # fmt: skip
def test_what_is_no_store_is_refused_and_never_shown(tmp_path: Path, url: str) -> None:
    with pytest.raises(
        InvalidRequest, match=r"line 2: store\.url: (there is no such store; write|this is no URL)"
    ) as caught:
        load(tmp_path, f'[store]\nurl = "{url}"\n')
    assert PASSWORD not in caught.value.message


def test_a_url_is_shown_without_its_user_and_parameters(tmp_path: Path) -> None:
    settings = load(tmp_path, '[store]\nurl = "postgresql://secretive@db.example.com:5433/jobs?passfile=/etc/mine"\n')
    assert settings.to_json()["store"]["url"] == "postgresql://db.example.com:5433/jobs"
    assert "secretive" not in repr(settings)
    assert shown_store_url("sqlite:/srv/j.db") == "sqlite:/srv/j.db"


@pytest.mark.parametrize(
    ("text", "line", "key", "reason"),
    [
        ("[store]\nlease = 3\n", 2, "store.lease", "there is no such key; there are: url, lease_seconds, kill_grace"),
        ("[store]\nurl = 3\n", 2, "store.url", "string"),
        ('[store]\nurl = "sqlite:"\n', 2, "store.url", "the path is missing"),
        ('[store]\nurl = "sqlite:///srv/j.db"\n', 2, "store.url", "write the path right after the colon"),
        ('[store]\nurl = "sqlite:a\\u0000"\n', 2, "store.url", "null character"),
        ('[store]\nurl = "sqlite:~nobody-like-that/j"\n', 2, "store.url", "~nobody-like-that names no home folder"),
        ("[store]\nlease_seconds = 0\n", 2, "store.lease_seconds", "greater than 0"),
        ("[store]\nlease_seconds = inf\n", 2, "store.lease_seconds", "input should be"),
        (
            "[store]\nlease_seconds = 10\nkill_grace_seconds = 10\n",
            3,
            "store.kill_grace_seconds",
            "kill_grace_seconds (10) must be lower than lease_seconds (10); lower the one or raise the other",
        ),
        (
            "[store]\nkill_grace_seconds = 1\nlease_seconds = 1.5\n",
            1,
            "store.poll_seconds",
            "poll_seconds (2) must be lower than lease_seconds (1.5)",
        ),
        ('[store]\nlease_lost = "go on"\n', 2, "store.lease_lost", "'kill' or 'hold'"),
        ("[store]\nkeep_prompts = 1\n", 2, "store.keep_prompts", "boolean"),
        (NIGHTLY + "max_agents = -1\n", 3, "scopes.nightly.max_agents", "greater than or equal to 0"),
        (NIGHTLY + "max_agents = 1.5\n", 3, "scopes.nightly.max_agents", "integer"),
        (NIGHTLY + "max_tokens = 99999999999999999\n", 3, "scopes.nightly.max_tokens", "less than or equal to"),
        (NIGHTLY + "max_cost_usd = nan\n", 3, "scopes.nightly.max_cost_usd", "input should be"),
        (NIGHTLY + "max_cost_usd = -1\n", 3, "scopes.nightly.max_cost_usd", "greater than or equal to 0"),
        (NIGHTLY + 'per = "year"\n', 3, "scopes.nightly.per", "'forever', 'day', 'week' or 'month'"),
        (NIGHTLY + 'zone = "Berlin"\n', 3, "scopes.nightly.zone", "there is no time zone 'Berlin'; write an IANA name"),
        (NIGHTLY + 'on_budget = "hold"\n', 3, "scopes.nightly.on_budget", "'end' or 'wait'"),
        (
            NIGHTLY + 'queues = ["nightly", "nightli"]\n',
            3,
            "scopes.nightly.queues",
            "there is no [queues.nightli]; the queues of the file are: nightly",
        ),
        ('[scopes."a b"]\n', 1, "scopes.'a b'", "'a b' cannot name a budget; use letters (a to z), digits and"),
        ('[queues."ü"]\n', 1, "queues.'ü'", "'ü' cannot name a queue"),
        ("[queues.nightly]\ndrive = 0\n", 2, "queues.nightly.drive", "greater than or equal to 1"),
        ("[queues.nightly]\nmax = 1\n", 2, "queues.nightly.max", "there is no such key; there are: max_running, drive"),
        ("[workspaces.site]\n", 1, "workspaces.site.path", "this key is missing"),
        ('[workspaces.site]\npath = ""\n', 2, "workspaces.site.path", "at least 1 character"),
        ('[workspaces.site]\npath = "a\\u0000"\n', 2, "workspaces.site.path", "null character"),
        ('[workspaces.""]\npath = "a"\n', 1, "workspaces.''", "the name of a workspace has 1 to 200 characters"),
    ],
)
def test_what_cannot_be_is_refused_with_key_and_line(
    tmp_path: Path, text: str, line: int, key: str, reason: str
) -> None:
    if text.startswith(NIGHTLY):
        text = text.replace("[queues.nightly]\n", "queues.nightly = {}\n")
        line = text.count("\n")
    with pytest.raises(InvalidRequest) as caught:
        load(tmp_path, text)
    assert f", line {line}: {key}: " in caught.value.message
    assert reason in caught.value.message


def test_a_budget_of_a_loop_that_is_not_there_is_refused(tmp_path: Path) -> None:
    settings = load(tmp_path, '[scopes.nightly]\nloops = ["ralph", "ralf"]\n')
    with pytest.raises(
        InvalidRequest, match=r"line 2: scopes\.nightly\.loops: there is no loop 'ralf'; installed: .*ralph"
    ):
        find_loops(settings)


def test_budgets_are_attached_by_queue_and_by_loop() -> None:
    scopes = {
        "z": ScopeSettings(queues=["nightly"]),
        "a": ScopeSettings(loops=["ralph"]),
        "B": ScopeSettings(queues=["nightly"], loops=["ralph"]),
        "other": ScopeSettings(),
    }
    assert scopes_of(scopes, queue="nightly", loop="ralph") == ["B", "a", "z"]
    assert scopes_of(scopes, queue=None, loop="ralph") == ["B", "a"]
    assert scopes_of(scopes, queue=None, loop="mine") == []


def test_the_digest_follows_the_store_and_its_budgets(tmp_path: Path) -> None:
    first = load(tmp_path, NIGHTLY + "max_agents = 3\n")
    assert first.to_json()["scopes"]["nightly"]["maxAgents"] == 3
    assert load(tmp_path, NIGHTLY + "max_agents = 4\n").digest != first.digest
    assert load(tmp_path, NIGHTLY + "max_agents = 3\n[store]\nkeep_prompts = true\n").digest != first.digest
