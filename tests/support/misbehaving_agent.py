"""An agent program for the toy dialect that misbehaves as its argument says. Makes `up` when it is under way."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable

END = json.dumps({"type": "end", "text": "done", "value": {"n": 1}}).encode() + b"\n"
DOING = b'{"type": "doing", "words": "reads a file"}\n'
USAGE = b'{"type": "usage", "tokens": 7}\n'


def write(data: bytes) -> None:
    """Write everything to standard output."""
    while data:
        data = data[os.write(1, data) :]


def up() -> None:
    """Say in the workspace that it is under way."""
    with open("up", "w", encoding="utf-8"):
        pass


def sleep() -> None:
    """Hang, for as long as any test waits."""
    time.sleep(600)


def hang_before() -> None:
    """Never prints anything."""
    up()
    sleep()


def hang_in() -> None:
    """Hangs in the middle of its last record."""
    write(DOING + USAGE + END[:20])
    up()
    sleep()


def hang_after() -> None:
    """Gives its answer, and does not end."""
    write(END)
    up()
    sleep()


def ignore_term() -> None:
    """Takes no notice of signals that can be ignored."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    write(DOING)
    up()
    while True:
        sleep()


def linger(environment: dict[str, str] | None, *, closes: bool, forks: int) -> Callable[[], None]:
    """Leaves a grandchild in another session that outlives everything but KILL, and ends well."""

    def run() -> None:
        for fork in range(forks):
            if os.fork():
                if fork == 0:
                    while not os.path.exists("up"):
                        time.sleep(0.002)
                    write(END)
                os._exit(0)
            os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        if closes:
            for descriptor in range(3):
                os.close(descriptor)
        code = "import time; open('up', 'w').close(); time.sleep(600)"
        os.execve(sys.executable, [sys.executable, "-IS", "-c", code], environment or dict(os.environ))

    return run


def flood() -> None:
    """Writes 1 GB of records and text."""
    up()
    piece = (DOING + b"no record\n") * 1000
    for _ in range(1_000_000_000 // len(piece)):
        write(piece)
    write(END)


def flood_one_line() -> None:
    """Writes 1 GB in one line."""
    up()
    for _ in range(1000):
        write(b'{"x": "' + b"x" * 1_000_000)


def flood_errors() -> None:
    """Writes 200 MB to standard error, and ends well."""
    up()
    for _ in range(200):
        os.write(2, b"x" * 1_000_000)
    write(END)


def close_and_live() -> None:
    """Gives its answer, closes its streams, and does not end."""
    write(END)
    for descriptor in range(3):
        os.close(descriptor)
    up()
    sleep()


def two_results() -> None:
    """Gives two answers."""
    write(json.dumps({"type": "end", "text": "first", "value": {"n": 2}}).encode() + b"\n" + END)


def single_bytes() -> None:
    """Writes byte by byte."""
    for position in range(len(DOING + END)):
        write((DOING + END)[position : position + 1])


def unread() -> None:
    """Does not read its prompt."""
    os.close(0)
    write(END)


MODES: dict[str, Callable[[], None]] = {
    "hangs before its answer": hang_before,
    "hangs in its answer": hang_in,
    "hangs after its answer": hang_after,
    "ignores TERM": ignore_term,
    "leaves a process in another session": linger(None, closes=True, forks=1),
    "leaves a daemon": linger(None, closes=True, forks=2),
    "leaves a daemon without its environment": linger({"PATH": "/bin"}, closes=True, forks=2),
    "leaves a process that holds its output open": linger(None, closes=False, forks=1),
    "writes 1 GB": flood,
    "writes 1 GB in one line": flood_one_line,
    "writes 200 MB of errors": flood_errors,
    "closes its output and lives": close_and_live,
    "prints two results": two_results,
    "writes single bytes": single_bytes,
    "does not read its prompt": unread,
}


def main() -> None:
    """Misbehave. `dies of N` gives an answer and dies of signal N."""
    mode = sys.argv[1]
    if mode.startswith("dies of "):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        number = int(mode.removeprefix("dies of "))
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        write(END)
        os.kill(os.getpid(), number)
        sleep()
    MODES[mode]()


if __name__ == "__main__":
    main()
