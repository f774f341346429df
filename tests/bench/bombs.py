"""What resource bombs cost their host, family by family: the bombs of the escape matrix, within the shipped memory."""

import asyncio
import dataclasses
import gc
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent.parent))

from loopwarden import Limits
from support.bomb_lab import LIMITS, Measured, bomb_range, rows_by_family

SHIPPED = Limits()
ROOMY = dataclasses.replace(LIMITS, memory_bytes=SHIPPED.memory_bytes, max_held_bytes=SHIPPED.max_held_bytes)


async def family_at_work(rows: Iterable[dict[str, Any]]) -> list[Measured]:
    """Let the bombs of one family go off, one after the other, beside 20 honest runs."""
    gc.collect()
    gc.freeze()
    async with bomb_range(ROOMY) as place:
        return [await place.set_off(row) for row in rows]


def table() -> str:
    """The figures by family, as lines."""
    lines = [f"{'bombs':<18} {'number':>6} {'held ms':>8} {'late ms':>8} {'grown MB':>9}   ended by"]
    for family, rows in rows_by_family().items():
        measured = asyncio.run(family_at_work(rows))
        codes = [one.code or "value" for one in measured]
        ended = ", ".join(f"{code} {codes.count(code)}" for code in sorted(set(codes)))
        held = max(one.held_seconds for one in measured) * 1000
        late = max(one.lag_seconds for one in measured) * 1000
        grown = max(one.grown_bytes for one in measured) / 2**20
        lines.append(f"{family:<18} {len(rows):>6} {held:>8.1f} {late:>8.1f} {grown:>9.1f}   {ended}")
    lines.append("held: by the host itself. late: a timer of the event loop, whoever used the processor meanwhile.")
    return "\n".join(lines) + "\n"
