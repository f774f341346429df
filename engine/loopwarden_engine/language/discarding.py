"""Whether a generator is being discarded: then its `finally` blocks run wherever its last reference went.

When that happens must never decide what a script calls (design section 4), so no hook works then. In a generator of a
script every `try` first lets `mark_discarded` see GeneratorExit (see `rewriting.noticing`), before any line of the
script can run for it. Everything that such a line calls has the marked frame below it on the stack. The exception that
is being handled would not do as a sign: a generator that paused inside a handler of its own shows that one instead.
"""

import sys
from types import FrameType


def mark_discarded() -> None:
    """Mark the frame of the generator that calls this. The mark stays as long as the frame."""
    # A frame has few places to write to. Its locals would be kept alive by a note of ours, and with them other
    # generators; this flag only matters to a debugger that traces the frame.
    sys._getframe(1).f_trace_lines = False  # noqa: SLF001 -- the only way to the frame


def is_discarding() -> bool:
    """True while a generator of the script is being discarded somewhere below the caller."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 -- as above
    while frame is not None:
        if not frame.f_trace_lines:
            return True
        frame = frame.f_back
    return False
