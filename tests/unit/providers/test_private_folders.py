"""Removing private folders, by the host and by the supervisor of an agent whose host is gone."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from loopwarden.providers.home import is_inside
from loopwarden.providers.supervision.removal import remove_tree

KINDS = pytest.mark.parametrize("kind", [Path, os.fsencode], ids=["as the host", "as the supervisor"])


@KINDS
def test_a_tree_goes_whatever_is_in_it_and_links_are_not_followed(tmp_path: Path, kind: Any) -> None:
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
    remove_tree(kind(home))
    assert not home.exists()
    assert (other / "kept").exists()
    assert other.stat().st_mode & 0o777 == 0o750
    remove_tree(kind(home))


@KINDS
def test_a_link_in_the_place_of_a_private_folder_goes_and_is_not_followed(tmp_path: Path, kind: Any) -> None:
    (tmp_path / "other" / "below").mkdir(parents=True)
    (tmp_path / "home").symlink_to(tmp_path / "other")
    remove_tree(kind(tmp_path / "home"))
    assert not (tmp_path / "home").is_symlink()
    assert (tmp_path / "other" / "below").is_dir()


@KINDS
def test_a_tree_goes_however_deep_it_is(tmp_path: Path, kind: Any) -> None:
    """Deeper than Python's stack, the limit of open files, and the longest path that Linux takes."""
    home = tmp_path / "home"
    home.mkdir()
    here = os.open(".", os.O_RDONLY)
    try:
        os.chdir(home)
        for _ in range(1500):
            os.mkdir("a" * 100)
            os.chdir("a" * 100)
            Path("file").touch()
    finally:
        os.fchdir(here)
        os.close(here)
    (home / "credentials").touch()
    (home / "a-file-of-another-name").touch()
    remove_tree(kind(home))
    assert not home.exists()


def test_what_cannot_be_moved_is_left_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a mounted file system, which is not ours."""
    home, rename = tmp_path / "home", os.rename
    for name in ("a/b", "a/mounted", "c"):
        (home / name).mkdir(parents=True)
        (home / name / "file").touch()

    def rename_most(name: Any, *arguments: Any, **keywords: Any) -> None:
        if name == "mounted":
            raise OSError(errno.EBUSY, "busy")
        rename(name, *arguments, **keywords)

    monkeypatch.setattr(os, "rename", rename_most)
    remove_tree(home)
    assert [path.relative_to(home).as_posix() for path in sorted(home.rglob("*"))] == [
        "a", "a/mounted", "a/mounted/file",
    ]  # fmt: skip


@pytest.mark.parametrize("path", ["a", "a/b", ".a/b.json", "a/./b", "..a", "a..", "é"])
def test_a_path_below_the_home(path: str) -> None:
    assert is_inside(path)


@pytest.mark.parametrize("path", ["", ".", "..", "/", "/a", "../a", "a/../../b", "a/..", "a\0b"])
def test_a_path_that_may_leave_the_home(path: str) -> None:
    assert not is_inside(path)
