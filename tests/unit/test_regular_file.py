"""Files that a person names are opened without waiting for anything."""

import os
from pathlib import Path

import pytest

from loopwarden.regular_file import open_regular_file


def test_a_file_is_read_also_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"text")
    (tmp_path / "link").symlink_to("file")
    for name in ("file", "link"):
        with open_regular_file(tmp_path / name) as file:
            assert file.read(3) == b"tex"


def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for path in (tmp_path / "pipe", tmp_path / "link", Path("/dev/zero")):
        with pytest.raises(OSError, match="it is not a regular file"):
            open_regular_file(path)
    with pytest.raises(IsADirectoryError):
        open_regular_file(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_regular_file(tmp_path / "nothing")
    with pytest.raises(ValueError, match="null"):
        open_regular_file(Path("a\0b"))


def test_no_descriptor_is_left_open_by_a_refusal(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    before = len(os.listdir("/proc/self/fd"))
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(OSError, match=r"pipe|directory"):
            open_regular_file(path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_pipe_that_the_shell_opened_for_this_process_is_read() -> None:
    reading, writing = os.pipe()
    try:
        os.write(writing, b"from the shell")
        os.close(writing)
        for folder in ("/dev/fd", "/proc/self/fd"):
            with open_regular_file(Path(f"{folder}/{reading}")) as file:
                assert file.read() == (b"from the shell" if folder == "/dev/fd" else b"")
    finally:
        os.close(reading)
