"""One launcher per module: hundreds of cases start a host each."""

import asyncio
from collections.abc import Iterator

import pytest

from support.lent_launcher import LentLauncher, lent_launcher


@pytest.fixture(scope="module")
def launcher(runner: asyncio.Runner) -> Iterator[LentLauncher]:
    """A launcher that the hosts of a module's tests share."""
    with lent_launcher(runner) as launcher:
        yield launcher
