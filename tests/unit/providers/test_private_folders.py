"""Removing private folders, by the host and by the supervisor of an agent whose host is gone."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from loopwarden.providers.home import is_inside, remove_tree
from loopwarden.providers.supervision import supervisor


def remove_as_supervisor(folder: Path) -> None:
    supervisor.remove_tree(os.fsencode(folder))


@pytest.mark.parametrize("remove", [remove_tree, remove_as_supervisor])
def test_a_tree_goes_whatever_is_in_it_and_links_are_not_followed(
    tmp_path: Path, remove: Callable[[Path], None]
) -> None:
    home, other = tmp_path / "home", tmp_path / "other"
    (home / "a" / "b").mkdir(parents=True)
    (home / "a" / "file").write_text("x")
    (home / "a" / "b" / b"\xff".decode("utf-8", "surrogateescape")).touch()
    os.mkfifo(home / "pipe")
    other.mkdir()
    (other / "kept").touch()
    other.chmod(0o750)
    (home / "link").symlink_to(other)
    (home / "loop").symlink_to(home)
    (home / "dangling").symlink_to(tmp_path / "nowhere")
    for folder in (home / "a" / "b", home / "a"):
        folder.chmod(0o000)
    remove(home)
    assert not home.exists()
    assert (other / "kept").exists()
    assert other.stat().st_mode & 0o777 == 0o750
    remove(home)


@pytest.mark.parametrize("remove", [remove_tree, remove_as_supervisor])
def test_a_link_in_the_place_of_a_private_folder_is_not_followed(
    tmp_path: Path, remove: Callable[[Path], None]
) -> None:
    (tmp_path / "other" / "below").mkdir(parents=True)
    (tmp_path / "home").symlink_to(tmp_path / "other")
    remove(tmp_path / "home")
    assert (tmp_path / "other" / "below").is_dir()


@pytest.mark.parametrize("path", ["a", "a/b", ".a/b.json", "a/./b", "..a", "a..", "é"])
def test_a_path_below_the_home(path: str) -> None:
    assert is_inside(path)


@pytest.mark.parametrize("path", ["", ".", "..", "/", "/a", "../a", "a/../../b", "a/..", "a\0b"])
def test_a_path_that_may_leave_the_home(path: str) -> None:
    assert not is_inside(path)
