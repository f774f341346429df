"""When schedules are due, also where clocks change; and what is no cron expression."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwarden.store.cron import check_cron, next_after_missed, next_time

BERLIN = "Europe/Berlin"


def at(*parts: int, zone: str = BERLIN, fold: int = 0) -> float:
    year, month, day, hour, minute = (*parts, 0, 0)[:5]
    return datetime(year, month, day, hour, minute, tzinfo=ZoneInfo(zone), fold=fold).timestamp()


def times(cron: str, after: float, count: int, zone: str = BERLIN) -> list[str]:
    """The next times, as clocks show them, with their offset from UTC in hours."""
    shown = []
    for _ in range(count):
        after = next_time(cron, zone, after)
        shown.append(datetime.fromtimestamp(after, ZoneInfo(zone)).strftime("%d. %H:%M %z"))
    return shown


def test_the_next_time_is_later_than_the_moment_that_is_given() -> None:
    due = at(2026, 11, 30, 3, 0)
    assert next_time("0 3 * * *", BERLIN, due - 0.001) == due
    assert next_time("0 3 * * *", BERLIN, due) == due + 86400
    assert next_time("0 3 * * *", BERLIN, due + 0.5) == due + 86400


def test_months_and_weekdays_have_names_and_sunday_two_numbers() -> None:
    after = at(2026, 11, 30, 12)
    assert next_time("0 3 * JAN mon-fri", BERLIN, after) == at(2027, 1, 1, 3)
    assert next_time("0 3 * * sun", BERLIN, after) == at(2026, 12, 6, 3)
    assert next_time("0 3 * * 7", BERLIN, after) == next_time("0 3 * * 0", BERLIN, after) == at(2026, 12, 6, 3)


def test_either_day_is_enough_when_both_are_given() -> None:
    assert times("0 3 15 * mon", at(2026, 12, 8), 3) == ["14. 03:00 +0100", "15. 03:00 +0100", "21. 03:00 +0100"]


def test_february_29_is_found_across_a_century_that_skips_it() -> None:
    assert next_time("0 0 29 2 *", "UTC", at(2096, 3, 1, zone="UTC")) == at(2104, 2, 29, zone="UTC")


def test_a_time_that_clocks_jump_over_is_due_once_at_the_jump() -> None:
    assert times("30 2 * * *", at(2026, 3, 28, 12), 2) == ["29. 03:00 +0200", "30. 02:30 +0200"]


def test_all_times_of_one_jump_are_due_together() -> None:
    assert times("*/20 * * * *", at(2026, 3, 29, 1, 30), 3) == [
        "29. 01:40 +0100", "29. 03:00 +0200", "29. 03:20 +0200",
    ]  # fmt: skip


def test_a_time_that_comes_twice_is_due_once_the_first_time() -> None:
    assert times("30 2 * * *", at(2026, 10, 25, 1), 2) == ["25. 02:30 +0200", "26. 02:30 +0100"]
    assert times("30 2 * * *", at(2026, 10, 25, 2, 10, fold=1), 1) == ["26. 02:30 +0100"]


def test_an_hour_that_comes_twice_makes_no_run_the_second_time() -> None:
    assert times("*/30 * * * *", at(2026, 10, 25, 1, 45), 4) == [
        "25. 02:00 +0200", "25. 02:30 +0200", "25. 03:00 +0100", "25. 03:30 +0100",
    ]  # fmt: skip


def test_a_daily_time_stays_at_its_hour_across_both_changes() -> None:
    """croniter alone gave 21:00 for the second of these (its issue 25)."""
    assert times("0 20 * * *", at(2022, 10, 30), 3) == ["30. 20:00 +0100", "31. 20:00 +0100", "01. 20:00 +0100"]
    assert times("0 20 * * *", at(2022, 3, 26), 2) == ["26. 20:00 +0100", "27. 20:00 +0200"]


def test_midnight_that_a_zone_skips_is_due_when_it_is_skipped() -> None:
    zone = "America/Sao_Paulo"
    after = at(2018, 11, 3, 12, zone=zone)
    assert times("0 0 * * *", after, 2, zone) == ["04. 01:00 -0200", "05. 00:00 -0200"]


def test_a_day_that_a_zone_left_out_is_due_at_the_jump() -> None:
    zone = "Pacific/Apia"
    assert times("0 12 * * *", at(2011, 12, 29, 11, zone=zone), 3, zone) == [
        "29. 12:00 -1000", "31. 00:00 +1400", "31. 12:00 +1400",
    ]  # fmt: skip


def test_missed_times_make_one_run() -> None:
    due = at(2026, 11, 30, 3)
    assert next_after_missed("0 * * * *", BERLIN, due, due + 0.2) == due + 3600
    assert next_after_missed("0 * * * *", BERLIN, due, due + 5 * 3600 + 60) == due + 6 * 3600
    assert next_after_missed("0 * * * *", BERLIN, due, due - 10) == due + 3600  # the clock of another host lags


@given(
    cron=st.sampled_from(["* * * * *", "*/7 * * * *", "0 3 * * *", "30 2 * * sun", "0 0 1 * *", "59 23 31 12 *"]),
    zone=st.sampled_from(["UTC", BERLIN, "America/St_Johns", "Australia/Lord_Howe", "America/Havana"]),
    after=st.integers(min_value=0, max_value=2**32),
)
def test_nothing_is_due_between_a_moment_and_the_next_time(cron: str, zone: str, after: int) -> None:
    due = next_time(cron, zone, after)
    assert due > after
    assert next_time(cron, zone, (after + due) / 2) == due


@pytest.mark.parametrize(
    "cron",
    ["* * * * *", "*/5 0-23/2 1,15 jan,MAR 1-5", "0 0 29 2 *", " 5  4 * * * ", "0 22-3 * * *", "0 0 * * fri-mon",
     "0-59/59 * * * 7"],
)  # fmt: skip
def test_five_fields_are_taken(cron: str) -> None:
    check_cron(cron)


@pytest.mark.parametrize(
    ("cron", "sentence"),
    [
        ("", "'' is no cron expression of five fields (minute, hour, day of the month, month, weekday); write one"),
        ("* * * *", "is no cron expression of five fields"),
        ("* * * * * *", "is no cron expression of five fields"),
        ("* * * * * * 2027", "is no cron expression of five fields"),
        ("@daily", "is no cron expression of five fields"),
        ("@reboot", "is no cron expression of five fields"),
        ("H * * * *", "'h' cannot stand for the minute in a cron expression; write one"),
        ("R * * * *", "'r' cannot stand for the minute"),
        ("H(0-5)/2 * * * *", "cannot stand for the minute"),
        ("0 0 L * *", "'l' cannot stand for the day of the month"),
        ("0 0 15W * *", "'15w' cannot stand for the day of the month"),
        ("0 0 * * 5#3", "'5#3' cannot stand for the weekday"),
        ("0 0 * * L5", "'l5' cannot stand for the weekday"),
        ("0 0 ? * *", "'?' cannot stand for the day of the month"),
        ("60 * * * *", "'60' cannot stand for the minute"),
        ("0 24 * * *", "'24' cannot stand for the hour"),
        ("0 0 0 * *", "'0' cannot stand for the day of the month"),
        ("0 0 * 13 *", "'13' cannot stand for the month"),
        ("0 0 * mon *", "'mon' cannot stand for the month"),
        ("0 0 * * 8", "'8' cannot stand for the weekday"),
        ("*/0 * * * *", "'*/0' cannot stand for the minute"),
        ("*/90 * * * *", "'*/90' cannot stand for the minute"),
        ("5/15 * * * *", "'5/15' cannot stand for the minute"),
        ("1, * * * *", "'1,' cannot stand for the minute"),
        ("-1 * * * *", "'-1' cannot stand for the minute"),
        ("١ * * * *", "cannot stand for the minute"),
        ("0 0 30 2 *", "no time ever fits the cron expression '0 0 30 2 *'; write one"),
        ("0 0 31 4,6,9,11 *", "no time ever fits"),
        ("1," * 200 + "1 * * * *", "a cron expression has at most 200 characters; write one"),
    ],
)
def test_everything_else_is_refused_with_a_sentence(cron: str, sentence: str) -> None:
    for act in (check_cron, lambda text: next_time(text, "UTC", 0.0)):
        with pytest.raises(ValueError) as caught:  # noqa: PT011 -- the whole sentence is looked at
            act(cron)
        assert sentence in str(caught.value)


def test_an_unknown_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no time zone 'Europe/Berln'"):
        next_time("* * * * *", "Europe/Berln", 0.0)
