"""The process that forks supervisors: nobody depends on its life, and it does not outlive its host."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from loopwarden import Host, Script
from loopwarden.provider import AgentReply
from loopwarden.providers.supervisors import SUPERVISORS
from support.agents import SLEEP, processes_below, provider, request, state, supervisors, until, wait_until

ASK = Script.from_text("from loopwarden_engine import agent\n\ndef main(args):\n    return agent('hello')\n")


@pytest.fixture(autouse=True)
def _without_a_nursery() -> None:
    SUPERVISORS.close_when_idle()


def nurseries() -> set[int]:
    """The nurseries that this process started."""
    found = set()
    for pid in processes_below(os.getpid()):
        try:
            if Path(f"/proc/{pid}/comm").read_bytes() == b"lw-nursery\n":
                found.add(pid)
        except OSError:
            continue
    return found


async def answer(workspace: Path, mark: str) -> str:
    reply = await provider("echo hello", mark).reply(request(workspace))
    assert isinstance(reply, AgentReply)
    return reply.text


def test_one_nursery_serves_all_agents_and_leaves_with_the_host(tmp_path: Path, mark: str) -> None:
    async def main() -> None:
        async with Host(providers={"default": provider("echo hello", mark)}) as host:
            for _ in range(3):
                outcome = await host.run(ASK, workspace=tmp_path)
                assert outcome.value == "hello\n"
                assert len(nurseries()) == 1
        assert nurseries() == set()

    asyncio.run(main())


def test_a_host_that_closes_leaves_the_nursery_to_agents_of_others(tmp_path: Path, mark: str) -> None:
    async def main() -> None:
        other = asyncio.create_task(provider(f"touch up; {SLEEP}", mark).reply(request(tmp_path)))
        await until((tmp_path / "up").exists)
        async with Host(providers={"default": provider("echo hello", mark)}) as host:
            await host.run(ASK, workspace=tmp_path)
        assert len(nurseries()) == 1
        other.cancel()
        await asyncio.gather(other, return_exceptions=True)
        assert supervisors() == set()

    asyncio.run(main())


def test_agents_do_not_notice_that_the_nursery_is_killed(tmp_path: Path, mark: str) -> None:
    async def main() -> None:
        script = "touch up; while [ ! -e go ]; do sleep 0.01; done; echo done"
        first = asyncio.create_task(provider(script, mark).reply(request(tmp_path)))
        await until((tmp_path / "up").exists)
        [nursery] = nurseries()
        os.kill(nursery, signal.SIGKILL)
        await until(lambda: nursery not in processes_below(os.getpid()) or state(nursery) == b"Z")
        assert await answer(tmp_path, mark) == "hello\n"
        (tmp_path / "go").touch()
        reply = await first
        assert reply.text == "done\n"

    asyncio.run(main())


def test_an_agent_whose_nursery_does_not_listen_can_be_cancelled(
    tmp_path: Path, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loopwarden.providers.process.SUPERVISOR_MARGIN_SECONDS", 0.1)

    async def main() -> None:
        assert await answer(tmp_path, mark) == "hello\n"
        [nursery] = nurseries()
        os.kill(nursery, signal.SIGSTOP)
        try:
            await until(lambda: state(nursery) == b"T")
            task = asyncio.create_task(answer(tmp_path, mark))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        finally:
            os.kill(nursery, signal.SIGCONT)
        await until(lambda: supervisors() == set())
        assert await answer(tmp_path, mark) == "hello\n"

    asyncio.run(main())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_the_nursery_takes_no_notice_of_the_signals_of_a_terminal(
    tmp_path: Path, mark: str, number: signal.Signals
) -> None:
    async def main() -> None:
        assert await answer(tmp_path, mark) == "hello\n"
        [nursery] = nurseries()
        os.kill(nursery, number)
        assert await answer(tmp_path, mark) == "hello\n"
        assert nurseries() == {nursery}

    asyncio.run(main())


@pytest.mark.parametrize("how", ["kill", "exit", "fork"])
def test_the_nursery_does_not_outlive_its_process(tmp_path: Path, how: str) -> None:
    code = (
        "import asyncio, os, signal, sys\n"
        "from pathlib import Path\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from support.agents import processes_below, provider, request\n"
        "asyncio.run(provider('echo hello', 'x').reply(request(Path(sys.argv[2]))))\n"
        "if sys.argv[3] == 'fork' and os.fork() == 0:\n"
        "    asyncio.run(provider('echo hello', 'x').reply(request(Path(sys.argv[2]))))\n"
        "    os._exit(0)\n"
        "if sys.argv[3] == 'fork':\n"
        "    os.wait()\n"
        "print(*processes_below(os.getpid()), flush=True)\n"
        "if sys.argv[3] == 'kill':\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    tests = Path(__file__).parent.parent
    ended = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code, tests, tmp_path, how],
        check=False,
        capture_output=True,
        text=True,
    )
    assert ended.stderr == ""
    [nursery] = map(int, ended.stdout.split())
    assert wait_until(lambda: not Path(f"/proc/{nursery}").exists())
