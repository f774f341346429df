"""Signals while a run is live: the first winds it down, the second does not wait for anybody's grace."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from loopwarden.failures import EXIT_INTERRUPTED, EXIT_TERMINATED

_EXITS: Final = {signal.SIGINT: EXIT_INTERRUPTED, signal.SIGTERM: EXIT_TERMINATED, signal.SIGHUP: 128 + signal.SIGHUP}
_WORDS: Final = {
    signal.SIGINT: "interrupted from the keyboard (Ctrl-C)",
    signal.SIGTERM: "asked to end (SIGTERM)",
    signal.SIGHUP: "the terminal was closed (SIGHUP)",
}


class Interruption:
    """The signals that came so far. `on_first` and `on_second` are called from the event loop."""

    def __init__(self) -> None:
        """No signal came yet, and nothing is done about one."""
        self.on_first: Callable[[str], object] = lambda _reason: None
        self.on_second: Callable[[], object] = lambda: None
        self._signals: list[signal.Signals] = []

    @property
    def exit_code(self) -> int | None:
        """The exit code that the first signal asks for; None when there was none."""
        return _EXITS[self._signals[0]] if self._signals else None

    @property
    def reason(self) -> str | None:
        """What happened, in words; None when nothing did."""
        return _WORDS[self._signals[0]] if self._signals else None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Take the signals over while the block runs. Belongs to the main thread, as signal handlers do.

        A signal that was ignored from the start stays ignored: `nohup` and background jobs mean that.
        """
        loop = asyncio.get_running_loop()
        taken = [number for number in _EXITS if signal.getsignal(number) is not signal.SIG_IGN]
        for number in taken:
            loop.add_signal_handler(number, self._received, number)
        try:
            yield
        finally:
            for number in taken:
                loop.remove_signal_handler(number)

    def _received(self, number: signal.Signals) -> None:
        self._signals.append(number)
        if len(self._signals) == 1:
            self.on_first(_WORDS[number])
        else:
            self.on_second()
