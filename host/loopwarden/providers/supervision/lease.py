"""The lease that an agent lives by: its supervisor ends it when no renewal comes in time, with nobody's help.

The host may be stopped, asleep with its machine, or cut off from its store; then another host takes the run, and
nothing of this agent may be left by that time.
"""

import time

ENDLESS = float("inf")
"""The deadline of an agent without a lease."""
LONGEST_WAIT_SECONDS = 0.5
"""Waiting goes by a clock that stands still while the machine sleeps, so it looks again that often."""


class Lease:
    """Until when the agent may live. `deadline` is in seconds of CLOCK_BOOTTIME.

    `grace_seconds` after it nothing of the agent may be left, whatever else it was granted.
    """

    def __init__(self, deadline: float, grace_seconds: float) -> None:
        self.deadline = deadline
        self.grace_seconds = grace_seconds

    def extend(self, deadline: float) -> None:
        """The host renewed it."""
        self.deadline = max(self.deadline, deadline)

    def left_seconds(self) -> float:
        """How long it still lasts; negative when it is over."""
        if self.deadline == ENDLESS:
            return ENDLESS
        return self.deadline - time.clock_gettime(time.CLOCK_BOOTTIME)

    def is_over(self) -> bool:
        """Say whether the deadline passed."""
        return self.left_seconds() <= 0

    def wait_ms(self) -> int | None:
        """How long to wait until looking again; None for ever."""
        left_seconds = self.left_seconds()
        if left_seconds == ENDLESS:
            return None
        # Rounded up, so that it is over after the wait.
        return 0 if left_seconds <= 0 else int(min(left_seconds, LONGEST_WAIT_SECONDS) * 1000) + 1
