"""Promise 1, and bad input of every kind: a sentence with the place and the way out, exit 2, never a traceback."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from loopwarden import run_folder
from loopwarden.cli import app
from support.command_line import COMPLETE, PROGRAM, Finished, Home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def check_refusal(done: Finished, code: str, *words: str) -> None:
    assert done.exit == 2
    failure = done.json["failure"]
    assert failure["code"] == code
    for word in words:
        assert word in failure["message"]
    assert "Traceback" not in done.out + done.err


def test_a_refusal_for_a_person_is_one_sentence_on_the_error_stream(home: Home) -> None:
    done = home.run("run", "ralph", "--objective", "x", "--workspace", "gone", "--", "true")
    assert (done.exit, done.out) == (2, "")
    assert done.err == "loopwarden: the workspace gone does not exist; create it or give another one\n"


@pytest.mark.parametrize(
    ("rounds", "code", "words"),
    [
        ("08", "INVALID_REQUEST", ("--max-rounds", "write 8")),
        ("0", "ARGS_INVALID", ("--max-rounds", "at least 1")),
        ("-1", "ARGS_INVALID", ("--max-rounds", "at least 1")),
        ("1e3", "INVALID_REQUEST", ("--max-rounds", "not a whole number", "write digits alone")),
        ("257", "ARGS_INVALID", ("--max-rounds", "257", "256")),
        ("", "INVALID_REQUEST", ("--max-rounds", "not a whole number")),
        ("9" * 40, "INVALID_REQUEST", ("--max-rounds", "too large")),
    ],
)
def test_a_number_of_rounds_that_is_none_is_refused(home: Home, rounds: str, code: str, words: tuple[str, ...]) -> None:
    done = home.ralph("--max-rounds", rounds, "--json", agent=home.reporting(COMPLETE))
    check_refusal(done, code, *words)
    assert not (home.state / "runs").exists()


def test_an_objective_that_is_empty_missing_or_of_10_mb_is_refused(home: Home) -> None:
    (home.root / "huge.txt").write_text("x" * 10_000_000)
    agent = home.reporting(COMPLETE)
    check_refusal(home.ralph("--json", agent=agent, objective=" \n"), "ARGS_INVALID", "--objective is empty")
    huge = home.ralph("--json", agent=agent, objective="@huge.txt")
    check_refusal(huge, "ARGS_INVALID", "--objective has 10,000,000 characters", "200,000")
    gone = home.ralph("--json", agent=agent, objective="@gone.txt")
    check_refusal(gone, "INVALID_REQUEST", "--objective", "gone.txt cannot be read: no such file")
    missing = home.run("run", "ralph", "--json", "--", str(agent))
    check_refusal(missing, "INVALID_REQUEST", "--objective")


def test_a_workspace_that_is_a_file_is_refused(home: Home) -> None:
    (home.root / "file").touch()
    done = home.run("run", "ralph", "--objective", "x", "--workspace", "file", "--json", "--", "true")
    check_refusal(done, "INVALID_REQUEST", "the workspace file is a file")


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("no-such-agent-program", "was not found in PATH"),
        ("./gone", "does not exist"),
        ("./plain", "is not executable"),
        (".", "is not a file"),
        ("./", "is not a file"),
        ("", "begins with its program"),
    ],
)
def test_an_agent_program_that_cannot_run_is_refused_before_anything_starts(
    home: Home, program: str, words: str
) -> None:
    (home.root / "plain").write_text("#!/bin/sh\n")
    (home.root / "plain").chmod(0o600)
    options = ("--objective", "x", "--workspace", str(home.workspace), "--json")
    check_refusal(home.run("run", "ralph", *options, "--", program), "INVALID_REQUEST", words)
    assert not (home.state / "runs").exists()


def test_a_run_without_any_agent_is_told_how_to_name_one(home: Home) -> None:
    options = ("run", "ralph", "--objective", "x", "--workspace", str(home.workspace), "--json")
    check_refusal(home.run(*options), "INVALID_REQUEST", "there is no agent to start", "after --", "loopwarden.toml")
    check_refusal(home.run(*options, "--"), "INVALID_REQUEST", "the program after -- is missing")
    check_refusal(home.run(*options, "--provider", "x"), "INVALID_REQUEST", "there is no provider 'x'")


def test_a_provider_and_a_program_at_once_are_refused(home: Home) -> None:
    config = home.settings('[providers.mine]\ntype = "command"\nargv = ["true"]\n')
    options = ("--config", str(config), "--objective", "x", "--workspace", str(home.workspace), "--json")
    done = home.run("run", "ralph", *options, "--provider", "mine", "--", "true")
    check_refusal(done, "INVALID_REQUEST", "give one of them")


@pytest.mark.parametrize("time", ["0", "08s", "2 h", "-1h", "forever"])
def test_a_time_that_is_none_is_refused(home: Home, time: str) -> None:
    for option in ("--deadline", "--agent-timeout"):
        done = home.ralph(option, time, "--json", agent=home.reporting(COMPLETE))
        check_refusal(done, "INVALID_REQUEST", option, "90s, 15m, 2h or 1d")


def test_a_time_above_the_ceiling_is_refused_with_both(home: Home) -> None:
    agent = home.reporting(COMPLETE)
    check_refusal(home.ralph("--deadline", "2d", "--json", agent=agent), "INVALID_REQUEST", "--deadline is 2 d", "24 h")
    done = home.ralph("--agent-timeout", "3h", "--json", agent=agent)
    check_refusal(done, "INVALID_REQUEST", "--agent-timeout is 3 h", "2 h")


@pytest.mark.parametrize("check", ["", "   ", "sh -c 'unfinished"])
def test_a_check_that_is_no_command_is_refused(home: Home, check: str) -> None:
    done = home.ralph("--check", check, "--json", agent=home.reporting(COMPLETE))
    check_refusal(done, "INVALID_REQUEST", "--check")


def test_a_broken_settings_file_is_refused_with_file_line_and_key(home: Home) -> None:
    for text, words in (
        ("[limits]\nmax_total_agents = \n", ("is not TOML", "line 2")),
        ("[limits]\nmax_agents = 1\n", ("line 2", "limits.max_agents", "there is no such limit")),
        ("[loops.ralph]\nmax_rounds = 5\ndefault_rounds = 6\n", ("line 2", "loops.ralph", "6", "5")),
    ):
        config = home.settings(text)
        for place in (("--config", str(config), "run", "ralph"), ("run", "ralph", "--config", str(config))):
            done = home.run(*place, "--objective", "x", "--json", "--", "true")
            check_refusal(done, "INVALID_REQUEST", str(config), *words)
    assert home.run("doctor", "--config", str(config)).exit == 1
    assert "problem: " in home.run("doctor", "--config", str(config)).out


def test_settings_that_others_may_write_are_refused(home: Home) -> None:
    config = home.settings("")
    config.chmod(0o666)
    done = home.run("run", "ralph", "--config", str(config), "--objective", "x", "--json", "--", "true")
    check_refusal(done, "INVALID_REQUEST", "can be written by others", "chmod go-w")


def test_what_is_ours_is_never_taken_from_inside_a_workspace(home: Home) -> None:
    agent = str(home.reporting(COMPLETE))
    config = home.settings("")
    inside = home.workspace / "loopwarden.toml"
    inside.write_text("")
    inside.chmod(0o600)
    script = home.workspace / "mine.py"
    script.write_text("def main(args):\n    return 1\n")
    in_state = ("--objective", "x", "--workspace", str(home.root), "--json")
    in_workspace = ("--workspace", str(home.workspace), "--json")
    for argv, words in (
        (("run", "ralph", "--config", str(inside), "--objective", "x", *in_workspace), "the settings file"),
        (("run", "ralph", "--config", str(config), *in_state), "the settings file"),
        (("run", "ralph", *in_state), "the state folder"),
        (("run", str(script), "--max-total-agents", "1", *in_workspace), "the script"),
    ):
        check_refusal(
            home.run(*argv, "--", agent), "SETTINGS_IN_WORKSPACE", words, "lies inside the workspace", "move it out"
        )


def test_a_script_that_cannot_be_read_is_refused(home: Home) -> None:
    (home.root / "latin.py").write_bytes(b'"""x"""\n# caf\xe9\n')
    (home.root / "huge.py").write_text("#" * 5_000_000 + "\ndef main(args):\n    return 1\n")
    (home.root / "gigantic.py").write_text("#" * 17_000_000)
    (home.root / "folder.py").mkdir()
    (home.root / "nul.py").write_text("def main(args):\n    return '\0'\n")
    for name, words in (
        ("latin.py", "line 2 holds the byte 0xe9"),
        ("huge.py", "524288"),
        ("gigantic.py", "larger than 16 MiB"),
        ("folder.py", "is a directory"),
        ("gone.py", "no such file or directory"),
        ("nul.py", "nul"),
    ):
        done = home.run("run", name, "--max-total-agents", "1", "--json")
        check_refusal(done, "SCRIPT_REJECTED", words)


def test_a_script_that_breaks_the_rules_is_refused_with_every_line(home: Home) -> None:
    (home.root / "bad.py").write_text("import os\n\ndef main(args):\n    print(1)\n    return os\n")
    done = home.run("run", "bad.py", "--max-total-agents", "1")
    assert done.exit == 2
    assert "\n  line 1: " in done.err
    assert "\n  line 4: " in done.err
    as_json = home.run("run", "bad.py", "--max-total-agents", "1", "--json")
    check_refusal(as_json, "SCRIPT_REJECTED")
    assert [row["line"] for row in as_json.json["failure"]["details"]["violations"]] == [1, 4]


def test_a_script_of_ones_own_needs_a_cap_and_an_object(home: Home) -> None:
    (home.root / "one.py").write_text("def main(args):\n    return 1\n")
    check_refusal(home.run("run", "one.py", "--json"), "INVALID_REQUEST", "--max-total-agents N is required")
    for number, words in (("0", "at least 1"), ("01", "write 1"), ("1001", "1000")):
        done = home.run("run", "one.py", "--max-total-agents", number, "--json")
        check_refusal(done, "INVALID_REQUEST", "--max-total-agents", words)
    for text in ("[]", "{", '{"a": 1, "a": 2}'):
        done = home.run("run", "one.py", "--max-total-agents", "1", "--args-json", text, "--json")
        check_refusal(done, "INVALID_REQUEST", "--args-json", "JSON object")


def test_an_empty_line_shows_what_there_is(home: Home) -> None:
    for argv in ((), ("run",)):
        shown = home.run(*argv)
        assert (shown.exit, shown.err) == (2, "")
        assert "Commands:" in shown.out


def test_an_unknown_loop_command_or_option_is_refused(home: Home) -> None:
    check_refusal(home.run("run", "ralf", "--json"), "INVALID_REQUEST", "there is no loop 'ralf'; installed: ralph")
    check_refusal(home.run("sprint", "--json"), "INVALID_REQUEST", "sprint")
    check_refusal(home.run("run", "ralph", "--objektive", "x", "--json"), "INVALID_REQUEST", "--objektive")
    check_refusal(home.run("runs", "--json", "--", "true"), "INVALID_REQUEST", "`run`, `continue` and `resume` only")


def test_a_state_folder_that_cannot_be_written_is_refused(home: Home) -> None:
    home.state.parent.write_text("a file where the folder should be")
    done = home.ralph("--json", agent=home.reporting(COMPLETE))
    check_refusal(done, "INVALID_REQUEST", str(home.state), "cannot be written")


def test_a_full_disk_in_a_run_is_a_line_of_the_receipt(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(run_folder.os, "fsync", full)
    done = home.ralph("--json", agent=home.reporting(COMPLETE))
    assert done.exit == 0
    assert "no space left on device; free some space" in done.json["receipt"]["problems"][0]


def shell(home: Home, line: str) -> subprocess.CompletedProcess[str]:
    command = line.replace("LOOPWARDEN", shlex.join(PROGRAM))
    return subprocess.run(
        ["sh", "-c", command], cwd=home.root, env=home.environment, capture_output=True, text=True, check=False
    )


def test_streams_that_are_closed_full_or_left_give_no_traceback(home: Home) -> None:
    run = f"LOOPWARDEN run ralph --objective x --workspace {home.workspace} --max-rounds 1"
    agent = home.reporting(COMPLETE)
    full = shell(home, "LOOPWARDEN runs > /dev/full")
    assert (full.returncode, full.stderr) == (1, "loopwarden: the output cannot be written: no space left on device\n")
    left = shell(home, f"{run} -- {agent} | true")
    assert "#1 Ralph round 1 completed" in left.stderr
    assert "Traceback" not in left.stderr
    closed = shell(home, f"{run} --check true -- {agent} <&- >&- 2>&-")
    assert (closed.returncode, closed.stdout, closed.stderr) == (0, "", "")
    no_input = shell(home, f"{run.replace('--objective x', '--objective -')} -- {agent} <&-")
    assert no_input.returncode == 2
    assert "Traceback" not in no_input.stderr


def test_a_fault_of_ours_is_one_sentence_and_the_details_lie_in_a_file(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> int:
        raise ZeroDivisionError("a mistake of ours")

    monkeypatch.setattr(app, "run_and_report", broken)
    done = home.ralph("--json", agent=home.reporting(COMPLETE))
    assert done.exit == 1
    assert "Traceback" not in done.out + done.err
    details = home.state / "last-fault.txt"
    assert str(details) in done.json["internalError"]
    assert "a mistake of ours" in details.read_text()
    debugged = home.run("--debug", "run", "ralph", "--objective", "x", "--workspace", str(home.workspace), "--", "true")
    assert debugged.exit == 1
    assert "ZeroDivisionError: a mistake of ours" in debugged.err


def test_a_check_that_cannot_be_found_is_refused_before_anything_starts(home: Home) -> None:
    for check, words in (("no-such-checker --all", "was not found in PATH"), ("./gone", "does not exist")):
        done = home.ralph("--check", check, "--json", agent=home.reporting(COMPLETE))
        check_refusal(done, "INVALID_REQUEST", "the check", words)
    assert not (home.state / "runs").exists()


def test_a_user_without_a_home_folder_is_told_what_to_set(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    wanted = "this user has no home folder; set HOME, or XDG_STATE_HOME and XDG_CONFIG_HOME"
    config = home.settings("")
    for kept in ((), ("XDG_STATE_HOME",), ("XDG_CONFIG_HOME",)):
        known = {name: home.environment[name] for name in ("PATH", "LANG", *kept)}
        with monkeypatch.context() as patch:
            patch.setattr(Home, "environment", known)
            for argv in (("runs", "--json"), ("doctor", "--json"), ("run", "ralph", "--objective", "x", "--json")):
                done = home.run(*argv)
                assert done.exit in (1, 2)
                assert wanted in done.out
                assert "Traceback" not in done.out + done.err
    known = {name: home.environment[name] for name in ("PATH", "XDG_STATE_HOME")}
    monkeypatch.setattr(Home, "environment", known)
    assert home.run("runs", "--config", str(config)).exit == 0


def test_doctor_calls_no_settings_in_force_that_cannot_be_used(home: Home) -> None:
    """The walls and the installed loops are shown all the same."""
    broken = home.root / "broken.toml"
    broken.write_text("[limits]\nmax_agents = 3\n")
    seen = home.run("doctor", "--config", str(broken), "--json").json
    assert (seen["settings"], seen["settingsDigest"]) == (None, None)
    assert "ralph" in [loop["name"] for loop in seen["loops"]]
    text = home.run("doctor", "--config", str(broken))
    assert text.exit == 1
    assert "settings  cannot be used: see below" in text.out
    assert "max_total_agents  " not in text.out
    assert "line 2: limits.max_agents" in text.out
