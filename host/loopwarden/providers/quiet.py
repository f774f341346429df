"""What is told of an agent while it works: what it does, and, so that nobody has to wonder, that it is silent."""

import asyncio
from collections.abc import Callable
from typing import Final, Self

from loopwarden.provider import AgentRequest

FIRST_REMARK_SECONDS: Final = 60.0
LONGEST_PAUSE_SECONDS: Final = 600.0


class QuietWatch:
    """Remarks on the silence of one agent after a minute, and then ever more rarely, from its making until `close`.

    For the event loop only.
    """

    def __init__(self, remark: Callable[[str], None]) -> None:
        self._remark = remark
        self._loop = asyncio.get_running_loop()
        self._last_sign = self._loop.time()
        self._due_seconds = FIRST_REMARK_SECONDS
        self._activity = "no output yet"
        self._timer = self._loop.call_later(self._due_seconds, self._look)

    def sign(self) -> None:
        """The agent gave a sign of life. Cheap: the timer is left where it is."""
        self._last_sign = self._loop.time()
        self._due_seconds = FIRST_REMARK_SECONDS

    def does(self, activity: str) -> None:
        """What the agent does now, in words."""
        self._activity = f"still in: {activity}"

    def close(self) -> None:
        """Say nothing more."""
        self._timer.cancel()

    def _look(self) -> None:
        silent_seconds = self._loop.time() - self._last_sign
        if silent_seconds >= self._due_seconds:
            silence = f"silent for {round(silent_seconds / 60)} min"
            self._remark(f"{self._activity}, {silence}")
            self._due_seconds += min(self._due_seconds, LONGEST_PAUSE_SECONDS)
        self._timer = self._loop.call_at(self._last_sign + self._due_seconds, self._look)


class LifeSigns:
    """Tells the request of every sign of life, and in words what the agent does whenever it does another thing."""

    def __init__(self, request: AgentRequest) -> None:
        self._request = request
        self._quiet = QuietWatch(request.remark)
        self._last_words: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._quiet.close()

    def sign(self) -> None:
        """Any output, on whichever stream, is a sign of life."""
        self._request.alive()
        self._quiet.sign()

    def does(self, words: str) -> None:
        """What the agent does now."""
        if words != self._last_words:
            self._last_words = words
            self._quiet.does(words)
            self._request.progress(words)
