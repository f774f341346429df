"""Processes that ask again and again on one scope: each prints what was granted and what was refused."""

import asyncio
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from loopwarden.store.appends import Appended, AppendResult, ScopeSpent
from loopwarden.store.postgres import open_postgres
from loopwarden.store.runs import Owner
from support.postgres_lab import ask, new_run


async def main(url: str, number: int, attempts: int) -> None:
    """Ask `attempts` times for one run, all at once."""
    store = await open_postgres(url)
    run_id = f"run-{number}"
    await store.create([new_run(run_id, scopes=["tenant:acme"])])
    await store.claim_one(Owner(host_id=f"host-{number}", lease_seconds=60), run_id, kill_grace_seconds=1)
    results: list[AppendResult] = []
    for seq in range(1, attempts + 1):
        store.append(ask(run_id, seq, results.append))
        await asyncio.sleep(0)
    await store.close()
    granted = sum(isinstance(result, Appended) for result in results)
    refused = sum(isinstance(result, ScopeSpent) for result in results)
    os.write(1, f"{granted} {refused}\n".encode())


if __name__ == "__main__":
    pids = []
    for number in range(int(sys.argv[2])):
        pid = os.fork()
        if pid == 0:
            asyncio.run(main(sys.argv[1], number, int(sys.argv[3])))
            os._exit(0)
        pids.append(pid)
    sys.exit(sum(os.waitpid(pid, 0)[1] != 0 for pid in pids))
