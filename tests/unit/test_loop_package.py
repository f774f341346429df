"""The package that `loopwarden new` writes: its names, its files, and that it overwrites nothing."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from loopwarden import InvalidRequest, loop_package
from loopwarden.loop_package import MAX_NAME_CHARS, refuse_name, write_loop_package
from support.command_line import Home

LONGEST = "a-" * (MAX_NAME_CHARS // 2 - 1) + "ab"
SHAPE = "cannot be the name of a loop; give at most 50 small letters, digits and single - or _ between them"


@pytest.mark.parametrize("name", ["x", "drafts", "review-answers", "review_answers", "round-2", LONGEST])
def test_a_name_of_words_is_taken(name: str) -> None:
    refuse_name(name, ["ralph"])


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("", SHAPE), ("Drafts", SHAPE), ("2nd", SHAPE), ("a--b", SHAPE), ("_a", SHAPE), ("a-", SHAPE), ("a.b", SHAPE),
        ("../a", SHAPE), ("/a", SHAPE), ("a b", SHAPE), ("é", SHAPE), ("a\n", SHAPE), (LONGEST + "c", SHAPE),
        ("class", "'class' is a word of Python's own"),
        ("match", "'match' is a word of Python's own"),
        ("json", "'json' would hide the Python module json"),
        ("pydantic", "'pydantic' would hide the Python module pydantic"),
        ("loopwarden", "'loopwarden' would hide the Python module loopwarden"),
        ("tests", "'tests' would hide the Python module tests"),
        ("ralph", "there is a loop 'ralph' on this machine already"),
        ("my-loop", "there is a loop 'my_loop' on this machine already"),
    ],
)  # fmt: skip
def test_a_name_that_cannot_be_used_is_refused_with_a_sentence(name: str, sentence: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(sentence)):
        refuse_name(name, ["ralph", "my_loop"])


@pytest.mark.parametrize("kind", ["file", "folder with a file", "link to nothing"])
def test_what_exists_is_never_overwritten(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "drafts"
    match kind:
        case "file":
            target.write_text("mine")
        case "folder with a file":
            target.mkdir()
            (target / ".hidden").touch()
        case _:
            target.symlink_to(tmp_path / "nothing")
    before = [(path, path.lstat().st_mtime_ns) for path in tmp_path.rglob("*")]
    with pytest.raises(InvalidRequest, match="drafts exists already; nothing was written"):
        write_loop_package("drafts", tmp_path)
    assert [(path, path.lstat().st_mtime_ns) for path in tmp_path.rglob("*")] == before


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "drafts").mkdir()
    assert len(write_loop_package("drafts", tmp_path)) == 7


@pytest.mark.parametrize(
    "name",
    ["pytest", "hypothesis", "loopwarden", "loopwarden-engine", "contract", "loop", "tests", "pydantic", "hatchling"],
)
def test_what_the_package_needs_is_no_name_whether_it_is_installed_or_not(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_package, "find_spec", lambda _: None)
    with pytest.raises(InvalidRequest, match="would hide the Python module"):
        refuse_name(name, [])


@pytest.mark.parametrize("is_there", [False, True])
def test_a_package_that_cannot_be_written_whole_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_there: bool
) -> None:
    if is_there:
        (tmp_path / "drafts").mkdir()
    write_text = Path.write_text

    def full(path: Path, text: str, **more: str) -> int:
        if path.name == "contract.py":
            raise OSError(28, "No space left on device")
        return write_text(path, text, **more)

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(InvalidRequest, match="drafts cannot be written: no space left on device"):
        write_loop_package("drafts", tmp_path)
    assert list(tmp_path.rglob("*")) == ([tmp_path / "drafts"] if is_there else [])


@pytest.mark.parametrize("name", ["x", LONGEST])
def test_the_files_are_formatted_and_clean_by_the_settings_that_ruff_ships(tmp_path: Path, name: str) -> None:
    write_loop_package(name, tmp_path)
    for words in (("format", "--check"), ("check",), ("check", "--select", "B,I,UP")):
        argv = [sys.executable, "-m", "ruff", *words, "--isolated", "--no-cache", "."]
        done = subprocess.run(argv, cwd=tmp_path / name, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout


def test_the_files_name_the_loop_and_nothing_of_this_machine(tmp_path: Path) -> None:
    files = write_loop_package("review-answers", tmp_path)
    folder = tmp_path / "review-answers"
    assert sorted(path for path in folder.rglob("*") if path.is_file()) == sorted(files)
    texts = {str(path.relative_to(folder)): path.read_text(encoding="utf-8") for path in files}
    for name, text in texts.items():
        assert "$" not in text, name
        assert str(tmp_path) not in text, name
        assert sys.prefix not in text, name
    project = tomllib.loads(texts["pyproject.toml"])["project"]
    assert project["name"] == "review-answers"
    assert project["entry-points"] == {"loopwarden.scripts": {"review-answers": "review_answers:loop"}}
    assert (folder / "src" / "review_answers" / "loop.py").is_file()


# ---- the command


def test_the_command_says_what_it_wrote_and_what_comes_next(tmp_path: Path) -> None:
    home = Home(tmp_path)
    done = home.run("new", "drafts", "--in", str(home.workspace))
    assert (done.exit, done.err) == (0, "")
    folder = home.workspace / "drafts"
    assert f"the loop drafts, with 7 files in {folder}:" in done.out
    for line in (
        f"python -m pytest {folder}",
        f"loopwarden vet {folder}/src/drafts",
        f"pip install -e {folder}",
    ):
        assert f"  {line} " in done.out


def test_the_command_gives_the_files_to_programs(tmp_path: Path) -> None:
    home = Home(tmp_path)
    shown = home.run("new", "drafts", "--json", cwd=home.workspace).json
    assert (shown["exit"], shown["name"], shown["folder"]) == (0, "drafts", "drafts")
    assert {home.workspace / file for file in shown["files"]} == {
        path for path in home.workspace.rglob("*") if path.is_file()
    }


def test_the_command_refuses_what_cannot_be_made_with_exit_2(tmp_path: Path) -> None:
    home = Home(tmp_path)
    gone = home.run("new", "drafts", "--in", str(tmp_path / "gone"))
    assert (gone.exit, gone.err) == (
        2,
        f"loopwarden: {tmp_path}/gone/drafts cannot be made: no such file or directory\n",
    )
    taken = home.run("new", "ralph", "--json")
    assert (taken.exit, taken.json["failure"]["code"]) == (2, "INVALID_REQUEST")
    assert home.run("new").exit == 2
