"""Promise 7: self-report is not acceptance. `loopwarden demo`: a person sees in a minute what this is for."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from loopwarden.cli import demo
from loopwarden.cli.running import Ended
from loopwarden.demo.stage import CHECK, agent_argv, workspace_copy
from support.command_line import Home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def unittest_exit(workspace: Path) -> int:
    return subprocess.run([*CHECK], cwd=workspace, capture_output=True, check=False).returncode


def test_the_demo_verifies_the_agent_that_works_and_catches_the_one_that_lies(home: Home) -> None:
    done = home.run_process("demo")
    assert done.exit == 0
    assert "canned" in done.err
    assert "agent reported completion after 3 rounds; verified by: " in done.out
    assert "agent reported completion after 1 round; not verified, the check failed: " in done.out
    assert "exit 6" in done.out
    assert "What you saw:" in done.out
    assert "#3 Ralph round 3 completed" in done.err
    assert len(list((home.state / "runs").iterdir())) == 2


def test_the_demo_gives_one_json_object(home: Home) -> None:
    shown = home.run("demo", "--json").json
    assert (shown["exit"], shown["asExpected"]) == (0, True)
    assert (shown["honest"]["exit"], shown["honest"]["receipt"]["verified"]) == (0, True)
    assert (shown["liar"]["exit"], shown["liar"]["receipt"]["verified"]) == (6, False)
    assert shown["honest"]["receipt"]["agentsStarted"] == 3
    assert not Path(shown["honest"]["receipt"]["workspace"]).exists()


def test_three_tests_fail_and_each_round_really_repairs_one() -> None:
    with workspace_copy() as workspace:
        statuses = []
        while unittest_exit(workspace) != 0:
            before = {path: path.read_bytes() for path in workspace.rglob("shop/*.py")}
            done = subprocess.run(
                agent_argv(lies=False), cwd=workspace, input="Round 7", capture_output=True, text=True, check=True
            )
            assert "round 7" in done.stdout
            statuses.append(json.loads(done.stdout[done.stdout.index("{") :])["status"])
            assert sum(path.read_bytes() != data for path, data in before.items()) == 1
        assert statuses == ["continue", "continue", "complete"]
    assert not workspace.exists()


def test_the_liar_changes_nothing() -> None:
    with workspace_copy() as workspace:
        before = {path: path.read_bytes() for path in workspace.rglob("*") if path.is_file()}
        done = subprocess.run(
            agent_argv(lies=True), cwd=workspace, input="", capture_output=True, text=True, check=True
        )
        assert json.loads(done.stdout[done.stdout.index("{") :])["status"] == "complete"
        assert {path: path.read_bytes() for path in workspace.rglob("*") if path.is_file()} == before
        assert unittest_exit(workspace) != 0


def test_the_canned_agent_knows_nothing_of_loopwarden() -> None:
    program = Path(agent_argv(lies=False)[1])
    assert "import loopwarden" not in program.read_text()
    code = f"import runpy, sys; runpy.run_path({str(program)!r}); sys.exit('loopwarden' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("codes", [(130,), (0, 130)])
def test_a_demo_that_is_interrupted_gives_one_json_object(
    home: Home, monkeypatch: pytest.MonkeyPatch, codes: tuple[int, ...]
) -> None:
    ends = [Ended(exit=code, receipt=None, folder=None) for code in codes]

    async def run_to_end(*_: object) -> Ended:
        return ends.pop(0)

    monkeypatch.setattr(demo, "run_to_end", run_to_end)
    done = home.run("demo", "--json")
    assert (done.exit, done.json["exit"], done.json["asExpected"]) == (130, 130, False)
    assert (done.json["liar"] is None) == (len(codes) == 1)
    assert "the demo was interrupted" in done.err
