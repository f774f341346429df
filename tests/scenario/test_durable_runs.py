"""Durable runs with real workers: ended, killed, changed and checked in the middle of what a host found of them."""

import asyncio
import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from loopwarden import AgentRequest, Check, JsonObject
from loopwarden.failures import Code
from loopwarden.journal.entries import Asked, AttemptEnded, Ended, Finished, Held, Stopping
from loopwarden.journal.receipt_fold import receipt_of
from loopwarden.store.runs import Status
from loopwarden_scripts import ralph
from support.durable_lab import (
    check_receipt,
    check_sound,
    claim_by,
    crashed,
    entries_of,
    freeze,
    left_behind,
    observed,
    seen_live,
    state_of,
    store_of,
    thaw,
    until_claimed,
)
from support.job_lab import CHAIN, FAN, SHORT, InLab, JobLab, row_of

# ---- the end of a run in the middle of its replay


@pytest.mark.parametrize("how", ["cancel", "deadline", "launcher"])
def test_a_run_that_ends_while_it_is_replayed_leaves_no_agent_without_an_end(in_lab: InLab, how: str) -> None:
    async def case(lab: JobLab) -> None:
        first, run_id = await crashed(lab, "p0", "p1", script=FAN, n=3)
        await lab.agents.until_asked("p2")
        second = await lab.host()
        claimed = await until_claimed(second, run_id)
        run = await second.adopt(*claimed)
        assert run is not None
        match how:
            case "cancel":
                run.cancel("enough")
            case "deadline":
                run._deadline_passed()
            case "launcher":
                run.launcher_lost()
            case _:
                raise AssertionError(how)
        if how == "launcher":
            # Nothing is wrong with the run: the next host tries again.
            await run.gone()
            assert (await row_of(second, run_id)).status is Status.QUEUED
            lab.agents.let_go("p0", "p1")
            async with second.drive():
                assert (await second.wait_for(run_id)).stop_reason == "completed"
            await check_sound(second, run_id)
            thaw(first)
            return
        outcome = await run.wait()
        assert outcome.failure is not None
        assert outcome.failure.code is (Code.DEADLINE if how == "deadline" else Code.CANCELLED)
        assert outcome.receipt.agents_started == 3
        await check_sound(second, run_id)
        await check_receipt(second, run)
        assert await seen_live(run) == await observed(second, run_id)
        assert [entry.agents_started for entry in await entries_of(second, run_id) if isinstance(entry, Finished)] == [
            3
        ]
        thaw(first)

    in_lab(case)


def test_a_run_that_ends_by_its_cap_in_its_replay_leaves_no_agent_without_an_end(in_lab: InLab) -> None:
    """Its host died after the asks, and before the end that the call after them brought."""

    async def case(lab: JobLab) -> None:
        lab.agents.kept = {"p0", "p1"}
        first = await lab.host(leases=SHORT)
        run_id = await first.submit(FAN, {"n": 3}, max_total_agents=2)
        store = store_of(first)
        append = store.append

        def forgetful(one: Any) -> None:
            if not any(isinstance(entry, Stopping | AttemptEnded) for entry in one.entries):
                append(one)

        store.append = forgetful
        async with first.drive():
            while sum(isinstance(entry, Asked) for entry in await entries_of(first, run_id)) < 2:
                await store.changed(run_id, after=10**6, timeout_seconds=0.05)
        await freeze(lab, first)
        second = await lab.host()
        run = await second.adopt(*await until_claimed(second, run_id))
        assert run is not None
        outcome = await run.wait()
        assert outcome.failure is not None
        assert outcome.failure.code is Code.AGENT_CAP
        await check_sound(second, run_id)
        await check_receipt(second, run)
        store.append = append
        thaw(first)

    in_lab(case)


# ---- what a replay meets


def test_a_script_that_used_too_much_processor_time_in_its_replay_is_held(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        run_id = await left_behind(lab, "p0")
        second = await lab.host()
        run = await second.adopt(*await claim_by(second, run_id))
        assert run is not None
        run._session._cpu_exceeded("cpuSecondsPerTurn")
        outcome = await run.wait()
        assert outcome.failure is not None
        assert outcome.failure.code is Code.REPLAY_DIVERGED
        row = await row_of(second, run_id)
        assert (row.status, row.owner, row.failure_code) == (Status.HELD, None, "REPLAY_DIVERGED")
        assert row.reason is not None
        assert row.reason.startswith("CPU_LIMIT while it was replayed: ")
        held = [entry for entry in await entries_of(second, run_id) if isinstance(entry, Held)]
        assert [entry.code for entry in held] == ["REPLAY_DIVERGED"]
        await check_receipt(second, run)
        assert await seen_live(run) == await observed(second, run_id)

    in_lab(case)


def test_a_worker_that_is_killed_in_its_replay_gives_the_run_back_and_the_next_one_goes_on(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        run_id = await left_behind(lab, "p0")
        second = await lab.host()
        run = await second.adopt(*await claim_by(second, run_id))
        assert run is not None
        run._session.worker.kill()
        await run.gone()
        row = await row_of(second, run_id)
        assert (row.status, row.owner, row.epoch) == (Status.QUEUED, None, 2)
        lab.agents.let_go("p0")
        async with second.drive():
            outcome = await second.wait_for(run_id)
        assert outcome.value == ["answer to p0", "answer to p1"]
        assert (await run.wait()).value == outcome.value
        assert await seen_live(run) == await observed(second, run_id)

    in_lab(case)


def test_a_source_that_was_changed_in_the_store_holds_the_run_and_leaves_others_alone(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        lab.agents.kept = {"p0"}
        first = await lab.host()
        damaged = await first.submit(CHAIN, {"n": 2})
        whole = await first.submit(CHAIN, {"n": 2, "name": "other"})
        with contextlib.closing(sqlite3.connect(lab.file)) as database, database:
            [(name,)] = database.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE '%body%' AND sql LIKE '%hash%'"
            ).fetchall()
            changed = database.execute(
                f"UPDATE {name} SET body = CAST(body AS TEXT) || ' ' WHERE run_id = ? AND seq = 1",
                (damaged,),
            )
            assert changed.rowcount == 1
        async with first.drive():
            assert (await first.wait_for(whole)).stop_reason == "completed"
            async with asyncio.timeout(10):
                while (await row_of(first, damaged)).status is not Status.HELD:
                    await store_of(first).changed(damaged, after=10**6, timeout_seconds=0.05)
        row = await row_of(first, damaged)
        assert (row.failure_code, row.owner) == ("STORE_CORRUPT", None)
        assert "p0" not in lab.agents.asked

    in_lab(case)


# ---- winding up


def report(request: AgentRequest) -> JsonObject:
    return {"status": "complete", "summary": "Done.", "evidence": ["it is there"], "nextSteps": [], "blocker": ""}


async def reports(request: AgentRequest) -> JsonObject:
    return report(request)


STRUCTURED = {"default": reports}


def test_checks_of_a_run_whose_host_died_run_again_however_long_they_take(in_lab: InLab, tmp_path: Path) -> None:
    async def case(lab: JobLab) -> None:
        workspace = tmp_path / "work"
        workspace.mkdir()
        check = Check(argv=("sh", "-c", "echo ran >> ran; test -e ok || exec sleep 20; exec sleep 1"))
        first = await lab.host(providers=STRUCTURED, leases=SHORT, scripts=[ralph.script])
        second = await lab.host(providers=STRUCTURED, leases=SHORT, scripts=[ralph.script])
        run = await first.start(
            ralph.script, ralph.Args(objective="make it work", max_rounds=2), workspace=workspace, checks=[check]
        )
        while not (workspace / "ran").exists():
            await asyncio.sleep(0.01)
        await freeze(lab, first)
        (workspace / "ok").touch()
        assert await second.adopt(*await until_claimed(second, run.id)) is None
        assert (workspace / "ran").read_text() == "ran\nran\n"
        thaw(first)
        outcome = await run.wait()
        assert (outcome.stop_reason, outcome.verified) == ("completed", True)
        receipt = receipt_of(await state_of(second, run.id))
        assert [check.exit for check in receipt.checks] == [0]
        assert receipt.last_handoff == {
            "status": "complete", "summary": "Done.", "evidence": ["it is there"], "nextSteps": [], "blocker": "",
        }  # fmt: skip
        await check_sound(second, run.id)
        assert await seen_live(run) == await observed(second, run.id)

    in_lab(case)


@pytest.mark.parametrize("is_held", [False, True])
def test_a_run_that_is_cancelled_without_a_worker_leaves_no_agent_without_an_end(in_lab: InLab, is_held: bool) -> None:
    async def case(lab: JobLab) -> None:
        first, run_id = await crashed(lab, "p0", "p1", script=FAN, n=3)
        second = await lab.host()
        claimed = await until_claimed(second, run_id)
        if is_held:
            run = await second.adopt(*claimed)
            assert run is not None
            run._hold(Code.REPLAY_DIVERGED, "for a test")
            await run.wait()
        else:
            assert second.custody is not None
            await second.custody.tenure(*claimed).give_back()
        await second.cancel(run_id, "never mind")
        async with second.drive():
            outcome = await second.wait_for(run_id)
        assert outcome.stop_reason == "cancelled"
        await check_sound(second, run_id)
        thaw(first)

    in_lab(case)


def test_ended_entries_are_never_asked_again_over_many_takeovers(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        run_id = await left_behind(lab, "p0", n=4)
        for prompt, following in (("p0", "p1"), ("p1", "p2"), ("p2", "p3")):
            host = await lab.host()
            lab.agents.let_go(prompt)
            lab.agents.kept.add(following)
            async with host.drive():
                await lab.agents.until_asked(following)
            await host.close()
        last = await lab.host()
        lab.agents.let_go("p3")
        async with last.drive():
            assert (await last.wait_for(run_id)).value == [f"answer to p{n}" for n in range(4)]
        assert lab.agents.asked == ["p0", "p0", "p1", "p1", "p2", "p2", "p3", "p3"]
        entries = await entries_of(last, run_id)
        assert [entry.seq for entry in entries if isinstance(entry, Ended)] == [1, 2, 3, 4]
        await check_sound(last, run_id)

    in_lab(case)
