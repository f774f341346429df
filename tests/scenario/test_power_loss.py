"""Promises 2, 8 and 9 when a machine loses its power: what SQLite had not synced is lost, all of it or any part."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.crash_host import Place
from support.crash_lab import KILLED, CrashLab, Nursery, judge, nursery, private
from support.crash_scenes import SCENES
from support.power_loss import compiled

PRAGMAS = {"calm": [], "busy": ["wal_autocheckpoint = 3"]}
"""Busy: the log is copied into the database all the time."""
FIRST_WRITE, FIRST_SYNC = 140, 10
"""What comes before makes the tables."""
LAST = {"calm": (230, 20), "busy": (280, 50)}
"""Every scene has at least so many writes and syncs; the first test holds them to that."""
LOST_ALL = 0


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    with nursery(preload=compiled(tmp_path_factory.mktemp("shim"))) as hosts:
        yield hosts


@pytest.mark.parametrize("pace", LAST)
@pytest.mark.parametrize("scene", ["ralph", "fan-out"])
def test_a_run_writes_and_syncs_as_often_as_the_points_say(
    scene: str, pace: str, crashes: CrashLab, swift_path: Path
) -> None:
    place = Place(private(swift_path / "run"))
    assert crashes.run(place, scene, kept=LOST_ALL, pragmas=PRAGMAS[pace]) == 0
    passed = place.passed()
    writes, syncs = LAST[pace]
    assert passed["writes"] >= writes
    assert passed["syncs"] >= syncs


@pytest.mark.parametrize("group", range(8))
def test_a_run_survives_a_loss_of_power_in_the_middle_of_a_commit(
    group: int, crashes: CrashLab, swift_path: Path
) -> None:
    chance = random.Random(group)
    scene, pace = ("ralph", "fan-out")[group % 2], ("calm", "busy")[group // 2 % 2]
    last_write, last_sync = LAST[pace]
    deaths = 0
    for turn in range(10):
        place = Place(private(swift_path / str(turn)))
        kept = LOST_ALL if turn % 3 == 0 else chance.randint(1, 2**31)
        if turn % 2:
            where = {"sync": chance.randint(FIRST_SYNC, last_sync)}
        else:
            where = {"write": chance.randint(1 if turn == 0 else FIRST_WRITE, last_write)}
        ended = crashes.run(place, scene, kept=kept, pragmas=PRAGMAS[pace], **where)
        assert ended in (KILLED, 0)
        deaths += ended == KILLED
        resume(crashes, place, scene, f"{where}, kept {kept}, {pace}")
    assert deaths >= 8


@pytest.mark.parametrize("scene", ["ralph", "fan-out"])
@pytest.mark.parametrize("seam", ["create.committed", "append.committed", "ask.logged", "answer.taken", "send.after"])
def test_what_anybody_has_heard_of_is_there_after_a_loss_of_power(
    scene: str, seam: str, crashes: CrashLab, swift_path: Path
) -> None:
    for at in (1,) if seam == "create.committed" else (3, 8):
        place = Place(private(swift_path / str(at)))
        ended = crashes.run(place, scene, seam=seam, at=at, action="power", kept=LOST_ALL, pragmas=PRAGMAS["busy"])
        assert ended == KILLED
        resume(crashes, place, scene, f"passage {at} of {seam}", is_committed=True)


def test_a_store_that_did_not_sync_would_break_the_promise(crashes: CrashLab, swift_path: Path) -> None:
    """So the tests above can fail."""
    place = Place(private(swift_path / "run"))
    crashes.run(place, "ralph", seam="ask.logged", at=5, action="power", kept=LOST_ALL, pragmas=["synchronous = OFF"])
    found = crashes.held(place)
    held = set() if found is None else {(entry.seq, entry.attempt) for entry in found.asked}
    assert {(ask.seq, ask.attempt) for ask in place.log.asks()} - held


def resume(crashes: CrashLab, place: Place, scene: str, what: str, *, is_committed: bool = False) -> None:
    try:
        before = crashes.held(place)
        found = crashes.resumed(place, scene)
        if found is None:
            assert not is_committed
            assert place.log.asks() == []
        else:
            judge(place, SCENES[scene], found, before=before, trace=crashes.trace(scene), interruptions=1)
    except Exception as error:
        error.add_note(f"the power of {scene} was lost: {what}")
        raise
