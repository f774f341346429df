"""The reference of the command line lists every command and option as --help has them."""

from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from loopwarden.cli.app import Line, build_app
from support.pages import ROOT, between, table

PAGE = "docs/command-line.md"
HELP = "--help"
GROUPS = {
    "budget": ("show", "set", "log"),
    "queue": ("list", "pause", "limit"),
    "schedule": ("add", "list", "pause"),
}
"""Commands with commands of their own; of those that take the same, one."""


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without the settings of whoever runs the tests."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def command(*words: str) -> Any:
    """A command of the real application."""
    found: Any = get_command(build_app(Line.read(words)))
    for word in words:
        found = found.commands[word]
    return found


def rows(found: Any) -> dict[str, tuple[str, str]]:
    """Name of each parameter to the row that shows it."""
    shown = {}
    for item in found.params:
        names = ", ".join(f"`{name}`" for name in (*item.opts, *item.secondary_opts))
        is_argument = item.param_type_name == "argument"
        if is_argument:
            names = f"`{item.metavar}`"
        elif not item.is_flag and not item.count:
            names = names[:-1] + f" {item.metavar}`"
        shown[item.name] = (names.replace("|", "\\|"), item.help or "")
    return shown


def page_table(found: Any, *, without: Any = None) -> str:
    """The table of one command; without the options that another has too."""
    left_out = rows(without).keys() if without is not None else set()
    return table(("option", "what it does"), *(row for name, row in rows(found).items() if name not in left_out))


def commands_of_ralph_and_file(folder: Path) -> tuple[Any, Any, Any]:
    """Ralph, a script of one's own, and what both have."""
    file = folder / "mine.py"
    file.write_text("def main(args):\n    return 1\n")
    ralph, own = command("run", "ralph"), command("run", str(file))
    shared = command("run", "ralph")
    shared.params = [item for item in ralph.params if item.name in rows(own)]
    return ralph, own, shared


def parts(folder: Path) -> dict[str, str]:
    """Every generated part of the page."""
    ralph, own, shared = commands_of_ralph_and_file(folder)
    plain = (
        "continue", "resume", "host", "runs", "show", "events", "cancel", "rerun", "replay", "verify", "export",
        "prune", "providers", "new", "vet", "approve", "doctor", "demo",
    )  # fmt: skip
    return {
        "root": page_table(get_command(build_app(Line.read([])))),
        "run": page_table(shared),
        "run-ralph": page_table(ralph, without=shared),
        "run-file": page_table(own, without=shared),
        "submit": page_table(command("submit", "ralph"), without=ralph),
        **{name: page_table(command(name)) for name in plain},
        **{f"{group}-{name}": page_table(command(group, name)) for group, names in GROUPS.items() for name in names},
    }


def test_the_page_of_the_command_line_lists_every_option_as_help_has_it(tmp_path: Path) -> None:
    for name, text in parts(tmp_path).items():
        assert between(PAGE, name) == text, name


def test_the_page_of_the_command_line_has_a_section_for_every_command() -> None:
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    sections = [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")]
    assert sorted(sections) == sorted(command().commands)
