"""Promises 2, 8 and 9 when a host is killed: at every seam, at every position of a run.

Each point is a process of its own that dies by kill -9 at the n-th passage of a seam; the run is then taken over here.
"""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.crash_host import Place
from support.crash_lab import KILLED, CrashLab, judge, private
from support.crash_scenes import SCENES
from support.postgres_server import emptied_database

ONCE = ("launcher", "fork.before", "fork.after", "create.written", "create.committed", "go.before", "go.after")
PASSAGES = {
    "ralph": {"append": 19, "send": 10, "read": 19, "ask": 8, "answer": 8},
    "fan-out": {"append": 33, "send": 14, "read": 33, "ask": 12, "answer": 12},
    "second-thoughts": {"append": 19, "send": 8, "read": 15, "ask": 8, "answer": 8},
}
"""How often each seam is passed by a run that nobody interrupts; the first test holds them to it."""
MOMENTS = {
    "append": ("handed", "written", "committed"),
    "send": ("before", "after"),
    "read": ("before", "after"),
    "ask": ("before", "checked", "logged"),
    "answer": ("given", "taken"),
}
DENSE = {"ralph": MOMENTS.keys(), "fan-out": {"ask", "answer"}, "second-thoughts": set()}
"""The seams at which a host is killed at every moment of every passage; at the others, moments take turns."""
Point = tuple[str, int]


def points(scene: str) -> list[Point]:
    """All points of a scene."""
    many = [
        (f"{seam}.{moment}", at)
        for seam, count in PASSAGES[scene].items()
        for number, moment in enumerate(MOMENTS[seam])
        for at in range(1, count + 1)
        if seam in DENSE[scene] or (at + number) % 2 == 0
    ]
    return [*((seam, 1) for seam in ONCE), *many]


def groups(scene: str, of: int) -> list[tuple[str, list[Point]]]:
    """The points of a scene in groups that take about the same time."""
    found = points(scene)
    count = -(-len(found) // of)
    return [(scene, found[first::count]) for first in range(count)]


GROUPS = [*groups("ralph", 14), *groups("fan-out", 14), *groups("second-thoughts", 14)]


def test_there_are_at_least_300_points_in_a_ralph_run_and_a_fan_out() -> None:
    assert len({("ralph", *point) for point in points("ralph")} | {("fan-out", *p) for p in points("fan-out")}) >= 300


@pytest.mark.parametrize("scene", PASSAGES)
def test_a_run_passes_every_seam_as_often_as_the_points_say(scene: str, crashes: CrashLab, swift_path: Path) -> None:
    place = Place(private(swift_path / "run"))
    assert crashes.run(place, scene) == 0
    passed = place.passed()
    for seam, count in PASSAGES[scene].items():
        for moment in MOMENTS[seam]:
            if (seam, moment) != ("read", "before"):
                assert passed[f"{seam}.{moment}"] == count, (seam, moment)
    # Several frames may come in one read.
    assert 1 < passed["read.before"] <= PASSAGES[scene]["read"]
    assert all(passed[seam] == 1 for seam in ONCE)


@pytest.mark.parametrize(("scene", "group"), GROUPS, ids=[f"{scene}-{n}" for n, (scene, _) in enumerate(GROUPS)])
def test_a_run_survives_the_death_of_its_host(
    scene: str, group: Sequence[Point], crashes: CrashLab, swift_path: Path
) -> None:
    for seam, at in group:
        place = Place(private(swift_path / f"{seam}-{at}"))
        ended = crashes.run(place, scene, seam=seam, at=at)
        assert ended == KILLED or (seam == "read.before" and ended == 0), (seam, at)
        before = crashes.held(place)
        found = crashes.resumed(place, scene)
        if found is None:
            # Nobody was told of a run yet.
            assert before is None
            assert place.log.asks() == []
            continue
        try:
            judge(place, SCENES[scene], found, before=before, trace=crashes.trace(scene), interruptions=1)
        except AssertionError as error:
            error.add_note(f"killed at passage {at} of {seam} of {scene}")
            raise


@pytest.mark.parametrize("seed", range(8))
def test_a_run_survives_that_its_second_host_dies_in_the_replay_or_later(
    seed: int, crashes: CrashLab, swift_path: Path
) -> None:
    chance = random.Random(seed)
    deaths = 0
    for turn in range(5):
        scene = chance.choice(list(PASSAGES))
        place = Place(private(swift_path / str(turn)))
        first = chance.choice([point for point in points(scene) if point[0] not in ONCE and point[1] > 2])
        crashes.run(place, scene, seam=first[0], at=first[1])
        before = crashes.held(place)
        assert before is not None
        moments = ["claim.written", "claim.committed", *(f"{seam}.{m}" for seam in MOMENTS for m in MOMENTS[seam])]
        seam = chance.choice(moments)
        at = 1 if seam.startswith("claim") else chance.randint(1, 6)
        place.time.move(3600)
        second = crashes.run(place, scene, run=before.run_id, seam=seam, at=at)
        deaths += second == KILLED
        assert second in (KILLED, 0)
        before = crashes.held(place)
        found = crashes.resumed(place, scene)
        assert found is not None
        try:
            judge(place, SCENES[scene], found, before=before, trace=crashes.trace(scene), interruptions=2)
        except AssertionError as error:
            error.add_note(f"{scene}: killed at passage {first[1]} of {first[0]}, then at passage {at} of {seam}")
            raise
    assert deaths >= 2


@pytest.mark.parametrize("group", range(3))
def test_a_run_in_postgres_survives_the_death_of_its_host(group: int, crashes: CrashLab, swift_path: Path) -> None:
    seams = ("append.handed", "append.written", "append.committed", "ask.checked", "ask.logged", "answer.taken")
    for number, seam in enumerate(seams):
        at = 1 + group * 4 + number % 4
        with emptied_database() as url:
            place = Place(private(swift_path / seam), url)
            assert crashes.run(place, "fan-out", seam=seam, at=at) == KILLED
            before = crashes.held(place)
            found = crashes.resumed(place, "fan-out")
            assert found is not None
            judge(place, SCENES["fan-out"], found, before=before, trace=crashes.trace("fan-out"), interruptions=1)


@pytest.mark.parametrize(
    "point",
    [("check.before", 1), ("check.after", 1), ("check.after", 2), ("append.handed", 19), ("append.written", 19)],
)
def test_checks_of_a_run_whose_host_dies_in_the_middle_of_them_run_again(
    point: Point, crashes: CrashLab, swift_path: Path
) -> None:
    place = Place(private(swift_path / "run"))
    (place.folder / "work").mkdir()
    checks = ["sh -c 'echo first >> ../checked'", "sh -c 'echo second >> ../checked'"]
    assert crashes.run(place, "ralph", seam=point[0], at=point[1], checks=checks) == KILLED
    before = crashes.held(place)
    found = crashes.resumed(place, "ralph")
    assert found is not None
    judge(place, SCENES["ralph"], found, before=before, trace=crashes.trace("ralph"), interruptions=0)
    assert found.outcome.verified is True
    assert (place.folder / "checked").read_text().splitlines()[-2:] == ["first", "second"]


@pytest.mark.parametrize("at", range(1, 7))
def test_without_extra_attempts_what_a_crash_interrupted_is_not_asked_again(
    at: int, crashes: CrashLab, swift_path: Path
) -> None:
    place = Place(private(swift_path / "run"))
    assert crashes.run(place, "strict", seam="ask.logged", at=at) == KILLED
    before = crashes.held(place)
    assert before is not None
    interrupted = {entry.seq for entry in before.asked} - before.ended.keys()
    assert interrupted
    found = crashes.resumed(place, "strict")
    assert found is not None
    judge(place, SCENES["strict"], found, before=before, interruptions=0)
    asks = place.log.asks()
    assert len({ask.seq for ask in asks}) == len(asks) <= 6
    for seq, end in found.ended.items():
        assert (end.failure_class == "interrupted") == (seq in interrupted)


def test_a_call_that_is_interrupted_again_and_again_is_asked_three_times(crashes: CrashLab, swift_path: Path) -> None:
    place = Place(private(swift_path / "run"))
    crashes.run(place, "ralph", seam="ask.logged", at=3)
    for _ in range(2):
        place.time.move(3600)
        before = crashes.held(place)
        assert before is not None
        ended = crashes.run(place, "ralph", run=before.run_id, seam="ask.logged", at=1)
        assert ended == KILLED
    found = crashes.resumed(place, "ralph")
    assert found is not None
    assert found.findings == ()
    assert [(ask.seq, ask.attempt, ask.epoch) for ask in place.log.asks()] == [
        (1, 1, 1), (2, 1, 1), (3, 1, 1), (3, 2, 2), (3, 3, 3),
    ]  # fmt: skip
    assert len({ask.key for ask in place.log.asks() if ask.seq == 3}) == 1
    assert found.ended[3].failure_class == "interrupted"
    assert found.outcome.value == {
        "status": "round-failed", "roundsStarted": 3, "lastReport": found.ended[2].value,
    }  # fmt: skip
