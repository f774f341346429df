"""The agent's side of the Agent Client Protocol in plain lines, for the agents of tests. Run by their programs only."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Message = dict[str, Any]
SESSION = "session-1"


def write(data: bytes) -> None:
    """Write everything to standard output."""
    while data:
        data = data[os.write(1, data) :]


def write_bytewise(data: bytes) -> None:
    """Write everything, a byte at a time."""
    for position in range(len(data)):
        write(data[position : position + 1])


def up() -> None:
    """Say in the workspace that it is under way."""
    Path("up").touch()


def complain(words: str) -> None:
    """Write to standard error."""
    os.write(2, f"{words}\n".encode())


class Agent:
    """The conversation, from the agent's side."""

    def __init__(self) -> None:
        self.write = write
        self.asked = 0
        self.prompts = 0
        self.initialized: Message = {"protocolVersion": 1, "agentCapabilities": {}, "authMethods": []}
        self.session: Message = {"sessionId": SESSION}
        self.new_session: Callable[[Message], None] = lambda message: self.result(message, self.session)
        self.prompted: Callable[[Message], None] = self.answer
        self._lines = self._read()

    def _read(self) -> Iterator[Message]:
        with Path("heard.jsonl").open("ab", buffering=0) as heard:
            for line in sys.stdin.buffer:
                heard.write(line)
                yield json.loads(line)

    def send(self, message: Message) -> None:
        """Send one message."""
        self.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def result(self, message: Message, result: object) -> None:
        """Answer a request."""
        self.send({"id": message["id"], "result": result})

    def error(self, message: Message, code: int, words: str, data: object = None) -> None:
        """Answer a request with an error."""
        self.send({"id": message["id"], "error": {"code": code, "message": words, "data": data}})

    def update(self, what: str, *, session: str = SESSION, **fields: Any) -> None:
        """Send an update of the session."""
        params = {"sessionId": session, "update": {"sessionUpdate": what, **fields}}
        self.send({"method": "session/update", "params": params})

    def say(self, text: str, **fields: Any) -> None:
        """Send a piece of a message."""
        self.update("agent_message_chunk", content={"type": "text", "text": text}, **fields)

    def end(self, message: Message, stop_reason: str = "end_turn", **fields: Any) -> None:
        """End the turn."""
        self.result(message, {"stopReason": stop_reason, **fields})

    def answer(self, message: Message) -> None:
        """The good answer, in pieces."""
        for piece in ('Here it is: {"n', '": 1', "} – done ✓"):
            self.say(piece)
        self.end(message)

    def ask(self, method: str, params: Message) -> Message:
        """Ask the client for something, and wait for what it says."""
        self.asked += 1
        number = f"ask-{self.asked}"
        self.send({"id": number, "method": method, "params": params})
        return next(message for message in self._lines if message.get("id") == number)

    def next_notification(self, method: str) -> None:
        """Wait until the client notifies of something."""
        next(message for message in self._lines if message.get("method") == method)

    def serve(self) -> None:
        """Serve the client until it closes the stream."""
        for message in self._lines:
            match message.get("method"):
                case "initialize":
                    self.result(message, self.initialized)
                case "session/new":
                    self.new_session(message)
                case "session/prompt":
                    self.prompts += 1
                    self.prompted(message)
                case "session/cancel" | None:
                    pass
                case _:
                    self.result(message, {})
