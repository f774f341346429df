"""Large pieces of work, one for each turn of the event loop: what many agents bring at once must not hold up a run."""

import asyncio
from collections import deque
from itertools import islice
from typing import Any, Final

from loopwarden.provider import AgentReply

_LARGE_CHARS: Final = 32_768
LARGE_PARTS: Final = 512
"""A value of more parts is large."""


class Pace:
    """Hands out turns of the event loop, first come, first served, for all runs of a host."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def own_turn(self) -> None:
        """Return in a turn of the event loop in which nobody else returns from here."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        if len(self._waiting) == 1:
            loop.call_soon(self._next)
        await turn

    def _next(self) -> None:
        turn = self._waiting[0]
        if not turn.done():
            turn.set_result(None)
        asyncio.get_running_loop().call_soon(self._over)

    def _over(self) -> None:
        """The waiter works in this turn. The next turn is for whatever else is ready, and only then comes the next."""
        self._waiting.popleft()
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._next)


def is_large(reply: object) -> bool:
    """Say whether decoding and delivering a reply takes long enough for a turn of its own. Never raises."""
    text, value = (reply.text, reply.value) if isinstance(reply, AgentReply) else ("", reply)
    if isinstance(text, str) and len(text) > _LARGE_CHARS:
        return True
    if value is None:
        return False
    if type(value) is str:
        return len(value) > _LARGE_CHARS
    chars = parts = 0
    waiting: list[Any] = [value]
    while waiting:
        item = waiting.pop()
        parts += 1
        if type(item) is str:
            chars += len(item)
        elif type(item) is list or type(item) is tuple:
            waiting += islice(item, LARGE_PARTS + 1)
        elif type(item) is dict:
            waiting += islice(item.values(), LARGE_PARTS + 1)
            chars += sum(len(name) for name in islice(item, LARGE_PARTS + 1) if type(name) is str)
        if parts > LARGE_PARTS or chars > _LARGE_CHARS:
            return True
    return False
