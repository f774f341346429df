"""The line between the host and an agent: bytes of a program on one side, messages of the protocol's SDK on the other.

The agent is hostile until decoded. What reaches the SDK is a message in the form of JSON-RPC 2.0, within the caps; all
else is counted here and left out, since the SDK ends its reading on some of it and prints stack traces about the rest.
"""

import asyncio
import json
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from loopwarden.failure_class import FailureClass
from loopwarden.providers.acp.failures import TalkFailed
from loopwarden.providers.dialect import Trouble
from loopwarden.providers.records import RecordReader
from loopwarden.providers.streams import INPUT_WAITING_BYTES, InputNotTaken
from loopwarden_engine.plain import JsonObject

MAX_AGENT_REQUESTS: Final = 10_000
"""Requests of one agent that are answered. Each answer waits in memory until the agent reads it."""
MAX_ID_CHARS: Final = 1000


class AgentWire:
    """What the SDK calls a transport. `feed` takes the output of the program, `write` sends to its input.

    `sign` is called for all output, whatever it holds.
    """

    def __init__(self, sign: Callable[[], None]) -> None:
        self.write: Callable[[bytes], None] | None = None
        self.problem: str | None = None
        """Why the host stopped talking to the agent; continues "the agent program …"."""
        self.strays = 0
        """Messages that are no JSON-RPC, and answers to nothing that was asked."""
        self.reader = RecordReader()
        self._sign = sign
        self._arrived: deque[JsonObject] = deque()
        self._news = asyncio.Event()
        self._ended = False
        self._open_ids: set[int] = set()
        self._agent_requests = 0

    def notes(self) -> tuple[str, ...]:
        """What was left out."""
        notes = self.reader.counts.notes()
        if self.strays:
            what = "1 message" if self.strays == 1 else f"{self.strays} messages"
            notes = (*notes, f"its output held {what} outside of the protocol, which were left out")
        return notes

    # ---- the side of the program

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the program."""
        self._sign()
        self._take(self.reader.feed(data))

    def end(self) -> None:
        """The program ended. May be called again."""
        if not self._ended:
            self._take(self.reader.finish())
            self._ended = True
            self._news.set()

    def _take(self, records: list[JsonObject]) -> None:
        if self._ended or not records:
            return
        for record in records:
            if self._is_message(record):
                self._arrived.append(record)
            else:
                self.strays += 1
        if self._agent_requests > MAX_AGENT_REQUESTS:
            self._hang_up(f"sent more than {MAX_AGENT_REQUESTS} requests")
        self._news.set()

    def _is_message(self, record: JsonObject) -> bool:
        number = record.get("id")
        method = record.get("method")
        if isinstance(method, str):
            if "id" not in record:
                return True
            self._agent_requests += 1
            return number is None or type(number) is int or (isinstance(number, str) and len(number) <= MAX_ID_CHARS)
        # Not isinstance: True is 1, and would be taken for the answer to request 1.
        if method is not None or type(number) is not int or number not in self._open_ids:
            return False
        self._open_ids.discard(number)
        return "result" in record or isinstance(record.get("error"), dict)

    def _hang_up(self, problem: str) -> None:
        self.problem = self.problem or problem
        self._arrived.clear()
        self._ended = True
        self._news.set()

    # ---- the side of the SDK

    async def send(self, message: dict[str, Any]) -> None:
        """Send a message. Never waits. Raises `TalkFailed` for a request that is too long to be sent."""
        # A lone surrogate can only have come from the agent, as the number of its request.
        data = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n"
        if "method" in message and "id" in message:
            if len(data) > INPUT_WAITING_BYTES:
                reason = f"cannot take a message of {len(data)} bytes; at most {INPUT_WAITING_BYTES} can be sent"
                raise TalkFailed(Trouble(failure_class=FailureClass.PROMPT_TOO_LONG, reason=reason))
            self._open_ids.add(message["id"])
        assert self.write is not None
        try:
            self.write(data)
        except InputNotTaken as error:
            self._hang_up(str(error))

    async def receive(self) -> dict[str, Any] | None:
        """The next message; None when there will be no more."""
        while not self._arrived:
            if self._ended:
                return None
            self._news.clear()
            await self._news.wait()
        return self._arrived.popleft()

    async def close(self) -> None:
        """Nothing to close: the streams belong to the process."""
