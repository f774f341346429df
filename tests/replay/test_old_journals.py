"""Journals that earlier versions wrote stay readable, and tell of the same run.

The folder `journals` only ever grows. A file in it is never changed and never removed: runs like it rest in stores out
there. A version that writes something new adds an export of its own (`loopwarden export RUN`), and beside it as JSON
what `support.old_journals.essentials` finds in it, read over by a person. A test that fails here is a journal that can
no longer be read: mend the reader, not the file.
"""

from pathlib import Path

import pytest

from loopwarden.journal.export import read_export
from loopwarden_engine.plain import canonical_bytes
from support.old_journals import FOLDER, essentials, expected, old_journals

OLD = list(old_journals())


@pytest.mark.parametrize("path", OLD, ids=[path.stem for path in OLD])
def test_an_old_journal_tells_of_the_same_run(path: Path) -> None:
    found, wanted = essentials(read_export(path)), expected(path)
    assert found == wanted
    assert canonical_bytes(found) == canonical_bytes(wanted)  # 1, 1.0 and true are one to ==


def test_nothing_was_taken_out_of_the_corpus() -> None:
    names = {path.name for path in FOLDER.iterdir()}
    first = {
        "1-cancelled-and-reopened",
        "1-held-on-divergence",
        "1-policies-and-narration",
        "1-ralph-completes",
        "1-takeover-and-redo",
    }
    assert {f"{name}{suffix}" for name in first for suffix in (".journal", ".json")} <= names
    assert {path.stem for path in OLD} == {Path(name).stem for name in names if name.endswith(".json")}
