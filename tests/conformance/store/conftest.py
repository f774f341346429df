"""Tests are coroutines, each on an event loop of its own. With `lab` or `store` they run on every store of `LABS`."""

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from loopwarden.store.api import Store
from support.store_lab import LABS, StoreLab


@pytest.fixture(autouse=True)
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(params=LABS)
def lab(request: pytest.FixtureRequest, runner: asyncio.Runner, swift_path: Path) -> Iterator[StoreLab]:
    opened = LABS[request.param](swift_path)
    yield runner.run(opened.__aenter__())
    runner.run(opened.__aexit__(None, None, None))


@pytest.fixture
def store(lab: StoreLab) -> Store:
    return lab.store


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    pyfuncitem.funcargs["runner"].run(pyfuncitem.obj(**arguments))
    return True
