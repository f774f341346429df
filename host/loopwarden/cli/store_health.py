"""Whether the store of the settings can be used from here: which one it is, whether it opens, what its clock says."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any, Final

from loopwarden.display import duration
from loopwarden.failures import StartRefused
from loopwarden.settings import Settings
from loopwarden.store.errors import StoreError
from loopwarden.store.opening import open_store
from loopwarden.store.sql.migrations import NEWEST
from loopwarden.store_settings import shown_store_url

CLOCKS_DIFFER_SECONDS: Final = 2.0
"""Leases, due times and budgets go by the clock of the store alone; a difference above this one confuses readers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreExamined:
    """What was found."""

    place: str
    """Without anything that could be a secret."""
    format: int | None = None
    """None: it was not opened."""
    clock_ahead_seconds: float | None = None
    """How far the clock of the store is ahead of the one of this machine."""
    problems: list[str] = field(default_factory=list)

    @property
    def lines(self) -> list[str]:
        """For a person."""
        lines = [f"{'place':<14} {self.place}"]
        if self.format is None:
            return lines
        lines.append(f"{'format':<14} {self.format}")
        ahead = self.clock_ahead_seconds
        if ahead is not None and abs(ahead) > CLOCKS_DIFFER_SECONDS:
            how = "ahead of" if ahead > 0 else "behind"
            lines.append(
                f"{'clock':<14} {duration(abs(ahead))} {how} the one of this machine; runs go by that of the store, "
                "and times that are typed here, such as --not-before, by this one"
            )
        return lines

    def to_json(self) -> dict[str, Any]:
        """The form of `--json`."""
        return {"place": self.place, "format": self.format, "clockAheadSeconds": self.clock_ahead_seconds}


def examine_store(settings: Settings) -> StoreExamined:
    """Open the store, look at it, close it. Raises nothing: what is wrong is among the problems."""
    store = settings.store
    match store.kind:
        case "none":
            return StoreExamined(place="none: runs keep no journal")
        case "memory":
            return StoreExamined(place="memory: it ends with each command")
        case "sqlite":
            place = str(store.sqlite_path(settings.state_folder))
        case "postgres":
            place = shown_store_url(store.url)
    try:
        ahead = asyncio.run(_clock_ahead(settings))
    except (StartRefused, StoreError) as error:
        return StoreExamined(place=place, problems=[f"the store cannot be used: {error}"])
    return StoreExamined(place=place, format=NEWEST, clock_ahead_seconds=ahead)


async def _clock_ahead(settings: Settings) -> float:
    store = await open_store(settings)
    try:
        before = time.time()
        there = await store.now()
        return round(there - (before + time.time()) / 2, 3)
    finally:
        await store.close()
