"""The supervisor: a small process of its own, one per agent, that leaves no descendant of the agent behind.

The nursery forks it into a session of its own, with the agent's three streams as descriptors 0 to 2 and one socket to
the host. It imports nothing of Loopwarden but its neighbours.

    host -> supervisor    four-byte length, then the order: grace, deadline and grace of the lease, program, folder,
                          number of private folders, those, number of arguments, the arguments, the environment as
                          NAME=value; each ended by a zero byte
    host -> supervisor    lines: `end GRACE`: end the agent now, after GRACE seconds at the latest;
                          `until DEADLINE`: the lease was renewed
    supervisor -> host    one JSON object a line: {"supervisor": pid}, together with a pidfd of itself; {"started": pid}
                          or {"refused": step, "errno": n}; {"lease": "over"} when the lease ended the agent, or kept it
                          from being started; and in the end {"exit": n, "left": n} or {"signal": n, "left": n};
                          `left` counts what outlived the agent

The end comes when the agent ended, when the host asks for it, when the host is gone (the socket closes, or its process
ends while a forked copy keeps the socket open), and when the lease of the run is over. Always the same way: TERM to the
group, grace, KILL, then whatever is left in any session. As a child subreaper the supervisor inherits every orphan, so
what descends from it is what the agent left. The agent itself is reaped last: until then its process id, which names
the group, is not reused.

The private folders hold credentials. The supervisor removes them, so that they are gone also when the host is, and the
host removes what a supervisor that was killed has left.
"""

import _signal as signals  # type: ignore[import-not-found]
import ctypes
import os
import select
import time

from .lease import ENDLESS, Lease
from .process_table import Process, read_processes
from .removal import remove_tree

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
CLEANUP_PAUSE_MS = 5
STREAMS = (0, 1, 2)
LEASE_OVER = '{"lease": "over"}'


class Order:
    """What the host asks for."""

    def __init__(self, data: bytes) -> None:
        fields = iter(data.split(b"\0")[:-1])
        self.grace_seconds = float(next(fields))
        self.lease = Lease(deadline=float(next(fields)), grace_seconds=float(next(fields)))
        self.program = next(fields)
        self.folder = next(fields)
        self.private_folders = [next(fields) for _ in range(int(next(fields)))]
        self.arguments = [next(fields) for _ in range(int(next(fields)))]
        self.environment = dict(entry.split(b"=", 1) for entry in fields)


class HostLink:
    """The socket to the host, and the host's process. Both are watched: either may be the first to go."""

    def __init__(self, descriptor: int, host: int) -> None:
        self.descriptor = descriptor
        self.host = host
        """A pidfd of the host."""
        self.buffer = b""
        self.gone = False
        self.lease = Lease(ENDLESS, 0.0)
        os.set_inheritable(descriptor, False)

    def read_order(self) -> Order:
        """Wait for the order. Raises EOFError when the host takes it back or is gone."""
        order = Order(self._read(int.from_bytes(self._read(4), "big")))
        self.lease = order.lease
        return order

    def _read(self, length: int) -> bytes:
        data = b""
        while len(data) < length:
            # A forked copy of the host may keep the socket open.
            if self.descriptor not in select.select([self.descriptor, self.host], [], [])[0]:
                raise EOFError
            piece = os.read(self.descriptor, length - len(data))
            if not piece:
                raise EOFError
            data += piece
        return data

    def tell(self, line: str) -> None:
        """Send one line. A host that is gone is no error here."""
        data = line.encode() + b"\n"
        while data and not self.gone:
            try:
                data = data[os.write(self.descriptor, data) :]
            except OSError:
                self.gone = True

    def read_request(self) -> float | None:
        """Read on, and take renewals of the lease. Return the grace when the host asks for the end, else None."""
        try:
            piece = os.read(self.descriptor, 4096)
        except OSError:
            piece = b""
        if not piece:
            self.gone = True
            return None
        self.buffer += piece
        *lines, self.buffer = self.buffer.split(b"\n")
        graces = []
        for line in lines:
            word, _, number = line.partition(b" ")
            if word == b"end":
                graces.append(float(number))
            elif word == b"until":
                self.lease.extend(float(number))
        return min(graces) if graces else None

    def is_lease_over(self) -> bool:
        """Say whether the lease is over, also by what the host said meanwhile. Only for before the start."""
        while self.lease.is_over() and not self.gone and select.select([self.descriptor], [], [], 0)[0]:
            self.read_request()
        return self.lease.is_over()


class Agent:
    """The agent program: our direct child, leader of its own process group, and all that descends from it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.seen_left: set[int] = set()

    def ended(self) -> bool:
        """Say whether the program itself ended. It stays a zombie. Orphans that ended are reaped on the way."""
        while True:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None:
                return False
            if found.si_pid == self.pid:
                return True
            os.waitpid(found.si_pid, os.WNOHANG)

    def signal_group(self, *numbers: int) -> None:
        """Send signals to the program and what stayed in its group."""
        for number in numbers:
            try:
                os.killpg(self.pid, number)
            except OSError:
                return

    def left(self) -> list[Process]:
        """What still runs below the supervisor. Orphans that ended are reaped on the way; the leader is not."""
        processes = read_processes()
        own = os.getpid()
        below = {own}
        grew = True
        while grew:
            grew = False
            for process in processes:
                if process.parent in below and process.pid not in below:
                    below.add(process.pid)
                    grew = True
        running = []
        for process in processes:
            if process.pid not in below or process.pid == own:
                continue
            if not process.dead:
                running.append(process)
            elif process.parent == own and process.pid != self.pid:
                os.waitpid(process.pid, os.WNOHANG)
        return running

    def count_left(self, running: list[Process]) -> None:
        """Count what outlived the program, each once."""
        self.seen_left.update(process.pid for process in running if process.pid != self.pid)

    def kill_left(self) -> None:
        """Kill and reap until nothing runs below the supervisor but the leader's remains."""
        pause_ms = CLEANUP_PAUSE_MS
        while True:
            self.signal_group(signals.SIGKILL)
            running = self.left()
            if not running:
                return
            self.count_left(running)
            for process in running:
                process.send(signals.SIGKILL)
            select.select([], [], [], pause_ms / 1000)
            pause_ms = min(pause_ms * 2, 250)

    def reap(self) -> int:
        """Reap the leader, then whatever an ending process left us in the meantime. Return the leader's status."""
        status = os.waitpid(self.pid, 0)[1]
        while True:
            try:
                pid = os.waitpid(-1, os.WNOHANG)[0]
            except ChildProcessError:
                return status
            if pid == 0:
                for process in self.left():
                    process.send(signals.SIGKILL)
                select.select([], [], [], CLEANUP_PAUSE_MS / 1000)


def prctl(option: int, value: int) -> None:
    """Set a property of this process. Raises OSError."""
    library = ctypes.CDLL(None, use_errno=True)
    zero = ctypes.c_ulong(0)
    if library.prctl(option, ctypes.c_ulong(value), zero, zero, zero) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def become_agent(order: Order, supervisor_pid: int, problem: int) -> None:
    """Turn this fresh child into the agent program. On failure, say where and leave: never return."""
    step = "prepare"
    try:
        os.setpgid(0, 0)
        for number in range(1, signals.NSIG):
            if number not in (signals.SIGKILL, signals.SIGSTOP) and signals.getsignal(number) is not None:
                signals.signal(number, signals.SIG_DFL)
        signals.pthread_sigmask(signals.SIG_SETMASK, ())
        prctl(PR_SET_PDEATHSIG, signals.SIGKILL)
        if os.getppid() != supervisor_pid:
            os._exit(127)
        step = "folder"
        os.chdir(order.folder)
        step = "program"
        os.execve(order.program, order.arguments, order.environment)  # noqa: S606 - no shell on purpose
    except (OSError, ValueError) as error:
        os.write(problem, f"{step} {getattr(error, 'errno', 0)}".encode())
    finally:
        # Reached only on failure: after a successful execve there is no Python left here.
        os._exit(127)


def start_agent(order: Order) -> tuple[Agent | None, str]:
    """Start the program. Return it, or None with the step and the error number of the refusal."""
    problem_reader, problem_writer = os.pipe()
    supervisor_pid = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:
        return None, f"fork {error.errno}"
    if pid == 0:
        become_agent(order, supervisor_pid, problem_writer)
    os.close(problem_writer)
    problem = b""
    while piece := os.read(problem_reader, 64):
        problem += piece
    os.close(problem_reader)
    if problem:
        os.waitpid(pid, 0)
        return None, problem.decode()
    return Agent(pid), ""


def release_streams() -> None:
    """Give up our copies of the agent's streams: only the agent's own end may keep them open."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in STREAMS:
        os.dup2(null, stream)
    if null not in STREAMS:
        os.close(null)


def supervise(link: HostLink, agent: Agent, grace_seconds: float) -> float:
    """Wait until the agent ended, its lease is over, the host asks for the end or is gone. Return the grace."""
    wake_reader, wake_writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signals.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)
    signals.signal(signals.SIGCHLD, lambda *_: None)
    poll = select.poll()
    for descriptor in (link.descriptor, wake_reader, link.host):
        poll.register(descriptor, select.POLLIN)
    while not agent.ended():
        if link.gone:
            return grace_seconds
        # A renewal that waits to be read counts, also when this process was kept from running for a while.
        was_over = link.lease.is_over()
        for descriptor, _ in poll.poll(link.lease.wait_ms()):
            if descriptor == wake_reader:
                os.read(wake_reader, 4096)
            elif descriptor == link.host:
                link.gone = True
            else:
                asked = link.read_request()
                if asked is not None:
                    return asked
        if was_over and link.lease.is_over():
            link.tell(LEASE_OVER)
            return grace_seconds
    return grace_seconds


def end_agent(link: HostLink, agent: Agent, grace_seconds: float) -> int:
    """End the agent and everything that descends from it. Return the status of the agent itself.

    The lease cuts every grace short: when it and its own grace are over, nothing may be left.
    """
    if agent.ended():
        running = agent.left()
        if not running:
            return agent.reap()
        agent.count_left(running)
    # A stopped process takes TERM only after CONT.
    agent.signal_group(signals.SIGTERM, signals.SIGCONT)
    deadline = time.monotonic() + grace_seconds
    poll = select.poll()
    if not link.gone:
        poll.register(link.descriptor, select.POLLIN)
    pause_ms = 1
    while members := [process for process in agent.left() if process.group == agent.pid]:
        for process in members:
            if process.ends_by_term():
                process.send(signals.SIGTERM)
        lease_seconds = link.lease.left_seconds() + link.lease.grace_seconds
        left_ms = int(min(deadline - time.monotonic(), lease_seconds) * 1000)
        if left_ms <= 0:
            break
        if poll.poll(min(pause_ms, left_ms)):
            asked = link.read_request()
            if asked is not None:
                deadline = min(deadline, time.monotonic() + asked)
            if link.gone:
                poll.unregister(link.descriptor)
        pause_ms = min(pause_ms * 2, 50)
    agent.kill_left()
    return agent.reap()


def main(descriptor: int, host: int) -> None:
    """Supervise one agent from its start until nothing of it is left. `host` is a pidfd of the host."""
    for number in (signals.SIGTERM, signals.SIGINT, signals.SIGHUP, signals.SIGQUIT, signals.SIGTSTP, signals.SIGTTIN,
                   signals.SIGTTOU, signals.SIGUSR1, signals.SIGUSR2, signals.SIGALRM):  # fmt: skip
        signals.signal(number, signals.SIG_IGN)
    link = HostLink(descriptor, host)
    try:
        order = link.read_order()
    except (EOFError, OSError, ValueError, StopIteration):
        return
    try:
        run(link, order)
    finally:
        # After the last word: a large home takes its time, and the end of the agent is known by then.
        for folder in order.private_folders:
            remove_tree(folder)


def run(link: HostLink, order: Order) -> None:
    """Run the agent that the host asks for, and tell how it ended."""
    if link.is_lease_over():
        link.tell(LEASE_OVER)
        return
    try:
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        agent, refusal = (None, "gone 0") if link.gone else start_agent(order)
    except OSError as error:
        agent, refusal = None, f"prepare {error.errno}"
    if agent is None:
        step, error_number = refusal.split()
        link.tell(f'{{"refused": "{step}", "errno": {error_number}}}')
        return
    grace_seconds = 0.0
    try:
        release_streams()
        link.tell(f'{{"started": {agent.pid}}}')
        grace_seconds = supervise(link, agent, order.grace_seconds)
    finally:
        # Whatever went wrong above, nobody else can clean up.
        status = end_agent(link, agent, grace_seconds)
    how, number = ("signal", os.WTERMSIG(status)) if os.WIFSIGNALED(status) else ("exit", os.WEXITSTATUS(status))
    link.tell(f'{{"{how}": {number}, "left": {len(agent.seen_left)}}}')
