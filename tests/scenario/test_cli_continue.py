"""`loopwarden continue`: what it takes over, what it never takes over, what it refuses."""

import json
import shutil
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from loopwarden import loops
from support.command_line import BLOCKED, COMPLETE, REPORT, Finished, Home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def keeping(home: Home, report: dict[str, object]) -> Path:
    """An agent that keeps its last prompt beside the workspace."""
    return home.agent(f"cat > {home.root}/prompt\ncat <<'END'\n{json.dumps(report)}\nEND\n")


def receipt_path(done: Finished) -> Path:
    return Path(done.json["folder"]) / "receipt.json"


def test_rounds_used_up_go_on_with_the_last_handoff_the_same_program_and_a_link(home: Home) -> None:
    first = home.ralph("--max-rounds", "1", "--json", agent=keeping(home, {**REPORT, "summary": "half of it"}))
    assert first.exit == 4
    keeping(home, COMPLETE)
    again = home.run("continue", first.json["runId"], "--max-rounds", "5", "--json")
    assert again.exit == 0
    assert again.err.startswith("ralph: at most 5 agents")
    assert again.json["receipt"]["continues"] == first.json["runId"]
    assert again.json["receipt"]["workspace"] == str(home.workspace)
    assert "half of it" in (home.root / "prompt").read_text()


def test_the_rounds_of_the_first_run_hold_when_none_are_given(home: Home) -> None:
    first = home.ralph("--max-rounds", "2", "--json", agent=keeping(home, BLOCKED))
    assert first.exit == 3
    assert home.run("continue", first.json["runId"]).err.startswith("ralph: at most 2 agents")


def test_a_failed_check_stands_in_the_first_prompt_and_is_run_again(home: Home) -> None:
    agent = keeping(home, COMPLETE)
    first = home.ralph("--check", "sh -c 'echo wheel is missing; test -e wheel'", "--json", agent=agent)
    assert first.exit == 6
    (home.workspace / "wheel").touch()
    again = home.run("continue", first.json["runId"], "--json")
    assert again.exit == 0
    assert again.json["receipt"]["verified"] is True
    assert "wheel is missing" in (home.root / "prompt").read_text()


def test_a_failed_round_and_an_error_can_go_on(home: Home) -> None:
    first = home.ralph("--json", agent=home.agent("exit 1\n"))
    assert first.exit == 5
    timed_out = home.ralph("--deadline", "0.4s", "--json", agent=home.agent("cat > /dev/null\nexec sleep 60\n"))
    assert timed_out.exit == 124
    keeping(home, COMPLETE)
    assert home.run("continue", first.json["runId"]).exit == 0
    # The deadline of the first run is one of the choices that are taken over, so it is given anew.
    assert home.run("continue", timed_out.json["runId"], "--deadline", "1m").exit == 0


def test_another_program_may_be_given(home: Home) -> None:
    first = home.ralph("--max-rounds", "1", "--json", agent=keeping(home, REPORT))
    other = home.reporting(BLOCKED, "other")
    assert home.run("continue", first.json["runId"], "--", str(other)).exit == 3


def test_a_dry_run_shows_the_prompt_with_the_handoff(home: Home) -> None:
    first = home.ralph("--max-rounds", "1", "--json", agent=keeping(home, {**REPORT, "summary": "half of it"}))
    (home.root / "prompt").unlink()
    assert "half of it" in home.run("continue", first.json["runId"], "--dry-run").out
    assert not (home.root / "prompt").exists()


def test_what_is_complete_cannot_go_on(home: Home) -> None:
    unverified = home.ralph("--json", agent=home.reporting(COMPLETE))
    verified = home.ralph("--check", "true", "--json", agent=home.reporting(COMPLETE))
    for first, words in ((unverified, "no check contradicts it"), (verified, "was verified")):
        refused = home.run("continue", first.json["runId"], "--json")
        assert refused.exit == 2
        assert f"is complete and {words}; there is nothing to continue" in refused.json["failure"]["message"]


def test_a_number_of_rounds_that_is_none_is_refused(home: Home) -> None:
    first = home.ralph("--max-rounds", "1", "--json", agent=keeping(home, REPORT))
    for rounds, words in (("0", "--max-rounds must be"), ("08", "write 8"), ("257", "--max-rounds is 257")):
        refused = home.run("continue", first.json["runId"], "--max-rounds", rounds)
        assert refused.exit == 2
        assert words in refused.err


def test_a_script_of_ones_own_cannot_go_on(home: Home) -> None:
    (home.root / "one.py").write_text("def main(args):\n    return 1 // 0\n")
    first = home.run("run", "one.py", "--max-total-agents", "1", "--json")
    assert (first.exit, first.json["failure"]["code"]) == (1, "SCRIPT_ERROR")
    refused = home.run("continue", first.json["runId"])
    assert refused.exit == 2
    assert "has no handoff to go on from; run it again" in refused.err


def test_a_receipt_from_elsewhere_brings_no_program_no_workspace_and_no_check(home: Home) -> None:
    first = home.ralph("--max-rounds", "1", "--json", agent=keeping(home, REPORT))
    elsewhere = home.root / "sent-by-mail"
    shutil.copytree(receipt_path(first).parent, elsewhere)
    refused = home.run("continue", str(elsewhere / "receipt.json"))
    assert refused.exit == 2
    assert "give --workspace and the program after --, or --provider" in refused.err
    options = ("--workspace", str(home.workspace), "--", str(home.reporting(COMPLETE)))
    done = home.run("continue", str(elsewhere / "receipt.json"), "--json", *options)
    assert done.exit == 0
    assert done.json["receipt"]["checks"] == []


def test_a_receipt_in_the_workspace_is_refused(home: Home) -> None:
    first = home.ralph("--max-rounds", "1", "--json", agent=keeping(home, REPORT))
    shutil.copy(receipt_path(first), home.workspace / "receipt.json")
    options = ("--workspace", str(home.workspace), "--json", "--", str(home.reporting(COMPLETE)))
    refused = home.run("continue", str(home.workspace / "receipt.json"), *options)
    assert refused.exit == 2
    assert refused.json["failure"]["code"] == "SETTINGS_IN_WORKSPACE"


def test_a_receipt_that_was_tampered_with_is_refused(home: Home) -> None:
    first = home.ralph("--max-rounds", "1", "--json", agent=keeping(home, REPORT))
    path = receipt_path(first)
    receipt = json.loads(path.read_text())
    for changed, words in (
        ({"lastHandoff": {"status": "continue"}}, "handoff"),
        ({"agentsStarted": "many"}, "is damaged: agentsStarted"),
        ({"surprise": 1}, "is damaged: surprise"),
        ({"script": "other"}, "was a run of 'other', not of 'ralph'"),
    ):
        path.write_text(json.dumps({**receipt, **changed}))
        refused = home.run("continue", first.json["runId"])
        assert refused.exit == 2
        assert words in refused.err
        assert "Traceback" not in refused.err
    path.write_text("{")
    assert "is damaged" in home.run("continue", first.json["runId"]).err
    # What is shown comes from the journal; where there is none, the folder is all there is.
    assert "the limit of 1 round is used up" in home.run("show", first.json["runId"]).out
    folders_alone = str(home.settings('[store]\nurl = "none"\n'))
    assert "is damaged" in home.run("show", first.json["runId"], "--config", folders_alone).err
    assert "is damaged" in home.run("runs", "--config", folders_alone).out


def test_a_run_that_nobody_knows_is_refused(home: Home) -> None:
    for command in ("continue", "show"):
        refused = home.run(command, "nothing-like-that", "--json")
        assert refused.exit == 2
        assert "there is no run 'nothing-like-that'" in refused.json["failure"]["message"]


def test_a_program_and_a_check_given_by_relative_paths_are_found_from_another_folder(home: Home) -> None:
    keeping(home, REPORT)
    home.agent("exit 0\n", "check")
    options = ("--objective", "x", "--workspace", "ws", "--max-rounds", "1", "--check", "./check 'a b'")
    home.workspace.mkdir(exist_ok=True)
    first = home.run("run", "ralph", *options, "--json", "--", "./agent")
    assert first.exit == 4
    keeping(home, COMPLETE)
    again = home.run("continue", first.json["runId"], "--json", cwd=home.workspace)
    assert again.exit == 0
    assert again.json["receipt"]["checks"][0]["argv"] == [str(home.root / "check"), "a b"]


@pytest.mark.parametrize(
    ("text", "words"), [(None, "this run has no launch record"), ('{"format": 1', "of this run is damaged")]
)
def test_a_run_whose_launch_record_is_lost_says_so_and_goes_on_with_what_is_given(
    home: Home, text: str | None, words: str
) -> None:
    first = home.ralph("--check", "test -e wheel", "--json", agent=keeping(home, COMPLETE))
    assert first.exit == 6
    record = receipt_path(first).with_name("launch.json")
    record.unlink() if text is None else record.write_text(text)
    refused = home.run("continue", first.json["runId"])
    assert refused.exit == 2
    assert words in refused.err
    assert "give --workspace and the program after --, or --provider, and --check for the checks" in refused.err
    given = ("--workspace", str(home.workspace), "--json")
    program = ("--", str(home.root / "agent"))
    unchecked = home.run("continue", first.json["runId"], *given, *program)
    assert unchecked.exit == 0
    assert words in unchecked.err
    assert "note: the run goes on without the checks that it had (test -e wheel); --check gives" in unchecked.err
    (home.workspace / "wheel").touch()
    checked = home.run("continue", first.json["runId"], "--check", "test -e wheel", *given, *program)
    assert checked.json["receipt"]["verified"] is True
    assert "without the checks" not in checked.err


def test_a_loop_is_found_again_by_the_name_it_was_started_by(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint(name="house-ralph", value="loopwarden_scripts.ralph:loop", group=loops.GROUP)
    monkeypatch.setattr(loops, "entry_points", lambda **_: (entry,))
    agent = keeping(home, REPORT)
    options = ("--objective", "x", "--workspace", str(home.workspace), "--max-rounds", "1", "--json")
    first = home.run("run", "house-ralph", *options, "--", str(agent))
    assert (first.exit, first.json["receipt"]["script"]) == (4, "ralph")
    keeping(home, COMPLETE)
    assert home.run("continue", first.json["runId"]).exit == 0


def test_a_time_that_was_taken_over_and_is_above_a_lowered_ceiling_is_not_blamed_on_who_typed_nothing(
    home: Home,
) -> None:
    agent = keeping(home, REPORT)
    first = home.ralph("--max-rounds", "1", "--deadline", "2h", "--agent-timeout", "1h", "--json", agent=agent)
    config = str(home.settings("[limits]\nrun_deadline_seconds = 3600\nagent_timeout_seconds = 1800\n"))
    run = ("continue", first.json["runId"], "--config", config)
    refused = home.run(*run)
    assert refused.exit == 2
    assert "the run that is continued had --deadline 2 h, above the ceiling" in refused.err
    refused = home.run(*run, "--deadline", "1h")
    assert "the run that is continued had --agent-timeout 1 h, above the ceiling" in refused.err
    typed = home.run(*run, "--deadline", "3h")
    assert "loopwarden: --deadline is 3 h, above the ceiling" in typed.err
    assert home.run(*run, "--deadline", "1h", "--agent-timeout", "1m").exit == 4


def test_both_receipts_of_a_continued_run_are_linked(home: Home) -> None:
    """The later one names the earlier in its receipt; `show` finds the way back."""
    more = {**COMPLETE, "status": "continue", "evidence": [], "nextSteps": ["go on"]}
    agent = home.agent(f"cat > /dev/null\ncat <<'END'\n{json.dumps(more)}\nEND\n")
    first = home.ralph("--max-rounds", "1", "--json", agent=agent).json["runId"]
    second = home.run("continue", first, "--max-rounds", "1", "--json").json
    assert second["receipt"]["continues"] == first
    assert home.run("show", first, "--json").json["continuedBy"] == [second["runId"]]
    assert f"continued by {second['runId']}" in home.run("show", first).out
