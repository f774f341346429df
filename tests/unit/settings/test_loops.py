"""Finding loops: entry points of distributions, scripts of script folders, and names that two places claim."""

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from loopwarden import loops
from loopwarden.failures import InvalidRequest
from loopwarden.loops import find_loops
from loopwarden.settings import Settings, load_settings

RALPH = EntryPoint(name="ralph", value="loopwarden_scripts.ralph:loop", group=loops.GROUP)
SCRIPT = "def main(args):\n    return 1\n"


def settings_with(tmp_path: Path, text: str) -> Settings:
    path = tmp_path / "loopwarden.toml"
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
    return load_settings(path)


def entry_points_are(monkeypatch: pytest.MonkeyPatch, *entries: EntryPoint) -> None:
    monkeypatch.setattr(loops, "entry_points", lambda *, group: [entry for entry in entries if entry.group == group])


def test_ralph_is_found_by_its_entry_point() -> None:
    assert find_loops(Settings()).loop("ralph").script.name == "ralph"


def test_settings_of_a_loop_reach_its_contract(tmp_path: Path) -> None:
    found = find_loops(settings_with(tmp_path, "[loops.ralph]\nmax_rounds = 3\n")).loop("ralph")
    assert found.script.contract.max_total_agents(found.script.contract.decode_args({"objective": "x"})) == 3


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        ("[loops.ralph]\nrounds = 3\n", 2, "loops.ralph.rounds"),
        ('[loops.ralph]\nmax_rounds = "3"\n', 2, "loops.ralph.max_rounds"),
        ("[loops.ralph]\nmax_rounds = 5\ndefault_rounds = 6\n", 2, "loops.ralph.max_rounds"),
        ("\n[loops.ralf]\nmax_rounds = 5\n", 2, "loops.ralf"),
    ],
)
def test_wrong_settings_of_a_loop_are_refused_with_key_and_line(tmp_path: Path, text: str, line: int, key: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        find_loops(settings_with(tmp_path, text))
    assert f", line {line}: {key}: " in caught.value.message


def test_a_script_folder_gives_its_scripts_by_name(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "count.py").write_text(SCRIPT)
    (tmp_path / "mine" / "_part.py").write_text(SCRIPT)
    catalogue = find_loops(settings_with(tmp_path, 'script_folders = ["mine"]\n'))
    assert catalogue.loop("count").path == tmp_path / "mine" / "count.py"
    assert "_part" not in catalogue.loops


def test_a_script_that_others_may_write_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "count.py").write_text(SCRIPT)
    (tmp_path / "mine" / "count.py").chmod(0o666)
    catalogue = find_loops(settings_with(tmp_path, 'script_folders = ["mine"]\n'))
    with pytest.raises(InvalidRequest, match=r"count\.py can be written by others"):
        catalogue.loop("count")


def test_a_script_folder_that_is_missing_is_refused_with_key_and_line(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"line 1: script_folders: .*gone cannot be read"):
        find_loops(settings_with(tmp_path, 'script_folders = ["gone"]\n'))


def test_a_name_that_two_places_claim_is_an_error_that_names_both(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "ralph.py").write_text(SCRIPT)
    catalogue = find_loops(settings_with(tmp_path, 'script_folders = ["mine"]\n'))
    with pytest.raises(
        InvalidRequest, match=r"the loop ralph comes from the distribution loopwarden .* and the script folder"
    ):
        catalogue.loop("ralph")


def test_a_broken_entry_point_spoils_its_own_loop_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = EntryPoint(name="broken", value="no_such_module_at_all:loop", group=loops.GROUP)
    no_loop = EntryPoint(name="odd", value="json:dumps", group=loops.GROUP)
    entry_points_are(monkeypatch, RALPH, broken, no_loop)
    catalogue = find_loops(Settings())
    assert catalogue.loop("ralph").name == "ralph"
    with pytest.raises(
        InvalidRequest, match="the loop broken of an unnamed distribution cannot be loaded: ModuleNotFound"
    ):
        catalogue.loop("broken")
    with pytest.raises(InvalidRequest, match="is a function, not a Loop"):
        catalogue.loop("odd")


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidRequest, match="there is no loop 'ralf'; installed: ralph"):
        find_loops(Settings()).loop("ralf")
