"""Every command line that a page shows is typed as it stands, with shell scripts in place of agents."""

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from loopwarden.cli.exits import EXIT_COMPLETE
from support.command_line import COMPLETE, PROGRAM, REPORT, Finished, Home, until
from support.pages import ROOT, commands, example, needs_agent_programs, pages

README = (ROOT / "README.md").read_text(encoding="utf-8")


def shown_script() -> str:
    """The shell script that the README shows as an agent."""
    (block,) = re.findall(r"^    #!/bin/sh\n(?:    .*\n)+", README, re.MULTILINE)
    return re.sub(r"^ {4}", "", block, flags=re.MULTILINE)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A user with everything that the pages name, in a current folder that holds nothing else."""
    home = Home(tmp_path)
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    home.reporting(COMPLETE, "bin/my-agent")
    home.agent("cat > /dev/null; echo no", "bin/my-judge")
    home.workspace.joinpath("PROMPT.md").write_text("Make all tests pass\n")
    home.workspace.joinpath("Makefile").write_text("test:\n\ttrue\n")
    home.workspace.joinpath("review.py").write_text(example("README/loop"))
    home.workspace.joinpath("release_notes.py").write_text(example("write-a-loop/first"))
    return home


def typed(home: Home, line: str) -> Finished:
    """Type one line in the workspace."""
    return home.run(*shlex.split(line), cwd=home.workspace)


def test_the_readme_run_ends_as_the_readme_shows(home: Home) -> None:
    agent = home.root / "my-agent"
    agent.write_text(shown_script())
    agent.chmod(0o700)
    (line,) = [line for line in commands(ROOT / "README.md") if "/path/to/my-agent" in line]
    done = typed(home, line.replace("/path/to/my-agent", str(agent)))
    assert done.exit == EXIT_COMPLETE
    shown = re.search(r"-- /path/to/my-agent\n((?:    .*\n|\n)+)", README)
    assert shown is not None
    lines = [text.strip() for text in shown.group(1).splitlines() if text.strip() not in ("", "…")]
    steady = [text for text in lines if not text.startswith("run 2")]
    produced = [text.strip() for text in re.sub(r"after [\d.]+ s\b", "after 0 s", done.err + done.out).splitlines()]
    assert [text for text in steady if text not in produced] == []
    assert len(steady) == len(lines) - 1


@pytest.mark.parametrize(
    ("page", "line"),
    [
        (page.name, line)
        for page in [*pages(), ROOT / "scripts/loopwarden_scripts/ralph/README.md"]
        for line in commands(page)
        if not needs_agent_programs(page, line)  # typed in another test, with stand-ins for the programs
        and "/path/to/" not in line
        and not line.startswith("run votes")  # the vote is installed by its own test
        and "drafts" not in line  # typed one after the other in test_foreign_loop.py
    ],
)
def test_a_command_line_of_the_pages_works_as_it_stands(home: Home, page: str, line: str) -> None:
    done = typed(home, line)
    assert done.exit == EXIT_COMPLETE, (page, done.err)
    assert done.out


def test_a_run_that_is_killed_goes_on_as_the_readme_shows(home: Home) -> None:
    config = home.root / "config/loopwarden"
    config.mkdir(parents=True, mode=0o700)
    home.settings("[store]\nlease_seconds = 60.0\nkill_grace_seconds = 0.5\npoll_seconds = 0.2\n").rename(
        config / "loopwarden.toml"
    )
    first = f"touch first; cat <<'END'\n{json.dumps(REPORT)}\nEND\n"
    then = f"touch second\ntest -e go || exec sleep 600\ncat <<'END'\n{json.dumps(COMPLETE)}\nEND\n"
    agent = home.agent(f"cat > /dev/null\nif [ ! -e first ]; then {first}exit; fi\n{then}", "slow-agent")
    shown = re.search(r"    \$ (loopwarden .*/path/to/slow-agent)\n((?:    .*\n)+)", README)
    assert shown is not None
    run, resume = shown.group(2).split("    $ loopwarden resume RUN\n")
    argv = shlex.split(shown.group(1).replace("/path/to/slow-agent", str(agent)))[1:]
    process = subprocess.Popen(
        [*PROGRAM, *argv], cwd=home.workspace, env=home.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        until((home.workspace / "second").exists)
    finally:
        process.kill()
        out, err = (text.decode() for text in process.communicate())
    assert missing(run, err + out) == ["Killed"]  # which the shell says
    home.workspace.joinpath("go").touch()
    home.end_leases()
    (row,) = home.run("runs", "--json").json["runs"]
    done = typed(home, f"resume {row['runId']}")
    assert missing(resume, (done.err + done.out).replace(row["runId"], "RUN")) == []


def missing(shown: str, produced: str) -> list[str]:
    """The lines of a page that were not printed."""
    found = [line.strip() for line in re.sub(r"after [\d.]+ s\b", "after 0 s", produced).splitlines()]
    return [line.strip() for line in shown.splitlines() if line.strip() not in (*found, "…", "")]


def test_the_readme_loop_gives_the_files_that_judges_object_to(home: Home) -> None:
    (line,) = [line for line in commands(ROOT / "README.md") if line.startswith("run review.py")]
    done = typed(home, line.replace(" -- ", " --json -- "))
    assert done.json["receipt"]["result"] == ["a.py", "b.py"]
    assert done.json["receipt"]["agentsStarted"] == 6


def test_the_table_of_the_readme_goes_on_and_looks_back(home: Home) -> None:
    """`continue RUN --max-rounds 5`, `show RUN`, and `--dry-run`, after the rounds were used up."""
    agent = home.reporting(REPORT)
    first = typed(home, f"run ralph --objective x --max-rounds 2 --json -- {agent}")
    run_id = first.json["runId"]
    quoted = re.findall(r"`loopwarden ((?:continue|show) [^`…]+)`", README)
    assert len(quoted) == 2
    again, shown = (typed(home, line.replace("RUN", run_id)) for line in quoted)
    assert (first.exit, again.exit, shown.exit) == (4, 4, 0)
    assert "5 agents started, at most 5" in again.out
    assert "prompt.txt" in shown.out
    dry = typed(home, f"run ralph --objective x --dry-run -- {agent}")
    assert (dry.exit, "no agent is started (dry run)" in dry.out) == (0, True)
