"""Types as a user meets them: mypy --strict and pyright on the examples of the pages, against the installed package."""

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest

from loopwarden import AgentRequest, JsonObject, Script, run_sync
from loopwarden.loop_package import write_loop_package
from support.pages import blocks, example

SCRIPT = '''"""A script with types; the hooks have theirs."""

from loopwarden_engine import agent, log, parallel, phase, pipeline

GRADE = {
    "type": "object",
    "properties": {"grade": {"type": "integer", "minimum": 1, "maximum": 6}},
    "required": ["grade"],
}


def stage(previous: str, item: str, index: int) -> str | None:
    return agent(f"{index}: {previous} {item}", label=item)


def main(args: dict[str, list[str]]) -> list[str]:
    phase("Grading")
    texts = parallel([lambda name=name: agent(f"Grade {name}.") for name in args["names"]])
    log(", ".join(text.strip() for text in texts if text is not None))
    grade = agent("Grade all.", schema=GRADE, provider=None)
    return [f"grade: {None if grade is None else grade['grade']}", *pipeline(args["names"], stage)]
'''

WRONG = """
from loopwarden import AgentRequest, CommandProvider, Contract, Host, Limits, Script
from loopwarden_engine import agent
from loopwarden_scripts import ralph


async def reply(request: AgentRequest) -> int:
    return request.prompts  # wrong


async def main(host: Host) -> None:
    agent("x", lable="y")  # wrong
    agent("x").strip()  # wrong
    await host.run(ralph.script, ralph.Args(objective="x"), max_agents=3)  # wrong
    outcome = await host.run(ralph.script, ralph.Args(objective="x"), max_total_agents=None)
    outcome.value.rounds_started  # wrong
    Limits(50)  # wrong
    Host(providers={"default": reply})  # wrong
    CommandProvider(argv=["x"], shell=True)  # wrong
    script: Script[int, int] = ralph.script  # wrong
    Contract()  # wrong
"""

CHECKERS = {
    "mypy": ("mypy", "--strict", "--no-error-summary", "--output", "json"),
    "pyright": ("pyright", "--outputjson", "--pythonpath", sys.executable),
}


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, set[int]]]:
    """By checker: file to the lines at which it found an error. Both run once, side by side."""
    folder = tmp_path_factory.mktemp("user")
    write_program(folder)
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.py") if path.name != "loop.py")
    running = {
        name: subprocess.Popen(
            [sys.executable, "-m", *argv, *files], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for name, argv in CHECKERS.items()
    }
    output = {name: process.communicate(timeout=110) for name, process in running.items()}
    for name, (out, errors) in output.items():
        assert out.strip(), (name, errors)
    return {
        "mypy": mypy_lines(output["mypy"][0]),
        "pyright": pyright_lines(output["pyright"][0], folder),
    }


def write_program(folder: Path) -> None:
    """A user's project: every Python example that is no script, a typed script, a new loop, a file full of mistakes."""
    package = folder / "votes"
    package.mkdir()
    for block, file in (("contract", "contract.py"), ("package", "__init__.py")):
        (package / file).write_text(example(f"write-a-loop/votes-{block}"))
    for block in blocks():
        name = block.name or ""
        # Scripts of pages have no types, and mypy --strict demands them of everybody.
        is_script = name == "README/loop" or name in ("write-a-loop/first", "write-a-loop/language")
        if block.language == "python" and not is_script and not name.startswith("write-a-loop/votes"):
            (folder / f"{name.replace('/', '_').replace('-', '_')}.py").write_text(block.text)
    new = folder / "new"
    new.mkdir()
    write_loop_package("drafts", new)
    for part in ("src/drafts", "tests/test_drafts.py"):  # to where both checkers look for a module
        (new / "drafts" / part).rename(folder / Path(part).name)
    rmtree(new)
    (folder / "script.py").write_text(SCRIPT)
    (folder / "wrong.py").write_text(WRONG)


def mypy_lines(out: str) -> dict[str, set[int]]:
    """Errors in mypy's JSON lines."""
    found: dict[str, set[int]] = defaultdict(set)
    for row in map(json.loads, out.splitlines()):
        if row["severity"] == "error":
            found[row["file"]].add(row["line"])
    return dict(found)


def pyright_lines(out: str, folder: Path) -> dict[str, set[int]]:
    """Errors in pyright's JSON."""
    report: dict[str, Any] = json.loads(out)
    assert report["summary"]["filesAnalyzed"] > 10
    found: dict[str, set[int]] = defaultdict(set)
    for row in report["generalDiagnostics"]:
        if row["severity"] == "error":
            found[str(Path(row["file"]).relative_to(folder))].add(row["range"]["start"]["line"] + 1)
    return dict(found)


@pytest.mark.parametrize("checker", CHECKERS)
def test_a_users_program_is_clean_and_every_wrong_use_is_reported(
    checker: str, reports: dict[str, dict[str, set[int]]]
) -> None:
    wrong = {number for number, line in enumerate(WRONG.splitlines(), start=1) if line.endswith("# wrong")}
    assert reports[checker] == {"wrong.py": wrong}


def test_the_typed_script_runs_as_it_is_checked() -> None:
    async def reply(request: AgentRequest) -> str | JsonObject:
        return f"{request.label} " if request.schema is None else {"grade": 2}

    outcome = run_sync(Script.from_text(SCRIPT), {"names": ["Ann", "Bo"]}, providers={"default": reply})
    assert outcome.raise_for_failure().value == ["grade: 2", "Ann ", "Bo "]
