"""What `loopwarden vet` says about calls, folders and sizes, and its help page."""

from pathlib import Path

import pytest

from loopwarden_engine.hook_rules import OPTIONS
from support.command_line import Home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def call_words(home: Home, call: str) -> str:
    """What the row of the only call says after its line."""
    (home.root / "one.py").write_text(f"def main(args):\n    return {call}\n")
    (row,) = [line for line in home.run("vet", "one.py").out.splitlines() if line.startswith("  agents ")]
    return row.partition("line 2: ")[2]


NO_SUCH = "no such option, the run ends here"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("agent('x')", "without a schema"),
        ("agent(prompt='x', model='q')", "without a schema; options prompt, model"),
        ("agent('x', schema={})", "with a schema"),
        ("agent('x', **args)", "whether it has a schema cannot be told; options **"),
        ("agent('x', schema={}, **args)", "with a schema; options **"),
        ("agent('x', schema=None, **args)", "without a schema; options **"),
        ("agent(*args)", "without a schema"),
        ("agent(**args)", "whether it has a schema cannot be told; options **"),
        ("agent('x', modle='q')", f"without a schema; options modle; modle: {NO_SUCH}: did you mean model?"),
        (
            "agent('x', temperature=1)",
            f"without a schema; options temperature; temperature: {NO_SUCH}: the options are {', '.join(OPTIONS)}",
        ),
        ("agent()", "without a schema; no prompt, the run ends here"),
        (
            "agent('x', 'y')",
            "without a schema; 2 arguments without a name, the run ends here: give the prompt, and options by name",
        ),
    ],
)
def test_a_call_is_described_with_what_ends_every_run_at_it(home: Home, call: str, words: str) -> None:
    assert call_words(home, call) == words


def test_a_prompt_that_is_given_twice_is_an_option_that_does_not_exist(home: Home) -> None:
    assert f"prompt: {NO_SUCH}" in call_words(home, "agent('x', prompt='y')")


def test_many_calls_are_counted_and_not_all_shown(home: Home) -> None:
    first = "and 580 more calls; --json lists the first 500"
    for count, last in ((21, "and 1 more call; --json lists all"), (600, first)):
        (home.root / "many.py").write_text("def main(args):\n" + "    agent('x')\n" * count)
        lines = [line.strip() for line in home.run("vet", "many.py").out.splitlines()]
        assert sum("without a schema" in line for line in lines) == 20
        assert last in lines
        shown = home.run("vet", "many.py", "--json").json["scripts"][0]
        assert len(shown["calls"]) + shown["moreCalls"] == count


def test_arguments_that_give_no_number_are_said_so(home: Home) -> None:
    (home.root / "own.py").write_text("def main(args):\n    while agent('x'):\n        pass\n")
    assert "  at most    cannot be told with these arguments\n" in home.run("vet", "own.py", "--args-json", "{}").out


def test_a_folder_without_a_loop_is_called_one(home: Home) -> None:
    (home.root / "drafts").mkdir()
    done = home.run("vet", "drafts", "nobody")
    assert done.exit == 2
    assert "drafts: not vetted: the folder drafts holds no loop.py; give the paths of its scripts" in done.out
    assert "nobody: not vetted: there is no loop 'nobody'" in done.out


def test_an_installed_loop_is_meant_before_a_folder_that_holds_none(home: Home) -> None:
    (home.root / "ralph").mkdir()
    assert home.run("vet", "ralph").out.startswith("ralph: accepted\n")


def test_a_script_that_is_too_large_is_told_what_to_do(home: Home) -> None:
    (home.root / "huge.py").write_bytes(b"#" * 600_000)
    first = home.run("vet", "huge.py").out.splitlines()[0]
    assert first == (
        "huge.py:1:1: too-large: the script 'huge' has 600000 bytes; maxSourceBytes allows 524288: "
        "move data out of it, into its arguments"
    )
    (home.root / "huge.py").write_bytes(b"#" * (16 * 1024 * 1024 + 1))
    assert "is larger than 16 MiB: move data out of it, into its arguments" in home.run("vet", "huge.py").out


def test_help_names_arguments_plainly(home: Home) -> None:
    shown = home.run("vet", "--help").out
    assert "Usage: loopwarden vet [OPTIONS] PATH…\n" in shown
    assert "\n  PATH…  A script's file" in shown
    assert home.run("approve", "--help").out.startswith("Usage: loopwarden approve [OPTIONS] [PATH…]\n")
    assert home.run("show", "--help").out.startswith("Usage: loopwarden show [OPTIONS] RUN\n")
