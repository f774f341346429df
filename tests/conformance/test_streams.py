"""Every recorded stream of every agent program, played to the real driver: what it has to make of each.

The recordings are packed in `streams/PROGRAM.tar.xz`, the expectations are the rows of `streams/PROGRAM.jsonl`. To see
the rows of other recordings: `python tests/support/replay.py FOLDER…`.
"""

import asyncio
import functools
import json
import time
from pathlib import Path
from typing import Any

import pytest

from support.corpus import same_json
from support.replay import KEYS, PROGRAMS, STREAMS, Recording, recordings, replay


def rows(program: str) -> list[dict[str, Any]]:
    path = STREAMS / f"{program}.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


ROWS = [
    pytest.param(row, id=f"{row['program']}/{row['scenario']}")
    for path in sorted(STREAMS.glob("*.jsonl"))
    for row in rows(path.stem)
]


@functools.cache
def unpacked(program: str) -> dict[str, Recording]:
    return recordings(program)


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_recording_has_one_row(program: str) -> None:
    found = rows(program)
    assert {row["program"] for row in found} == {program}
    assert sorted(row["scenario"] for row in found) == sorted(unpacked(program))
    assert all(set(row) == set(KEYS) for row in found)
    assert all(row["because"] for row in found)


def test_all_the_recordings_are_there() -> None:
    assert sum(len(unpacked(program)) for program in PROGRAMS) == 231


@pytest.mark.parametrize("row", ROWS)
def test_a_recorded_stream_has_the_outcome_of_its_row(row: dict[str, Any], tmp_path: Path) -> None:
    recording = unpacked(row["program"])[row["scenario"]]
    found = asyncio.run(replay(recording, row["schema"], tmp_path))
    if isinstance(row["resets_at"], str):  # a time of day, on whichever day this test is run
        found["resets_at"] = time.strftime("%H:%M", time.localtime(found["resets_at"]))
    for key in set(KEYS) - {"evidence", "because"}:
        assert same_json(found[key], row[key]), f"{key}: {found}"
    if row["evidence"] is not None:
        assert row["evidence"] in (found["evidence"] or ""), found
