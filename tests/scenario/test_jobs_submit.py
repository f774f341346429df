"""Jobs are accepted once, by contract, policy and a compiling worker; then they stand in the store."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Final

import pytest

from loopwarden import (
    ArgsInvalid,
    Host,
    InvalidRequest,
    JobRequest,
    JsonObject,
    PlainContract,
    Script,
    ScriptRejected,
    StartRefused,
)
from loopwarden.store.runs import Status
from loopwarden.store.shared import Scope
from loopwarden_engine.plain import JsonValue
from support.job_lab import CHAIN, FAN, InLab, JobLab, row_of
from support.lent_launcher import LentLauncher

TOMORROW: Final = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)


class Strict(PlainContract):
    """Wants a number `n`."""

    def decode_args(self, args: object) -> JsonObject:
        decoded = super().decode_args(args)
        if not isinstance(decoded.get("n"), int):
            raise ArgsInvalid("n is a whole number")
        return decoded


class Other(PlainContract):
    """The same rules under another name."""


def test_a_submitted_run_waits_in_its_queue_with_all_that_was_said_about_it(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        host = await lab.host()
        run_id = await host.submit(
            FAN,
            {"n": 2},
            queue="nightly",
            key="k1",
            priority=7,
            not_before=TOMORROW,
            labels={"team": "red"},
            by="ann",
            max_total_agents=5,
        )
        row = await row_of(host, run_id)
        assert (row.status, row.queue, row.key, row.priority) == (Status.QUEUED, "nightly", "k1", 7)
        assert (row.not_before, dict(row.labels), row.max_calls) == (TOMORROW.timestamp(), {"team": "red"}, 5)
        assert lab.agents.asked == []

    in_lab(case)


def test_a_job_is_driven_to_its_end_and_its_result_is_found_by_any_host(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        submitter, driver = await lab.host(), await lab.host()
        run_id = await submitter.submit(FAN, {"n": 3})
        async with driver.drive():
            outcome = await submitter.wait_for(run_id)
        assert outcome.stop_reason == "completed"
        assert outcome.value == ["answer to p0", "answer to p1", "answer to p2"]
        assert outcome.agents_started == 3
        assert sorted(lab.agents.asked) == ["p0", "p1", "p2"]
        assert (await driver.wait_for(run_id)).value == outcome.value
        assert outcome.receipt.journal is not None

    in_lab(case)


REFUSED: dict[str, tuple[Callable[[Host], Awaitable[str]], type[StartRefused], str]] = {
    "a script that breaks the language policy": (
        lambda host: host.submit(Script.from_text("import os\ndef main(args): ...", name="bad")),
        ScriptRejected,
        "the script 'bad' is refused: line 1: ",
    ),
    "a script that cannot be compiled": (
        lambda host: host.submit(Script.from_text("def main(args)", name="bad")),
        ScriptRejected,
        "the script 'bad' is refused: line 1: ",
    ),
    "arguments that the contract does not take": (
        lambda host: host.submit(Script(name="strict", source=FAN.source, contract=Strict()), {"n": "many"}),
        ArgsInvalid,
        "n is a whole number",
    ),
    "a limit above the ceiling": (
        lambda host: host.submit(FAN, {"n": 1}, max_total_agents=1001),
        InvalidRequest,
        "max_total_agents 1001 is above the ceiling of this deployment, 1000; ",
    ),
    "a provider that there is not": (
        lambda host: host.submit(FAN, {"n": 1}, provider="gone"),
        InvalidRequest,
        "the provider 'gone' does not exist; configured: default",
    ),
    "a name that no queue has": (
        lambda host: host.submit(FAN, {"n": 1}, queue="a queue"),
        InvalidRequest,
        "'a queue' cannot name a queue; use letters (a to z), digits and : . _ - /",
    ),
    "a budget that nobody made": (
        lambda host: host.submit(FAN, {"n": 1}, scopes=["tenant:amce"]),
        InvalidRequest,
        "there is no budget 'tenant:amce'; make it with `loopwarden budget set`, or by the settings",
    ),
    "a time without a zone": (
        lambda host: host.submit(FAN, {"n": 1}, not_before=datetime(2030, 1, 1)),
        InvalidRequest,
        "not_before has no time zone; give a datetime with one, or Unix time in seconds",
    ),
    "a time that is none": (
        lambda host: host.submit(FAN, {"n": 1}, not_before=float("nan")),
        InvalidRequest,
        "not_before is Unix time in seconds, or a datetime with a zone, not nan",
    ),
    "an empty key": (lambda host: host.submit(FAN, {"n": 1}, key=""), InvalidRequest, "a key has 1 to 500 characters"),
    "a label that is no text": (
        lambda host: host.submit(FAN, {"n": 1}, labels={"n": 1}),  # type: ignore[dict-item]
        InvalidRequest,
        "a label is a name and a text, both of at most 500 characters",
    ),
    "a priority that is no number": (
        lambda host: host.submit(FAN, {"n": 1}, priority="high"),  # type: ignore[arg-type]
        InvalidRequest,
        "priority is a whole number, not 'high'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_accepted_is_refused_and_leaves_nothing(in_lab: InLab, name: str) -> None:
    submit, kind, message = REFUSED[name]

    async def case(lab: JobLab) -> None:
        host = await lab.host()
        with pytest.raises(kind) as refusal:
            await submit(host)
        assert refusal.value.message.startswith(message) if message.endswith(" ") else refusal.value.message == message
        assert await host.list_runs() == []

    in_lab(case)


def test_the_same_key_gives_the_same_run_and_other_content_is_refused(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        one, other = await lab.host(), await lab.host()
        run_id = await one.submit(FAN, {"n": 2}, key="order-1")
        assert await other.submit(FAN, {"n": 2}, key="order-1") == run_id
        with pytest.raises(InvalidRequest) as refusal:
            await other.submit(FAN, {"n": 3}, key="order-1")
        assert refusal.value.message == (
            f"the key 'order-1' belongs to run {run_id}, which was asked for with other content; "
            "submit under another key"
        )
        assert [row.run_id for row in await one.list_runs()] == [run_id]

    in_lab(case)


def test_a_key_gives_its_run_also_when_that_is_over(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        host = await lab.host()
        run_id = await host.submit(FAN, {"n": 1}, key="once")
        async with host.drive():
            await host.wait_for(run_id)
            assert await host.submit(FAN, {"n": 1}, key="once") == run_id
        assert lab.agents.asked == ["p0"]

    in_lab(case)


def test_many_runs_are_submitted_together_or_not_at_all(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        host = await lab.host()
        first = await host.submit(FAN, {"n": 1}, key="taken")
        ids = await host.submit_many([JobRequest(script=FAN, args={"n": n}) for n in range(3)])
        assert len(set(ids)) == 3
        with pytest.raises(InvalidRequest):
            await host.submit_many(
                [JobRequest(script=CHAIN, args={"n": 1}), JobRequest(script=FAN, args={"n": 2}, key="taken")]
            )
        with pytest.raises(ScriptRejected):
            await host.submit_many([JobRequest(script=CHAIN), JobRequest(script=Script.from_text("x"))])
        assert [row.run_id for row in await host.list_runs()] == [*reversed(ids), first]
        assert await host.submit_many([]) == []

    in_lab(case)


def test_runs_are_listed_by_status_queue_loop_and_labels(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        host = await lab.host()
        red = await host.submit(FAN, {"n": 1}, labels={"team": "red", "size": "s"}, queue="a")
        blue = await host.submit(FAN, {"n": 1}, labels={"team": "blue"}, queue="b")
        chain = await host.submit(CHAIN, {"n": 1}, labels={"team": "red"}, queue="b")
        async with host.drive({"a": 1}):
            await host.wait_for(red)

        async def ids(**wanted: Any) -> list[str]:
            return [row.run_id for row in await host.list_runs(**wanted)]

        assert await ids() == [chain, blue, red]
        assert await ids(status="queued") == [chain, blue]
        assert await ids(status=Status.FINISHED) == [red]
        assert await ids(labels={"team": "red"}) == [chain, red]
        assert await ids(labels={"team": "red", "size": "s"}) == [red]
        assert await ids(script="fan", queue="b") == [blue]
        assert await ids(limit=1) == [chain]
        assert await ids(before=chain, limit=1) == [blue]
        with pytest.raises(InvalidRequest) as refusal:
            await host.list_runs(status="lost")
        assert refusal.value.message == "'lost' is no status; there are: queued, running, held, finished"

    in_lab(case)


def test_a_source_is_compiled_once_however_often_it_is_submitted(in_lab: InLab, lent: LentLauncher) -> None:
    async def case(lab: JobLab) -> None:
        host = await lab.host()
        forks = 0
        fork = lent.fork

        async def counted(*limits: Any) -> Any:
            nonlocal forks
            forks += 1
            return await fork(*limits)

        lent.fork = counted  # type: ignore[method-assign]
        try:
            await asyncio.gather(*(host.submit(FAN, {"n": n}) for n in range(5)))
            await host.submit(Script.from_text(FAN.source, name="the same under another name"), {"n": 1})
            assert forks == 1
            await host.submit(CHAIN, {"n": 1})
            assert forks == 2
            for _ in range(2):  # a refusal is not remembered
                with pytest.raises(ScriptRejected):
                    await host.submit(Script.from_text("import os"))
            assert forks == 4
        finally:
            lent.fork = fork  # type: ignore[method-assign]

    in_lab(case)


def test_budgets_of_the_settings_are_attached_by_queue_and_loop_to_jobs_and_to_runs_that_start(in_lab: InLab) -> None:
    def attached(queue: str, loop: str) -> list[str]:
        return [f"queue:{queue}"] + (["fans"] if loop == "fan" else [])

    async def case(lab: JobLab) -> None:
        host = await lab.host(attached_scopes=attached)
        assert host.custody is not None
        for name in ("queue:default", "queue:nightly", "fans", "tenant:acme"):
            await host.custody.store.set_scope(Scope(name=name, max_agents=1), "test")
        run_id = await host.submit(FAN, {"n": 1}, queue="nightly", scopes=["tenant:acme"])
        assert (await row_of(host, run_id)).scopes == ("fans", "queue:nightly", "tenant:acme")
        outcome = await host.run(CHAIN, {"n": 1})
        assert (await row_of(host, outcome.run_id)).scopes == ("queue:default",)
        again = await host.run(CHAIN, {"n": 1})
        assert again.failure is not None
        assert again.failure.code == "SCOPE_BUDGET"

    in_lab(case)


def test_two_contracts_under_one_name_are_refused(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        host = await lab.host(scripts=[Script(name="fan", source=FAN.source, contract=Strict())])
        with pytest.raises(InvalidRequest) as refusal:
            await host.submit(Script(name="fan", source=FAN.source, contract=Other()), {"n": 1})
        assert refusal.value.message == (
            "this host has a loop 'fan' with another contract; hosts tell loops apart by their names, so give one of "
            "the two another name"
        )

    in_lab(case)


def test_a_host_without_a_store_keeps_its_jobs_in_memory_and_what_it_starts_in_no_journal(
    runner: asyncio.Runner,
) -> None:
    asked: list[str] = []

    async def reply(request: Any) -> str:
        asked.append(request.prompt)
        return "yes"

    async def case() -> None:
        async with Host(providers={"default": reply}) as host:
            assert host.custody is None
            plain = await host.start(FAN, {"n": 1, "name": "a"})
            run_id = await host.submit(FAN, {"n": 1, "name": "b"})
            assert host.custody is not None
            assert host.custody.store.durable is False
            async with host.drive():
                assert (await host.wait_for(run_id)).value == ["yes"]
            started = await host.start(FAN, {"n": 1, "name": "c"})
            for run in (plain, started):
                outcome = await run.wait()
                assert outcome.receipt.journal is None
                assert await host.find(run.id) is None
                # Also what has no journal is found by the names of jobs, on the host that started it.
                assert (await host.wait_for(run.id)).value == outcome.value
                assert [event.kind async for event in host.events_of(run.id)][-1] == "runEnded"
            store = host.custody.store
        with pytest.raises(Exception, match="the store is closed"):
            await store.now()
        assert sorted(asked) == ["a0", "b0", "c0"]

    runner.run(case())


def test_a_job_on_a_host_of_its_own_memory_is_cancelled_with_the_host(runner: asyncio.Runner) -> None:
    async def never(request: Any) -> str:
        started.set()
        await asyncio.Event().wait()
        return "never"

    started = asyncio.Event()

    async def case() -> None:
        async with Host(providers={"default": never}) as host, host.drive():
            run_id = await host.submit(FAN, {"n": 1})
            await started.wait()
            run = host.get(run_id)
            assert run is not None
        outcome = await run.wait()
        assert outcome.failure is not None
        assert outcome.failure.message == "the run was cancelled: the host was closed"

    runner.run(case())


def test_a_closed_host_takes_no_job(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        host = await lab.host()
        await host.close()
        for ask in (host.submit(FAN, {"n": 1}), host.cancel("x"), host.find("x"), host.rerun("x")):
            with pytest.raises(InvalidRequest) as refusal:
                await ask
            assert refusal.value.message == "this host was closed; make a new one"

    in_lab(case)


def test_a_job_runs_under_its_own_contract(in_lab: InLab) -> None:
    class Even(PlainContract):
        """Believes even counts."""

        def decode_result(self, args: JsonObject, value: JsonValue, facts: Any) -> JsonValue:
            return len(super().decode_result(args, value, facts))  # type: ignore[arg-type]

    async def case(lab: JobLab) -> None:
        script = Script(name="even", source=FAN.source, contract=Even())
        host = await lab.host()
        run_id = await host.submit(script, {"n": 2})
        async with host.drive():
            # A job's value is what the script returned: whoever waits may have no contract for it.
            assert (await host.wait_for(run_id)).value == ["answer to p0", "answer to p1"]
            run = host.get(run_id)
            assert run is not None
            assert (await run.wait()).value == 2

    in_lab(case)
