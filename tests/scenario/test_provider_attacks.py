"""Agents that mean harm to their host: with what they leave in folders, in the process table, and in their words."""

import asyncio
import fcntl
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from loopwarden.breaker import BreakerState, read_breakers, write_breaker
from loopwarden.failure_class import FailureClass
from loopwarden.provider import AgentFailed, Provider, ProviderStartError
from loopwarden.providers.acp.provider import AcpProvider
from loopwarden.providers.command import CommandProvider
from loopwarden.providers.supervisors import SUPERVISORS
from loopwarden.run_folder import RunFolderError
from support.agents import processes_below, provider, request, state, supervisors, until, wait_until
from support.toy_agent import END, toy

TESTS = Path(__file__).parent.parent
KEY = "sk-planted-4711-in-the-environment"
FILE_TOKEN = "a-token-out-of-a-file-4711"
KEPT = {"output-2.txt": b"hello\n", "error-2.txt": b"oops\n"}


# ---- what agents put into folders


def plant_pipe(path: Path) -> None:
    os.mkfifo(path)


def plant_symbolic_link(path: Path) -> None:
    path.symlink_to(path.with_name("precious"))


def plant_hard_link(path: Path) -> None:
    path.hardlink_to(path.with_name("precious"))


@pytest.mark.parametrize("plant", [plant_pipe, plant_symbolic_link, plant_hard_link])
def test_what_stands_in_the_place_of_a_kept_stream_is_neither_opened_nor_followed(
    tmp_path: Path, mark: str, plant: Callable[[Path], None]
) -> None:
    """An agent knows from its HOME where the streams of the next attempt will be kept. A pipe would hang the host."""
    folder = tmp_path / "agent"
    folder.mkdir()
    (folder / "precious").write_bytes(b"kept")
    for name in KEPT:
        plant(folder / name)
    asked = request(tmp_path, folder=folder, attempt=2)
    reply = asyncio.run(provider("echo hello; echo oops >&2", mark).reply(asked))
    assert (reply.text, reply.notes) == ("hello\n", ())
    assert {name: (folder / name).read_bytes() for name in KEPT} == KEPT
    assert (folder / "precious").read_bytes() == b"kept"


def test_a_folder_in_the_place_of_a_kept_stream_is_a_note(tmp_path: Path, mark: str) -> None:
    (tmp_path / "output-2.txt").mkdir()
    reply = asyncio.run(provider("echo hello", mark).reply(request(tmp_path, folder=tmp_path, attempt=2)))
    assert (reply.text, len(reply.notes)) == ("hello\n", 1)
    assert "output-2.txt could not be kept" in reply.notes[0]


@pytest.mark.parametrize("kills", ["", 'kill -KILL "$PPID"; sleep 60'], ids=["", "and its supervisor is killed"])
def test_a_home_goes_however_deep_its_agent_made_it(tmp_path: Path, kills: str) -> None:
    """By the supervisor, and by the host should the supervisor be killed. The credentials in it go too."""
    (tmp_path / "login").write_text(FILE_TOKEN)
    code = (
        "import os; os.chdir(os.environ['HOME'])\nfor _ in range(1200):\n os.mkdir('a' * 100); os.chdir('a' * 100)\n"
        "open('last', 'w').close()"
    )
    agent, dialect = toy(
        tmp_path,
        f"{sys.executable} -IS -c '{code.replace(chr(39), chr(34))}' || exit 9\necho '{END}'\n{kills}",
        credential_files={".x/login": os.fspath(tmp_path / "login")},
    )
    asked = request(tmp_path, folder=tmp_path)
    if kills:
        with pytest.raises(AgentFailed, match="its supervisor was killed"):
            asyncio.run(agent.reply(asked))
    else:
        assert asyncio.run(agent.reply(asked)).notes == ("a note",)
    assert not dialect.asks[0].home.exists()


def test_a_pipe_or_a_lock_on_the_breakers_does_not_hold_up_the_host(tmp_path: Path) -> None:
    state_folder = tmp_path / "state"
    opened = BreakerState(
        failure_class=FailureClass.AUTH, failures=1, evidence="401", opened_at=1.0, reopens_at=2.0
    )  # fmt: skip
    write_breaker(state_folder, "big", opened)
    (kept,) = (path for path in state_folder.iterdir() if path.suffix == ".json")
    (lock,) = (path for path in state_folder.iterdir() if path.suffix == ".lock")
    with lock.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        with pytest.raises(RunFolderError, match="the lock of the breakers"):
            write_breaker(state_folder, "big", None)
    assert set(read_breakers(state_folder)) == {"big"}
    kept.unlink()
    os.mkfifo(kept)
    assert read_breakers(state_folder) == {}
    writer = os.open(kept, os.O_RDWR)
    try:
        assert read_breakers(state_folder) == {}
    finally:
        os.close(writer)
    write_breaker(state_folder, "big", opened)
    assert set(read_breakers(state_folder)) == {"big"}


# ---- the supervisors


def test_a_nursery_without_room_for_descriptors_refuses_and_serves_again(tmp_path: Path, mark: str) -> None:
    """The kernel then hands over only some of them; the agent must not get another stream than its own."""

    async def main() -> None:
        SUPERVISORS.close_when_idle()
        others = processes_below(os.getpid())
        assert (await provider("echo hello", mark).reply(request(tmp_path))).text == "hello\n"
        [nursery] = processes_below(os.getpid()) - others
        before = resource.prlimit(nursery, resource.RLIMIT_NOFILE)
        used = set(map(int, os.listdir(f"/proc/{nursery}/fd")))
        free = [number for number in range(100) if number not in used]
        for room in range(4):
            resource.prlimit(nursery, resource.RLIMIT_NOFILE, (free[room], before[1]))
            with pytest.raises(ProviderStartError, match="its supervisor ended early"):
                await provider("echo hello", mark).reply(request(tmp_path))
        resource.prlimit(nursery, resource.RLIMIT_NOFILE, before)
        assert (await provider("echo hello", mark).reply(request(tmp_path))).text == "hello\n"
        assert processes_below(os.getpid()) - others == {nursery}

    asyncio.run(main())


def test_agents_at_once_inherit_nothing_of_each_other_and_the_host_hands_nothing_on(tmp_path: Path, mark: str) -> None:
    script = "touch up-$$; while [ ! -e go ]; do sleep 0.01; done; readlink /proc/$$/fd/*; true"

    async def main() -> None:
        asks = [asyncio.create_task(provider(script, mark).reply(request(tmp_path))) for _ in range(8)]
        await until(lambda: len(list(tmp_path.glob("up-*"))) == 8)
        handed_on = [
            os.readlink(f"/proc/self/fd/{number}")
            for number in map(int, os.listdir("/proc/self/fd"))
            if number > 2 and os.path.lexists(f"/proc/self/fd/{number}") and os.get_inheritable(number)
        ]
        (tmp_path / "go").touch()
        opened = [(await ask).text.split() for ask in asks]
        assert [len(names) for names in opened] == [3] * 8
        assert len({name for names in opened for name in names}) == 3 * 8  # the three streams of each, and no other
        assert not [name for name in handed_on if "pidfd" in name]

    asyncio.run(main())


PRELUDE = (
    "import asyncio, os, sys, threading, time\n"
    "from pathlib import Path\n"
    "sys.path.insert(0, sys.argv[1])\n"
    "from loopwarden.providers.process import Program, SupervisedProcess\n"
    "from loopwarden.providers.supervisors import SUPERVISORS\n"
    "from support.agents import provider, processes_below, request\n"
    "place = Path(sys.argv[2])\n"
)


def run_host(code: str, place: Path) -> str:
    """What a host of its own prints."""
    ended = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PRELUDE + code, TESTS, place],
        check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert ended.stderr == ""
    return ended.stdout


def test_a_forked_copy_of_the_host_does_not_wait_for_a_thread_that_it_does_not_have(tmp_path: Path) -> None:
    code = (
        "held, let_go = threading.Event(), threading.Event()\n"
        "def hold():\n"
        "    with SUPERVISORS._lock:\n"
        "        held.set(); let_go.wait()\n"
        "threading.Thread(target=hold).start()\n"
        "held.wait()\n"
        "if os.fork() == 0:\n"
        "    print(asyncio.run(provider('echo hello', 'x').reply(request(place))).text, flush=True)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "let_go.set()\n"
    )
    assert run_host(code, tmp_path).strip() == "hello"


def test_a_supervisor_leaves_when_its_host_is_gone_before_the_order(tmp_path: Path) -> None:
    """Also when a forked copy of the host keeps the socket open."""
    code = (
        "async def main():\n"
        "    program = Program(what='x', argv=('sleep', '600'), folder=place, environment={'PATH': os.defpath},\n"
        "                      stdin=None, grace_seconds=0, max_output_bytes=1)\n"
        "    process = SupervisedProcess.begin(program)\n"
        "    [nursery] = processes_below(os.getpid())\n"
        "    while not (found := processes_below(nursery)): time.sleep(0.005)\n"
        "    if os.fork() == 0:\n"
        "        null = os.open(os.devnull, os.O_RDWR)\n"
        "        for number in range(3): os.dup2(null, number)\n"
        "        while not (place / 'go').exists(): time.sleep(0.005)\n"
        "        os._exit(0)\n"
        "    print(*found, flush=True)\n"
        "    os._exit(0)\n"
        "asyncio.run(main())\n"
    )
    try:
        [supervisor] = map(int, run_host(code, tmp_path).split())
        assert wait_until(lambda: not Path(f"/proc/{supervisor}").exists())
    finally:
        (tmp_path / "go").touch()


@pytest.mark.parametrize("kind", ["command", "driver"])
def test_an_agent_whose_nursery_dies_before_it_serves_it_gets_another_one(tmp_path: Path, mark: str, kind: str) -> None:
    async def main() -> None:
        SUPERVISORS.close_when_idle()
        others = processes_below(os.getpid())
        agent = provider("echo hello", mark)
        assert (await agent.reply(request(tmp_path))).text == "hello\n"
        [nursery] = processes_below(os.getpid()) - others
        os.kill(nursery, signal.SIGSTOP)
        await until(lambda: state(nursery) == b"T")
        asked = agent if kind == "command" else toy(tmp_path, f"echo '{END}'")[0]
        task = asyncio.ensure_future(asked.reply(request(tmp_path)))
        await asyncio.sleep(0)
        os.kill(nursery, signal.SIGKILL)
        assert (await task).text == ("hello\n" if kind == "command" else "done")

    asyncio.run(main())


def test_a_program_that_kills_the_nursery_and_its_supervisor_leaves_nothing(tmp_path: Path, mark: str) -> None:
    script = 'kill -KILL "$(cut -d " " -f 4 /proc/$PPID/stat)" "$PPID"; sleep 600'

    async def main() -> None:
        with pytest.raises(AgentFailed, match="its supervisor was killed"):
            await provider(script, mark).reply(request(tmp_path))
        assert (await provider("echo hello", mark).reply(request(tmp_path))).text == "hello\n"
        assert supervisors() == set()

    asyncio.run(main())


# ---- words


BLABS = 'echo "error: bad key $A_KEY, or $(cat "$HOME/login")" >&2; exit 1'


def command(script: str) -> Provider:
    return CommandProvider(["sh", "-c", f"cat > /dev/null; {script}"], pass_env=["A_KEY"], env={"B_TOKEN": KEY[::-1]})


def acp(script: str, login: Path) -> Provider:
    return AcpProvider(
        ["sh", "-c", script], permissions="deny", pass_env=["A_KEY"], credential_files={"login": os.fspath(login)}
    )


@pytest.mark.parametrize("kind", ["command", "acp", "driver"])
def test_a_program_that_repeats_its_credentials_tells_them_to_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("A_KEY", KEY)
    login = tmp_path / "login.json"
    login.write_text(json.dumps({"access": FILE_TOKEN}))
    told: list[str] = []
    talks = '{"type": "doing", "words": "uses %s"}\n{"type": "trouble", "class": "auth", "line": "bad %s"}\n'
    providers: dict[str, Callable[[], Provider]] = {
        "command": lambda: command('echo "bad $A_KEY $B_TOKEN" >&2; exit 1'),
        "acp": lambda: acp(BLABS, login),
        "driver": lambda: toy(
            tmp_path,
            f'printf \'{talks}\' "$A_KEY" "$(cut -d \'"\' -f 4 "$HOME/login")"',
            pass_env=("A_KEY",),
            credential_files={"login": os.fspath(login)},
        )[0],
    }
    with pytest.raises(AgentFailed) as caught:
        asyncio.run(providers[kind]().reply(request(tmp_path, progress=told.append, remark=told.append)))  # type: ignore[arg-type]
    failed = caught.value
    shown = "\n".join([*told, str(failed), failed.reason, failed.evidence or "", *failed.notes])
    assert "[secret]" in shown
    for secret in (KEY, KEY[::-1], FILE_TOKEN):
        assert secret not in shown


@pytest.mark.parametrize("name", ["--model=x", "-c", "a\nb", "\ud800", " ", "a\u202eb"])
def test_a_script_cannot_name_a_model_that_is_an_option(tmp_path: Path, name: str) -> None:
    agent, dialect = toy(tmp_path, "touch ran")
    with pytest.raises(ProviderStartError, match="cannot be the name of a model"):
        asyncio.run(agent.reply(request(tmp_path, model=name)))
    assert (dialect.asks, (tmp_path / "ran").exists()) == ([], False)


def test_a_workspace_whose_name_looks_like_an_option_is_just_a_folder(tmp_path: Path, mark: str) -> None:
    workspace = tmp_path / "-rf\n {x} $(touch ran) \udcff"
    workspace.mkdir()
    agent = CommandProvider(["sh", "-c", "pwd; printf '%s\\n' \"$1\"", "x", "{workspace}"], env={"TEST_MARK": mark})
    with pytest.raises(AgentFailed, match="not UTF-8"):
        asyncio.run(agent.reply(request(workspace)))
    agent = CommandProvider(["sh", "-c", 'cd "$1" && touch here', "x", "{workspace}"], env={"TEST_MARK": mark})
    asyncio.run(agent.reply(request(workspace)))
    assert [path.name for path in workspace.iterdir()] == ["here"]
