"""A long queue on two hosts: each run goes to its end once, wherever it is driven."""

import asyncio
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from loopwarden import Host, JobRequest, Script
from loopwarden.store.api import Store
from loopwarden.store.postgres import open_postgres
from loopwarden.store.runs import Status
from support.lent_launcher import LentLauncher
from support.postgres_server import fresh_database

RUNS = 1000
PROGRAM = Path(__file__).parent.parent / "support" / "driving_host.py"
ONE = Script.from_text(
    "from loopwarden_engine import agent\n\ndef main(args):\n    return agent('do it')\n", name="one"
)


def driving(url: str, log: Path) -> "subprocess.Popen[bytes]":
    argv = [sys.executable, str(PROGRAM), url, str(log), "16", "2"]
    return subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | {"PYTHONSAFEPATH": "1"}
    )


async def until_all_ended(store: Store, ids: list[str]) -> None:
    """Looks at the runs that are not over, by their number alone."""
    async with asyncio.timeout(100):
        for run_id in ids:
            while True:
                row = await store.get(run_id)
                assert row is not None
                if row.status is Status.FINISHED:
                    break
                await store.changed(run_id, after=row.head_seq, timeout_seconds=5.0)


def test_a_thousand_queued_runs_on_two_hosts_go_each_exactly_once_to_their_end(
    runner: asyncio.Runner, lent: LentLauncher, tmp_path: Path
) -> None:
    log = tmp_path / "asks"
    log.touch()

    async def scene(url: str) -> dict[str, tuple[int, str | None]]:
        store = await open_postgres(url)
        hosts = driving(url, log)
        host = Host(providers={"default": _nobody}, store=store)
        lent.lend_to(host)
        async with host:
            try:
                ids = await host.submit_many([JobRequest(script=ONE)] * RUNS)
                assert len(set(ids)) == RUNS
                await until_all_ended(store, ids)
            finally:
                await asyncio.to_thread(hosts.communicate)
            rows = [await store.get(run_id) for run_id in ids]
        await store.close()
        assert hosts.returncode == 0
        return {row.run_id: (row.epoch, row.stop_reason) for row in rows if row is not None}

    with fresh_database() as url:
        ended = runner.run(scene(url))
    assert len(ended) == RUNS
    assert set(ended.values()) == {(1, "completed")}
    asks = [line.split() for line in log.read_text().splitlines()]
    assert Counter(run_id for run_id, *_ in asks) == dict.fromkeys(ended, 1)
    assert len({pid for *_, pid in asks}) == 2, "one of the hosts did nothing"


async def _nobody(request: object) -> str:
    raise AssertionError("this host only submits")
