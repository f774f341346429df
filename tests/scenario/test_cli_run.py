"""`loopwarden run` as a person uses it: exit codes, receipts, what goes to which stream."""

import json
import sys
from pathlib import Path

import pytest

from loopwarden.cli import doctor
from loopwarden.provider import ProviderStartError
from loopwarden.providers.command import CommandProvider
from loopwarden.walls import Wall
from support.command_line import BLOCKED, COMPLETE, REPORT, Home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_a_complete_run_without_a_check_says_that_nothing_was_verified(home: Home) -> None:
    head = ("run", "ralph", "--objective", "x", "--workspace", str(home.workspace))
    done = home.run_process(*head, "--", str(home.reporting(COMPLETE)))
    assert done.exit == 0
    assert done.err.splitlines()[0] == "ralph: at most 10 agents, 8 h, no cost cap"
    assert done.out.splitlines()[0] == "agent reported completion after 1 round; not verified (no check)"
    folder = next((home.state / "runs").iterdir())
    assert str(folder) in done.err
    assert str(folder) in done.out


def test_a_check_that_passes_verifies(home: Home) -> None:
    agent = home.agent(f"cat > prompt\ntouch made\ncat <<'END'\n{json.dumps(COMPLETE)}\nEND\n")
    done = home.ralph("--check", "test -e made", "--check", "test -s prompt", "--json", agent=agent)
    assert done.exit == 0
    assert done.json["verdict"] == "agent reported completion after 1 round; verified by: test -e made, test -s prompt"
    assert done.json["receipt"]["verified"] is True
    assert [check["exit"] for check in done.json["receipt"]["checks"]] == [0, 0]


def test_a_check_that_fails_is_exit_6_and_its_output_is_shown(home: Home) -> None:
    done = home.ralph("--check", "sh -c 'echo three are missing; exit 3'", agent=home.reporting(COMPLETE))
    assert done.exit == 6
    assert "not verified, the check failed: sh -c 'echo three are missing; exit 3' (exit 3)" in done.out
    assert "\n    three are missing" in done.out


def test_a_check_whose_program_is_missing_verifies_nothing(home: Home) -> None:
    command = f"{home.workspace}/check --all"
    done = home.ralph("--check", command, "--json", agent=home.reporting(COMPLETE))
    assert done.exit == 6
    assert "ws/check' does not exist" in done.json["receipt"]["checks"][0]["problem"]


@pytest.mark.parametrize(
    ("report", "code", "words"),
    [
        (BLOCKED, 3, "agent reported a blocker after 1 round"),
        (REPORT, 4, "the limit of 2 rounds is used up"),
        ({"status": "complete"}, 5, "round 1 failed before it gave a report"),
    ],
)
def test_each_ending_has_its_exit_code(home: Home, report: dict[str, object], code: int, words: str) -> None:
    done = home.ralph("--max-rounds", "2", agent=home.reporting(report))
    assert done.exit == code
    assert words in done.out


def test_no_more_agents_start_than_the_first_line_says(home: Home) -> None:
    agent = home.agent(f"cat > /dev/null\necho >> started\ncat <<'END'\n{json.dumps(REPORT)}\nEND\n")
    done = home.ralph("--max-rounds", "3", "--json", agent=agent)
    assert done.err.startswith("ralph: at most 3 agents, 8 h, no cost cap\n")
    assert (home.workspace / "started").read_text() == "\n" * 3
    assert done.json["receipt"]["agentsStarted"] == 3


def test_a_deadline_is_exit_124(home: Home) -> None:
    done = home.ralph("--deadline", "0.5s", "--json", agent=home.agent("cat > /dev/null\nexec sleep 60\n"))
    assert done.exit == 124
    assert done.json["failure"]["code"] == "DEADLINE"


def test_an_agent_over_its_time_is_a_failed_round(home: Home) -> None:
    done = home.ralph("--agent-timeout", "0.3s", "--json", agent=home.agent("cat > /dev/null\nexec sleep 60\n"))
    assert done.exit == 5
    assert done.json["receipt"]["agents"][0]["outcome"] == "failed"


def test_json_is_all_that_stands_on_standard_output(home: Home) -> None:
    done = home.ralph("--json", agent=home.reporting(COMPLETE))
    assert done.json["exit"] == 0
    assert done.json["failure"] is None
    assert done.json["receipt"]["args"] == {"objective": "do it", "maxRounds": 10}
    assert Path(done.json["folder"]).is_dir()
    assert "#1 Ralph round 1 completed" in done.err


def test_what_an_agent_writes_cannot_reach_the_terminal(home: Home) -> None:
    evil = {**BLOCKED, "summary": "a\u202eb [red]x[/red]", "blocker": "see \u2066 here"}
    plain = home.ralph(agent=home.reporting(evil))
    as_json = home.ralph("--json", agent=home.reporting(evil))
    for text in (plain.out, plain.err, as_json.out, as_json.err):
        assert not set(text) & set("\u202e\u2066\x1b")
    assert "a\\u202eb" in plain.out
    assert "[red]x[/red]" in plain.out
    assert as_json.json["receipt"]["result"]["report"]["summary"] == evil["summary"]


def test_escapes_on_the_error_stream_of_an_agent_are_shown_as_escapes(home: Home) -> None:
    done = home.ralph(
        agent=home.agent("cat > /dev/null\nprintf '\\033]0;title\\007 \\342\\200\\256 bad' >&2\nexit 3\n")
    )
    assert done.exit == 5
    assert "\x1b" not in done.out + done.err
    assert "ended with exit 3" in done.err
    assert "\\u001b]0;title\\u0007 \\u202e bad" in done.err


def test_an_objective_comes_from_a_file_or_from_standard_input(home: Home) -> None:
    (home.root / "task.md").write_text("from a file\n")
    agent = home.agent(f"cat > prompt\ncat <<'END'\n{json.dumps(COMPLETE)}\nEND\n")
    assert home.ralph(agent=agent, objective="@task.md").exit == 0
    assert "from a file" in (home.workspace / "prompt").read_text()
    head = ("run", "ralph", "--objective", "-", "--workspace", str(home.workspace))
    assert home.run_process(*head, "--", str(agent), stdin=b"from a pipe").exit == 0
    assert "from a pipe" in (home.workspace / "prompt").read_text()


def test_a_dry_run_shows_the_first_prompt_and_starts_no_agent(home: Home) -> None:
    agent = home.agent("touch started\n")
    shown = home.ralph("--dry-run", "--max-rounds", "3", "--check", "make test", agent=agent)
    assert shown.exit == 0
    assert shown.out.startswith("ralph: at most 3 agents, 8 h, no cost cap\n")
    for part in (
        str(agent),
        str(home.workspace),
        "HOME, LANG, LOOPWARDEN_AGENT, PATH",
        "make test",
        "do it",
        "at most 2 h each",
    ):
        assert part in shown.out
    as_json = home.ralph("--dry-run", "--json", agent=agent).json["dryRun"]
    assert as_json["argv"] == [str(agent)]
    assert as_json["environment"] == ["HOME", "LANG", "LOOPWARDEN_AGENT", "PATH"]
    assert "do it" in as_json["firstPrompt"]
    assert as_json["caps"]["maxTotalAgents"] == 10
    assert not (home.workspace / "started").exists()
    assert not (home.state / "runs").exists()


def test_a_provider_of_the_settings_gets_its_environment_and_no_value_is_shown(home: Home) -> None:
    agent = home.agent(f"cat > /dev/null\necho $TOKEN > seen\ncat <<'END'\n{json.dumps(COMPLETE)}\nEND\n")
    config = home.settings(f'[providers.mine]\ntype = "command"\nargv = ["{agent}"]\nenv = {{ TOKEN = "hunter2" }}\n')
    options = ("--config", str(config), "--objective", "x", "--workspace", str(home.workspace))
    done = home.run("run", "ralph", *options)
    assert done.exit == 0
    assert (home.workspace / "seen").read_text() == "hunter2\n"
    dry = home.run("run", "ralph", *options, "--dry-run")
    doctor = home.run("doctor", "--config", str(config), "--json")
    kept = "".join(path.read_text() for path in home.state.rglob("*.json"))
    assert "hunter2" not in done.out + done.err + dry.out + doctor.out + kept
    assert "TOKEN" in dry.out


def test_a_script_of_ones_own_runs_with_its_arguments_and_its_cap(home: Home) -> None:
    script = home.root / "count.py"
    script.write_text(
        "from loopwarden_engine import agent\n\n"
        "def main(args):\n    return [agent(f'say {number}') for number in range(args['n'])]\n"
    )
    agent = home.agent("cat\n")
    options = ("run", str(script), "--args-json", '{"n": 2}', "--workspace", str(home.workspace), "--json")
    done = home.run(*options, "--max-total-agents", "2", "--", str(agent))
    assert (done.exit, done.json["receipt"]["result"]) == (0, ["say 0", "say 1"])
    capped = home.run(*options, "--max-total-agents", "1", "--", str(agent))
    assert (capped.exit, capped.json["failure"]["code"]) == (1, "AGENT_CAP")
    assert capped.json["receipt"]["agentsStarted"] == 1


def test_a_script_in_the_current_folder_gets_an_empty_one_to_work_in(home: Home) -> None:
    (home.root / "where.py").write_text(
        "from loopwarden_engine import agent\n\ndef main(args):\n    return agent('where are you?')\n"
    )
    agent = home.agent("cat > /dev/null\npwd\nls\n")
    done = home.run("run", "where.py", "--max-total-agents", "1", "--json", "--", str(agent))
    assert done.exit == 0
    where = Path(done.json["receipt"]["result"].strip())
    assert where != home.root
    assert not where.exists()
    assert "agents work in an empty folder instead" in done.err


def test_a_script_without_agents_needs_no_program(home: Home) -> None:
    (home.root / "one.py").write_text("def main(args):\n    return 1\n")
    done = home.run("run", "one.py", "--max-total-agents", "1", "--json")
    assert (done.exit, done.json["receipt"]["result"]) == (0, 1)


def test_the_settings_can_give_the_cap_of_a_script(home: Home) -> None:
    (home.root / "one.py").write_text("def main(args):\n    return 1\n")
    config = home.settings("[limits]\nmax_total_agents = 5\n")
    done = home.run("--config", str(config), "run", "one.py", "--json")
    assert done.exit == 0
    assert done.err.startswith("one: at most 5 agents")


def test_a_relative_program_is_meant_from_the_folder_in_which_it_was_typed(home: Home) -> None:
    home.reporting(COMPLETE)
    head = ("run", "ralph", "--objective", "x", "--workspace", str(home.workspace))
    assert home.run(*head, "--", "./agent", cwd=home.root).exit == 0


def test_a_program_that_agents_can_change_is_pointed_out(home: Home) -> None:
    program = home.workspace / "agent"
    program.write_bytes(home.reporting(COMPLETE).read_bytes())
    program.chmod(0o700)
    done = home.ralph(agent=program)
    assert done.exit == 0
    assert "note: the agent program lies in the workspace" in done.err


def test_runs_and_show_lead_to_the_prompt_and_the_output_of_each_agent(home: Home) -> None:
    run_id = home.ralph("--json", agent=home.reporting(COMPLETE)).json["runId"]
    rows = home.run("runs", "--json").json["runs"]
    assert [(row["runId"], row["state"]) for row in rows] == [(run_id, "complete")]
    assert run_id in home.run("runs").out
    shown = home.run("show", run_id, "--json").json
    prompt, output, errors = shown["files"]["1"]
    assert "do it" in Path(prompt).read_text()
    assert json.loads(Path(output).read_text()) == COMPLETE
    assert Path(errors).read_text() == ""
    text = home.run("show", run_id[:17]).out
    for path in (prompt, output, errors):
        assert path in text


def test_a_busy_workspace_is_exit_75_and_names_the_holder(home: Home) -> None:
    inner = (
        "cat > /dev/null\n"
        f"{sys.executable} -m loopwarden run ralph --objective x --workspace . --json -- true > inner.json\n"
        f"echo $? > inner.exit\ncat <<'END'\n{json.dumps(COMPLETE)}\nEND\n"
    )
    agent = home.agent(inner)
    env_settings = home.settings(
        f'[providers.mine]\ntype = "command"\nargv = ["{agent}"]\npass_env = ["XDG_STATE_HOME", "XDG_CONFIG_HOME"]\n'
    )
    options = ("--config", str(env_settings), "--objective", "x", "--workspace", str(home.workspace), "--json")
    done = home.run("run", "ralph", *options)
    assert done.exit == 0
    assert (home.workspace / "inner.exit").read_text() == "75\n"
    refused = json.loads((home.workspace / "inner.json").read_text())
    assert refused["failure"]["code"] == "WORKSPACE_BUSY"
    assert done.json["runId"] in refused["failure"]["message"]


def test_doctor_says_what_stands(home: Home) -> None:
    done = home.run("doctor", "--json")
    assert done.exit == 0
    assert done.json["problems"] == []
    assert {wall["name"] for wall in done.json["walls"]} >= {"seccomp", "landlock", "rlimits"}
    assert [loop["name"] for loop in done.json["loops"]] == ["ralph"]
    assert "runs can start here" in home.run("doctor").out


def test_doctor_does_not_call_everything_standing_when_a_wall_is_missing(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unneeded() -> list[Wall]:
        return [
            Wall(name="identity", stands=stands, mandatory=False, detail="not root" if not stands else "nobody")
            for stands in answers
        ]

    monkeypatch.setattr(doctor, "probe_walls", unneeded)
    answers = [True]
    assert home.run("doctor").out.endswith("\nwalls: all stand, runs can start here\n")
    answers = [False]
    done = home.run("doctor")
    assert done.exit == 0
    assert done.out.endswith("\nwalls: all stand that a run needs, runs can start here\n")


def test_the_help_of_a_loop_lists_the_options_of_its_arguments(home: Home) -> None:
    shown = home.run("run", "ralph", "--help").out
    for part in ("--objective", "--max-rounds", "--check", "--dry-run", "-- PROGRAM", "pass_env"):
        assert part in shown
    assert "ralph" in home.run("run", "--help").out
    assert home.run("--version").out.startswith("loopwarden 0")


def test_a_check_in_the_workspace_gets_a_note(home: Home) -> None:
    path = home.workspace / "check"
    home.agent("exit 0\n", str(path))
    options = ("--objective", "x", "--workspace", "ws", "--check", "ws/check")
    done = home.run("run", "ralph", *options, "--", str(home.reporting(COMPLETE)))
    assert done.exit == 0
    assert f"note: the check {path} lies in the workspace, where an agent could change it\n" in done.err


def test_a_dry_run_whose_agent_could_not_start_says_why(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> None:
        raise ProviderStartError("the agent program went away")

    monkeypatch.setattr(CommandProvider, "describe", gone)
    shown = home.ralph("--dry-run", agent=home.reporting(COMPLETE))
    assert shown.exit == 1
    assert "the agent cannot be started: the agent program went away\n" in shown.out
    as_json = home.ralph("--dry-run", "--json", agent=home.reporting(COMPLETE)).json
    assert (as_json["exit"], as_json["dryRun"]["problem"]) == (1, "the agent program went away")
    assert "do it" in as_json["dryRun"]["firstPrompt"]


@pytest.mark.parametrize(("body", "code"), [("return 1 // 0", 1), ("return 1", 0)])
def test_a_dry_run_of_a_script_that_asks_for_no_agent_ends_as_the_script_does(home: Home, body: str, code: int) -> None:
    (home.root / "one.py").write_text(f"def main(args):\n    {body}\n")
    done = home.run("run", "one.py", "--max-total-agents", "1", "--dry-run", "--json")
    assert (done.exit, done.json["exit"]) == (code, code)
    assert done.json["dryRun"]["firstPrompt"] is None
    assert done.json["dryRun"]["problem"]


def test_doctor_takes_weak_walls_where_the_settings_allow_them(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    async def weak() -> list[Wall]:
        return [Wall(name="landlock", stands=False, mandatory=True, detail="the kernel has none")]

    monkeypatch.setattr(doctor, "probe_walls", weak)
    refused = home.run("doctor")
    assert refused.exit == 1
    assert "problem: the wall landlock does not stand: the kernel has none" in refused.out
    assert "runs are refused without this wall; use Linux 5.13 or newer with seccomp and Landlock" in refused.out
    config = home.settings("allow_weak_confinement = true\n")
    done = home.run("doctor", "--config", str(config))
    assert done.exit == 0
    assert "runs can start here, without these walls: landlock" in done.out
    assert "runs are refused" not in done.out
    assert home.run("doctor", "--config", str(config), "--json").json["problems"] == []


def test_doctor_notices_that_the_program_of_the_default_provider_is_missing(home: Home) -> None:
    config = home.settings('[providers.mine]\ntype = "command"\nargv = ["no-such-agent-program"]\n')
    done = home.run("doctor", "--config", str(config))
    assert done.exit == 1
    assert "problem: the default provider mine: the agent program 'no-such-agent-program' was not found" in done.out
    assert "runs can start here" not in done.out


def test_doctor_shows_settings_that_json_has_no_values_for(home: Home) -> None:
    loop = "[loops.ralph]\ndefault_rounds = 2024-01-01\nx = [inf, nan]\n"
    config = home.settings(f"[limits]\nmax_total_agents = 7\n{loop}")
    done = home.run("doctor", "--config", str(config), "--json")
    assert done.exit == 1
    assert done.json["settings"]["loops"] == {"ralph": {"default_rounds": "2024-01-01", "x": ["inf", "nan"]}}
    assert done.json["settings"]["limits"]["maxTotalAgents"] == 7
    assert "max_total_agents           7" in home.run("doctor", "--config", str(config)).out
