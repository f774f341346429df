"""Remarks on silence: when they come, and what they say."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from loopwarden.providers.quiet import QuietWatch


@dataclass
class Timer:
    due: float
    callback: Callable[[], None]
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True


@dataclass
class Loop:
    """As much of an event loop as a watch needs, with a time that the test sets."""

    now: float = 1000.0
    timers: list[Timer] = field(default_factory=list)

    def time(self) -> float:
        return self.now

    def call_at(self, due: float, callback: Callable[[], None]) -> Timer:
        self.timers.append(Timer(due, callback))
        return self.timers[-1]

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        return self.call_at(self.now + seconds, callback)

    def go_to(self, now: float) -> None:
        while due := [timer for timer in self.timers if timer.due <= now and not timer.is_cancelled]:
            first = min(due, key=lambda timer: timer.due)
            self.timers.remove(first)
            self.now = max(self.now, first.due)
            first.callback()
        self.now = now


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    found = Loop()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: found)
    return found


def test_remarks_on_silence_come_ever_more_rarely(loop: Loop) -> None:
    said: list[tuple[float, str]] = []
    QuietWatch(lambda words: said.append((loop.now - 1000, words)))
    loop.go_to(1059)
    assert said == []
    loop.go_to(1000 + 3600)
    assert [when for when, _ in said] == [60, 120, 240, 480, 960, 1560, 2160, 2760, 3360]
    assert said[0][1] == "no output yet, silent for 1 min"
    assert said[-1][1] == "no output yet, silent for 56 min"


def test_a_sign_of_life_ends_the_silence(loop: Loop) -> None:
    said: list[tuple[float, str]] = []
    watch = QuietWatch(lambda words: said.append((loop.now - 1000, words)))
    for when in range(1050, 1301, 50):
        loop.go_to(when)
        watch.sign()
    watch.does("runs: make")
    loop.go_to(1500)
    assert said == [
        (360, "still in: runs: make, silent for 1 min"),
        (420, "still in: runs: make, silent for 2 min"),
    ]
    watch.sign()
    loop.go_to(1560)
    assert said[2:] == [(560, "still in: runs: make, silent for 1 min")]
    assert len(loop.timers) == 1


def test_a_closed_watch_says_nothing(loop: Loop) -> None:
    said: list[str] = []
    QuietWatch(said.append).close()
    loop.go_to(9999)
    assert said == []
