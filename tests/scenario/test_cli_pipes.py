"""A pipe in the place of a file that a person names is refused by every command, and nothing waits for it."""

import os
from pathlib import Path

import pytest

from support.command_line import Home

SCRIPT = "from loopwarden_engine import agent\n\ndef main(args):\n    return agent('x')\n"
NOT_A_FILE = "cannot be read: it is not a regular file"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path)
    (tmp_path / "good.py").write_text(SCRIPT)
    for name in ("pipe.py", "pipe.toml", "pipe.json"):
        os.mkfifo(tmp_path / name)
    return home


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("vet pipe.py", f"the script pipe.py {NOT_A_FILE}"),
        ("approve pipe.py --by ann", f"the script pipe.py {NOT_A_FILE}"),
        ("run pipe.py --max-total-agents 1 --dry-run -- true", f"the script pipe.py {NOT_A_FILE}"),
        ("vet good.py --config pipe.toml", f"the settings file pipe.toml {NOT_A_FILE}"),
        ("doctor --config pipe.toml", f"the settings file pipe.toml {NOT_A_FILE}"),
        ("vet good.py --args @pipe.json", f"the file pipe.json {NOT_A_FILE}"),
        ("run good.py --args-json @pipe.json --max-total-agents 1 -- true", f"the file pipe.json {NOT_A_FILE}"),
        ("show ./pipe.json", f"the receipt pipe.json {NOT_A_FILE}"),
    ],
)
def test_a_pipe_is_refused_and_not_waited_for(home: Home, line: str, sentence: str) -> None:
    done = home.run(*line.split())
    assert sentence in " ".join((done.out + done.err).split())


def test_a_pipe_in_a_script_folder_spoils_its_own_name_only(home: Home) -> None:
    folder = home.root / "scripts"
    folder.mkdir()
    os.mkfifo(folder / "stuck.py")
    (folder / "fine.py").write_text(SCRIPT)
    config = home.settings(f'script_folders = ["{folder}"]\n')
    assert home.run("vet", "fine", "--config", str(config)).exit == 0
    done = home.run("vet", "stuck", "--config", str(config))
    assert (done.exit, NOT_A_FILE in done.out) == (2, True)


def test_a_pipe_in_the_package_of_a_contract_is_refused(home: Home) -> None:
    folder = home.root / "loop"
    folder.mkdir()
    for name, text in (("__init__.py", ""), ("contract.py", ""), ("loop.py", SCRIPT)):
        (folder / name).write_text(text)
    os.mkfifo(folder / "other.py")
    done = home.run("vet", "./loop")
    assert (done.exit, done.out) == (2, "./loop: not vetted: it cannot be read: it is not a regular file\n")


def test_standard_input_is_read_as_a_file_or_as_a_dash(home: Home) -> None:
    (home.root / "loop.py").write_text(SCRIPT.replace("agent('x')", "[agent(p) for p in args['p']]"))
    for name in ("-", "@/dev/stdin"):
        done = home.run_process("vet", "loop.py", "--args", name, stdin=b'{"p": [1, 2]}')
        assert (done.exit, "at most    2 agents" in done.out) == (0, True)
    done = home.run_process("vet", "/dev/stdin", stdin=SCRIPT.encode())
    assert (done.exit, done.out.splitlines()[0]) == (0, "/dev/stdin: accepted")
