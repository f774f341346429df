"""Providers from the command line: listed, probed, chosen; what is refused before an agent starts, and what is kept."""

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from loopwarden.breaker import BreakerState, read_breakers, write_breaker
from loopwarden.cli import probe, provider_facts
from loopwarden.failure_class import FailureClass
from loopwarden.provider_settings import AGENT_PROGRAMS
from support.command_line import COMPLETE, Finished, Home

SECRET = "hunter2"
USED = {"usage": {"input_tokens": 10, "output_tokens": 3}, "total_cost_usd": 0.01}
BUSY = {
    "type": "result", "subtype": "success", "is_error": True, "api_error_status": 529,
    "api_error_type": "overloaded_error", "result": "API Error: 529 Overloaded", **USED,
}  # fmt: skip


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A user with one variable that is secret, and with no agent program but those that a test writes."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.defpath}")
    return Home(tmp_path, {"A_KEY": SECRET})


def answer(value: dict[str, Any]) -> dict[str, Any]:
    """The last record of an agent program that did what it was asked."""
    return {
        "type": "result", "subtype": "success", "is_error": False, "result": json.dumps(value),
        "structured_output": value, **USED,
    }  # fmt: skip


def claude(home: Home, *records: dict[str, Any], version: str = "echo '2.1.0 (Claude Code)'") -> None:
    """A program that is called claude. Its first ask gets the first of `records`, and so on; the last one stays."""
    cases = "\n".join(
        f"if [ $n -{'ge' if number == len(records) else 'eq'} {number} ]; then cat <<'END'\n{json.dumps(record)}\nEND\n"
        f"exit {int(record['is_error'])}; fi"
        for number, record in enumerate(records, 1)
    )
    home.agent(
        f'[ "$1" = --version ] && {{ {version}; exit; }}\ncat > {home.root}/prompt\n'
        f"n=$(($(cat {home.root}/asks 2>/dev/null || echo 0) + 1)); echo $n > {home.root}/asks\n"
        f'printf %s "$A_KEY" > {home.root}/key\necho \'{{"type": "system", "subtype": "init"}}\'\n{cases}\n',
        "bin/claude",
    )


def ralph(home: Home, *options: str, command: str = "run") -> Finished:
    what = ("ralph", "--objective", "do it", "--workspace", str(home.workspace)) if command == "run" else ()
    return home.run(command, *what, *options)


def asks(home: Home) -> int:
    path = home.root / "asks"
    return int(path.read_text()) if path.exists() else 0


# ---- the list


def test_the_list_shows_the_settings_and_the_programs_that_are_found(home: Home) -> None:
    claude(home, answer(COMPLETE))
    config = home.settings(
        '[providers.mine]\ntype = "command"\nargv = ["cat"]\nenv = { TOKEN = "hunter2" }\n'
        '[providers.far]\ntype = "openai"\nbase_url = "http://127.0.0.1:9/v1"\nmodel = "m"\napi_key_env = "NO_KEY"\n'
        '[providers.lost]\ntype = "acp"\nargv = ["no-such-program"]\npermissions = "deny"\n'
        '[providers.far.policy]\nretry = {}\nwait = {}\nfallback = "mine"\nbreaker = {}\n'
    )
    done = home.run("providers", "--config", str(config))
    assert done.exit == 0
    shown = done.out.splitlines()
    assert [line for line in shown if line and not line.startswith(" ")] == [
        "mine  (type command, of the settings)",
        "far  (type openai, of the settings)",
        "lost  (type acp, of the settings)",
        "claude  (type claude, known without settings)",
    ]
    for line in (
        f"  program      {home.root}/bin/claude",
        "  version      2.1.0 (tested: 2.1.332)",
        "  asks         model m at http://127.0.0.1:9/v1",
        "  credentials  TOKEN",
        "  credentials  NO_KEY (not set)",
        "  breaker      closed",
        "  policy       none: a failed attempt is a failed agent",
    ):
        assert line in shown, done.out
    assert "at most 3 times, after 5 s and then later, at most 5 min; falls back to mine, once" in done.out
    assert "the variable NO_KEY is not set" in done.out
    assert "the agent program 'no-such-program' was not found in PATH" in done.out
    assert "usual: ANTHROPIC_API_KEY" in done.out
    assert SECRET not in done.out
    assert asks(home) == 0


def test_the_list_as_json_has_every_fact(home: Home) -> None:
    claude(home, answer(COMPLETE))
    config = home.settings('[providers.big]\ntype = "claude"\npass_env = ["A_KEY"]\nmodel = "m"\n')
    (big, preset) = home.run("providers", "--json", "--config", str(config)).json["providers"]
    assert (big["name"], big["preset"], big["default"], big["problem"]) == ("big", False, True, None)
    assert big["settings"]["passEnv"] == ["A_KEY"]
    assert big["version"] == "2.1.0"
    assert big["capabilities"]["nativeSchema"] is True
    assert (preset["name"], preset["preset"]) == ("claude", True)
    assert "has no credentials" in preset["problem"]


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("echo oops >&2; exit 3", "not known: with --version it ended with exit 3 (tested: "),
        ("true", "not known: it printed no version (tested: "),
        ("exec sleep 600", "not known: it did not give its version within 0.2 s (tested: "),
        ("printf 'Tool\\033[2J\\n'", "Tool\\u001b[2J (tested: "),
    ],
)
def test_a_program_that_gives_no_version_is_listed_all_the_same(
    home: Home, monkeypatch: pytest.MonkeyPatch, version: str, words: str
) -> None:
    monkeypatch.setattr(provider_facts, "VERSION_TIMEOUT_SECONDS", 0.2 if "sleep" in version else 10.0)
    claude(home, answer(COMPLETE), version=version)
    done = home.run("providers")
    assert done.exit == 0
    assert f"  version      {words}" in done.out


def test_a_version_is_asked_for_in_a_home_that_is_gone_afterwards(home: Home) -> None:
    claude(home, answer(COMPLETE), version=f'echo 1.0; env > {home.root}/seen; touch "$HOME/left"')
    assert home.run("providers").exit == 0
    seen = dict(line.split("=", 1) for line in (home.root / "seen").read_text().splitlines() if "=" in line)
    assert seen["HOME"] not in (str(home.root), os.environ.get("HOME"))
    assert not Path(seen["HOME"]).exists()
    assert "A_KEY" not in seen


def test_without_any_provider_the_list_says_what_to_do(home: Home) -> None:
    assert "give any program after --" in home.run("providers").out


# ---- the probe


def test_a_probe_says_what_came_back_how_long_it_took_and_what_it_cost(home: Home) -> None:
    claude(home, answer({"answer": "ready"}))
    done = home.run("providers", "--probe", "claude", "--pass-env", "A_KEY")
    assert done.exit == 0, done.err
    head, used = done.out.splitlines()
    assert head.startswith("claude answered after ")
    assert head.endswith(' s: {"answer": "ready"}')
    assert used == "  used         10 tokens read, 3 tokens written, $0.0100"
    assert (home.root / "key").read_text() == SECRET
    assert SECRET not in done.out + done.err


def test_a_probe_that_fails_says_the_class_and_the_evidence(home: Home) -> None:
    claude(home, BUSY)
    done = home.run("providers", "--probe", "claude", "--pass-env", "A_KEY", "--json")
    assert done.exit == 1
    probed = done.json["probe"]
    assert (probed["answered"], probed["failureClass"]) == (False, "overloaded")
    assert "529" in probed["evidence"]
    assert probed["usage"]["costUsd"] == 0.01
    text = home.run("providers", "--probe", "claude", "--pass-env", "A_KEY").out
    assert "(overloaded): " in text
    assert "  evidence     " in text


def test_a_probe_ends_an_agent_that_does_not_answer(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "TIMEOUT_SECONDS", 0.5)
    agent = home.agent(f"echo $$ > {home.root}/pid\nexec sleep 600\n")
    config = home.settings(f'[providers.slow]\ntype = "command"\nargv = ["{agent}"]\n')
    done = home.run("providers", "--probe", "slow", "--config", str(config), "--json")
    assert (done.exit, done.json["probe"]["failureClass"]) == (1, "timeout")
    assert not Path(f"/proc/{(home.root / 'pid').read_text().strip()}").exists()


def test_a_program_that_repeats_what_it_is_told_does_not_pass_the_probe(home: Home) -> None:
    config = home.settings('[providers.echo]\ntype = "command"\nargv = ["cat"]\n')
    done = home.run("providers", "--probe", "echo", "--config", str(config))
    assert done.exit == 1
    assert "(invalidOutput)" in done.out


def test_a_probe_that_is_answered_closes_the_breaker_and_one_that_fails_does_not(home: Home) -> None:
    state = BreakerState(
        failure_class=FailureClass.AUTH, failures=1, evidence="401\x1b", opened_at=time.time(),
        reopens_at=time.time() + 900,
    )  # fmt: skip
    write_breaker(home.state, "big", state)
    write_breaker(home.state, "other", state)
    config = home.settings('[providers.big]\ntype = "claude"\npass_env = ["A_KEY"]\npolicy = { breaker = {} }\n')
    claude(home, BUSY, answer(COMPLETE), answer({"answer": "yes"}))
    assert "auth (401\\u001b), 1 failure in a row" in home.run("providers", "--config", str(config)).out
    refused = ralph(home, "--config", str(config), "--json")
    assert refused.json["failure"]["code"] == "PROVIDER_UNFIT"
    assert asks(home) == 0
    probing = ("providers", "--probe", "big", "--config", str(config))
    assert home.run(*probing).exit == 1
    assert home.run(*probing).exit == 1  # another kind of answer than the one that was asked for
    assert set(read_breakers(home.state)) == {"big", "other"}
    assert "  breaker      was open; it is closed again" in home.run(*probing).out
    assert set(read_breakers(home.state)) == {"other"}


def test_a_probe_of_what_is_not_there_is_refused(home: Home) -> None:
    assert "there is no provider 'x'" in home.run("providers", "--probe", "x").err
    assert "was not found in PATH" in home.run("providers", "--probe", "codex", "--pass-env", "A_KEY").err
    claude(home, BUSY)
    done = home.run("providers", "--probe", "claude")
    assert (done.exit, asks(home)) == (2, 0)
    assert "--pass-env ANTHROPIC_API_KEY" in done.err
    assert "--pass-env belongs to --probe" in home.run("providers", "--pass-env", "A_KEY").err


# ---- a run


def test_a_preset_runs_without_any_settings(home: Home) -> None:
    claude(home, answer(COMPLETE))
    done = ralph(home, "--provider", "claude", "--pass-env", "A_KEY", "--max-cost", "5")
    assert done.exit == 0, done.err
    assert done.err.splitlines()[0] == "ralph: at most 10 agents, 8 h, at most $5.00"
    assert "  provider     claude" in done.out
    assert "  used         10 tokens read, 3 tokens written, $0.0100" in done.out
    assert (home.root / "key").read_text() == SECRET
    kept = [path for path in home.state.rglob("*") if path.is_file() and SECRET in path.read_text(errors="replace")]
    assert kept == []


def test_what_an_agent_program_lacks_is_said_before_anything_starts(home: Home) -> None:
    claude(home, answer(COMPLETE))
    for options, words in (
        (("--provider", "claude"), "name the variables to pass on, such as --pass-env ANTHROPIC_API_KEY"),
        (("--provider", "claude", "--pass-env", "NO_KEY"), "NO_KEY is not set in the environment"),
        (("--provider", "qwen", "--pass-env", "A_KEY"), "'qwen' was not found in PATH"),
        (("--provider", "zed"), f"known without settings: {', '.join(AGENT_PROGRAMS)}"),
        (("--provider", "claude", "--pass-env", "A_KEY=x"), "its value is taken from your environment"),
        (("--provider", "claude", "--isolation", "docker"), "there is worktree"),
    ):
        done = ralph(home, *options)
        assert (done.exit, words in done.err) == (2, True), (options, done.err)
    assert asks(home) == 0
    assert not home.state.exists()


def test_variables_are_passed_on_to_a_program_after_dashes_too(home: Home) -> None:
    agent = home.agent(f"cat > /dev/null\nprintf %s \"$A_KEY\" > {home.root}/key\necho '{json.dumps(COMPLETE)}'\n")
    done = ralph(home, "--pass-env", "A_KEY", "--pass-env", "NO_KEY", "--", str(agent))
    assert done.exit == 0
    assert "note: the variable NO_KEY, which the provider command-line is to get, is not set" in done.err
    assert (home.root / "key").read_text() == SECRET
    assert "--model is for providers" in ralph(home, "--model", "m", "--", str(agent)).err


def test_a_cap_that_the_provider_cannot_measure_is_refused(home: Home) -> None:
    agent = home.reporting(COMPLETE)
    for more in ((), ("--dry-run",)):
        done = ralph(home, "--max-cost", "5", *more, "--json", "--", str(agent))
        assert done.json["failure"]["code"] == "PROVIDER_UNFIT"
    config = home.settings(
        f'[providers.big]\ntype = "claude"\npass_env = ["A_KEY"]\npolicy = {{ fallback = "mine" }}\n'
        f'[providers.mine]\ntype = "command"\nargv = ["{agent}"]\n'
    )
    claude(home, answer(COMPLETE))
    options = ("--config", str(config), "--provider", "big", "--max-extra-attempts", "1", "--max-cost", "5")
    for more in ((), ("--dry-run",)):
        assert "'mine' does not say what its agents cost" in ralph(home, *options, *more).err
    assert asks(home) == 0


POLICY = (
    '[providers.big]\ntype = "claude"\npass_env = ["A_KEY"]\n'
    "policy = { retry = { first_seconds = 0.01, max_seconds = 0.01 } }\n"
)


def test_a_policy_that_repeats_needs_the_number_of_repeats(home: Home) -> None:
    claude(home, BUSY, answer(COMPLETE))
    config = str(home.settings(POLICY))
    refused = ralph(home, "--config", config)
    assert refused.exit == 2
    assert "give --max-extra-attempts N (0: never), or set max_extra_attempts under [limits]" in refused.err
    assert asks(home) == 0
    done = ralph(home, "--config", config, "--max-extra-attempts", "2")
    assert done.exit == 0, done.err
    assert done.err.startswith("ralph: at most 10 agents (and 2 repeats), 8 h, no cost cap\n")
    assert "#1 Ralph round 1: attempt 1 of big failed (overloaded): " in done.err
    assert "attempt 1, big, as the script asked: failed after " in done.out
    assert "evidence: " in done.out
    assert "attempt 2, big, again by the policy after waiting " in done.out


def test_who_types_no_repeats_gets_none_and_the_run_begins(home: Home) -> None:
    claude(home, BUSY)
    done = ralph(home, "--config", str(home.settings(POLICY)), "--max-extra-attempts", "0", "--max-rounds", "1")
    assert (done.exit, asks(home)) == (5, 1), done.err


def test_a_number_of_repeats_in_the_settings_is_a_ceiling(home: Home) -> None:
    claude(home, BUSY, answer(COMPLETE))
    config = str(home.settings(POLICY + "[limits]\nmax_extra_attempts = 1\n"))
    refused = ralph(home, "--config", config, "--max-extra-attempts", "2")
    assert "--max-extra-attempts is 2, above the ceiling of this deployment, 1" in refused.err
    assert ralph(home, "--config", config).err.startswith("ralph: at most 10 agents (and 1 repeat), ")


def test_a_dry_run_shows_what_each_type_would_start(home: Home) -> None:
    claude(home, answer(COMPLETE))
    agent = home.reporting(COMPLETE, "bin/other")
    config = home.settings(
        POLICY + f'[providers.acp]\ntype = "acp"\nargv = ["{agent}", "--acp"]\npermissions = "deny"\n'
        '[providers.far]\ntype = "openai"\nbase_url = "http://127.0.0.1:9/v1?k=hunter2"\nmodel = "m"\n'
    )
    for name, words in (
        ("big", ("argv         claude -p", "program      ", "environment  A_KEY,", "policy       asks again after")),
        ("acp", (f"argv         {agent} --acp",)),
        ("far", ("asks         model m at http://127.0.0.1:9/v1\n", "cost         no cap")),
    ):
        options = ("--config", str(config), "--provider", name, "--max-extra-attempts", "1", "--dry-run")
        done = ralph(home, *options)
        assert done.exit == 0, done.err
        for word in words:
            assert f"  {word}" in done.out, done.out
        assert SECRET not in done.out
    assert asks(home) == 0


def test_doctor_shows_providers_of_every_type(home: Home) -> None:
    claude(home, answer(COMPLETE))
    config = home.settings(
        'default_provider = "claude"\n'
        + POLICY
        + '[providers.far]\ntype = "openai"\nbase_url = "http://127.0.0.1:9/v1"\nmodel = "m"\napi_key_env = "NO_KEY"\n'
        "[limits]\nmax_cost_usd = 2.5\n"
    )
    out = home.run("doctor", "--config", str(config)).out
    for line in (
        "  provider big               claude: claude  environment: A_KEY",
        "  provider far               openai: model m at http://127.0.0.1:9/v1  environment: NO_KEY",
        "  provider claude (default)  known without settings",
        "  max_cost_usd               2.5",
        "problem: the default provider claude: the provider claude has no credentials: name the variables",
    ):
        assert line in out, out
    home.settings("")
    assert "  max_cost_usd               none\n" in home.run("doctor", "--config", str(config)).out


# ---- continue


def test_what_was_said_about_the_agent_is_taken_over_by_the_next_run(home: Home) -> None:
    more = {**COMPLETE, "status": "continue", "evidence": [], "nextSteps": ["go on"]}
    claude(home, answer(more), answer(COMPLETE))
    options = ("--provider", "claude", "--pass-env", "A_KEY", "--model", "m", "--max-cost", "5")
    first = ralph(home, *options, "--max-extra-attempts", "3", "--max-rounds", "1", "--json")
    assert first.exit == 4, first.err
    (home.root / "key").unlink()
    run = first.json["runId"]
    dry = ralph(home, run, "--dry-run", command="continue")
    assert dry.err == ""
    assert dry.out.startswith("ralph: at most 1 agent (and 3 repeats), 8 h, at most $5.00\n")
    assert "--model m" in dry.out
    lower = ralph(home, run, "--max-cost", "1", "--max-extra-attempts", "0", "--dry-run", command="continue")
    assert lower.out.startswith("ralph: at most 1 agent, 8 h, at most $1.00\n")
    assert ralph(home, run, command="continue").exit == 0
    assert (home.root / "key").read_text() == SECRET


def test_another_provider_gets_neither_the_variables_nor_the_model_of_the_first(home: Home) -> None:
    more = {**COMPLETE, "status": "continue", "evidence": [], "nextSteps": ["go on"]}
    claude(home, answer(more))
    first = ralph(
        home, "--provider", "claude", "--pass-env", "A_KEY", "--model", "m", "--max-rounds", "1", "--json"
    ).json["runId"]
    agent = home.agent(f"cat > /dev/null\nprintf %s \"$A_KEY\" > {home.root}/key\necho '{json.dumps(COMPLETE)}'\n")
    assert ralph(home, first, "--", str(agent), command="continue").exit == 0
    assert (home.root / "key").read_text() == ""


def test_a_launch_record_of_an_earlier_version_can_still_be_continued(home: Home) -> None:
    more = {**COMPLETE, "status": "continue", "evidence": [], "nextSteps": ["go on"]}
    agent = home.reporting(more)
    first = ralph(home, "--max-rounds", "1", "--json", "--", str(agent))
    path = Path(first.json["folder"]) / "launch.json"
    record = json.loads(path.read_text())
    for name in ("maxExtraAttempts", "maxCostUsd", "passEnv", "model", "shareWorkspace", "isolation"):
        del record[name]
    path.write_text(json.dumps(record))
    home.reporting(COMPLETE)
    assert ralph(home, first.json["runId"], command="continue").exit == 0


def test_a_run_in_a_worktree_says_where_and_the_next_run_goes_on_there(home: Home) -> None:
    def git(*words: str) -> None:
        given = ("-c", "user.name=a", "-c", "user.email=a@b", "-C", str(home.workspace))
        subprocess.run(["git", *given, *words], check=True, capture_output=True)

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "first")
    more = {**COMPLETE, "status": "continue", "evidence": [], "nextSteps": ["go on"]}
    agent = home.agent(f"cat > /dev/null\npwd > {home.root}/where\ntouch made\ncat <<'END'\n{json.dumps(more)}\nEND\n")
    first = ralph(home, "--isolation", "worktree", "--max-rounds", "1", "--json", "--", str(agent))
    made = first.json["receipt"]["worktree"]
    assert f"agents work in {made['path']}, on the branch {made['branch']}" in first.err
    assert (home.root / "where").read_text().strip() == made["path"]
    assert not (home.workspace / "made").exists()
    again = ralph(home, first.json["runId"], "--json", command="continue")
    assert (home.root / "where").read_text().strip() == made["path"]
    assert again.json["receipt"]["worktree"] is None
    assert (Path(made["path"]) / "made").exists()


def test_a_provider_that_cannot_be_used_stands_in_nobodys_way_until_it_is_asked_for(home: Home) -> None:
    agent = home.reporting(COMPLETE)
    config = home.settings(
        f'default_provider = "mine"\n[providers.mine]\ntype = "command"\nargv = ["{agent}"]\n'
        '[providers.far]\ntype = "openai"\nbase_url = "http://127.0.0.1:9/v1"\nmodel = "m"\napi_key_env = "NO_KEY"\n'
    )
    assert ralph(home, "--config", str(config)).exit == 0
    refused = ralph(home, "--config", str(config), "--provider", "far")
    assert (refused.exit, "line 9: providers.far.api_key_env: the variable NO_KEY" in refused.err) == (2, True)
    script = home.root / "asks_far.py"
    script.write_text(
        'from loopwarden_engine import agent\n\ndef main(args):\n    return agent("hello", provider="far")\n'
    )
    options = ("--config", str(config), "--workspace", str(home.workspace), "--max-total-agents", "1", "--json")
    failure = home.run("run", str(script), *options).json["failure"]
    assert failure["code"] == "AGENT_START"
    assert "the variable NO_KEY is not set" in failure["message"]
