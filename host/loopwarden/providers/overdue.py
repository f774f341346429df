"""Ending a program that has given its answer and does not end: some wait for ever for a child or a connection."""

import asyncio
from collections.abc import Callable
from typing import Final

LINGER_SECONDS: Final = 30.0
"""How long a program may be silent after its answer. Longer than any that was measured takes to end."""


class OverdueWatch:
    """Watches one program, from its making until `close`. For the event loop only.

    `has_answered` is asked after each silence; `end` is called once, when it says yes.
    """

    def __init__(self, has_answered: Callable[[], bool], end: Callable[[], None]) -> None:
        self._has_answered = has_answered
        self._end = end
        self._loop = asyncio.get_running_loop()
        self._last_sign = self._loop.time()
        self._timer = self._loop.call_later(LINGER_SECONDS, self._look)
        self.has_ended_it = False

    def sign(self) -> None:
        """The program printed something. Cheap: the timer is left where it is."""
        self._last_sign = self._loop.time()

    def close(self) -> None:
        """The program ended."""
        self._timer.cancel()

    def _look(self) -> None:
        if self._loop.time() - self._last_sign >= LINGER_SECONDS:
            if self._has_answered():
                self.has_ended_it = True
                self._end()
                return
            self._last_sign = self._loop.time()  # nothing changes until it prints more
        self._timer = self._loop.call_at(self._last_sign + LINGER_SECONDS, self._look)
