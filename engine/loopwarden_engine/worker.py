"""The confined, single-use process of one run, from its first message to its end."""

from loopwarden_engine.channel import Channel, leave
from loopwarden_engine.execution import compile_source, execute
from loopwarden_engine.language import preload
from loopwarden_engine.messages import Go, Rejected, Start
from loopwarden_engine.scheduler import preload as preload_scheduler

# The launcher imports this module once, before its first fork; a confined worker opens no file.
preload()
preload_scheduler()


class Worker:
    """Made before confinement (it wraps the channel), served behind it."""

    __slots__ = ("_channel",)

    def __init__(self, channel_descriptor: int) -> None:
        self._channel = Channel(channel_descriptor)

    def serve(self) -> None:
        """Take one start, run it to its end, leave. Does not return."""
        channel = self._channel
        start = channel.take()
        assert isinstance(start, Start)
        compiled = compile_source(start)
        if isinstance(compiled, Rejected):
            channel.put(compiled)
            channel.wait_for_end()
        script, ready = compiled
        channel.put(ready)
        channel.flush()
        go = channel.take()
        assert isinstance(go, Go)
        execute(script, start, channel)
        channel.flush()
        leave(0)
