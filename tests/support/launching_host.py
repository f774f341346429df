"""A host of its own process, for tests that kill hosts or need one that is not root.

Prints one JSON line when it is ready.

`python -m support.launching_host live`: starts a launcher and three workers (idle, spinning, not taking part), prints
their process ids, waits. `python -m support.launching_host ordinary`: stops being root first; starts a launcher,
attacks from a worker, makes forks fail, closes, prints it all.
"""

import asyncio
import json
import os
import resource
import sys
from typing import Any

from loopwarden.failures import LaunchFailed
from loopwarden.launching import Launcher
from support.machines import become_ordinary
from support.plain_worker import LIMITS, PLAIN, ask, tell


async def live() -> None:
    launcher = await Launcher.start(lambda: None, command=PLAIN)
    idle, spinning, silent = [await launcher.fork(LIMITS) for _ in range(3)]
    await ask(idle, "out = 1")
    await tell(spinning, "while True: pass")
    pids = {"launcher": launcher.pid, "workers": [worker.pid for worker in (idle, spinning, silent)]}
    sys.stdout.write(json.dumps(pids) + "\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


async def ordinary() -> None:
    become_ordinary()
    launcher = await Launcher.start(lambda: None, command=PLAIN)
    worker = await launcher.fork(LIMITS)
    report: dict[str, Any] = {"user": os.geteuid(), "walls": dict(worker.walls)}
    report["attack"] = await ask(worker, "open('/etc/hostname')")
    worker.kill()
    report["killed"] = await worker.exited
    worker.release()
    before = resource.prlimit(launcher.pid, resource.RLIMIT_NPROC)
    resource.prlimit(launcher.pid, resource.RLIMIT_NPROC, (0, before[1]))
    try:
        await launcher.fork(LIMITS)
    except LaunchFailed as error:
        report["refused"] = error.message
    resource.prlimit(launcher.pid, resource.RLIMIT_NPROC, before)
    worker = await launcher.fork(LIMITS)
    report["recovered"] = await ask(worker, "out = 'yes'")
    await launcher.close()
    worker.release()
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run({"live": live, "ordinary": ordinary}[sys.argv[1]]())
