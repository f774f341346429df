"""Windows of a budget: where a day, a week or a month begins in a time zone, and what the current one is called.

- A window begins at local midnight; a week begins on Monday, as in ISO 8601. Days of 23 and 25 hours are whole windows.
- Midnight that a zone skips (clocks there go forward at midnight) is the moment at which they do. Midnight that comes
  twice is the first one.
- Windows only go forward: where clocks go back over midnight, the hour before it belongs to the new day the second
  time. So no charge can be made to a window that has ended.
"""

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import Final, Literal, TypeAlias, assert_never
from zoneinfo import ZoneInfo

Per: TypeAlias = Literal["forever", "day", "week", "month"]
FOREVER: Final = "forever"
"""The name of the one window of a budget without windows."""

_FOREIGN_NAMES: Final = ("localtime", "posixrules", "Factory")
"""Files that some machines keep beside the zones. They mean another zone on each, or none."""
_FOREIGN_FOLDERS: Final = ("posix/", "right/")
"""Copies of the zones; those below right/ count leap seconds, which Unix time does not."""
_MAX_SHOWN_CHARS: Final = 100


@dataclass(frozen=True, slots=True)
class Window:
    """The window that a moment lies in."""

    name: str
    """Such as "2026-11-30", "2026-W49", "2026-11", or "forever"."""
    frees_at: float | None
    """Unix time in seconds at which the next window begins; None: never."""


@lru_cache(maxsize=256)
def zone_of(name: str) -> ZoneInfo:
    """The time zone with an IANA name. Raises ValueError, with a sentence, when there is none."""
    try:
        if name in _FOREIGN_NAMES or name.startswith(_FOREIGN_FOLDERS):
            raise ValueError
        return ZoneInfo(name)
    except (ValueError, KeyError, OSError):  # OSError: the name of a folder of zones, or one that is too long
        shown = repr(name[:_MAX_SHOWN_CHARS])
        raise ValueError(f"there is no time zone {shown}; write an IANA name, such as UTC or Europe/Berlin") from None


def window_of(per: Per, zone: str, now: float) -> Window:
    """The window that `now` (Unix time in seconds) lies in. Raises ValueError, with a sentence, for an unknown zone."""
    where = zone_of(zone)
    if per == "forever":
        return Window(FOREVER, None)
    first = _first_day(per, datetime.fromtimestamp(now, where).date())
    following = _following(per, first)
    frees_at = first_instant(_midnight(following), where)
    while frees_at <= now:  # clocks went back over midnight: the new window began before they did
        first, following = following, _following(per, following)
        frees_at = first_instant(_midnight(following), where)
    return Window(_name(per, first), frees_at)


def first_instant(wall: datetime, zone: ZoneInfo) -> float:
    """The first Unix time at which clocks in `zone` show `wall` (without a zone) or have jumped past it."""
    instant = wall.replace(tzinfo=zone, fold=0).timestamp()
    if _shown(instant, zone) == wall:
        return instant
    # The time is skipped. Read with the offset from before the jump it lies after the jump, and the other way round.
    before, after = wall.replace(tzinfo=zone, fold=1).timestamp(), instant
    while after - before > 1:  # offsets change at whole seconds
        middle = float((before + after) // 2)
        if _shown(middle, zone) < wall:
            before = middle
        else:
            after = middle
    return after


def _shown(instant: float, zone: ZoneInfo) -> datetime:
    """What clocks in `zone` show, without their offset."""
    return datetime.fromtimestamp(instant, UTC).astimezone(zone).replace(tzinfo=None, fold=0)


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time())


def _first_day(per: Literal["day", "week", "month"], day: date) -> date:
    match per:
        case "day":
            return day
        case "week":
            return day - timedelta(days=day.weekday())
        case "month":
            return day.replace(day=1)
        case _:
            assert_never(per)


def _following(per: Literal["day", "week", "month"], first: date) -> date:
    """The first day of the window after the one that begins on `first`."""
    match per:
        case "day":
            return first + timedelta(days=1)
        case "week":
            return first + timedelta(days=7)
        case "month":
            return (first + timedelta(days=31)).replace(day=1)
        case _:
            assert_never(per)


def _name(per: Literal["day", "week", "month"], first: date) -> str:
    match per:
        case "day":
            return first.isoformat()
        case "week":
            year, week, _ = first.isocalendar()
            return f"{year:04d}-W{week:02d}"
        case "month":
            return f"{first.year:04d}-{first.month:02d}"
        case _:
            assert_never(per)
