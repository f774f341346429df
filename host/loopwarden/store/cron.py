"""When a schedule is due: cron expressions of five fields, in a time zone.

croniter finds the next time that clocks on a wall show; which moment that is in a zone is decided here, since
croniter's own answers near changes of the clock were wrong in several of its releases (its issues 25 and 191). So:

- A time that the zone skips is due once, at the moment at which clocks jump past it. All times of one jump are due at
  that one moment, so they make one run.
- A time that the zone has twice is due once, the first time.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

from croniter import CroniterError, croniter

from loopwarden.store.windows import first_instant, zone_of

_MAX_CHARS: Final = 200
_MAX_SHOWN_CHARS: Final = 100
_EXAMPLE: Final = 'write one such as "0 3 * * mon-fri"'
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    lowest: int
    highest: int
    names: tuple[str, ...] = ()


_FIELDS: Final = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of the month", 1, 31),
    _Field("month", 1, 12, _MONTHS),
    _Field("weekday", 0, 7, _WEEKDAYS),
)
_ITEM: Final = re.compile(
    r"(?:\*|(?P<first>\w{1,3})-(?P<last>\w{1,3}))(?:/(?P<step>\d{1,2}))?|(?P<only>\w{1,3})", re.ASCII
)
"""`*` or a range, both with a step if wanted, or one value."""
_LONGEST_YEARS: Final = 50
"""Longer than any gap that the calendar makes: February 29 on one weekday comes every 40 years at the latest."""
_SOME_DAY: Final = datetime(2024, 1, 1)  # noqa: DTZ001 -- a time on a wall, in no zone


def check_cron(cron: str) -> None:
    """Refuse what is no cron expression of five fields, or has no time at all. Raises ValueError, with a sentence.

    A field is `*`, a value or a range of values, the first and the last with a step if wanted (`*/5`, `8-18/2`), or a
    list of these with commas. Months and weekdays may be English names of three letters; Sunday is 0 and 7. When both
    days are given, either is enough. What croniter takes beyond that (seconds, years, `@daily`, `H`, `R`, `L`, `W`,
    `#`) is refused: it means other things elsewhere, or other things each time.
    """
    _checked(cron)


def next_time(cron: str, zone: str, after: float) -> float:
    """The first moment later than `after` at which `cron` is due in `zone`, both in Unix time in seconds.

    Raises ValueError, with a sentence, for what is no cron expression or no zone.
    """
    fields, where = _checked(cron), zone_of(zone)
    wall = datetime.fromtimestamp(after, UTC).astimezone(where).replace(tzinfo=None, fold=0)
    while True:
        wall = _next_on_the_wall(fields, wall)
        instant = first_instant(wall, where)
        if instant > after:  # else `after` lies in an hour that comes for the second time: this was due in the first
            return instant


def next_after_missed(cron: str, zone: str, due_at: float, now: float) -> float:
    """When a schedule that was due at `due_at` is due again, once its run is made at `now`.

    Times that passed meanwhile are left out: however many were missed, they make one run.
    """
    return next_time(cron, zone, max(due_at, now))


@lru_cache(maxsize=256)
def _checked(cron: str) -> str:
    if len(cron) > _MAX_CHARS:
        raise ValueError(f"a cron expression has at most {_MAX_CHARS} characters; {_EXAMPLE}")
    texts = cron.lower().split()
    if len(texts) != len(_FIELDS):
        shown = repr(cron[:_MAX_SHOWN_CHARS])
        wanted = "minute, hour, day of the month, month, weekday"
        raise ValueError(f"{shown} is no cron expression of five fields ({wanted}); {_EXAMPLE}")
    for text, field in zip(texts, _FIELDS, strict=True):
        if not all(_fits(item, field) for item in text.split(",")):
            shown = repr(text[:_MAX_SHOWN_CHARS])
            raise ValueError(f"{shown} cannot stand for the {field.name} in a cron expression; {_EXAMPLE}")
    checked = " ".join(texts)
    try:
        _next_on_the_wall(checked, _SOME_DAY)
    except CroniterError:
        shown = repr(cron[:_MAX_SHOWN_CHARS])
        raise ValueError(f"no time ever fits the cron expression {shown}; {_EXAMPLE}") from None
    return checked


def _fits(text: str, field: _Field) -> bool:
    """Whether one item of the list that a field is can stand there."""
    item = _ITEM.fullmatch(text)
    if item is None:
        return False
    values = [value for value in item.group("first", "last", "only") if value is not None]
    return all(value in field.names or _is_within(value, field.lowest, field.highest) for value in values) and (
        item["step"] is None or _is_within(item["step"], 1, field.highest)
    )


def _is_within(text: str, lowest: int, highest: int) -> bool:
    return text.isdecimal() and lowest <= int(text) <= highest


def _next_on_the_wall(cron: str, wall: datetime) -> datetime:
    """The next time after `wall` that clocks show; neither has a zone."""
    start = wall.replace(microsecond=0)  # croniter counts in fractions, and loses some
    found: datetime = croniter(cron, start, max_years_between_matches=_LONGEST_YEARS).get_next(datetime)
    return found
