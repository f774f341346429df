"""Which programs are tested, and what every test of them starts with and leaves."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.brain import HANDS, RalphBrain
from agents.programs import PROGRAMS
from agents.stage import Stage
from loopwarden.providers.supervisors import SUPERVISORS
from support.agents import carrying, descendants, kill_all, wait_until
from support.census import descriptors
from support.command_line import Home
from support.model_server import ModelServer


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a person choose."""
    parser.addoption("--agents", default=" ".join(PROGRAMS), help="which programs to test, such as 'claude codex'")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every test with each program."""
    if "program" in metafunc.fixturenames:
        wanted = metafunc.config.getoption("--agents").split()
        unknown = set(wanted) - set(PROGRAMS)
        if unknown or not wanted:
            raise pytest.UsageError(f"--agents takes names out of {', '.join(PROGRAMS)}")
        metafunc.parametrize("program", wanted)


@pytest.fixture
def stage(program: str, tmp_path: Path) -> Iterator[Stage]:
    """A stage whose programs leave no process, and whose host leaves no descriptor."""
    home = Home(tmp_path)
    brain = RalphBrain(hands=HANDS[program], workspace=home.workspace)
    mark = secrets.token_hex(8)
    before, held = descendants(), descriptors()
    try:
        with ModelServer(brain) as server:
            yield Stage(program=program, home=home, brain=brain, server=server, mark=mark)
        SUPERVISORS.close_when_idle()
        assert wait_until(lambda: not carrying("TEST_MARK", mark)), f"{program} left processes"
        assert descendants() == before
        assert descriptors() == held
    finally:
        kill_all(carrying("TEST_MARK", mark))
