"""Branches of a script as greenlets on one scheduler, and the structural identity of what they do.

Rules kept here (design section 5): one reply is taken, every branch runs until it waits again, then the next reply is
taken, so that what a script does depends on the order of replies alone. One counter per branch numbers `agent`,
`parallel` and `pipeline` alike; branch i of combinator n is `n.i`; the branch is the greenlet that executes.
"""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from greenlet import getcurrent, greenlet

from loopwarden_engine.channel import Channel
from loopwarden_engine.messages import Idle, Reply
from loopwarden_engine.plain import JsonValue

MAX_NESTING: Final = 64


def preload() -> None:
    """Let an exception leave a greenlet. Once, before workers are forked.

    C++ asks for memory when it throws for the first time in a thread. A worker whose memory has run out would die of
    that, without a word, in the very moment in which its MemoryError is on its way.
    """

    def fail() -> None:
        raise RuntimeError

    with suppress(RuntimeError):
        greenlet(fail).switch()


class Branch(greenlet):
    """One line of execution of the script. `depth` counts the combinators around it."""

    prefix: str
    depth: int
    counter: int

    def __init__(self, body: Callable[[JsonValue], None], hub: greenlet, prefix: str, depth: int) -> None:
        super().__init__(body, hub)
        self.prefix = prefix
        self.depth = depth
        self.counter = 0

    def next_key(self) -> str:
        """The identity of the next hook that is numbered."""
        self.counter += 1
        return f"{self.prefix}{self.counter}"


class Scheduler:
    """Runs branches until the root branch is done."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._hub = getcurrent()
        self._ready: deque[tuple[Branch, JsonValue]] = deque()
        self._waiting: dict[int, Branch] = {}
        self._consumed = 0
        self._done = False

    def run(self, root: Callable[[], None]) -> None:
        """Run `root` as the root branch to its end. `root` itself must not raise."""

        def body(_: JsonValue) -> None:
            root()
            self._done = True

        self._ready.append((Branch(body, self._hub, "", 0), None))
        ready, channel = self._ready, self._channel
        while True:
            while ready:
                branch, value = ready.popleft()
                branch.switch(value)
                if self._done:
                    return
            self._resume_with_next_reply(channel)

    def _resume_with_next_reply(self, channel: Channel) -> None:
        message = channel.take_buffered()
        if message is None:
            channel.put(Idle(self._consumed))
            channel.flush()
            message = channel.take()
        if not isinstance(message, Reply):
            raise RuntimeError(f"the host sent {type(message).__name__} where only a reply can come")
        self._consumed += 1
        self._ready.append((self._waiting.pop(message.id), message.value))

    def wait_for_reply(self, branch: Branch, call_id: int) -> JsonValue:
        """Let `branch` wait for the reply to call `call_id`; returns its value."""
        self._waiting[call_id] = branch
        value: JsonValue = self._hub.switch()
        return value

    def fork(self, branch: Branch, key: str, bodies: "list[Callable[[], None]]") -> None:
        """Run each body as a branch of combinator `key`; returns when the last of them is done.

        A body must not raise.
        """
        if not bodies:
            return
        pending = len(bodies)

        def child(body: Callable[[], None]) -> Callable[[JsonValue], None]:
            def run(_: JsonValue) -> None:
                nonlocal pending
                body()
                pending -= 1
                if pending == 0:
                    self._ready.append((branch, None))

            return run

        depth = branch.depth + 1
        # All or none: where memory ends midway, no branch of a combinator that failed may run.
        branches = [Branch(child(body), self._hub, f"{key}.{index}.", depth) for index, body in enumerate(bodies)]
        self._ready.extend([(child_branch, None) for child_branch in branches])
        self._hub.switch()
