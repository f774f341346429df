"""The driver of agent programs, with a toy program: what it starts, what it hears, and what it makes of the end."""

import asyncio
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loopwarden.failure_class import FailureClass
from loopwarden.provider import AgentReply, ProviderStartError
from loopwarden.providers import quiet
from loopwarden.providers.dialect import ProgramOptions
from loopwarden.providers.driver import ProgramProvider
from support.agents import request, until
from support.toy_agent import END, SCHEMA, failure_of, printing, reply_of, toy
from support.toy_dialect import ToyDialect

# ---- what it starts


def test_the_prompt_comes_on_standard_input_which_is_then_closed(tmp_path: Path) -> None:
    script = 'printf %s "$prompt" > got; printf \'{"type": "end", "text": "%s"}\' "$(wc -c < got)"'
    assert reply_of(tmp_path, script, prompt="é" * 100_000).text.strip() == "200000"


def environment_of(folder: Path, *, launch: dict[str, Any] | None = None, **options: Any) -> dict[str, str]:
    provider, dialect = toy(folder, f"env -0 > seen; echo '{END}'", **options)
    dialect.launch_changes = launch or {}
    asyncio.run(provider.reply(request(folder)))
    entries = (folder / "seen").read_text().split("\0")
    return {name: value for name, _, value in (entry.partition("=") for entry in entries if entry)}


def test_the_environment_is_the_allowlist_with_a_home_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/nonexistent/host-home")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nonexistent/host-config")
    monkeypatch.setenv("TOY_KEY", "secret")
    monkeypatch.setenv("LANG", "C.UTF-8")
    found = environment_of(tmp_path)
    home = found["HOME"]
    assert found["XDG_CONFIG_HOME"] == f"{home}/.config"
    assert found["XDG_DATA_HOME"] == f"{home}/.local/share"
    assert found["XDG_STATE_HOME"] == f"{home}/.local/state"
    assert found["XDG_CACHE_HOME"] == f"{home}/.cache"
    assert found["TMPDIR"] == f"{home}/tmp"
    assert found["PATH"] == os.environ["PATH"]
    assert found["LANG"] == "C.UTF-8"
    assert "TOY_KEY" not in found
    assert not home.startswith(os.fspath(tmp_path))
    assert not Path(home).exists()
    allowed = {"PATH", "LANG", "TERM", "HOME", "TMPDIR", "LOOPWARDEN_AGENT", "PWD", "SHLVL", "_", "OLDPWD"}
    assert {name for name in found if not name.startswith(("XDG_", "LC_"))} <= allowed


def test_later_sources_of_a_variable_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ONE", "TWO", "THREE", "HOME"):
        monkeypatch.setenv(name, "host")
    launch = {"environment": {"ONE": "dialect", "TWO": "dialect", "THREE": "dialect", "TMPDIR": "dialect"}}
    found = environment_of(
        tmp_path, launch=launch, pass_env=("TWO", "THREE", "HOME", "NOT_SET"), env={"THREE": "settings"}
    )
    assert [found[name] for name in ("ONE", "TWO", "THREE", "TMPDIR", "HOME")] == [
        "dialect", "host", "settings", "dialect", "host",
    ]  # fmt: skip
    assert "NOT_SET" not in found


@pytest.mark.parametrize("in_run_folder", [True, False])
def test_the_home_is_private_holds_what_is_asked_for_and_goes(tmp_path: Path, in_run_folder: bool) -> None:
    places = {name: tmp_path / name for name in ("workspace", "agent", "machine")}
    for place in places.values():
        place.mkdir()
    credentials = places["machine"] / "auth.json"
    credentials.write_text("a secret")
    credentials.chmod(0o644)
    script = (
        'cd "$HOME"; stat -c %a . "$TMPDIR" .toy/settings.json .toy/auth.json .toy/logs schema.json; '
        "cat .toy/settings.json .toy/auth.json schema.json; mkdir -p locked/inner; touch locked/inner/file; "
        "ln -s / root; chmod 500 locked/inner locked"
    )
    provider, dialect = toy(
        places["workspace"], f"({script}) > seen\necho '{{\"type\": \"end\", \"text\": \"{{\\\"n\\\": 1}}\"}}'",
        credential_files={".toy/auth.json": os.fspath(credentials)},
    )  # fmt: skip
    dialect.launch_changes = {"files": {".toy/settings.json": "{é}\n"}, "folders": (".toy/logs",)}
    folder = places["agent"] if in_run_folder else None
    reply = asyncio.run(provider.reply(request(places["workspace"], schema=SCHEMA, folder=folder)))
    assert reply.value == {"n": 1}
    seen = (places["workspace"] / "seen").read_text()
    assert seen.split() == [
        "700", "700", "600", "600", "700", "600", "{é}",
        "a", 'secret{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}',
    ]  # fmt: skip
    [ask] = dialect.asks
    assert not ask.home.exists()
    assert ask.schema_file == ask.home / "schema.json"
    if in_run_folder:
        assert sorted(path.name for path in places["agent"].iterdir()) == ["error.txt", "output.txt"]
        assert ask.home.parent == places["agent"]


def test_what_an_agent_puts_in_the_place_of_its_home_is_left_alone(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    (precious / "below").mkdir(parents=True)
    (precious / "below").chmod(0o750)
    (precious / "file").touch()
    reply_of(tmp_path, f'rm -r "$HOME"; ln -s "{precious}" "$HOME"; echo \'{END}\'')
    assert stat.S_IMODE((precious / "below").stat().st_mode) == 0o750
    assert (precious / "file").exists()


def test_a_long_path_of_the_run_folder_does_not_make_a_long_path_for_sockets(tmp_path: Path) -> None:
    folder = tmp_path / ("f" * 100)
    folder.mkdir()
    code = "import os, socket; socket.socket(socket.AF_UNIX).bind(os.environ['TMPDIR'] + '/' + 's' * 40)"
    script = f'"{sys.executable}" -c "{code}" && echo \'{END}\'; printf %s "$TMPDIR" > seen'
    assert reply_of(tmp_path, script, folder=folder).text == "done"
    assert not Path((tmp_path / "seen").read_text()).exists()


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda path: None, "does not exist; log in with the program on this machine, "),
        (lambda path: path.mkdir(), "is not a file; name the file itself"),
        (os.mkfifo, "is not a file; name the file itself"),
        (lambda path: path.write_bytes(b"x" * (1024 * 1024 + 1)), "is larger than 1048576 bytes; "),
    ],
    ids=["missing", "folder", "pipe", "large"],
)
def test_a_credential_file_that_cannot_be_used_is_named(
    tmp_path: Path, make: Callable[[Path], None], sentence: str
) -> None:
    path = tmp_path / "auth.json"
    make(path)
    agent = tmp_path / "agent"
    agent.mkdir()
    with pytest.raises(ProviderStartError) as caught:
        reply_of(tmp_path, "touch up", folder=agent, options={"credential_files": {"auth.json": os.fspath(path)}})
    assert f"the credential file {os.fspath(path)!r} {sentence}" in caught.value.reason
    assert not (tmp_path / "up").exists()
    assert list(agent.iterdir()) == []


def test_a_credential_file_may_lie_below_the_home_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", os.fspath(tmp_path))
    (tmp_path / "auth").write_text("secret")
    options = {"credential_files": {"auth": "~/auth"}}
    reply_of(tmp_path, f"cat ~/auth > seen; echo '{END}'", options=options)
    assert (tmp_path / "seen").read_text() == "secret"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"max_turns": 3}, "toy has no limit of turns; leave max_turns out"),
        ({"credential_files": {"../x": "/etc/hostname"}}, "credential_files: '../x' does not lie below the home of"),
        ({"credential_files": {"/x": "/etc/hostname"}}, "credential_files: '/x' does not lie below the home of"),
        ({"env": {"A=B": "x"}}, "'A=B' cannot be the name of an environment variable"),
        ({"env": {"A": "secret\0"}}, "the variable A must be text without a zero character"),
        ({"pass_env": ("",)}, "'' cannot be the name of an environment variable"),
        ({"arguments": ("a\0b",)}, "an argument of the command must be text without a zero character"),
        ({"program": " "}, "a command begins with its program, not with ' '"),
    ],
)
def test_options_that_cannot_be_kept_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence.replace("'", ".").replace("(", ".")) as caught:
        ProgramProvider(ToyDialect(), ProgramOptions(**options))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": "--yolo"}, "'--yolo' cannot be the name of a model; name one that the program knows"),
        ({"model": "a\0b"}, "'a\\x00b' cannot be the name of a model; name one that the program knows"),
        ({"workspace": None}, "an agent program needs a workspace to run in, and this run has none; give it one"),
    ],
)
def test_what_cannot_be_asked_is_said_before_anything_starts(
    tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    provider, dialect = toy(tmp_path, "touch up")
    with pytest.raises(ProviderStartError) as caught:
        asyncio.run(provider.reply(request(**({"workspace": tmp_path} | changes))))
    assert caught.value.reason == sentence
    assert dialect.asks == []


def test_a_program_that_is_not_there_cannot_be_started(tmp_path: Path) -> None:
    provider = ProgramProvider(ToyDialect(program="no-such-agent"))
    with pytest.raises(ProviderStartError, match="the agent program 'no-such-agent' was not found in PATH"):
        asyncio.run(provider.reply(request(tmp_path, folder=tmp_path)))
    assert list(tmp_path.iterdir()) == []


def test_a_prompt_beyond_the_limit_of_the_program_is_refused_before_it_starts(tmp_path: Path) -> None:
    failed = failure_of(tmp_path, "touch up", prompt="p" * 1_000_001)
    assert failed.failure_class is FailureClass.PROMPT_TOO_LONG
    assert failed.reason == ("toy was not started: the prompt has 1000001 characters, and toy takes 1000000 at most")
    assert not (tmp_path / "up").exists()


@pytest.mark.parametrize(("own", "of_run", "lower"), [(3.0, 2.0, 2.0), (1.0, 2.0, 1.0), (None, 2.0, 2.0), (None,) * 3])
def test_the_lower_cap_on_money_counts(
    tmp_path: Path, own: float | None, of_run: float | None, lower: float | None
) -> None:
    provider, dialect = toy(tmp_path, f"echo '{END}'", max_cost_usd=own)
    asyncio.run(provider.reply(request(tmp_path, max_cost_usd=of_run)))
    assert dialect.asks[0].max_cost_usd == lower


def test_the_model_of_the_call_comes_before_the_one_of_the_settings(tmp_path: Path) -> None:
    provider, dialect = toy(tmp_path, f"echo '{END}'", model="settings")
    for model in ("call", None):
        asyncio.run(provider.reply(request(tmp_path, model=model)))
    assert [ask.model for ask in dialect.asks] == ["call", "settings"]


def test_a_plan_names_variables_and_no_values_and_starts_nothing(tmp_path: Path) -> None:
    provider, dialect = toy(tmp_path, "touch up", arguments=("--x",), env={"TOY_KEY": "secret"})
    dialect.launch_changes = {"environment": {"TOY_HOME": "x"}}
    before = sorted(tmp_path.iterdir())
    plan = provider.describe(request(tmp_path, folder=tmp_path, schema=SCHEMA))
    assert plan.argv == (os.fspath(tmp_path / "toy-agent"), "--x")
    assert plan.program == os.fspath(tmp_path / "toy-agent")
    assert {"HOME", "TMPDIR", "TOY_KEY", "TOY_HOME", "LOOPWARDEN_AGENT", "XDG_CONFIG_HOME"} < {*plan.environment_names}
    assert "secret" not in repr(plan)
    assert plan.stdin_chars == len("do it")
    assert sorted(tmp_path.iterdir()) == before
    with pytest.raises(ProviderStartError, match="was not found in PATH"):
        ProgramProvider(ToyDialect(program="no-such-agent")).describe(request(tmp_path))


# ---- what it hears


def test_what_the_agent_does_is_told_once_and_every_output_is_a_sign_of_life(tmp_path: Path) -> None:
    said: list[str] = []
    alive: list[None] = []
    reads, thinks = (printing({"type": "doing", "words": words}) for words in ("reads a file", "thinks"))
    waits = "until [ -e go ]; do sleep 0.01; done; rm go"
    script = "\n".join([reads, waits, reads, "echo x >&2", waits, thinks, f"echo '{END}'"])

    async def scenario() -> AgentReply:
        provider, _ = toy(tmp_path, script)
        asked = request(tmp_path, progress=said.append, alive=lambda: alive.append(None))
        task = asyncio.create_task(provider.reply(asked))
        await until(lambda: len(alive) == 1)
        assert said == ["reads a file"]
        (tmp_path / "go").touch()
        await until(lambda: len(alive) == 3)
        (tmp_path / "go").touch()
        return await task

    assert asyncio.run(scenario()).text == "done"
    assert said == ["reads a file", "thinks"]


def test_silence_is_remarked_on_and_is_no_sign_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quiet, "FIRST_REMARK_SECONDS", 0.05)
    remarks: list[str] = []
    signs: list[object] = []
    makes = printing({"type": "doing", "words": "runs: make"})
    script = f"{makes}\nuntil [ -e go ]; do sleep 0.01; done; echo '{END}'"

    async def scenario() -> None:
        provider, _ = toy(tmp_path, script)
        asked = request(tmp_path, progress=signs.append, alive=lambda: signs.append(None), remark=remarks.append)
        task = asyncio.create_task(provider.reply(asked))
        await until(lambda: "still in: runs: make, silent for 0 min" in remarks)
        assert signs == [None, "runs: make"]
        (tmp_path / "go").touch()
        await task
        count = len(remarks)
        await asyncio.sleep(0.2)
        assert len(remarks) == count

    asyncio.run(scenario())


def test_both_streams_are_kept_by_attempt(tmp_path: Path) -> None:
    agent = tmp_path / "agent"
    agent.mkdir()
    for attempt in (1, 2):
        reply_of(tmp_path, f"echo '{END}'; echo {attempt} >&2", folder=agent, attempt=attempt)
    assert {path.name: path.read_text() for path in agent.iterdir()} == {
        "output.txt": f"{END}\n", "error.txt": "1\n", "output-2.txt": f"{END}\n", "error-2.txt": "2\n",
    }  # fmt: skip
