"""Hooks work where a script calls them in order, and nowhere else: not while Python discards a generator."""

import asyncio
from typing import Any

import pytest

from loopwarden import AgentRequest, Code, Host, Outcome, Script

HIDDEN_BY = {
    "a raise of what was raised before": """
            first = ValueError("first")
            try:
                raise first
            except ValueError:
                try:
                    raise KeyError("second")
                except KeyError:
                    try:
                        raise first
                    except ValueError:
                        agent("from a finalizer")
""",
    "errors that Python raises itself": """
            try:
                1 / 0
            except ZeroDivisionError as first:
                try:
                    [][1]
                except IndexError:
                    try:
                        raise first
                    except ZeroDivisionError:
                        agent("from a finalizer")
""",
    "a throw into another generator": """
            def other():
                try:
                    yield 1
                except ZeroDivisionError:
                    agent("from a finalizer")
                    yield 2
            try:
                1 / 0
            except ZeroDivisionError as first:
                try:
                    [][1]
                except IndexError:
                    inner = other()
                    next(inner)
                    inner.throw(first)
""",
    "nothing": """
            agent("from a finalizer")
""",
}


async def answer(request: AgentRequest) -> str:
    """Answer at once."""
    return "yes"


def outcome_of(runner: asyncio.Runner, source: str) -> Outcome[Any]:
    """The outcome of one script."""

    async def play() -> Outcome[Any]:
        async with Host(providers={"default": answer}) as host:
            return await asyncio.wait_for(host.run(Script.from_text(source)), 20)

    return runner.run(play())


@pytest.mark.parametrize("how", HIDDEN_BY)
def test_a_hook_reached_from_a_finalizer_is_fatal(runner: asyncio.Runner, how: str) -> None:
    """However the script hides that a generator is being discarded."""
    body = HIDDEN_BY[how]
    source = f"""
def main(args):
    def items():
        try:
            yield 1
        finally:{body}
    iterator = items()
    next(iterator)
    iterator = None
    return "hidden"
"""
    outcome = outcome_of(runner, source)
    assert outcome.failure is not None
    assert outcome.failure.code is Code.SCRIPT_ERROR
    assert "discarded" in outcome.failure.message
    assert outcome.agents_started == 0


def test_exceptions_inside_of_a_finalizer_stay_ordinary_ones(runner: asyncio.Runner) -> None:
    """Clean-up may raise and catch; and a hook works where an exception is handled outside of a finalizer."""
    source = """
def main(args):
    seen = []
    def items():
        try:
            yield 1
        finally:
            try:
                raise ValueError("while cleaning up")
            except ValueError as error:
                seen.append(str(error))
    iterator = items()
    next(iterator)
    iterator.close()
    try:
        raise KeyError("plain")
    except KeyError:
        seen.append(agent("from a handler"))
    return seen
"""
    assert outcome_of(runner, source).value == ["while cleaning up", "yes"]
