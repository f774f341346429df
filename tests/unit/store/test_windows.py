"""Windows of budgets: where they begin, what they are called, and that they only go forward."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwarden.store.windows import FOREVER, Per, Window, first_instant, window_of

BERLIN = "Europe/Berlin"
SAO_PAULO = "America/Sao_Paulo"
BEIRUT = "Asia/Beirut"
ST_JOHNS = "America/St_Johns"
ZONES = ["UTC", BERLIN, SAO_PAULO, BEIRUT, ST_JOHNS, "America/Havana", "Pacific/Apia", "Australia/Lord_Howe"]


def at(zone: str, *parts: int, fold: int = 0) -> float:
    """A moment by what clocks in a zone show."""
    year, month, day, hour, minute = (*parts, 0, 0)[:5]
    return datetime(year, month, day, hour, minute, tzinfo=ZoneInfo(zone), fold=fold).timestamp()


@pytest.mark.parametrize(
    ("per", "now", "name", "frees_at"),
    [
        ("day", (2026, 11, 30, 0, 0), "2026-11-30", (2026, 12, 1)),
        ("day", (2026, 11, 30, 23, 59), "2026-11-30", (2026, 12, 1)),
        ("week", (2026, 11, 30, 0, 0), "2026-W49", (2026, 12, 7)),
        ("week", (2026, 11, 29, 23, 59), "2026-W48", (2026, 11, 30)),
        ("week", (2027, 1, 3, 12, 0), "2026-W53", (2027, 1, 4)),
        ("week", (2024, 12, 30, 0, 0), "2025-W01", (2025, 1, 6)),
        ("month", (2026, 11, 30, 23, 59), "2026-11", (2026, 12, 1)),
        ("month", (2026, 12, 31, 0, 0), "2026-12", (2027, 1, 1)),
        ("month", (2028, 2, 29, 5, 0), "2028-02", (2028, 3, 1)),
    ],
)
def test_a_window_begins_at_midnight_where_the_budget_is(
    per: Per, now: tuple[int, ...], name: str, frees_at: tuple[int, ...]
) -> None:
    for zone in (BERLIN, "America/New_York", "Pacific/Kiritimati"):
        assert window_of(per, zone, at(zone, *now)) == Window(name, at(zone, *frees_at))


def test_the_same_moment_lies_in_other_days_elsewhere() -> None:
    now = at("UTC", 2026, 11, 30, 23, 30)
    assert window_of("day", "UTC", now).name == "2026-11-30"
    assert window_of("day", BERLIN, now).name == "2026-12-01"


def test_a_budget_without_windows_is_never_freed() -> None:
    assert window_of("forever", "UTC", 0.0) == Window(FOREVER, None)


def test_days_on_which_clocks_change_have_23_and_25_hours() -> None:
    for first, hours in (((2026, 3, 29), 23), ((2026, 10, 25), 25), ((2026, 10, 26), 24)):
        window = window_of("day", BERLIN, at(BERLIN, *first))
        assert window.frees_at is not None
        assert window.frees_at - at(BERLIN, *first) == hours * 3600


@pytest.mark.parametrize(("zone", "day", "before"), [(SAO_PAULO, (2018, 11, 4), 3), (BEIRUT, (2022, 3, 27), 26)])
def test_a_day_without_midnight_begins_when_clocks_jump_over_it(
    zone: str, day: tuple[int, int, int], before: int
) -> None:
    begins = at(zone, *day, 1, 0)
    assert window_of("day", zone, begins - 0.001).frees_at == begins
    assert window_of("day", zone, begins - 0.001).name == f"{day[0]}-{day[1]:02d}-{before:02d}"
    assert window_of("day", zone, begins).name == f"{day[0]}-{day[1]:02d}-{day[2]:02d}"


def test_a_day_that_a_zone_left_out_is_no_window() -> None:
    zone = "Pacific/Apia"
    assert window_of("day", zone, at(zone, 2011, 12, 29, 23)) == Window("2011-12-29", at(zone, 2011, 12, 31))


def test_a_midnight_that_comes_twice_begins_the_day_once() -> None:
    zone = "America/Havana"
    first, second = at(zone, 2022, 11, 6, 0, 30), at(zone, 2022, 11, 6, 0, 30, fold=1)
    assert second - first == 3600
    assert window_of("day", zone, first) == window_of("day", zone, second)
    assert window_of("day", zone, at(zone, 2022, 11, 5, 12)).frees_at == at(zone, 2022, 11, 6)


def test_an_hour_that_comes_again_after_midnight_belongs_to_the_new_day() -> None:
    """In St. John's clocks went back at one minute past midnight, into the day before."""
    first, again = at(ST_JOHNS, 2010, 11, 6, 23, 30), at(ST_JOHNS, 2010, 11, 6, 23, 30, fold=1)
    assert window_of("day", ST_JOHNS, first).name == "2010-11-06"
    assert window_of("day", ST_JOHNS, again).name == "2010-11-07"


@given(
    zone=st.sampled_from(ZONES),
    per=st.sampled_from(["day", "week", "month"]),
    now=st.floats(min_value=-(2**31), max_value=2**32),
    later=st.floats(min_value=0, max_value=100 * 86400),
)
def test_windows_only_go_forward_and_end_where_the_next_begins(zone: str, per: Per, now: float, later: float) -> None:
    window, after = window_of(per, zone, now), window_of(per, zone, now + later)
    assert window.frees_at is not None
    assert window.frees_at > now
    assert (window.name < after.name) == (now + later >= window.frees_at)
    following = window_of(per, zone, window.frees_at)
    assert following.name > window.name


@given(zone=st.sampled_from(ZONES), now=st.integers(min_value=0, max_value=2**31))
def test_clocks_first_show_what_they_show_now_at_this_moment_or_before(zone: str, now: int) -> None:
    wall = datetime.fromtimestamp(now, ZoneInfo(zone)).replace(tzinfo=None, fold=0)
    first = first_instant(wall, ZoneInfo(zone))
    assert first <= now
    assert datetime.fromtimestamp(first, ZoneInfo(zone)).replace(tzinfo=None, fold=0) == wall


@pytest.mark.parametrize(
    "zone",
    ["", "Europe", "Europe/Berln", "../../etc/passwd", "/usr/share/zoneinfo/UTC", "localtime", "posixrules",
     "right/UTC", "posix/UTC", "a\0b", "x" * 5000],
)  # fmt: skip
def test_what_is_no_zone_is_refused_with_a_sentence(zone: str) -> None:
    for per in ("day", "forever"):
        with pytest.raises(ValueError, match=r"^there is no time zone '.*'; write an IANA name, such as UTC or Eur"):
            window_of(per, zone, 0.0)
