"""A loop of another distribution: written by `loopwarden new`, built into a wheel, unpacked beside Loopwarden.

Its wheel is built here, without network, by the build backend that its pyproject.toml names.
"""

import importlib
import json
import os
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hatchling.build import build_wheel

from loopwarden.failures import EXIT_FAILED, EXIT_NOT_STARTED, EXIT_ROUND_FAILED, EXIT_ROUNDS_USED
from loopwarden.loop_package import write_loop_package
from support.command_line import Finished, Home
from support.pages import ROOT, commands

NAME = "second-opinion"
MODULE = "second_opinion"
RUN = ("run", NAME, "--task", "Name a colour.")

AGENT = """
case "$(cat)" in
  Review*) echo '{"approved": %s, "remarks": "so"}' ;;
  *) echo '{"answer": "blue"}' ;;
esac
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `loopwarden new` wrote."""
    folder = tmp_path_factory.mktemp("author")
    write_loop_package(NAME, folder)
    return folder / NAME


def built(package: Path, folder: Path) -> Path:
    """The wheel of a package."""
    here = Path.cwd()
    os.chdir(package)
    try:
        return folder / build_wheel(str(folder))
    finally:
        os.chdir(here)


@pytest.fixture(scope="module")
def wheel(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the package that was written."""
    return built(package, tmp_path_factory.mktemp("dist"))


class User(Home):
    """A user whose installed distributions lie in the folder `site`, which may be missing."""

    @property
    def site(self) -> Path:
        """Where distributions are installed."""
        return self.root / "site"

    @property
    def environment(self) -> dict[str, str]:
        """As of any other, with the folder on the path."""
        return {**Home.environment.__get__(self), "PYTHONPATH": str(self.site)}

    def install(self, wheel: Path) -> None:
        """Install a wheel as an installer does."""
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(self.site)

    def run(self, *argv: str, stdin: bytes = b"", cwd: Path | None = None) -> Finished:
        """The command line inside this process, which afterwards has nothing of the user's any more."""
        loaded = set(sys.modules)
        sys.path.insert(0, str(self.site))
        importlib.invalidate_caches()
        try:
            return super().run(*argv, stdin=stdin, cwd=cwd)
        finally:
            sys.path.remove(str(self.site))
            for name in set(sys.modules) - loaded:
                if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(self.site)):
                    del sys.modules[name]


@pytest.fixture
def user(wheel: Path, tmp_path: Path) -> User:
    """A user who has the loop installed."""
    user = User(tmp_path)
    user.install(wheel)
    return user


def test_the_package_passes_its_own_tests_before_anything_is_installed(package: Path) -> None:
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(package)]
    done = subprocess.run(argv, cwd=package.parent, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1].partition(" in ")[0]) == (0, "7 passed"), done.stdout


def test_the_wheel_holds_the_loop_and_its_entry_point_alone(wheel: Path) -> None:
    info = f"{MODULE}-0.1.0.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        entry_points = archive.read(f"{info}/entry_points.txt").decode()
    files = {f"{MODULE}/{name}" for name in ("__init__.py", "loop.py", "contract.py", "README.md", "py.typed")}
    assert {name for name in names if not name.startswith(info)} == files
    assert entry_points.strip() == f"[loopwarden.scripts]\n{NAME} = {MODULE}:loop"


def test_the_loop_is_found_beside_those_that_are_shipped(user: User) -> None:
    loops = {loop["name"]: loop for loop in user.run_process("doctor", "--json").json["loops"]}
    assert loops.keys() == {"ralph", NAME}
    assert loops[NAME]["origin"] == f"the distribution {NAME} 0.1.0"


def test_the_loop_is_run_by_its_name_and_its_budget_follows_from_its_arguments(user: User) -> None:
    agent = user.agent(AGENT % "false")
    done = user.run_process(*RUN, "--workspace", str(user.workspace), "--json", "--", str(agent))
    assert done.exit == EXIT_ROUNDS_USED, done.err
    receipt = done.json["receipt"]
    assert receipt["result"] == {"status": "rounds-used", "rounds": 3, "answer": "blue"}
    assert (receipt["agentsStarted"], receipt["limits"]["maxTotalAgents"]) == (6, 6)
    assert done.json["verdict"].startswith("no answer was approved in 3 rounds")


def test_its_settings_and_its_arguments_are_judged_before_anything_starts(user: User) -> None:
    settings = user.settings(f"[loops.{NAME}]\nmax_rounds = 2\n")
    head = ("--config", str(settings), *RUN, "--workspace", str(user.workspace))
    refused = user.run(*head, "--max-rounds", "3", "--", "/bin/false")
    assert (refused.exit, refused.err) == (
        EXIT_NOT_STARTED,
        "loopwarden: --max-rounds is 3; this deployment allows 2\n",
    )


def test_a_result_that_no_agent_gave_is_refused_by_the_host(user: User) -> None:
    path = user.site / MODULE / "loop.py"
    path.write_text(path.read_text().replace('"answer": answer}', '"answer": "gold"}'))
    agent = user.agent(AGENT % "true")
    done = user.run(*RUN, "--workspace", str(user.workspace), "--json", "--", str(agent))
    failure = done.json["receipt"]["failure"]
    assert (done.exit, failure["code"]) == (EXIT_FAILED, "PROVENANCE"), done.err
    assert "the answer is not the last that an agent gave" in failure["message"]


PROGRAM = """
import json, sys
from loopwarden import Script
from loopwarden.testing import Lab
from second_opinion import Args, Settings, build

honest = build(Settings())
replies = {"Review": {"approved": True, "remarks": ""}, "Work": {"answer": "blue"}}
ends = []
with Lab() as lab:
    for old, new in json.load(sys.stdin):
        assert old in honest.source, old
        script = Script(name=honest.name, source=honest.source.replace(old, new), contract=honest.contract)
        run = lab.run(script, Args(task="Name a colour."), replies)
        ends.append(run.value.model_dump() if run.failure is None else f"{run.failure.code}: {run.failure.message}")
print(json.dumps(ends))
"""
"""Runs the installed loop as a library, honest or forged."""

WORK = 'agent(prompt, label=f"work {number}", schema=WORK_SCHEMA)'
BOTH = 'parallel([lambda: agent(prompt, label=f"{what} 1", schema=WORK_SCHEMA) for what in ("work", "review")])[0]'

FORGED = [
    ('"""One agent', '"""An agent', None),
    (WORK, BOTH.replace("lambda:", "lambda what=what:"), "CONTRACT: call 2 came while an agent was at work"),
    ('if review["approved"]:', "if number > 2:", "CONTRACT: call 3 came after the end of the loop"),
    ('f"work {number}"', '"work"', "CONTRACT: call 1 is not labelled 'work 1'"),
    ("schema=REVIEW_SCHEMA", "schema=WORK_SCHEMA", "CONTRACT: review 1 has another schema than the contract"),
    (WORK, WORK.replace("prompt, ", 'prompt, model="large", '), "CONTRACT: work 1 chooses a provider or a model"),
    ("work_prompt(task, answer, remarks)\n        work", 'work_prompt("Work", None, "")\n        work',
     "CONTRACT: work 1 does not show the task"),
    ("review_prompt(task, answer)\n        review", 'review_prompt(task, "red")\n        review',
     "CONTRACT: review 1 does not show the answer"),
    ('"rounds": number, ', "", "CONTRACT: the result is not status, rounds, answer"),
    ('"rounds": number', '"rounds": 7', "CONTRACT: 2 agents are no such rounds"),
    ('"approved", "rounds"', '"rounds-used", "rounds"', "CONTRACT: the agents did not lead to 'rounds-used'"),
    ('answer = work["answer"]', 'return {"status": "approved", "rounds": 1, "answer": work["answer"]}',
     "CONTRACT: the agents did not lead to 'approved'"),
    ('"answer": answer}', '"answer": "gold"}', "PROVENANCE: the answer is not the last that an agent gave"),
]  # fmt: skip
"""What is replaced in the script, and how the run then ends; None: as the honest one does."""


def test_its_contract_lets_no_other_script_pass(user: User) -> None:
    changes = [(old, new) for old, new, _ in FORGED]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=json.dumps(changes).encode(), env=user.environment, cwd=user.root,
        capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    honest = {"status": "approved", "rounds": 1, "answer": "blue"}
    assert json.loads(done.stdout) == [honest if end is None else end for *_, end in FORGED]


def test_it_is_vetted_by_its_name_as_a_shipped_loop_is(user: User) -> None:
    done = user.run("vet", NAME, "ralph", "--json")
    foreign, shipped = done.json["scripts"]
    assert (done.exit, foreign["name"], foreign["violations"]) == (0, NAME, [])
    assert foreign.keys() == shipped.keys()
    assert foreign["bound"]["text"] == "agents <= 2 * args.maxRounds"
    with_args = user.run("vet", NAME, "--args", '{"task": "x", "maxRounds": 3}', "--json")
    assert with_args.json["scripts"][0]["agents"] == 6
    path = user.site / MODULE / "loop.py"
    path.write_text(path.read_text().replace("remarks = review", "print(answer)\n        remarks = review"))
    done = user.run("vet", NAME)
    (line,) = [number for number, text in enumerate(path.read_text().splitlines(), start=1) if "print(" in text]
    assert (done.exit, f"{NAME}:{line}:9: " in done.out) == (EXIT_FAILED, True), done.out


def test_what_its_author_approved_runs_and_a_changed_byte_does_not(user: User, package: Path) -> None:
    lock = user.root / "loopwarden.lock"
    approved = user.run("approve", str(package / "src" / MODULE), "--by", "Ann", "--lock", str(lock))
    assert approved.exit == 0, approved.err
    settings = user.settings(f'require_approved = true\nlock = "{lock}"\n')
    agent = user.agent(AGENT % "true")
    line = ("--config", str(settings), *RUN, "--workspace", str(user.workspace), "--json", "--", str(agent))
    done = user.run(*line)
    assert (done.exit, done.json["receipt"]["result"]["answer"]) == (0, "blue"), done.err
    for file in ("loop.py", "contract.py"):
        path = user.site / MODULE / file
        text = path.read_text()
        path.write_text(text + "\n")
        refused = user.run(*line)
        assert (refused.exit, refused.json["failure"]["code"]) == (EXIT_NOT_STARTED, "SCRIPT_REJECTED"), file
        path.write_text(text)


def test_the_folder_of_a_loop_and_the_loop_have_one_approval_though_their_names_differ(
    user: User, package: Path
) -> None:
    folder = str(package / "src" / MODULE)
    assert user.run("approve", folder, "--by", "ann").exit == 0
    assert "is approved as it is" in user.run("approve", NAME, "--by", "bob").out
    installed = user.site / MODULE / "loop.py"
    installed.write_text(installed.read_text() + "\n")
    assert "source: approved is the source sha256:" in user.run("approve", "--check", NAME).out
    done = user.run("approve", NAME, "--by", "bob", "--json")
    assert done.json["approved"][0]["before"]["name"] == MODULE
    assert len(user.run("approve", "--withdraw", MODULE, "--json").json["withdrawn"]) == 1
    assert "it names: none" in user.run("approve", "--withdraw", NAME).err


def test_the_way_of_an_author_is_typed_as_the_page_shows_it(tmp_path: Path) -> None:
    user = User(tmp_path)
    (tmp_path / "work").mkdir()
    user.reporting({"answer": "blue"}, "my-agent")
    lines = [line for line in commands(ROOT / "docs/write-a-loop.md") if "drafts" in line]
    assert [line.split()[0] for line in lines] == ["new", "vet", "approve", "run"]
    for line in lines:
        done = user.run(*shlex.split(line.replace("my-agent", str(tmp_path / "my-agent"))))
        # This agent knows one answer only, which is no review.
        expected = EXIT_ROUND_FAILED if line.startswith("run") else 0
        assert done.exit == expected, (line, done.err, done.out)
        if line.startswith("vet"):
            user.install(built(tmp_path / "drafts", tmp_path))
    assert 'name = "drafts"' in (tmp_path / "loopwarden.lock").read_text()


def test_it_is_gone_with_its_distribution(tmp_path: Path) -> None:
    done = User(tmp_path).run("run", NAME, "--help")
    assert done.exit == EXIT_NOT_STARTED
    assert f"there is no loop '{NAME}'" in done.err
