"""What tests of agent programs, and of jobs, share."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from support.agents import carrying, kill_all
from support.crash_host import Place
from support.crash_lab import CrashLab, Nursery, nursery, private
from support.job_lab import InLab, JobLab, job_lab
from support.lent_launcher import LentLauncher, lent_launcher
from support.postgres_server import emptied_database


@pytest.fixture
def mark() -> Iterator[str]:
    """A mark for the environment of this test's agents; whatever still carries it in the end is killed."""
    value = secrets.token_hex(8)
    yield value
    kill_all(carrying("TEST_MARK", value))


@pytest.fixture(scope="module")
def lent(runner: asyncio.Runner) -> Iterator[LentLauncher]:
    """One launcher for all hosts of a module."""
    with lent_launcher(runner) as launcher:
        yield launcher


@pytest.fixture
def in_lab(runner: asyncio.Runner, lent: LentLauncher, swift_path: Path) -> InLab:
    """Runs a case with hosts that share a store."""

    def run(case: Callable[[JobLab], Awaitable[None]]) -> None:
        async def main() -> None:
            async with job_lab(swift_path, lent) as lab:
                await case(lab)

        runner.run(main())

    return run


@pytest.fixture(scope="session")
def hosts() -> Iterator[Nursery]:
    """Hosts in processes of their own."""
    with nursery() as hosts:
        yield hosts


@pytest.fixture(scope="module")
def crashes(
    runner: asyncio.Runner, hosts: Nursery, lent: LentLauncher, tmp_path_factory: pytest.TempPathFactory
) -> CrashLab:
    """Runs that are interrupted, and taken over."""
    return CrashLab(runner=runner, hosts=hosts, launcher=lent, folder=tmp_path_factory.mktemp("calm"))


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, swift_path: Path) -> Iterator[Place]:
    """A place for one run, in each kind of store. It has a folder `work`."""
    folder = private(swift_path / "place")
    (folder / "work").mkdir()
    if request.param == "sqlite":
        yield Place(folder)
        return
    with emptied_database() as url:
        yield Place(folder, url)
