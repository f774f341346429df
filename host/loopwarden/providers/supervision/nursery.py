"""The nursery: a small process of the host that forks one supervisor per agent.

Starting Python for each supervisor takes 15 ms of processor time, forking one that is ready takes 1 ms, and the forks
share their memory. The nursery knows nothing of any agent: orders travel on the socket of each supervisor alone.

    host -> nursery    one packet per supervisor, with four descriptors: standard input, output and error of the agent,
                       and the supervisor's end of its socket to the host

It leaves when its socket closes or the host is gone. Supervisors that live then go on without it.
"""

import _signal as signals  # type: ignore[import-not-found]
import ctypes
import gc
import os
import select
import socket
import sys
from typing import NoReturn

from . import supervisor

PR_SET_NAME = 15
NAMES = {"nursery": b"lw-nursery\0", "supervisor": b"lw-supervisor\0"}
"""What `ps` shows; at most 15 characters."""
DESCRIPTORS = 4


def name_process(name: str) -> None:
    """Give this process a name for people. Never raises."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, NAMES[name], 0, 0, 0)


def become_supervisor(control: socket.socket, host: int, streams: list[int], link: int) -> NoReturn:
    """Turn this fresh child into the supervisor of one agent. Never returns."""
    try:
        control.close()
        signals.signal(signals.SIGCHLD, signals.SIG_DFL)
        os.setsid()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        name_process("supervisor")
        tell_host(link)
        supervisor.main(link, host)
    finally:
        os._exit(0)


def tell_host(link: int) -> None:
    """Hand the host a pidfd of this process, by which it sees its end and can kill it, whoever reaps it."""
    own = os.pidfd_open(os.getpid())
    with socket.socket(fileno=os.dup(link)) as channel:
        socket.send_fds(channel, [f'{{"supervisor": {os.getpid()}}}\n'.encode()], [own])
    os.close(own)


def refuse(link: int, error: OSError) -> None:
    """Say that no supervisor could be forked. A host that is gone is no error here."""
    try:
        os.write(link, f'{{"refused": "fork", "errno": {error.errno}}}\n'.encode())
    except OSError:
        return


def serve(control: socket.socket, host: int) -> None:
    """Fork supervisors until the host hangs up or is gone."""
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(host, select.POLLIN)
    while True:
        ready = [descriptor for descriptor, _ in poll.poll()]
        if host in ready:
            return
        data, descriptors, _, _ = socket.recv_fds(control, 16, DESCRIPTORS)
        if not data:
            return
        # The kernel leaves out what is beyond the limit of open files. Closing the link refuses the order, too.
        if len(descriptors) == DESCRIPTORS:
            *streams, link = descriptors
            try:
                pid = os.fork()
            except OSError as error:
                refuse(link, error)
            else:
                if pid == 0:
                    become_supervisor(control, host, streams, link)
        for descriptor in descriptors:
            os.close(descriptor)


def main(descriptor: int, host_pid: int) -> None:
    """Serve the host whose process id is `host_pid`, and who started this process."""
    for number in (signals.SIGINT, signals.SIGTERM, signals.SIGHUP, signals.SIGQUIT, signals.SIGCHLD):
        # Of the terminal's signals the host decides. Ignoring SIGCHLD lets the kernel reap supervisors.
        signals.signal(number, signals.SIG_IGN)
    try:
        host = os.pidfd_open(host_pid)
    except OSError:
        return
    if os.getppid() != host_pid:
        return
    name_process("nursery")
    gc.disable()
    gc.freeze()  # the forks share what is never looked at again
    with socket.socket(fileno=descriptor) as control:
        serve(control, host)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
