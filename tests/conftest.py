"""One event loop and one host per test module: a launcher costs 80 ms, a run 6 ms. Logs begin anew with each test."""

import asyncio
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

MEMORY = Path("/dev/shm")


@pytest.fixture
def swift_path(tmp_path: Path) -> Iterator[Path]:
    """A folder for stores of tests that lose no disk: in memory where that is possible, as syncs cost nothing there.

    What a process wrote before it was killed is in the kernel's hands in both places. No program may be started from
    this folder.
    """
    if not os.access(MEMORY, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="loopwarden-test-", dir=MEMORY) as folder:
        yield Path(folder)


@pytest.fixture(autouse=True)
def unconfigured_logs() -> Iterator[None]:
    """Logs go where they go for an embedder that configured nothing, whatever the test before did with them."""
    yield
    structlog.contextvars.clear_contextvars()
    structlog.reset_defaults()


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    """An event loop that lives as long as the module's tests."""
    with asyncio.Runner() as runner:
        yield runner
