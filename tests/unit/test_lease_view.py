"""The host's own view of its lease, and the one that supervisors of agents keep."""

import sys
from dataclasses import dataclass

import pytest

from loopwarden.lease_view import LeaseView, boot_seconds
from loopwarden.providers.supervision import lease as supervised


@dataclass
class HandClock:
    """A clock that tests set."""

    now: float = 100.0

    def __call__(self) -> float:
        """The time that was set."""
        return self.now


def test_a_lease_is_alive_until_it_ends_and_the_margin_counts() -> None:
    clock = HandClock()
    lease = LeaseView(130.0, clock=clock)
    assert (lease.left_seconds, lease.is_alive(), lease.is_alive(29.5), lease.is_alive(30.0)) == (
        30.0,
        True,
        True,
        False,
    )
    clock.now = 130.0
    assert not lease.is_alive()
    clock.now = 140.0
    assert lease.left_seconds == -10.0


def test_a_renewal_moves_the_end_forward_and_never_back() -> None:
    lease = LeaseView(130.0, clock=HandClock())
    seen: list[float] = []
    lease.subscribe(lambda: seen.append(lease.ends_at))
    for ends_at in (140.0, 135.0, 140.0, 150.0):
        lease.renew(ends_at)
    assert seen == [140.0, 150.0]
    assert lease.ends_at == 150.0


def test_a_renewal_that_comes_after_the_end_brings_the_lease_back() -> None:
    """The store has granted it, so no other host had claimed the run."""
    clock = HandClock(131.0)
    lease = LeaseView(130.0, clock=clock)
    lease.renew(130.5)
    assert (lease.is_alive(), lease.lapses) == (False, 1)
    lease.renew(161.0)
    assert (lease.is_alive(), lease.lapses) == (True, 2)
    lease.renew(170.0)
    lease.renew(165.0)
    assert lease.lapses == 2


def test_who_unsubscribes_is_not_told_any_more_also_when_told_at_that_moment() -> None:
    lease = LeaseView(0.0)
    seen: list[str] = []
    end_second = lease.subscribe(lambda: seen.append("second"))
    end_second()

    def once() -> None:
        seen.append("once")
        end_once()

    end_once = lease.subscribe(once)
    lease.subscribe(lambda: seen.append("always"))
    lease.renew(1.0)
    lease.renew(2.0)
    end_once()
    assert seen == ["once", "always", "always"]


def test_agents_have_half_of_the_kill_grace_to_wind_down() -> None:
    assert LeaseView(0.0).wind_down_seconds == 2.5
    assert LeaseView(0.0, kill_grace_seconds=1.0).wind_down_seconds == 0.5


def test_the_clock_of_a_lease_is_one_that_supervisors_read_too() -> None:
    assert sys.platform == "linux"
    before = boot_seconds()
    left_seconds = supervised.Lease(before + 50.0, 0.0).left_seconds()
    assert 50.0 - (boot_seconds() - before) <= left_seconds <= 50.0


def test_a_supervisor_looks_at_the_clock_twice_a_second_and_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = HandClock()
    monkeypatch.setattr("loopwarden.providers.supervision.lease.time.clock_gettime", lambda _: clock.now)
    lease = supervised.Lease(100.25, 1.0)
    assert (lease.wait_ms(), lease.is_over()) == (251, False)
    lease.extend(130.0)
    lease.extend(120.0)
    assert (lease.left_seconds(), lease.wait_ms()) == (30.0, 501)
    clock.now = 3700.0  # the machine slept
    assert (lease.wait_ms(), lease.is_over()) == (0, True)


def test_an_agent_without_a_lease_is_waited_for_without_end() -> None:
    lease = supervised.Lease(supervised.ENDLESS, 0.0)
    assert (lease.wait_ms(), lease.is_over(), lease.left_seconds()) == (None, False, supervised.ENDLESS)
