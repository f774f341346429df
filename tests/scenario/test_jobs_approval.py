"""Approvals that follow a lock, while hosts run: what is withdrawn is not begun any more, wherever it waits."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from loopwarden import Code, Host, Script, ScriptRejected, SettingsInWorkspace
from loopwarden.approvals import LockApprovals
from loopwarden.code_digest import approved_form
from loopwarden.lock_file import Approval, now, write_lock
from loopwarden.store.runs import RunRow, Status
from support.job_lab import CHAIN, FAN, SHORT, InLab, JobLab, row_of
from support.loop_on_disk import LoopOnDisk


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return tmp_path / "loopwarden.lock"


def approve(lock: Path, *scripts: Script[Any, Any]) -> None:
    """Let the lock name these alone."""
    write_lock(lock, [entry(script) for script in scripts])


def entry(script: Script[Any, Any]) -> Approval:
    contract = approved_form(script.contract, script.digest).digest
    assert contract is not None
    return Approval(
        name=script.name, source=script.digest, contract=contract, policy="any", bound="any", approved_by="ann",
        approved_at=now(),
    )  # fmt: skip


def strict(lock: Path, case: Callable[[JobLab, Host], Awaitable[None]], **more: Any) -> Callable[[JobLab], Any]:
    """A case with a host that runs only what the lock names."""

    async def play(lab: JobLab) -> None:
        await case(lab, await lab.host(approvals=LockApprovals(lock), **more))

    return play


async def look(host: Host, run_ids: Sequence[str]) -> list[RunRow]:
    return [await row_of(host, run_id) for run_id in run_ids]


def test_an_entry_that_is_withdrawn_leaves_its_waiting_runs_where_they_are(in_lab: InLab, lock: Path) -> None:
    approve(lock, FAN, CHAIN)

    async def case(lab: JobLab, host: Host) -> None:
        waiting = await host.submit(FAN, {"n": 1, "name": "fan"})
        approve(lock, CHAIN)
        async with host.drive({"default": 4}):
            after = await host.submit(CHAIN, {"n": 1, "name": "chain"})
            assert (await host.wait_for(after)).stop_reason == "completed"
            row = await row_of(host, waiting)
            assert (row.status, row.epoch) == (Status.QUEUED, 0)
            with pytest.raises(ScriptRejected, match="'fan' is not approved"):
                await host.submit(FAN, {"n": 1})
            with pytest.raises(ScriptRejected, match="'fan' is not approved"):
                await host.rerun(waiting)
            # What comes back is begun by the same host, which was never restarted.
            approve(lock, FAN, CHAIN)
            assert (await host.wait_for(waiting)).stop_reason == "completed"
        assert lab.agents.asked == ["chain0", "fan0"]

    in_lab(strict(lock, case))


def test_a_run_that_was_withdrawn_meanwhile_is_not_resumed_and_nothing_of_it_changes(in_lab: InLab, lock: Path) -> None:
    approve(lock, CHAIN)

    async def case(lab: JobLab, host: Host) -> None:
        run = await host.start(CHAIN, {"n": 3}, max_total_agents=2)
        outcome = await run.wait()
        assert outcome.failure is not None
        assert outcome.failure.code is Code.AGENT_CAP
        before = await row_of(host, run.id)
        approve(lock)
        with pytest.raises(ScriptRejected, match="'chain' is not approved"):
            await host.resume(run.id, by="ann", max_total_agents=3)
        assert await row_of(host, run.id) == before
        approve(lock, CHAIN)
        resumed = await host.resume(run.id, by="ann", max_total_agents=3)
        assert (await resumed.wait()).stop_reason == "completed"

    in_lab(strict(lock, case))


def test_a_run_whose_host_died_is_not_taken_over_once_it_is_withdrawn(in_lab: InLab, lock: Path) -> None:
    approve(lock, CHAIN, FAN)

    async def case(lab: JobLab) -> None:
        first = await lab.host(leases=SHORT)
        run_id = await first.submit(CHAIN, {"n": 1})
        assert first.custody is not None
        await first.custody.claim_one(run_id)  # and then nothing more is heard of the first
        approve(lock, FAN)
        second = await lab.host(approvals=LockApprovals(lock))
        async with second.drive({"default": 4}):
            while (await row_of(second, run_id)).lease_until > await store_now(second):  # type: ignore[operator]
                await second.custody.store.woken(["default"], 0.02)  # type: ignore[union-attr]
            for number in range(3):
                other = await second.submit(FAN, {"n": 1, "name": str(number)})
                assert (await second.wait_for(other)).stop_reason == "completed"
            assert (await row_of(second, run_id)).epoch == 1
            approve(lock, CHAIN, FAN)
            assert (await second.wait_for(run_id)).stop_reason == "completed"
        assert (await row_of(second, run_id)).epoch == 2

    in_lab(case)


async def store_now(host: Host) -> float:
    assert host.custody is not None
    return await host.custody.store.now()


def test_a_run_that_is_live_goes_on_and_a_withdrawn_one_can_still_be_cancelled(in_lab: InLab, lock: Path) -> None:
    approve(lock, CHAIN)

    async def case(lab: JobLab, host: Host) -> None:
        lab.agents.kept = {"live0"}
        live = await host.start(CHAIN, {"n": 2, "name": "live"})
        waiting = await host.submit(CHAIN, {"n": 1})
        await lab.agents.until_asked("live0")
        approve(lock)
        row = await host.cancel(waiting, "not wanted any more")
        assert row is not None
        assert (row.status, row.failure_code) == (Status.FINISHED, Code.CANCELLED)
        lab.agents.let_go("live0")
        assert (await live.wait()).value == ["answer to live0", "answer to live1"]

    in_lab(strict(lock, case))


def test_a_lock_that_cannot_be_used_begins_nothing_until_it_is_mended(in_lab: InLab, lock: Path) -> None:
    approve(lock, FAN)

    async def case(lab: JobLab, host: Host) -> None:
        waiting = await host.submit(FAN, {"n": 1})
        lock.chmod(0o666)
        async with host.drive({"default": 1}):
            with pytest.raises(ScriptRejected, match=r"nothing is approved: the lock .* can be written by others"):
                await host.start(FAN, {"n": 1})
            for _ in range(3):
                await host.custody.store.woken(["default"], 0.06)  # type: ignore[union-attr]
            assert (await row_of(host, waiting)).epoch == 0
            lock.chmod(0o644)
            assert (await host.wait_for(waiting)).stop_reason == "completed"

    in_lab(strict(lock, case))


@pytest.mark.parametrize("name", ["loop.py", "contract.py", "rules.py"])
def test_one_changed_byte_of_a_loop_is_refused_and_its_runs_are_left_to_others(
    in_lab: InLab, lock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    disk = LoopOnDisk(tmp_path / "site", monkeypatch)
    approved = disk.script()
    disk.change(name)
    changed = disk.script()
    approve(lock, approved, FAN)

    async def case(lab: JobLab) -> None:
        anything = await lab.host(scripts=[changed])
        foreign = await anything.submit(changed, {"files": ["a"]})
        host = await lab.host(scripts=[changed], approvals=LockApprovals(lock))
        with pytest.raises(ScriptRejected) as caught:
            await host.start(changed, {"files": ["a"]})
        found, wanted = caught.value.details["found"], caught.value.details["approved"]
        assert wanted == {
            "source": approved.digest,
            "contract": approved_form(approved.contract, approved.digest).digest,
        }
        assert found == {"source": changed.digest, "contract": approved_form(changed.contract, changed.digest).digest}
        assert all(digest in caught.value.message for key, digest in found.items() if digest != wanted[key])
        async with host.drive({"default": 4}):
            known = await host.submit(FAN, {"n": 1})
            assert (await host.wait_for(known)).stop_reason == "completed"
        assert [row.epoch for row in await look(host, [foreign, known])] == [0, 1]

    in_lab(case)


def test_what_others_submitted_with_an_approved_source_and_without_its_contract_is_held(
    in_lab: InLab, lock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = LoopOnDisk(tmp_path / "site", monkeypatch).script()
    approve(lock, script)

    async def case(lab: JobLab) -> None:
        anything = await lab.host()
        bare = await anything.submit(Script.from_text(script.source, name="votes"), {"files": ["a"]})
        host = await lab.host(scripts=[script], approvals=LockApprovals(lock))
        async with host.drive({"default": 1}):
            await host.wait_for(bare)
        row = await row_of(host, bare)
        assert (row.status, row.failure_code) == (Status.HELD, Code.SCRIPT_REJECTED)
        assert lab.agents.asked == []

    in_lab(case)


def test_a_lock_in_the_workspace_is_refused_wherever_a_run_begins(in_lab: InLab, tmp_path: Path) -> None:
    workspace = tmp_path / "work"
    workspace.mkdir()
    lock = workspace / "loopwarden.lock"
    approve(lock, FAN)

    async def case(lab: JobLab, host: Host) -> None:
        for begin in (host.start, host.submit):
            with pytest.raises(SettingsInWorkspace, match=r"the lock of approved scripts .* lies inside the workspace"):
                await begin(FAN, {"n": 1}, workspace=workspace)
        anything = await lab.host()
        foreign = await anything.submit(FAN, {"n": 1}, workspace=workspace)
        async with host.drive({"default": 1}):
            await host.wait_for(foreign)
        row = await row_of(host, foreign)
        assert (row.status, row.failure_code) == (Status.HELD, Code.SETTINGS_IN_WORKSPACE)

    in_lab(strict(lock, case))
