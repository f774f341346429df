"""What tests of agent programs share."""

import secrets
from collections.abc import Iterator

import pytest

from support.agents import carrying, kill_all


@pytest.fixture
def mark() -> Iterator[str]:
    """A mark for the environment of this test's agents; whatever still carries it in the end is killed."""
    value = secrets.token_hex(8)
    yield value
    kill_all(carrying("TEST_MARK", value))
