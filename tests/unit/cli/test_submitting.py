"""`loopwarden submit`, `rerun` and `resume`: what they take, and what they refuse."""

from pathlib import Path

import pytest

from support.command_line import Home
from support.durable_home import asked, asking, durable_home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return durable_home(tmp_path)


def test_a_submitted_run_prints_its_id_alone_and_waits(home: Home) -> None:
    head = ("submit", "asks.py", "--args-json", '{"n": 1}', "--max-total-agents", "1", "--queue", "nightly")
    done = home.run(*head, "--workspace", str(home.workspace))
    assert done.exit == 0
    (row,) = home.run("runs", "--json").json["runs"]
    assert done.out == f"{row['runId']}\n"
    assert (row["status"], row["queue"], row["cannotBeDrivenHere"]) == ("queued", "nightly", None)
    assert asked(home) == 0


def test_the_same_key_gives_the_same_run_and_other_content_is_refused(home: Home) -> None:
    first = asking(home, "submit", 1, "--key", "k")
    assert asking(home, "submit", 1, "--key", "k").json["runId"] == first.json["runId"]
    refused = asking(home, "submit", 2, "--key", "k")
    assert (refused.exit, refused.json["failure"]["code"]) == (2, "INVALID_REQUEST")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--model", "m"), "--model belongs to `run`"),
        (("--pass-env", "X"), "--pass-env belongs to `run`"),
        (("--", "true"), "a program after -- belongs to `run`"),
        (("--provider", "claude"), "the provider 'claude' is not in the settings"),
        (("--scope", "tenant:x"), "there is no budget 'tenant:x'"),
        (("--label", "nothing"), "write NAME=VALUE"),
        (("--not-before", "soon"), "is no moment"),
        (("--queue", "a b"), "a queue"),
    ],
)
def test_what_no_host_could_do_is_refused_before_anything_is_committed(
    home: Home, options: tuple[str, ...], words: str
) -> None:
    refused = asking(home, "submit", 1, *options)
    assert refused.exit == 2
    assert words in refused.json["failure"]["message"]
    assert home.run("runs", "--json").json["runs"] == []


def test_a_script_that_breaks_the_language_policy_is_refused(home: Home) -> None:
    (home.root / "asks.py").write_text("import os\ndef main(args):\n    return 1\n")
    refused = asking(home, "submit", 1)
    assert (refused.exit, refused.json["failure"]["code"]) == (2, "SCRIPT_REJECTED")


@pytest.mark.parametrize("command", [("submit",), ("run",)])
def test_nothing_is_said_of_caps_before_a_run_is_refused(home: Home, command: tuple[str, ...]) -> None:
    config = home.settings("require_bound = true\n[providers.own]\ntype = 'command'\nargv = ['true']\n")
    (home.root / "own.py").write_text("def main(args):\n    while agent('x'):\n        pass\n")
    words = f"--max-total-agents 3 --provider own --workspace {home.workspace} --config {config}"
    options = words.split()
    refused = home.run(*command, "own.py", *options)
    assert (refused.exit, refused.out) == (2, "")
    assert refused.err.startswith("loopwarden: this deployment runs only scripts whose number of agents is bounded")
    (home.root / "own.py").write_text("def main(args):\n    return agent('x')\n")
    assert home.run(*command, "own.py", *options).err.startswith("own: at most 3 agents, 8 h, no cost cap\n")


def test_a_queued_run_is_shown_as_submitted_and_without_walls(home: Home) -> None:
    run_id = asking(home, "submit", 1).json["runId"]
    names = [line.split()[0] for line in home.run("show", run_id).out.splitlines() if line.startswith("  ")]
    assert "submitted" in names
    assert not {"started", "took", "walls"} & set(names)
    home.run("cancel", run_id)
    assert "  walls " not in home.run("show", run_id).out


def test_a_run_that_is_not_due_waits_for_its_time(home: Home) -> None:
    run_id = asking(home, "submit", 1, "--not-before", "2h").json["runId"]
    assert "waits in the queue default, due 20" in home.run("show", run_id).out


def test_a_rerun_is_a_new_run_with_the_same_content(home: Home) -> None:
    first = asking(home, "run", 2, most=7).json["runId"]
    again = home.run("rerun", first, "--json").json["runId"]
    assert again != first
    receipt = home.run("show", again, "--json").json["receipt"]
    assert (receipt["args"], receipt["limits"]["maxTotalAgents"]) == ({"n": 2}, 7)


# ---- resume


def test_a_run_that_ended_by_its_cap_goes_on_with_a_higher_one_and_pays_for_nothing_twice(home: Home) -> None:
    capped = asking(home, "run", 4, most=2)
    run_id = capped.json["runId"]
    assert capped.exit == 1
    assert capped.json["goOn"] == f"go on where it stopped: loopwarden resume {run_id} --max-total-agents N"
    refused = home.run("resume", run_id)
    assert refused.exit == 2
    assert "would end so again; give a --max-total-agents above 2" in refused.err
    above = home.run("resume", run_id, "--max-total-agents", "1001")
    assert (above.exit, "above the ceiling of this deployment, 1000" in above.err) == (2, True)
    done = home.run("resume", run_id, "--max-total-agents", "4", "--why", "it was worth it", "--json")
    assert done.exit == 0
    assert done.json["receipt"]["result"] == ["yes\n"] * 4
    assert asked(home) == 4
    assert "it was worth it" in home.run("events", run_id).out
    over = home.run("resume", run_id)
    assert (over.exit, f"run {run_id} completed" in over.err) == (2, True)


def test_a_cancelled_run_goes_on(home: Home) -> None:
    run_id = asking(home, "submit", 2).json["runId"]
    home.run("cancel", run_id)
    assert f"loopwarden resume {run_id}" in home.run("show", run_id).out
    assert home.run("resume", run_id).exit == 0
    assert asked(home) == 2


def test_a_run_that_waits_is_driven_here_and_its_limits_stay(home: Home) -> None:
    run_id = asking(home, "submit", 1).json["runId"]
    refused = home.run("resume", run_id, "--max-total-agents", "20")
    assert (refused.exit, "limits rise only for a run that is" in refused.err) == (2, True)
    assert home.run("resume", run_id).exit == 0


def test_a_program_after_dashes_is_found_again_and_another_providers_run_takes_none(home: Home) -> None:
    head = ("run", "asks.py", "--args-json", '{"n": 2}', "--max-total-agents", "1", "--workspace", str(home.workspace))
    capped = home.run(*head, "--json", "--", "./agent").json["runId"]
    record = home.state / "runs" / capped / "launch.json"
    kept = record.read_text()
    record.unlink()
    refused = home.run("resume", capped, "--max-total-agents", "2")
    assert (refused.exit, "give it again" in refused.err) == (2, True)
    record.write_text(kept)
    assert home.run("resume", capped, "--max-total-agents", "2", cwd=home.workspace).exit == 0
    mine = asking(home, "run", 2, most=1).json["runId"]
    refused = home.run("resume", mine, "--max-total-agents", "2", "--", "./agent")
    assert (refused.exit, "goes on with its own provider, mine" in refused.err) == (2, True)


def test_a_scratch_folder_that_was_taken_away_is_made_again(home: Home) -> None:
    quiet = home.agent("cat > /dev/null\necho yes\n", "quiet")
    head = ("run", "asks.py", "--args-json", '{"n": 2}', "--max-total-agents", "1", "--json")
    capped = home.run(*head, "--", str(quiet)).json
    workspace = Path(capped["receipt"]["workspace"])
    assert not workspace.exists()
    assert home.run("resume", capped["runId"], "--max-total-agents", "2").exit == 0
    assert not workspace.exists()


# ---- host


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--queue", "nightly"), "write NAME=N, such as nightly=4"),
        (("--queue", "nightly=0"), "0 is too small"),
        (("--drain", "soon"), "is not a time"),
        ((), "no queue of the settings says drive = N for this host"),
    ],
)
def test_a_host_without_anything_to_drive_is_refused(home: Home, options: tuple[str, ...], words: str) -> None:
    refused = home.run("host", *options)
    assert (refused.exit, words in refused.err) == (2, True), refused.err
