"""What one run makes its host hold in memory: the prompts and options of its calls, and the replies to them.

A host keeps them until the run has ended, since contracts are asked about them. A script that sends one large text
again and again would else fill the host, where no limit of its own process counts.
"""

import sys
from itertools import chain

from loopwarden.failures import Code, Failure
from loopwarden_engine.plain import JsonValue


class Holding:
    """Counts bytes of memory against `maxHeldBytes`."""

    __slots__ = ("_held_bytes", "max_bytes")

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._held_bytes = 0

    def add(self, *values: JsonValue) -> None:
        """Count values that are kept from here on."""
        self._held_bytes += sum(map(memory_bytes, values))

    def failure(self, line: int | None) -> Failure | None:
        """What ends the run when it holds too much; None while it may go on."""
        if self._held_bytes <= self.max_bytes:
            return None
        return Failure(
            code=Code.MEMORY_LIMIT,
            message=f"the prompts and replies of this run take {self._held_bytes} bytes in the host's memory; "
            f"maxHeldBytes allows {self.max_bytes}",
            line=line,
            details={"maxHeldBytes": self.max_bytes},
        )


def memory_bytes(value: JsonValue) -> int:
    """What plain data takes in memory, every part of it."""
    if isinstance(value, str) or not value:
        return sys.getsizeof(value)
    total = 0
    level: list[JsonValue] = [value]
    # Level by level, mostly in C: a look at each part alone would hold up the host for 25 ms.
    while level:
        objects = [item for item in level if isinstance(item, dict)]
        total += sum(map(sys.getsizeof, chain(level, *objects)))
        lists = [item for item in level if isinstance(item, list)]
        level = [*chain.from_iterable(lists), *chain.from_iterable(map(dict.values, objects))]
    return total
