"""A script run in this process by the engine's own language, hooks and scheduler, with every `agent()` call counted."""

import json
import random
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from loopwarden_engine.hooks import Hooks
from loopwarden_engine.language import CompiledScript, script_namespace
from loopwarden_engine.messages import Reply, Start, encode_from_worker
from loopwarden_engine.scheduler import Scheduler

MAX_CALLS = 300
MAX_TICKS = 4_000
MAX_ITEMS = 1_000


class Stopped(BaseException):
    """The run goes no further: it is over, or has made as many calls as are looked at."""


class CountingChannel:
    """Stands where the host would be: answers calls in any order, with anything."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.calls = 0
        self._waiting: list[int] = []

    def put(self, message: Any) -> None:
        self.put_encoded(encode_from_worker(message))

    def put_encoded(self, payload: bytes) -> None:
        message = json.loads(payload)
        if message["type"] == "call":
            self.calls += 1
            self._waiting.append(message["id"])
            if self.calls >= MAX_CALLS:
                raise Stopped

    def flush(self) -> None:
        """Everything is sent at once."""

    def take_buffered(self) -> None:
        return None

    def take(self) -> Reply:
        if not self._waiting:
            raise Stopped
        call = self._waiting.pop(self.chance.randrange(len(self._waiting)))
        return Reply(call, self.chance.choice(["text", None, {"items": [1, 2, 3], "n": 4}, "a,b,c"]))

    def wait_for_end(self) -> NoReturn:
        raise Stopped


def counted_calls(compiled: CompiledScript, args: dict[str, Any], chance: random.Random) -> int:
    """How many calls the script makes; it is stopped at `MAX_CALLS`.

    A script may call `tick()`, which does nothing but to stop it after `MAX_TICKS`, or when it has become large.
    """
    channel: Any = CountingChannel(chance)
    scheduler = Scheduler(channel)
    start = Start(source="", args=args, max_items_per_call=200, max_narration=1000, max_frame_bytes=1 << 20)
    hooks = Hooks(channel, scheduler, start)
    namespace = script_namespace({**hooks.namespace(), "tick": _ticker()})

    def root() -> None:
        try:
            exec(compiled.code, namespace)
            hooks.opened = True
            main: Any = namespace["main"]
            main(json.loads(json.dumps(args)))
        except (Exception, Stopped):  # a script's own end, or the end of looking at it
            return

    with suppress(Stopped):
        scheduler.run(root)
    return int(channel.calls)


def _ticker() -> Callable[[], None]:
    left = MAX_TICKS

    def tick() -> None:
        nonlocal left
        left -= 1
        frame = sys._getframe(1)
        if left < 0 or _is_large(frame.f_locals) or _is_large(frame.f_globals):
            raise Stopped

    return tick


def _is_large(names: dict[str, Any]) -> bool:
    """Whether something in sight grows so fast that it would soon fill the memory."""
    args = names.get("args")
    values = [*names.values(), *(args.values() if isinstance(args, dict) else ())]
    return any(
        len(value) > MAX_ITEMS
        if isinstance(value, list | dict | tuple | str)
        else type(value) is int and value > MAX_ITEMS
        for value in values
    )
