"""The command provider with real programs: what they get, what becomes of what they print, how they fail."""

import asyncio
import json
import os
import signal
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from loopwarden.provider import AgentFailed, AgentReply, ProviderStartError
from loopwarden.providers.command import CommandProvider
from support.agents import request

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}


def run(argv: Sequence[str], workspace: Path | None, env: dict[str, str] | None = None, **changes: Any) -> AgentReply:
    return asyncio.run(CommandProvider(argv, env=env).reply(request(workspace, **changes)))


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", code, *arguments]


def test_the_prompt_comes_on_standard_input_and_the_output_is_the_text(tmp_path: Path) -> None:
    prompt = "repair it\r\nüñ😀\n"
    assert run(["cat"], tmp_path, prompt=prompt).text == prompt


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    assert run(["printf", r"\357\273\277done"], tmp_path).text == "done"


def test_the_program_runs_in_the_workspace(tmp_path: Path) -> None:
    assert run(["pwd", "-P"], tmp_path).text == f"{tmp_path.resolve()}\n"


def test_the_environment_is_exactly_the_allowlist_the_settings_and_the_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(os.environ):
        monkeypatch.delenv(name)
    given = {"PATH": "/usr/bin:/bin", "HOME": "/home/x", "LANG": "C.UTF-8", "TERM": "dumb", "LC_ALL": "C.UTF-8"}
    refused = {"SECRET": "s", "LC_SMUGGLED": "s", "LD_PRELOAD": "", "PYTHONPATH": "/x", "USER": "u", "TOKEN": "t"}
    for name, value in (given | refused | {"WANTED": "w"}).items():
        monkeypatch.setenv(name, value)
    provider = CommandProvider(["env", "-0"], env={"ADDED": "a", "HOME": "/home/y"}, pass_env=["WANTED", "ABSENT"])
    text = asyncio.run(provider.reply(request(tmp_path))).text
    seen = dict(line.split("=", 1) for line in text.split("\0") if line)
    mark = seen.pop("LOOPWARDEN_AGENT")
    assert len(mark) == 32
    assert seen == given | {"ADDED": "a", "HOME": "/home/y", "WANTED": "w"}


def test_only_whole_arguments_are_placeholders(tmp_path: Path) -> None:
    argv = ["printf", r"%s\0", "{workspace}", "{schema}", "x{schema}", "{schema_file}", "{other}"]
    output = run(argv, tmp_path, schema={"type": "object", "title": "e"}, folder=tmp_path).text
    assert output  # a schema was asked for, and the argument that holds it is the one object in the output
    workspace, schema, contained, _, other, _ = output.split("\0")
    assert workspace == str(tmp_path)
    assert json.loads(schema) == {"type": "object", "title": "e"}
    assert (contained, other) == ("x{schema}", "{other}")


def test_the_schema_file_is_private_outside_of_the_workspace_and_gone_afterwards(tmp_path: Path) -> None:
    code = (
        "import json, os, sys; p = sys.argv[1]; s = os.stat(p); d = os.stat(os.path.dirname(p)); print(open(p).read());"
        "print(json.dumps([p, s.st_mode & 0o777, d.st_mode & 0o777]))"
    )
    reply = run(python(code, "{schema_file}"), tmp_path, schema={"type": "object"})
    schema, facts = reply.text.splitlines()
    path, file_mode, folder_mode = json.loads(facts)
    assert json.loads(schema) == {"type": "object"}
    assert (file_mode, folder_mode) == (0o600, 0o700)
    assert not Path(path).is_relative_to(tmp_path)
    assert not Path(path).parent.exists()


def test_the_schema_file_is_not_put_into_a_workspace_that_holds_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = tmp_path / "tmp"
    inside.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(inside))
    reply = run(["sh", "-c", 'echo "$1"; cat "$1"', "sh", "{schema_file}"], tmp_path, schema={"type": "object"})
    assert not Path(reply.text.splitlines()[0]).is_relative_to(tmp_path)


@pytest.mark.parametrize("placeholder", ["{schema}", "{schema_file}"])
def test_a_schema_placeholder_without_a_schema_is_a_start_error(tmp_path: Path, placeholder: str) -> None:
    with pytest.raises(ProviderStartError, match="needs a schema, and this call has none"):
        run(["echo", placeholder], tmp_path)


def test_a_run_without_a_workspace_starts_no_program() -> None:
    with pytest.raises(ProviderStartError, match="needs a workspace to run in"):
        run(["true"], None)


def test_the_value_is_found_in_the_output(tmp_path: Path) -> None:
    reply = run(["printf", r"Here:\r\n```json\r\n{\"n\": 1}\r\n```\r\nBye"], tmp_path, schema=SCHEMA)
    assert reply.value == {"n": 1}
    assert reply.notes == ("the value stood in a code fence",)


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("done", "the output holds no JSON object"),
        ('{"n": 1} {"n": 2}', "the output holds 2 different JSON objects that satisfy the schema"),
        ('{"n": 1.0}', "the JSON object in the output is not usable: value.n: 1.0 is not an integer"),
    ],
)
def test_output_without_exactly_one_value_is_a_failed_child(tmp_path: Path, output: str, reason: str) -> None:
    with pytest.raises(AgentFailed) as failed:
        run(["printf", "%s", output], tmp_path, schema=SCHEMA)
    assert reason in failed.value.reason


def test_a_non_zero_exit_is_a_failed_child_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(AgentFailed) as failed:
        run(
            ["sh", "-c", "echo '{\"n\": 1}'; echo first >&2; echo 'last one ' >&2; echo >&2; exit 3"],
            tmp_path,
            schema=SCHEMA,
        )
    assert failed.value.reason == "the agent program ended with exit 3; last line of its error output: last one"


def test_long_last_words_are_cut(tmp_path: Path) -> None:
    with pytest.raises(AgentFailed) as failed:
        run(python("import sys; sys.exit('x' * 100000)"), tmp_path)
    assert failed.value.reason.endswith("x…")
    assert len(failed.value.reason) < 400


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGPIPE, signal.SIGHUP])
def test_death_by_a_signal_is_named(tmp_path: Path, number: signal.Signals) -> None:
    with pytest.raises(AgentFailed, match=f"was ended by signal {number.name}; it printed nothing"):
        run(["sh", "-c", f"kill -{number.value} $$"], tmp_path)


def test_output_that_is_not_utf_8_is_a_failed_child(tmp_path: Path) -> None:
    with pytest.raises(AgentFailed, match="is not UTF-8 at byte 2"):
        run(["printf", r"ab\377"], tmp_path)


def test_a_program_that_prints_too_much_is_ended_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    folder.mkdir()
    with pytest.raises(AgentFailed, match="it printed more than 100000 bytes"):
        run(["cat", "/dev/zero"], tmp_path, max_output_bytes=100_000, folder=folder, grace_seconds=60)
    assert (folder / "output.txt").stat().st_size == 100_000


def test_output_of_exactly_the_cap_is_taken(tmp_path: Path) -> None:
    assert len(run(["head", "-c", "100000", "/dev/zero"], tmp_path, max_output_bytes=100_000).text) == 100_000


def test_a_hundred_megabytes_of_error_output_are_drained_and_capped(tmp_path: Path) -> None:
    code = "import os\nfor _ in range(100): os.write(2, b'e' * 1000000)\nos.write(2, b'\\nend'); os.write(1, b'fine')"
    reply = run(python(code), tmp_path, max_output_bytes=100_000, folder=tmp_path)
    assert reply.text == "fine"
    assert (tmp_path / "error.txt").stat().st_size == 100_000
    assert reply.notes == ("only the first 100000 bytes of its error output were kept",)


def test_both_streams_are_kept_in_private_files(tmp_path: Path) -> None:
    run(["sh", "-c", "echo out; echo err >&2"], tmp_path, folder=tmp_path)
    run(["echo", "second"], tmp_path, folder=tmp_path, attempt=2)
    kept = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert kept == {"output.txt": "out\n", "error.txt": "err\n", "output-2.txt": "second\n", "error-2.txt": ""}
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def test_streams_that_cannot_be_kept_are_a_note(tmp_path: Path) -> None:
    reply = run(["echo", "hello"], tmp_path, folder=tmp_path / "missing")
    assert reply.text == "hello\n"
    assert reply.notes == (
        "output.txt could not be kept: no such file or directory",
        "error.txt could not be kept: no such file or directory",
    )


def test_a_full_disk_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_open = os.open

    def open_full(path: Any, flags: int, *mode: int, **more: Any) -> int:
        return real_open("/dev/full" if path == tmp_path / "output.txt" else path, flags & ~os.O_EXCL, *mode, **more)

    monkeypatch.setattr(os, "open", open_full)
    assert "output.txt could not be kept: no space left" in run(["echo", "hello"], tmp_path, folder=tmp_path).notes[0]


def test_a_program_that_never_reads_a_prompt_of_5_mb_is_no_problem(tmp_path: Path) -> None:
    assert run(["echo", "ignored"], tmp_path, prompt="p" * 5_000_000).text == "ignored\n"


def test_a_prompt_of_5_mb_arrives_in_full_while_the_output_is_read(tmp_path: Path) -> None:
    prompt = "0123456789" * 500_000
    assert run(["cat"], tmp_path, prompt=prompt, max_output_bytes=5_000_000).text == prompt


def test_a_program_that_closes_its_output_and_lives_on_is_waited_for(tmp_path: Path) -> None:
    code = (
        "import os, time; os.write(1, b'early'); os.close(1); os.close(2); time.sleep(0.2); open('late', 'w').close()"
    )
    assert run(python(code), tmp_path).text == "early"
    assert (tmp_path / "late").exists()


def test_the_program_gets_the_signals_as_the_system_knows_them(tmp_path: Path) -> None:
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGHUP, signal.SIGINT)}
    try:
        text = run(["grep", "-E", "^Sig(Ign|Blk)", "/proc/self/status"], tmp_path).text
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    # glibc keeps 32 and 33 for itself: a parent that used posix_spawn passes them on ignored, and we cannot reset them.
    own_signals_of_glibc = 0b11 << 31
    assert [int(line.split()[1], 16) & ~own_signals_of_glibc for line in text.splitlines()] == [0, 0]


def test_the_program_inherits_no_descriptor_but_its_streams(tmp_path: Path) -> None:
    with (tmp_path / "open").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        text = run(python("import os; print(sorted(map(int, os.listdir('/proc/self/fd'))))"), tmp_path).text
    assert json.loads(text)[:-1] == [0, 1, 2]  # the last one is the listing itself


def test_the_program_leads_its_own_group_and_has_no_terminal(tmp_path: Path) -> None:
    code = "import os; print(os.getpid() == os.getpgid(0), os.getsid(0) != os.getpid())"
    assert run(python(code), tmp_path).text == "True True\n"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (None, "the agent program '{path}' does not exist; check its path"),
        (lambda path: path.write_text("x"), "the agent program '{path}' is not executable; run chmod +x"),
        (lambda path: path.mkdir(), "the agent program '{path}' is not a file"),
        (
            lambda path: (path.write_text("#!/nowhere/sh\n"), path.chmod(0o755)),
            "the agent program '{path}' cannot run: the interpreter that it names does not exist",
        ),
        (
            lambda path: (path.write_text("no program"), path.chmod(0o755)),
            "the agent program '{path}' is neither a program nor a script with a #! line",
        ),
    ],
)
def test_a_program_that_cannot_be_started_is_a_start_error_that_names_it(
    tmp_path: Path, make: Any, reason: str
) -> None:
    path = tmp_path / "agent"
    if make is not None:
        make(path)
    with pytest.raises(ProviderStartError) as refused:
        run([str(path)], tmp_path)
    assert str(refused.value).startswith(reason.replace("{path}", str(path)))


def test_a_program_that_is_not_in_path_is_a_start_error(tmp_path: Path) -> None:
    with pytest.raises(ProviderStartError) as refused:
        run(["no-such-agent"], tmp_path)
    assert str(refused.value) == (
        "the agent program 'no-such-agent' was not found in PATH; check its name, or give its full path"
    )


def test_a_program_in_the_workspace_is_not_found_through_a_relative_path_entry(tmp_path: Path) -> None:
    planted = tmp_path / "planted"
    planted.write_text("#!/bin/sh\necho planted\n")
    planted.chmod(0o755)
    with pytest.raises(ProviderStartError, match="'planted' was not found in PATH"):
        run(["planted"], tmp_path, env={"PATH": f":.:{os.environ['PATH']}"})


def test_a_relative_program_is_meant_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, workspace = tmp_path / "here", tmp_path / "workspace"
    for folder in (here, workspace):
        folder.mkdir()
        (folder / "agent").write_text(f"#!/bin/sh\necho {folder.name}\n")
        (folder / "agent").chmod(0o755)
    monkeypatch.chdir(here)
    assert run(["./agent"], workspace).text == "here\n"


def test_a_missing_workspace_is_a_start_error(tmp_path: Path) -> None:
    with pytest.raises(ProviderStartError, match=r"the workspace '.*/gone' does not exist"):
        run(["true"], tmp_path / "gone")
    (tmp_path / "file").touch()
    with pytest.raises(ProviderStartError, match=r"the workspace '.*/file' is not a folder"):
        run(["true"], tmp_path / "file")


def test_arguments_that_are_too_long_are_a_start_error(tmp_path: Path) -> None:
    with pytest.raises(ProviderStartError, match="its arguments are too long"):
        run(["echo", "{schema}"], tmp_path, schema={"type": "object", "title": "t" * 500_000})


@pytest.mark.parametrize("argv", [[], "echo", [""], [" "], ["{workspace}"], ["a", "b\0"], ["a", 5]])
def test_what_cannot_be_a_command_is_refused_at_once(argv: Any) -> None:
    with pytest.raises(ValueError, match="command"):
        CommandProvider(argv)


@pytest.mark.parametrize("name", ["", "A=B", "A\0", 5])
def test_what_cannot_be_a_variable_is_refused_at_once(name: Any) -> None:
    with pytest.raises(ValueError, match="environment variable"):
        CommandProvider(["true"], env={name: "x"})
    with pytest.raises(ValueError, match="environment variable"):
        CommandProvider(["true"], pass_env=[name])


def test_describe_starts_nothing_and_shows_no_values(tmp_path: Path) -> None:
    provider = CommandProvider(["touch", "{workspace}", "{schema_file}", "started"], env={"KEY": "secret"})
    plan = provider.describe(request(tmp_path, schema={"type": "object"}))
    assert plan.argv == ("touch", str(tmp_path), "{schema_file}", "started")
    assert (plan.folder, plan.stdin_chars) == (str(tmp_path), 5)
    assert plan.program.endswith("/touch")
    assert {"KEY", "PATH"} <= set(plan.environment_names)
    assert "secret" not in repr(plan)
    assert list(tmp_path.iterdir()) == []


def test_describe_says_what_would_not_start(tmp_path: Path) -> None:
    with pytest.raises(ProviderStartError, match="was not found in PATH"):
        CommandProvider(["no-such-agent"]).describe(request(tmp_path))


def test_a_model_is_refused_since_a_command_cannot_choose_one(tmp_path: Path) -> None:
    with pytest.raises(ProviderStartError, match="cannot choose a model"):
        run(["true"], tmp_path, model="bigger")
