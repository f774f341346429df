"""One file that holds a whole journal: the exact bytes come back, and a hostile file gets a sentence."""

import io
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loopwarden.journal import export
from loopwarden.journal.chain import MAX_INLINE_BYTES
from loopwarden.journal.export import ExportError, ExportWriter, exporting, read_export, write_export
from loopwarden.store.runs import StoredEntry
from support.journals import Journal, begun

NO_JOURNAL = "the file is no journal of Loopwarden: `loopwarden export RUN` writes one"


def write(journal: Journal, target: Path | io.BytesIO) -> None:
    write_export(
        target,
        run_id=journal.run_id,
        rows=journal.rows,
        blobs=journal.blobs,
        head_seq=len(journal.rows),
        head_hash=journal.head,
    )


def whole() -> Journal:
    return begun().asked(1).ended(1, "ü" * MAX_INLINE_BYTES).log("line\nbreak \u2028 and 😀")


def lines(journal: Journal | None = None) -> list[dict[str, Any]]:
    file = io.BytesIO()
    write(whole() if journal is None else journal, file)
    return [json.loads(line) for line in file.getvalue().splitlines()]


def refused(content: bytes | list[Any]) -> str:
    if isinstance(content, list):
        content = b"".join(json.dumps(line).encode() + b"\n" for line in content)
    with pytest.raises(ExportError) as caught:
        read_export(io.BytesIO(content))
    return str(caught.value)


def test_the_exact_bytes_come_back(tmp_path: Path) -> None:
    journal, path = whole(), tmp_path / "run.journal"
    write(journal, path)
    found = read_export(path)
    assert (found.run_id, found.codec, found.head_seq, found.head_hash) == ("run-1", "plain", 5, journal.head)
    assert found.rows == journal.rows
    assert found.blobs == journal.blobs
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_bytes_that_are_no_text_come_back_too() -> None:
    rows = [StoredEntry(seq=1, body=bytes(range(256)), hash="sha256:x"), StoredEntry(seq=2, body=b"", hash="")]
    file = io.BytesIO()
    write_export(file, run_id="r", rows=rows, blobs={"d": b"\xff\x00"}, head_seq=2, head_hash="", codec="sealed")
    file.seek(0)
    found = read_export(file)
    assert (found.rows, found.blobs, found.codec) == (rows, {"d": b"\xff\x00"}, "sealed")


def test_a_file_is_read_by_people_too() -> None:
    head, first, *_ = lines()
    assert head["format"] == "loopwarden-journal"
    assert json.loads(first["text"])["entry"] == "created"


def test_a_file_that_exists_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    path.write_text("mine")
    with pytest.raises(ExportError, match=r"run\.journal exists already; name a new file$"):
        write(whole(), path)
    assert path.read_text() == "mine"


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"run\.journal cannot be written: no such file or directory$"):
        write(whole(), tmp_path / "nowhere" / "run.journal")


def test_a_file_that_could_not_be_finished_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"

    def fail_in_the_middle() -> None:
        with exporting(path) as file:
            ExportWriter(file, run_id="r", head_seq=1, head_hash="h")
            raise RuntimeError("the store is gone")

    with pytest.raises(RuntimeError, match="the store is gone"):
        fail_in_the_middle()
    assert not path.exists()


def test_a_journal_that_no_file_may_hold_is_not_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    monkeypatch.setattr(export, "MAX_FILE_BYTES", 100_000)
    with pytest.raises(ExportError, match=r"^the journal is too large for one file: "):
        write(whole(), path)
    assert not path.exists()


def test_what_is_no_regular_file_is_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path):
        with pytest.raises(ExportError, match=r"(it is not a regular file|is a directory)$"):
            read_export(path)
    with pytest.raises(ExportError, match=r"nothing cannot be read: no such file or directory$"):
        read_export(tmp_path / "nothing")


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"\xff\xfe", b"[]\n", b"{}\n", b'{"format":"other"}\n', b"[" * 9999 + b"\n"]
)
def test_what_is_no_journal_is_named(content: bytes) -> None:
    assert refused(content) == NO_JOURNAL


def test_a_newer_file_is_named() -> None:
    head, *rest = lines()
    assert refused([head | {"version": 2, "more": 1}, *rest]) == (
        "the file was exported by a newer Loopwarden (version 2 of the file); this one reads up to 1"
    )


def test_a_file_that_was_cut_off_anywhere_is_found() -> None:
    file = io.BytesIO()
    write(begun().phase("p"), file)
    content = file.getvalue()
    for size in range(len(content)):
        assert "the file" in refused(content[:size])
    assert refused(content[:-1]) == "the file was cut off in line 5"
    assert refused(content[: content.rindex(b'{"rows"')]) == (
        "the file was cut off: its last line is missing, after line 4"
    )


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda it: it[0].update(version=True), "line 1 has no version"),
        (lambda it: it[0].update(head={}), "line 1 has no head"),
        (lambda it: it[0].update(head={"seq": "1", "hash": ""}), "line 1 has a seq that is no count"),
        (lambda it: it[0].update(runId=7), "line 1 has a runId that is no text"),
        (lambda it: it[0].update(more=7), "line 1 must have exactly the keys codec, format, head, runId, version"),
        (lambda it: it[1].update(seq=1.0), "line 2 has a seq that is no count"),
        (lambda it: it[1].update(hash=None), "line 2 has a hash that is no text"),
        (lambda it: it[1].update(more=1), "line 2 must have exactly the keys hash, seq, text"),
        (lambda it: it[1].pop("text"), "line 2 must have exactly the keys hash, seq, text"),
        (lambda it: it[1].update(base64=it[1].pop("text")), "line 2 holds no base64 where it says so"),
        (lambda it: it[1].update(base64=it[1].pop("text") and "é"), "line 2 holds no base64 where it says so"),
        (lambda it: it[-1].update(rows=9), "line 8 says 9 rows and 1 blobs; the file holds 5 and 1"),
        (lambda it: it.append({}), "line 8 is the last one, but more follows"),
        (lambda it: it.insert(-1, it[-2]), "line 8 holds a blob that was there before"),
        (lambda it: it.insert(1, [1]), "line 2 cannot be read: the text is not a JSON object"),
        (lambda it: it.insert(1, {}), "line 2 must have exactly the keys blobs, rows"),
    ],
)
def test_a_file_that_is_damaged_is_named_by_line(change: Callable[[list[Any]], None], problem: str) -> None:
    content: list[Any] = list(lines())
    change(content)
    assert refused(content) == f"the file is damaged: {problem}"


def test_a_file_or_a_line_that_is_too_long_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    content = lines()
    monkeypatch.setattr(export, "MAX_LINE_BYTES", 50_000)
    assert refused(content) == "the file is damaged: line 7 is longer than 0 MiB"
    monkeypatch.undo()
    monkeypatch.setattr(export, "MAX_FILE_BYTES", 50_000)
    assert refused(content) == "the file is larger than 0 MiB"
