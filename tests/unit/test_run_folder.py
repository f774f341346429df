"""What a run leaves on disk."""

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from loopwarden.receipt import Receipt, read_receipt
from loopwarden.run_folder import (
    RunFolder,
    RunFolderError,
    default_state_folder,
    find_receipt,
    is_live,
    list_runs,
    make_private_folder,
    write_private_file,
)


def a_receipt(run_id: str = "20260101-a") -> Receipt:
    return Receipt(
        run_id=run_id, script="ralph", script_digest="sha256:0", workspace=None, provider="p", args={}, limits={},
        walls={}, settings_digest=None, continues=None, started_at=1.0, ended_at=2.0, stop_reason="completed",
        standing="complete", sentence="done", result=None, failure=None, verified=None, checks=[], agents_started=0,
        attempts=0, agents=[], last_handoff=None, decided_by=None, problems=[],
    )  # fmt: skip


def modes(folder: Path) -> set[str]:
    return {f"{'d' if path.is_dir() else 'f'}{path.stat().st_mode & 0o777:o}" for path in folder.rglob("*")}


def test_everything_is_for_this_user_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = RunFolder.create(tmp_path / "state", "20260101-a")
        folder.write_prompt(1, "prompt")
        folder.write_output(1, "output")
        folder.write_receipt(a_receipt())
        folder.close()
    finally:
        os.umask(before)
    assert modes(tmp_path) == {"d700", "f600"}


def test_a_receipt_reads_back_as_written_and_nothing_else_is_left(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "20260101-a")
    folder.write_receipt(a_receipt())
    folder.write_receipt(a_receipt())
    folder.close()
    assert read_receipt(folder.path / "receipt.json") == a_receipt()
    assert sorted(path.name for path in folder.path.iterdir()) == ["agents", "live", "receipt.json"]


def test_output_that_a_provider_wrote_is_kept(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "20260101-a")
    (folder.agent_folder(7) / "output.txt").write_text("raw")
    folder.write_output(7, "decoded")
    folder.close()
    assert (folder.path / "agents" / "0007" / "output.txt").read_text() == "raw"


def test_a_run_is_live_until_its_folder_is_closed(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "20260101-a")
    assert is_live(folder.path)
    folder.close()
    folder.close()
    assert not is_live(folder.path)
    assert not is_live(tmp_path / "nowhere")


def test_a_run_that_could_not_begin_leaves_no_folder(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "20260101-a")
    folder.discard()
    assert list_runs(tmp_path) == []


@pytest.mark.parametrize("run_id", ["", "..", "a/b", ".hidden", "x" * 200, "nul\0l"])
def test_an_id_that_is_no_plain_name_makes_no_folder(tmp_path: Path, run_id: str) -> None:
    with pytest.raises(RunFolderError, match="cannot name a run"):
        RunFolder.create(tmp_path, run_id)


def test_a_full_disk_is_a_sentence_with_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    folder = RunFolder.create(tmp_path, "20260101-a")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunFolderError, match="no space left on device; free some space or choose another state folder"):
        folder.write_receipt(a_receipt())
    folder.close()
    assert not (folder.path / "receipt.json").exists()
    assert sorted(path.name for path in folder.path.iterdir()) == ["agents", "live"]


def test_a_state_folder_that_others_may_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(RunFolderError, match="can be written by others"):
        make_private_folder(tmp_path / "open")
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match="is not a folder"):
        make_private_folder(tmp_path / "file")
    with pytest.raises(RunFolderError, match="not a directory"):
        make_private_folder(tmp_path / "file" / "below")


def test_a_private_file_is_never_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("untouched")
    (tmp_path / "file").symlink_to(tmp_path / "target")
    write_private_file(tmp_path / "file", b"new")
    assert (tmp_path / "target").read_text() == "untouched"
    assert (tmp_path / "file").read_bytes() == b"new"


def test_a_run_is_found_by_its_id_a_prefix_or_the_path_of_its_receipt(tmp_path: Path) -> None:
    for run_id in ("20260101-aa", "20260101-ab", "20260202-c"):
        RunFolder.create(tmp_path, run_id).close()
    runs = tmp_path / "runs"
    (runs / "20260202-c" / "receipt.json").touch()
    assert find_receipt(tmp_path, "20260101-aa") == runs / "20260101-aa" / "receipt.json"
    assert find_receipt(tmp_path, "202602") == runs / "20260202-c" / "receipt.json"
    assert find_receipt(tmp_path, str(runs / "20260202-c" / "receipt.json")) == runs / "20260202-c" / "receipt.json"
    assert find_receipt(tmp_path, str(runs / "20260202-c")) == runs / "20260202-c" / "receipt.json"
    with pytest.raises(RunFolderError, match=re.escape("'20260101' begins the ids of 2 runs (20260101-a")):
        find_receipt(tmp_path, "20260101")
    for unknown in ("nothing", "", "no/such/receipt.json", "../runs"):
        with pytest.raises(RunFolderError, match="there is no run"):
            find_receipt(tmp_path, unknown)


def test_the_newest_run_comes_first(tmp_path: Path) -> None:
    for moment, run_id in enumerate(("b", "a", "c")):
        RunFolder.create(tmp_path, run_id).close()
        os.utime(tmp_path / "runs" / run_id, (moment, moment))
    assert [path.name for path in list_runs(tmp_path)] == ["c", "a", "b"]
    assert list_runs(tmp_path / "nothing") == []


def test_the_state_folder_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/var/elsewhere")
    assert default_state_folder() == Path("/var/elsewhere/loopwarden")
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_state_folder() == tmp_path / ".local/state/loopwarden"


def test_a_run_that_vanishes_while_runs_are_listed_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another host discards the folder of a run that could not begin."""
    RunFolder.create(tmp_path, "stays").close()
    RunFolder.create(tmp_path, "vanishes").close()
    is_dir = os.DirEntry.is_dir

    class Entry:
        def __init__(self, entry: "os.DirEntry[str]") -> None:
            self.name = entry.name
            self._entry = entry

        def is_dir(self) -> bool:
            return is_dir(self._entry)

        def stat(self) -> os.stat_result:
            if self.name == "vanishes":
                raise FileNotFoundError
            return self._entry.stat()

    real = os.scandir

    @contextlib.contextmanager
    def scandir(path: Path) -> Iterator[list[Entry]]:
        with real(path) as entries:
            yield [Entry(entry) for entry in entries]

    monkeypatch.setattr(os, "scandir", scandir)
    assert [path.name for path in list_runs(tmp_path)] == ["stays"]


def test_a_user_without_a_home_gets_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ordinary in containers that run with an arbitrary user id."""

    def no_home() -> Path:
        raise RuntimeError

    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(RunFolderError, match="set HOME, or XDG_STATE_HOME"):
        default_state_folder()
