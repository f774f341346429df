"""A host belongs to one process and one event loop, and says so when it is used elsewhere."""

import asyncio
import os

import pytest

from loopwarden import AgentRequest, Host, Script, run_sync
from loopwarden import host as host_module

SCRIPT = Script.from_text("def main(args):\n    return args['n'] + 1\n")


async def reply(request: AgentRequest) -> str:
    """Answer."""
    return "ok"


def test_a_host_that_was_not_entered_says_what_to_do() -> None:
    """`async with` comes first."""

    async def play() -> None:
        with pytest.raises(RuntimeError, match="enter the Host first"):
            await Host(providers={"default": reply}).start(SCRIPT)

    asyncio.run(play())


def test_a_host_on_another_event_loop_says_so() -> None:
    """Its launcher is watched by the loop in which it was entered."""
    host = Host(providers={"default": reply})
    with asyncio.Runner() as home:
        home.run(host.__aenter__())

        async def elsewhere() -> None:
            with pytest.raises(RuntimeError, match="another event loop"):
                await host.start(SCRIPT)

        with asyncio.Runner() as other:
            other.run(elsewhere())
        home.run(host.close())


def test_a_host_after_a_fork_says_so() -> None:
    """A child that uses its parent's host gets a sentence, not a hang."""
    reader, writer = os.pipe()

    async def play() -> int:
        async with Host(providers={"default": reply}) as host:
            pid = os.fork()
            if pid == 0:
                try:
                    host._check_home()
                except RuntimeError as error:
                    os.write(writer, str(error).encode())
                finally:
                    os._exit(0)
            return pid

    os.waitpid(asyncio.run(play()), 0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert b"another process" in pipe.read()


def test_a_host_is_entered_once() -> None:
    """A second `async with` would share a launcher that the first one ends."""

    async def play() -> None:
        host = Host(providers={"default": reply})
        async with host:
            pass
        with pytest.raises(RuntimeError, match="entered before"):
            await host.__aenter__()

    asyncio.run(play())


def test_run_sync_runs_without_an_event_loop_and_refuses_inside_of_one() -> None:
    """For plain scripts and sync services."""
    assert run_sync(SCRIPT, {"n": 1}, providers={"default": reply}).value == 2

    async def inside() -> None:
        with pytest.raises(RuntimeError, match=r"await Host\.run"):
            run_sync(SCRIPT, {"n": 1}, providers={"default": reply})

    asyncio.run(inside())


def test_runs_are_found_by_their_ids() -> None:
    """Live or ended."""

    async def play() -> None:
        async with Host(providers={"default": reply}) as host:
            run = await host.start(SCRIPT, {"n": 1})
            assert host.get(run.id) is run
            assert host.runs() == [run]
            await run.wait()
            assert host.get(run.id) is run
            assert host.get("no such run") is None

    asyncio.run(play())


def test_ended_runs_are_forgotten_by_their_agents_as_well_as_by_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a long-lived host remembers is bounded; the last run is kept whatever."""
    monkeypatch.setattr(host_module, "MAX_REMEMBERED_AGENTS", 5)
    source = "def main(args):\n    for n in range(args['n']):\n        agent('hello')\n"

    async def play() -> None:
        async with Host(providers={"default": reply}) as host:
            kept = []
            for n in (2, 2, 2, 7):
                kept.append((await host.run(Script.from_text(source), {"n": n})).run_id)
                assert host.get(kept[-1]) is not None
                if n == 2:
                    assert [run.id for run in host.runs()] == kept[-2:]
            assert [run.id for run in host.runs()] == kept[-1:]

    asyncio.run(play())
