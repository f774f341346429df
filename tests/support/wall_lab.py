"""Runs plain Python behind chosen walls.

A program of the tests: one JSON request a line in, one JSON answer a line out.

Request: `{"walls": [...], "code": "..."}`; the code sets `out`. Answer: `{"value": ..., "error": ..., "status": n}`,
where status is the exit status of the process, minus the signal's number when it was killed. Started with the
argument `ordinary` it first stops being root.

`WRITABLE` is the descriptor of an open file, which is one that the walls close.
"""

import importlib
import json
import os
import resource
import socket
import sys
import tempfile
from typing import Any

from loopwarden_engine.confinement import ConfinementError, WorkerLimits, confine, prepare
from loopwarden_engine.forked_worker import CHANNEL_FD

LIMITS = WorkerLimits(memory_bytes=512 * 1024 * 1024, cpu_seconds=1)
ORDINARY_USER = 65533
# What the codes import: behind the walls nothing can be loaded any more.
PRELOADED = ("ctypes", "fcntl", "gc", "time", "traceback")


def run_confined(channel_fd: int, walls: frozenset[str], code: str, names: dict[str, Any], parent_pid: int) -> None:
    """The child: put up the walls, run the code, answer through the channel, leave."""
    os.dup2(channel_fd, CHANNEL_FD)
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=CHANNEL_FD)
    answer: dict[str, Any]
    try:
        confine(CHANNEL_FD, LIMITS, required=walls, walls=walls, parent_pid=parent_pid)
        scope = names | {"channel": channel, "out": None}
        exec(compile(code, "<lab>", "exec"), scope)
        answer = {"value": scope["out"]}
    except ConfinementError as error:
        answer = {"error": f"ConfinementError: {error}"}
    except BaseException as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    channel.sendall(json.dumps(answer, default=repr).encode())
    os._exit(0)


def answer_request(request: dict[str, Any], names: dict[str, Any]) -> dict[str, Any]:
    """Fork one child for a request, and collect what came of it."""
    ours, theirs = socket.socketpair()
    parent_pid = os.getpid()
    pid = os.fork()
    if pid == 0:
        run_confined(theirs.fileno(), frozenset(request["walls"]), request["code"], names, parent_pid)
    theirs.close()
    with ours:
        received = b""
        while data := ours.recv(65536):
            received += data
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return {"value": None, "error": None} | (json.loads(received) if received else {}) | {"status": status}


def main() -> None:
    """Serve requests until standard input ends."""
    for module in PRELOADED:
        importlib.import_module(module)
    # The children's descriptor 3 is the channel, so nothing of the lab may live there.
    placeholder = os.open(os.devnull, os.O_RDONLY)
    assert placeholder == CHANNEL_FD
    if sys.argv[1] == "ordinary" and os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(ORDINARY_USER, ORDINARY_USER, ORDINARY_USER)
        os.setresuid(ORDINARY_USER, ORDINARY_USER, ORDINARY_USER)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    prepare(CHANNEL_FD)
    with tempfile.TemporaryFile() as writable:
        names = {"WRITABLE": writable.fileno()}
        for line in sys.stdin:
            sys.stdout.write(json.dumps(answer_request(json.loads(line), names)) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
