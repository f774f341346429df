"""What the probe worker of a launcher proves, and which walls a deployment can do without."""

import asyncio
import json
import signal
from collections.abc import Mapping
from typing import Final

from loopwarden.failures import ConfinementUnavailable
from loopwarden.worker_process import WorkerProcess
from loopwarden_engine.confinement import STANDS, WALLS, WorkerLimits

__all__ = ["MANDATORY_WALLS", "PROBE_LIMITS", "check_walls", "read_walls"]

PROBE_LIMITS: Final = WorkerLimits(memory_bytes=512 * 1024 * 1024, cpu_seconds=10)

MANDATORY_WALLS: Final = tuple(wall for wall in WALLS if wall != "identity")
"""Without one of these a run is refused, unless the deployment opts in.

An ordinary user has no second identity to drop to.
"""

_REPORT_BYTES: Final = 4096
_KILL_TIMEOUT_SECONDS: Final = 3.0


async def read_walls(worker: WorkerProcess) -> dict[str, str]:
    """What a probe worker reports of its walls; then kill it, to see that the host can.

    A worker that the host cannot kill has one wall too many. Raises `ConfinementUnavailable` when it ends without a
    report.
    """
    walls = await _read_report(worker)
    if walls is None:
        status = await worker.exited
        raise ConfinementUnavailable(
            f"The probe worker ended before it could report its walls ({_describe_status(status)}). "
            "Run `loopwarden doctor`.",
            details={"status": status},
        )
    try:
        worker.kill()
    except PermissionError:
        walls["identity"] = "a worker under another user could not be killed"
        worker.channel.close()
    async with asyncio.timeout(_KILL_TIMEOUT_SECONDS):
        await worker.exited
    return walls


async def _read_report(worker: WorkerProcess) -> dict[str, str] | None:
    loop = asyncio.get_running_loop()
    line = b""
    while not line.endswith(b"\n"):
        try:
            received = await loop.sock_recv(worker.channel, _REPORT_BYTES)
        except ConnectionError:
            return None
        if not received or len(line) > _REPORT_BYTES:
            return None
        line += received
    reported = json.loads(line)
    return {wall: str(reported[wall]) for wall in WALLS}


def check_walls(walls: Mapping[str, str], *, allow_weak_confinement: bool) -> None:
    """Raise `ConfinementUnavailable`, naming the first wall that is missing, unless the deployment opted in."""
    missing = [wall for wall in MANDATORY_WALLS if walls[wall] != STANDS]
    if missing and not allow_weak_confinement:
        raise ConfinementUnavailable(
            f"The wall {missing[0]!r} does not stand here: {walls[missing[0]]}. Run on Linux 5.13 or newer with "
            "seccomp and Landlock, or set allow_weak_confinement if the scripts are trusted.",
            details={"walls": {wall: walls[wall] for wall in missing}},
        )


def _describe_status(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"
