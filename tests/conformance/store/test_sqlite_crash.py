"""SQLite alone: whatever part of the last commit reached the disk, all of it is there, or none."""

import asyncio
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from loopwarden.journal.chain import decode_rows
from loopwarden.store.appends import Appended
from loopwarden.store.runs import StoredEntry
from loopwarden.store.shared import Scope
from loopwarden.store.sqlite import open_sqlite
from support.store_lab import CALL, ask, asked, created, ended, hand_over, journal, row_of, started

PAGE_BYTES = 512
"""The smallest that SQLite has: every byte of a commit is tried, so it had better be few."""


async def test_a_log_that_was_cut_at_any_byte_of_the_last_commit_holds_all_of_it_or_nothing(swift_path: Path) -> None:
    path, wal = swift_path / "s.db", swift_path / "s.db-wal"
    with closing(sqlite3.connect(path)) as maker:
        maker.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        maker.execute("VACUUM")
    path.chmod(0o600)
    store = await open_sqlite(path)
    await store.set_scope(Scope(name="a", max_agents=10), "ops")
    await started(store, "r1", scopes=["a"])
    await ask(store, "r1", 1)
    # The database and its log are copied as they lie on the disk; what the log holds is all that was committed.
    database, before = path.read_bytes(), wal.read_bytes()
    results = await asyncio.gather(
        hand_over(store, "r1", 1, ended(1)), hand_over(store, "r1", 1, asked(2), charge=CALL)
    )
    assert all(isinstance(result, Appended) for result in results)
    assert path.read_bytes() == database, "a checkpoint came between, so the last commit is not in the log"
    after = wal.read_bytes()
    await store.close()
    assert after.startswith(before)
    assert len(before) + 3 * PAGE_BYTES < len(after)
    crashed = swift_path / "crashed" / "s.db"
    crashed.parent.mkdir()
    crashed.write_bytes(database)
    log = crashed.with_name("s.db-wal")
    log.write_bytes(after)
    assert _after_a_crash(crashed) == (5, 2, 2)
    for cut in reversed(range(len(before), len(after))):
        os.truncate(log, cut)
        assert _after_a_crash(crashed) == (3, 1, 1), cut


def _after_a_crash(path: Path) -> tuple[int, int, int]:
    """Entries, calls and agents of the budget in a store of which a crash left these files. The chain is proved."""
    path.with_name("s.db-shm").unlink(missing_ok=True)
    # A connection that only reads brings nothing from the log into the database, and leaves the log as it is.
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as reader:
        rows = reader.execute("SELECT seq, body, hash FROM entries ORDER BY seq")
        chained = decode_rows("r1", [StoredEntry(seq=seq, body=body, hash=hash_) for seq, body, hash_ in rows], {})
        [(head_seq, head_hash, calls)] = reader.execute("SELECT head_seq, head_hash, calls FROM runs")
        [(agents,)] = reader.execute("SELECT agents FROM scope_use")
    assert (chained[-1].seq, chained[-1].hash) == (head_seq, head_hash)
    return head_seq, calls, agents


async def test_a_store_goes_on_after_a_crash(swift_path: Path) -> None:
    store = await open_sqlite(swift_path / "s.db")
    await started(store, "r1")
    await ask(store, "r1", 1)
    # What a host that is killed leaves behind: the file and its log, never closed.
    (swift_path / "crashed").mkdir(mode=0o700)
    for name in ("s.db", "s.db-wal"):
        shutil.copy(swift_path / name, swift_path / "crashed" / name)
    await store.close()
    again = await open_sqlite(swift_path / "crashed" / "s.db")
    assert (await row_of(again, "r1")).calls == 1
    assert isinstance(await ask(again, "r1", 2), Appended)
    assert (await journal(again, "r1"))[0].entry == created("r1", queue="nightly")
    await again.close()
