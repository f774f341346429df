"""Stands in for an agent program: prints what one printed, in odd pieces, and ends as it ended.

The recording lies beside it: `stdout`, `stderr`, and `end`, which holds the exit, or the signal as a negative number.
It takes any arguments and imports as little as it can, since it is started hundreds of times.
"""

import os
import sys

PIECES = (1, 2, 3, 61, 1021, 4093, 65521)


def read(name: str) -> bytes:
    """One part of the recording."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), name), "rb") as file:
        return file.read()


def write(descriptor: int, data: bytes) -> None:
    """Write everything."""
    while data:
        data = data[os.write(descriptor, data) :]


def main() -> None:
    """Read standard input to its end, then play the recording."""
    while os.read(0, 65536):
        pass
    streams = {1: read("stdout"), 2: read("stderr")}
    turn = 0
    while any(streams.values()):
        for descriptor, rest in streams.items():
            size = PIECES[turn % len(PIECES)]
            turn += 1
            write(descriptor, rest[:size])
            streams[descriptor] = rest[size:]
    end = int(read("end"))
    if end < 0:
        os.kill(os.getpid(), -end)
    sys.stdout = sys.stderr = None
    os._exit(end)


main()
