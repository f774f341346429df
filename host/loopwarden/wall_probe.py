"""What the probe workers of a launcher prove, and which walls a deployment can do without.

A wall stands when a probe saw it stop something, and the host counts as able to end a worker when it has ended one.
"""

import asyncio
import errno
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from loopwarden.failures import ConfinementUnavailable, LaunchFailed
from loopwarden.logs import host_logger
from loopwarden.worker_process import WorkerProcess
from loopwarden_engine.confinement import STANDS, WALLS, WorkerLimits

__all__ = [
    "MANDATORY_WALLS",
    "PROBE_LIMITS",
    "WallReport",
    "check_system",
    "check_walls",
    "log_missing_walls",
    "prove_walls",
]

PROBE_LIMITS: Final = WorkerLimits(memory_bytes=512 * 1024 * 1024, cpu_seconds=10)

MANDATORY_WALLS: Final = frozenset(WALLS) - {"identity"}
"""Without one of these a run is refused, unless the deployment opts in.

An ordinary user has no second identity to drop to.
"""

_REPORT_BYTES: Final = 4096
_END_TIMEOUT_SECONDS: Final = 3.0
_CROWDED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_ORDER_TO_TRESPASS: Final = b"!"

MakeProbe = Callable[[frozenset[str]], Awaitable[WorkerProcess]]
"""Makes a probe worker that puts up these walls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WallReport:
    """Per wall: `walls` says "stands" or why not, `details` what it covers, where that depends on the machine."""

    walls: Mapping[str, str]
    details: Mapping[str, str]


def check_system() -> None:
    """Raise `ConfinementUnavailable` where there is nothing that could end or confine a worker, opted in or not.

    Raises `LaunchFailed` where no descriptor is left to find out.
    """
    if sys.platform != "linux":
        reason = f"{sys.platform} is not Linux"
        advice = "Run on Linux 5.13 or newer, in a virtual machine if need be"
    elif not (hasattr(os, "pidfd_open") and hasattr(signal, "pidfd_send_signal")):
        reason = "this Python was built without pidfd_open"
        advice = "Use a Python that was built on Linux 5.3 or newer"
    else:
        try:
            os.close(os.pidfd_open(os.getpid()))
        except OSError as error:
            if error.errno in _CROWDED:
                raise LaunchFailed(
                    f"The launcher could not be started: {error.strerror}. Close some files, or raise their limit."
                ) from None
            reason = f"pidfd_open: {error.strerror}"
            advice = "Run on Linux 5.13 or newer, in a container that permits pidfd_open and pidfd_send_signal"
        else:
            return
    raise ConfinementUnavailable(
        f"Scripts cannot be confined here: {reason}. {advice}; allow_weak_confinement does not help, because a worker "
        "could not be ended.",
        details={"walls": dict.fromkeys(WALLS, reason)},
    )


async def prove_walls(make_probe: MakeProbe) -> WallReport:
    """Send probes through the full cycle: one that is killed, and one that does what its filter forbids.

    Raises `ConfinementUnavailable` when a probe ends without a report, or when the host cannot end it, `LaunchFailed`
    when none can be made.
    """
    report, refusal = await _probe(make_probe, frozenset(WALLS), _kill)
    if refusal is not None and report.walls["identity"] == STANDS:
        # Root without the right to kill what runs as somebody else: then workers stay who they are.
        reason = f"a worker under another user could not be killed: {refusal}"
        report, refusal = await _probe(make_probe, MANDATORY_WALLS, _kill)
        report = _changed(report, "identity", reason)
    if refusal is not None:
        raise ConfinementUnavailable(
            f"This host cannot end its workers: {refusal}. Run in a container that permits pidfd_send_signal.",
            details={"reason": refusal},
        )
    if report.walls["seccomp"] == STANDS:
        own = frozenset({"identity"} if report.walls["identity"] == STANDS else ())
        _, refusal = await _probe(make_probe, MANDATORY_WALLS | own, _trespass)
        if refusal is not None:
            report = _changed(report, "seccomp", refusal)
    return report


async def _probe(
    make_probe: MakeProbe, walls: frozenset[str], end: Callable[[WorkerProcess], Awaitable[str | None]]
) -> tuple[WallReport, str | None]:
    """The report of one probe, and what is wrong with the way in which it ended."""
    worker = await make_probe(walls)
    try:
        return await _read_report(worker), await end(worker)
    finally:
        worker.release()


async def _kill(worker: WorkerProcess) -> str | None:
    try:
        worker.kill()
    except OSError as error:
        refusal = f"pidfd_send_signal: {error.strerror}"
    else:
        if await _status_at_end(worker) is not None:
            return None
        refusal = "pidfd_send_signal changed nothing"
    # It leaves by itself when the host hangs up.
    worker.channel.close()
    if await _status_at_end(worker) is None:
        raise ConfinementUnavailable(
            f"A probe worker cannot be ended: {refusal}. Run in a container that permits pidfd_send_signal."
        )
    return refusal


async def _trespass(worker: WorkerProcess) -> str | None:
    await asyncio.get_running_loop().sock_sendall(worker.channel, _ORDER_TO_TRESPASS)
    if await _status_at_end(worker) == -signal.SIGSYS:
        return None
    return "a forbidden call does not end the process"


async def _status_at_end(worker: WorkerProcess) -> int | None:
    """The exit status; None when there is no end within a few seconds."""
    await asyncio.wait([worker.exited], timeout=_END_TIMEOUT_SECONDS)
    return worker.exited.result() if worker.exited.done() else None


async def _read_report(worker: WorkerProcess) -> WallReport:
    reported = _parsed(await _read_line(worker))
    if reported is not None:
        return reported
    status = await _status_at_end(worker)
    ending = "it talks nonsense" if status is None else _describe_status(status)
    raise ConfinementUnavailable(
        f"A probe worker ended before it could report its walls: {ending}. The walls are made for Linux with glibc; "
        "when this is such a system, please report it, with what `loopwarden doctor --json` prints.",
        details={"status": status},
    )


async def _read_line(worker: WorkerProcess) -> bytes:
    loop = asyncio.get_running_loop()
    line = b""
    while not line.endswith(b"\n"):
        try:
            received = await loop.sock_recv(worker.channel, _REPORT_BYTES)
        except ConnectionError:
            return b""
        if not received or len(line) > _REPORT_BYTES:
            return b""
        line += received
    return line


def _parsed(line: bytes) -> WallReport | None:
    try:
        reported: Any = json.loads(line)
        return WallReport(
            walls={wall: str(reported["walls"][wall]) for wall in WALLS},
            details={wall: str(text) for wall, text in reported["details"].items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _changed(report: WallReport, wall: str, reason: str) -> WallReport:
    return WallReport(walls={**report.walls, wall: reason}, details=report.details)


def check_walls(walls: Mapping[str, str], *, allow_weak_confinement: bool) -> None:
    """Raise `ConfinementUnavailable`, naming every wall that is missing, unless the deployment opted in."""
    missing = {wall: walls[wall] for wall in WALLS if wall in MANDATORY_WALLS and walls[wall] != STANDS}
    if not missing or allow_weak_confinement:
        return
    first, *others = missing
    also = "".join(f"; nor does {wall!r}: {missing[wall]}" for wall in others)
    raise ConfinementUnavailable(
        f"The wall {first!r} does not stand here: {missing[first]}{also}. Run on Linux 5.13 or newer with seccomp and "
        "Landlock, or set allow_weak_confinement if the scripts are trusted.",
        details={"walls": missing},
    )


def log_missing_walls(walls: Mapping[str, str]) -> None:
    """One line for each wall that runs will do without. An ordinary user has no identity to drop to: no line."""
    for wall in WALLS:
        is_expected = wall in MANDATORY_WALLS or os.geteuid() == 0
        if is_expected and walls[wall] != STANDS:
            host_logger().warning("wall is missing", wall=wall, reason=walls[wall])


def _describe_status(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"
