"""A store that hosts of other machines may use: a path of this one means nothing there."""

from pathlib import Path

import pytest

from loopwarden import InvalidRequest
from support.job_lab import FAN, InLab, JobLab, row_of


def test_a_job_in_a_shared_store_names_its_workspace(in_lab: InLab, tmp_path: Path) -> None:
    folder = tmp_path / "tree"
    folder.mkdir()

    async def case(lab: JobLab) -> None:
        host = await lab.host(workspaces={"tree": folder})
        assert host.custody is not None
        host.custody.store.is_shared = True
        with pytest.raises(InvalidRequest, match="give the workspace a name under"):
            await host.submit(FAN, {"n": 1}, workspace=folder)
        run_id = await host.submit(FAN, {"n": 1}, workspace="tree")
        assert (await row_of(host, run_id)).workspace == "tree"
        async with host.drive():
            assert (await host.wait_for(run_id)).stop_reason == "completed"

    in_lab(case)


def test_a_job_in_a_store_of_this_machine_may_name_a_path(in_lab: InLab, tmp_path: Path) -> None:
    folder = tmp_path / "tree"
    folder.mkdir()

    async def case(lab: JobLab) -> None:
        host = await lab.host()
        run_id = await host.submit(FAN, {"n": 1}, workspace=folder)
        assert (await row_of(host, run_id)).workspace == str(folder)
        async with host.drive():
            assert (await host.wait_for(run_id)).stop_reason == "completed"

    in_lab(case)


def test_a_workspace_that_another_run_holds_is_waited_for(in_lab: InLab, tmp_path: Path) -> None:
    folder = tmp_path / "tree"
    folder.mkdir()

    async def case(lab: JobLab) -> None:
        lab.agents.kept = {"first0"}
        outside = await lab.host()
        host = await lab.host()
        assert outside.custody is not None
        outside._is_journaled = False  # as a run that no store knows of
        first = await outside.start(FAN, {"n": 1, "name": "first"}, workspace=folder)
        await lab.agents.until_asked("first0")
        run_id = await host.submit(FAN, {"n": 1}, workspace=folder)
        async with host.drive():
            while (await row_of(host, run_id)).epoch == 0:
                assert host.custody is not None
                await host.custody.store.changed(run_id, after=10**6, timeout_seconds=0.05)
            lab.agents.let_go("first0")
            await first.wait()
            assert (await host.wait_for(run_id)).stop_reason == "completed"
        assert lab.agents.asked == ["first0", "p0"]

    in_lab(case)
