"""How often a call waits for the disk: counted by strace, checkpoints of SQLite left out.

Run as a program with a folder, it writes the calls of one run into a store there, between two marks.
"""

import asyncio
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from journal import HOST, new_run, write_pairs
from measuring import NotMeasured

from loopwarden.store.sqlite import open_sqlite

CALLS = 200
MARK = "mark"
_HEADER_BYTES = 32
"""Of the log of SQLite (https://sqlite.org/fileformat2.html#walformat); a frame is written in parts of other sizes."""
_CALL = re.compile(r"\b(write|pwrite64|fsync|fdatasync)\(\d+<([^>]*)>(?:, \"\"\.\.\., (\d+))?")


async def per_call() -> float:
    """Syncs of the log for each call of a single run, checkpoints apart."""
    strace = shutil.which("strace")
    if strace is None:
        raise NotMeasured("strace is not installed")
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace"
        argv = [strace, "-f", "-y", "-s", "0", "-e", "trace=write,pwrite64,fsync,fdatasync", "-o", str(trace)]
        done = subprocess.run([*argv, sys.executable, __file__, folder], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise NotMeasured(f"strace failed: {(done.stderr.strip() or 'it said nothing').splitlines()[-1]}")
        return _commits(trace.read_text(errors="replace")) / CALLS


def _commits(trace: str) -> int:
    """Syncs of the log after which new frames are on the disk.

    A checkpoint syncs the log once more when nothing was written since, and a log that begins anew its header.
    """
    marks = commits = 0
    has_frames = False
    for name, path, size in _CALL.findall(trace):
        if path.endswith(f"/{MARK}"):
            marks += 1
        elif not path.endswith("-wal"):
            continue
        elif name in ("write", "pwrite64"):
            has_frames = has_frames or int(size) != _HEADER_BYTES
        else:
            commits += marks == 1 and has_frames
            has_frames = False
    if marks != 2:
        raise NotMeasured("strace did not see what was written")
    return commits


async def _write(folder: Path) -> None:
    mark = os.open(folder / MARK, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    store = await open_sqlite(folder / "state" / "runs.db")
    await store.create([new_run("one")], owner=HOST)
    os.write(mark, b"begin")
    await write_pairs(store, ["one"], CALLS)
    os.write(mark, b"end")
    await store.close()
    os.close(mark)


if __name__ == "__main__":
    asyncio.run(_write(Path(sys.argv[1])))
