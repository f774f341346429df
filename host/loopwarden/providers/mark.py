"""The mark that everything which comes from one agent carries in its environment.

The supervisor ends what descends from an agent, and leaves only when the kernel says that it has no child left. A mark
finds two more kinds: what a supervisor that was killed left behind, and what somebody else started on behalf of the
agent with the agent's environment, such as a job daemon. A process that was started with an empty environment by
somebody else cannot be found by anyone.
"""

import contextlib
import os
import secrets
import signal
from typing import Final

MARK_NAME: Final = "LOOPWARDEN_AGENT"


class Mark:
    """A fresh mark. Make it before the first process that is to carry it."""

    def __init__(self) -> None:
        self.value = secrets.token_hex(16)
        # Reading an environment costs 9 µs, listing a process 0.4 µs (measured with 600 processes: 4.8 ms against
        # 0.2 ms). An agent that ended well is therefore looked for only among the processes that are younger than it.
        self._older = frozenset(os.listdir("/proc"))

    def kill_carriers(self, *, among_all: bool) -> list[int]:
        """Kill the processes that were started with this mark. Return their ids; look again until there are none.

        Without `among_all`, a process whose number was in use when the mark was made is not looked at.
        """
        wanted = f"{MARK_NAME}={self.value}".encode()
        found = []
        for name in os.listdir("/proc"):
            if not name.isdigit() or (name in self._older and not among_all) or not _carries(name, wanted):
                continue
            with contextlib.suppress(OSError):
                handle = os.pidfd_open(int(name))
                try:
                    # The number may have been reused between the look and the handle.
                    if _carries(name, wanted):
                        signal.pidfd_send_signal(handle, signal.SIGKILL)
                        found.append(int(name))
                finally:
                    os.close(handle)
        return found


def _carries(name: str, wanted: bytes) -> bool:
    try:
        with open(f"/proc/{name}/environ", "rb") as file:
            return wanted in file.read().split(b"\0")
    except OSError:
        return False
