"""The lock: one text for the same approvals, strict to read, replaced in one step, out of others' reach."""

import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from loopwarden.failures import InvalidRequest
from loopwarden.lock_file import MAX_LOCK_BYTES, Approval, approvals_in, changing, decode_lock, encode_lock, write_lock
from support.pages import blocks

A, B, C = (f"sha256:{letter * 64}" for letter in "abc")


def approval(**changes: Any) -> Approval:
    given = {
        "name": "votes",
        "source": A,
        "contract": "none",
        "policy": "RestrictedPython 9.0, sha256:x",
        "bound": "agents <= 3",
        "approved_by": "ann",
        "approved_at": datetime(2026, 11, 30, 17, 5, 0, tzinfo=UTC),
    }
    return Approval.model_validate({**given, **changes})


def text(**changes: str) -> str:
    """A lock with one entry, with lines of it changed."""
    lines = encode_lock([approval()]).splitlines()
    return "\n".join(changes.get(line.split(" = ")[0], line) for line in lines) + "\n"


def test_an_entry_has_one_key_a_line_in_one_order() -> None:
    assert encode_lock([approval()]).splitlines()[2:] == [
        "version = 1",
        "",
        "[[script]]",
        'name = "votes"',
        f'source = "{A}"',
        'contract = "none"',
        'policy = "RestrictedPython 9.0, sha256:x"',
        'bound = "agents <= 3"',
        'approved_by = "ann"',
        "approved_at = 2026-11-30T17:05:00Z",
    ]


def test_a_lock_says_above_all_that_it_is_written_anew_with_each_approval() -> None:
    first, second, *others = encode_lock([]).splitlines()
    assert first.startswith("# What may run here")
    assert "in this order, and without comments of yours" in second
    assert others == ["version = 1"]


def test_the_page_shows_an_entry_as_it_is_written() -> None:
    (shown,) = [block.text for block in blocks() if block.text.startswith("[[script]]")]
    keys = [re.sub(r" = .*", "", line) for line in shown.splitlines()[1:]]
    assert keys == list(Approval.model_fields)


def test_entries_are_sorted_by_name_then_source_however_they_come() -> None:
    entries = [approval(name="b"), approval(source=C), approval(source=B, contract=C), approval(name="a")]
    written = encode_lock(entries)
    assert written == encode_lock(reversed(entries))
    assert [(entry.name, entry.source) for entry in decode_lock(written)] == [
        ("a", A),
        ("b", A),
        ("votes", B),
        ("votes", C),
    ]
    assert encode_lock(decode_lock(written)) == written


@pytest.mark.parametrize(
    "name", ['say "x" \\ y', "tab\there\nand a line", "rtl \u202e end", "emoji \U0001f600", "\x7f\u200b"]
)
def test_any_name_comes_back_and_stays_on_its_line(name: str) -> None:
    written = encode_lock([approval(name=name, approved_by=name)])
    assert decode_lock(written) == (approval(name=name, approved_by=name),)
    assert len(written.splitlines()) == len(encode_lock([approval()]).splitlines())
    assert not set(written) & set("\t\u202e\u200b\x7f")


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ("version = 2\n", "version"),
        ("", "version: this key is missing"),
        ("version = 1\nmore = 2\n", "there is no such key"),
        ("version = 1\n[[script]\n", "it is not TOML"),
        ("version = 1\nscript = [" + "[" * 5000, "nested too deep"),
        (text(source='source = "sha256:abc"'), "script[1].source"),
        (text(source=f'source = "{A}\\n"'), "script[1].source"),
        (text(source=f'source = "{A.upper()}"'), "script[1].source"),
        (text(contract='contract = "nothing"'), "script[1].contract"),
        (text(name='name = ""'), "script[1].name"),
        (text(name="name = 3"), "script[1].name"),
        (text(name=f'name = "{"x" * 201}"'), "script[1].name"),
        (text(name='nickname = "x"'), "script[1]"),
        (text(approved_at='approved_at = "2026-11-30T17:05:00Z"'), "script[1].approved_at"),
        (text(approved_at="approved_at = 2026-11-30T17:05:00"), "UTC with whole seconds"),
        (text(approved_at="approved_at = 2026-11-30T17:05:00+01:00"), "UTC with whole seconds"),
        (text(approved_at="approved_at = 2026-11-30T17:05:00.5Z"), "UTC with whole seconds"),
        (text() + text().partition("version = 1\n")[2], "have the same source"),
    ],
)
def test_what_is_no_lock_is_refused_with_its_place(broken: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        decode_lock(broken)


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return tmp_path / "loopwarden.lock"


def test_a_lock_is_written_and_read(lock: Path) -> None:
    write_lock(lock, [approval()])
    assert approvals_in(lock) == (approval(),)
    assert lock.stat().st_mode & 0o777 == 0o644
    assert [path.name for path in lock.parent.iterdir()] == [lock.name]


def test_the_umask_does_not_decide_who_may_write_it(lock: Path) -> None:
    before = os.umask(0)
    try:
        write_lock(lock, [approval()])
    finally:
        os.umask(before)
    assert approvals_in(lock) == (approval(),)


def test_a_lock_behind_a_link_is_replaced_where_it_lies(lock: Path, tmp_path: Path) -> None:
    (tmp_path / "repository").mkdir()
    target = tmp_path / "repository" / "our.lock"
    write_lock(target, [])
    lock.symlink_to(target)
    write_lock(lock, [approval()])
    assert lock.is_symlink()
    assert approvals_in(target) == (approval(),)


@pytest.mark.parametrize("what", ["the lock", "its folder", "the folder of its target"])
def test_a_lock_that_others_may_write_is_not_read(lock: Path, tmp_path: Path, what: str) -> None:
    write_lock(lock, [approval()])
    if what == "the lock":
        lock.chmod(0o666)
    elif what == "its folder":
        tmp_path.chmod(0o777)
    else:
        (tmp_path / "open").mkdir()
        lock.rename(tmp_path / "open" / "target")
        (tmp_path / "open").chmod(0o777)
        lock.symlink_to(tmp_path / "open" / "target")
    with pytest.raises(InvalidRequest, match="can be written by others"):
        approvals_in(lock)


def test_a_lock_is_not_written_into_a_folder_of_everybody(lock: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(InvalidRequest, match="can be written by others"), changing(lock):
        raise AssertionError("it must not come to this")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda lock: lock.mkdir(), "is not a file"),
        (lambda lock: os.mkfifo(lock, 0o600), "is not a file"),
        (lambda lock: lock.write_bytes(b"version = 1\n# \xff\n"), "line 2 is not UTF-8 text"),
        (lambda lock: lock.write_bytes(b"#" * (MAX_LOCK_BYTES + 1)), "larger than 1024 KiB"),
        (lambda lock: lock.symlink_to(lock), "cannot be used"),
    ],
)
def test_a_lock_that_cannot_be_read_is_refused_with_a_sentence(lock: Path, make: Any, words: str) -> None:
    make(lock)
    with pytest.raises(InvalidRequest, match=words):
        approvals_in(lock)


def test_a_folder_that_is_not_there_is_made_only_for_a_lock_whose_place_nobody_named(tmp_path: Path) -> None:
    folder = tmp_path / "loks"
    words = re.escape(f"its folder {folder} does not exist; make it first")
    with pytest.raises(InvalidRequest, match=words), changing(folder / "x.lock"):
        raise AssertionError("it must not come to this")
    assert not folder.exists()
    with changing(folder / "x.lock", makes_folder=True):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_a_lock_that_is_not_there_is_told_from_one_that_cannot_be_used(lock: Path) -> None:
    with pytest.raises(FileNotFoundError):
        approvals_in(lock)


def test_a_lock_that_cannot_be_replaced_stays_as_it_was(lock: Path) -> None:
    write_lock(lock, [approval()])
    many = [approval(name=f"{number:06d}", bound="x" * 1000) for number in range(1500)]
    with pytest.raises(InvalidRequest, match="larger than 1024 KiB; withdraw"):
        write_lock(lock, many)
    with pytest.raises(InvalidRequest, match="cannot be used"):
        write_lock(lock / "below", [])
    assert approvals_in(lock) == (approval(),)
    assert [path.name for path in lock.parent.iterdir()] == [lock.name]
