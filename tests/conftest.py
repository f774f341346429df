"""One event loop and one host per test module: a launcher costs 80 ms, a run 6 ms."""

import asyncio
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    """An event loop that lives as long as the module's tests."""
    with asyncio.Runner() as runner:
        yield runner
