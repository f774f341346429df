"""The kernel's table of processes, as far as ending them needs it."""

import _signal as signals  # type: ignore[import-not-found]
import os


class Process:
    """One line of the process table."""

    def __init__(self, pid: int, parent: int, group: int, started: int, *, dead: bool) -> None:
        self.pid = pid
        self.parent = parent
        self.group = group
        self.started = started
        self.dead = dead

    def ends_by_term(self) -> bool:
        """Say whether TERM ends this process for sure: it neither catches nor ignores nor holds it back.

        One that has had TERM and lives all the same has lost it: it was just being made, and its parent catches TERM.
        """
        kept = 0
        try:
            with open(f"/proc/{self.pid}/status", "rb") as file:
                for line in file:
                    if line.startswith((b"SigIgn:", b"SigCgt:", b"SigBlk:")):
                        kept |= int(line.split()[1], 16)
        except OSError:
            return False
        return not kept & (1 << (signals.SIGTERM - 1))

    def send(self, number: int) -> None:
        """Signal exactly this process: a number that was reused since is another process and is left alone."""
        try:
            handle = os.pidfd_open(self.pid)
        except OSError:
            return
        try:
            now = read_process(self.pid)
            if now is not None and now.started == self.started:
                signals.pidfd_send_signal(handle, number)
        except OSError:
            return
        finally:
            os.close(handle)


def read_process(pid: int) -> Process | None:
    """Read one line of the process table; None when there is no such process any more."""
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        text = os.read(descriptor, 4096)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    # The name in parentheses may hold anything, closing parentheses too: only the last one ends it.
    fields = text[text.rindex(b")") + 2 :].split()
    # A program whose first thread ended is a zombie by its letter, and runs on in its other threads.
    dead = fields[0] in b"ZX" and int(fields[17]) <= 1
    return Process(pid, int(fields[1]), int(fields[2]), int(fields[19]), dead=dead)


def read_processes() -> list[Process]:
    """Read the process table."""
    found = (read_process(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return [process for process in found if process is not None]
