"""Events and outcomes of any run of a store, for whoever asks: numbered by the journal, each once."""

import asyncio
import dataclasses

import pytest

from loopwarden import Code, Host, InvalidRequest
from loopwarden.events import AgentEnded, AgentProgress, Event
from loopwarden.provider import AgentRequest
from support.job_lab import CHAIN, FAN, QUICK, InLab, JobLab, row_of


async def all_events(host: Host, run_id: str, after: int = 0) -> list[Event]:
    """Events until the run has ended."""
    return [event async for event in host.events_of(run_id, after)]


def timeless(events: list[Event]) -> list[Event]:
    """Events without what two clocks may measure differently: the host's, and the journal's."""
    return [
        dataclasses.replace(event, at=0.0, **({"seconds": 0.0} if isinstance(event, AgentEnded) else {}))
        for event in events
    ]


def seen(events: list[Event]) -> list[tuple[int, str]]:
    return [(event.number, event.kind) for event in events]


def test_a_run_is_followed_from_its_queue_to_its_end_on_its_host_and_on_others(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        here, there = await lab.host(), await lab.host()
        run_id = await there.submit(FAN, {"n": 2})
        readers = [asyncio.create_task(all_events(host, run_id)) for host in (here, there)]
        async with here.drive():
            local, foreign = await asyncio.gather(*readers)
        assert seen(local) == seen(foreign)
        assert timeless(local) == timeless(foreign)
        assert [event.kind for event in local] == [
            "runStarted", "phase", "log", "agentStarted", "agentStarted", "agentEnded", "agentEnded", "runEnded",
        ]  # fmt: skip
        assert seen(await all_events(there, run_id)) == seen(local)

    in_lab(case)


@pytest.mark.parametrize("is_local", [True, False])
def test_a_reader_goes_on_after_any_number(in_lab: InLab, is_local: bool) -> None:
    async def case(lab: JobLab) -> None:
        driver, other = await lab.host(), await lab.host()
        lab.agents.kept = {"p1"}
        run_id = await driver.submit(CHAIN, {"n": 2})
        async with driver.drive():
            await lab.agents.until_asked("p1")
            reader = driver if is_local else other
            first: list[Event] = []
            async for event in reader.events_of(run_id):
                first.append(event)
                if event.kind == "agentEnded":
                    break
            reading = asyncio.create_task(all_events(reader, run_id, after=first[-1].number))
            lab.agents.let_go("p1")
            rest = await reading
        whole = await all_events(other, run_id)
        assert seen(first) + seen(rest) == seen(whole)
        assert await all_events(reader, run_id, after=whole[-1].number) == []

    in_lab(case)


def test_progress_is_seen_on_the_host_that_drives_the_run(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        go_on = asyncio.Event()

        async def reply(request: AgentRequest) -> str:
            request.progress("half way")
            await go_on.wait()
            return "done"

        here, there = await lab.host(providers={"default": reply}), await lab.host()
        run_id = await here.submit(FAN, {"n": 1})
        foreign = asyncio.create_task(all_events(there, run_id))
        async with here.drive():
            local: list[Event] = []
            async for event in here.events_of(run_id):
                local.append(event)
                if isinstance(event, AgentProgress):
                    assert event.message == "half way"
                    go_on.set()
        assert [event.kind for event in local].count("agentProgress") == 1
        assert timeless([event for event in local if event.kind != "agentProgress"]) == timeless(await foreign)

    in_lab(case)


def test_events_and_outcome_go_on_across_a_host_that_stops(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        lab.agents.kept = {"p1"}
        first, second, watcher = await lab.host(), await lab.host(), await lab.host()
        run_id = await watcher.submit(CHAIN, {"n": 3})
        readers = [asyncio.create_task(all_events(host, run_id)) for host in (first, watcher)]
        async with first.drive():
            await lab.agents.until_asked("p1")
            run = first.get(run_id)
            assert run is not None
        waiting = asyncio.create_task(watcher.wait_for(run_id))
        lab.agents.let_go("p1")
        async with second.drive():
            # Read on a host that stops, a run is followed as long as that one's store is open.
            await first.close(drain_seconds=5)
            outcome = await waiting
            local, foreign = await asyncio.gather(*readers)
        assert outcome.value == ["answer to p0", "answer to p1", "answer to p2"]
        assert seen(local) == seen(foreign)
        assert [event.kind for event in foreign].count("runResumed") == 1
        assert [event.kind for event in foreign].count("agentEnded") == 3
        assert lab.agents.asked == ["p0", "p1", "p2"]

    in_lab(case)


def test_a_run_that_is_held_ends_its_events_and_its_waiting(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        host = await lab.host()
        run_id = await host.submit(FAN, {"n": 1})
        assert host.custody is not None
        claim, asked_at = await host.custody.claim_one(run_id)
        events = asyncio.create_task(all_events(host, run_id))
        waiting = asyncio.create_task(host.wait_for(run_id))
        await host.custody.tenure(claim, asked_at).hold(Code.REPLAY_DIVERGED, "it differs")
        outcome = await waiting
        assert outcome.failure is not None
        assert outcome.failure.code == "REPLAY_DIVERGED"
        assert [event.kind for event in await events] == ["runStarted", "runHeld"]

    in_lab(case)


def test_a_run_that_there_is_not_is_refused(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        host = await lab.host()
        message = f"the store {host.custody.store.name} holds no run 'nothing'" if host.custody else ""
        assert await host.find("nothing") is None
        for ask in (
            host.wait_for("nothing"),
            all_events(host, "nothing"),
            host.cancel("nothing"),
            host.resume("nothing", by="ann"),
            host.rerun("nothing"),
            host.replay("nothing"),
        ):
            with pytest.raises(InvalidRequest) as refusal:
                await ask
            assert refusal.value.message == message

    in_lab(case)


def test_a_reader_that_stops_early_leaves_the_run_alone(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        host = await lab.host(leases=QUICK)
        run_id = await host.submit(FAN, {"n": 1})
        async with host.drive():
            async for _ in host.events_of(run_id):
                break
            reading = asyncio.create_task(all_events(host, run_id))
            await asyncio.sleep(0)
            reading.cancel()
            assert (await host.wait_for(run_id)).stop_reason == "completed"
        assert (await row_of(host, run_id)).calls == 1

    in_lab(case)
