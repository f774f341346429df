"""Hosts in processes of their own that drive runs until standard input ends. Each ask is a line of a shared log.

python driving_host.py DATABASE LOG PLACES HOSTS
"""

import asyncio
import os
import sys

from loopwarden import AgentRequest, Host
from loopwarden.lease_keeper import LeaseRules
from loopwarden.store.postgres import open_postgres


async def main(url: str, log: str, places: int) -> None:
    """Drive the queue `default`."""
    asks = os.open(log, os.O_WRONLY | os.O_APPEND)

    async def reply(request: AgentRequest) -> str:
        os.write(asks, f"{request.run_id} {request.seq} {request.attempt} {os.getpid()}\n".encode())
        return "done"

    store = await open_postgres(url)
    leases = LeaseRules(lease_seconds=30.0, kill_grace_seconds=1.0, poll_seconds=0.1)
    async with Host(providers={"default": reply}, store=store, leases=leases) as host, host.drive({"default": places}):
        await asyncio.to_thread(sys.stdin.read)
    await store.close()
    os.close(asks)


def several(hosts: int, url: str, log: str, places: int) -> int:
    """Fork so many hosts, which is faster than to start them. How many did not end as they should."""
    pids = []
    for _ in range(hosts):
        pid = os.fork()
        if pid == 0:
            asyncio.run(main(url, log, places))
            os._exit(0)
        pids.append(pid)
    return sum(os.waitpid(pid, 0)[1] != 0 for pid in pids)


if __name__ == "__main__":
    sys.exit(several(int(sys.argv[4]), sys.argv[1], sys.argv[2], int(sys.argv[3])))
