"""Jobs on two hosts that share a Postgres database: the same engine, another store."""

import asyncio
from collections.abc import Iterator

import pytest

from loopwarden import Code, Host, JobRequest
from loopwarden.store.api import Store
from loopwarden.store.postgres import open_postgres
from loopwarden.store.runs import Status
from support.job_lab import CHAIN, FAN, QUICK, SECONDS, Agents, row_of
from support.lent_launcher import LentLauncher
from support.postgres_server import fresh_database


@pytest.fixture
def url() -> Iterator[str]:
    with fresh_database() as url:
        yield url


def host_on(store: Store, agents: Agents, launcher: LentLauncher) -> Host:
    host = Host(providers={"default": agents}, store=store, leases=QUICK)
    launcher.lend_to(host)
    return host


def test_jobs_of_two_hosts_are_driven_once_cancelled_followed_and_resumed(
    runner: asyncio.Runner, lent: LentLauncher, url: str
) -> None:
    agents = Agents()

    async def each_run_once(one: Host, other: Host) -> None:
        ids = await one.submit_many([JobRequest(script=FAN, args={"n": 2, "name": f"r{n}-"}) for n in range(20)])
        outcomes = await asyncio.gather(*(other.wait_for(run_id) for run_id in ids))
        assert {outcome.stop_reason for outcome in outcomes} == {"completed"}
        assert sorted(agents.asked) == sorted(f"r{n}-{i}" for n in range(20) for i in range(2))
        assert {row.epoch for row in await one.list_runs()} == {1}

    async def cancel_from_outside(one: Host, other: Host) -> None:
        agents.kept = {"kept0"}
        run_id = await one.submit(FAN, {"n": 1, "name": "kept"})
        await agents.until_asked("kept0")
        outsider = other if one.get(run_id) is not None else one
        await outsider.cancel(run_id, "enough", "ann")
        outcome = await outsider.wait_for(run_id)
        assert outcome.failure is not None
        assert outcome.failure.message == "the run was cancelled: enough (asked for by ann)"
        kinds = [event.kind async for event in outsider.events_of(run_id)]
        assert (kinds[0], kinds[-2:]) == ("runStarted", ["agentEnded", "runEnded"])

    async def resume_elsewhere(one: Host, other: Host) -> None:
        run_id = await one.submit(CHAIN, {"n": 3, "name": "c"}, max_total_agents=2)
        ended = await one.wait_for(run_id)
        assert ended.failure is not None
        assert ended.failure.code is Code.AGENT_CAP
        outcome = await (await other.resume(run_id, by="ann", max_total_agents=3)).wait()
        assert outcome.value == ["answer to c0", "answer to c1", "answer to c2"]
        assert [agents.asked.count(f"c{i}") for i in range(3)] == [1, 1, 1]
        assert (await row_of(one, run_id)).status is Status.FINISHED
        assert (await one.replay(run_id)).difference is None

    async def case() -> None:
        stores = [await open_postgres(url) for _ in range(2)]
        try:
            async with (
                asyncio.timeout(SECONDS),
                host_on(stores[0], agents, lent) as one,
                host_on(stores[1], agents, lent) as other,
                one.drive({"default": 4}),
                other.drive({"default": 4}),
            ):
                await each_run_once(one, other)
                await cancel_from_outside(one, other)
                await resume_elsewhere(one, other)
        finally:
            for store in stores:
                await store.close()

    runner.run(case())
