"""Reading `loopwarden.toml`: what is taken, and that each refusal names file, key and line."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from loopwarden.failures import InvalidRequest
from loopwarden.limits import Limits
from loopwarden.provider_settings import CommandSettings
from loopwarden.settings import Settings, default_settings_path, load_settings
from loopwarden.table_problem import describe_problem

GOOD = """\
default_provider = "claude"
state_folder = "runs"
script_folders = ["loops", "/opt/loops"]
allow_weak_confinement = true

[providers.claude]
type = "command"
argv = ["claude", "-p"]
env = { TOKEN = "hunter2" }
pass_env = ["ANTHROPIC_API_KEY"]

[limits]
max_total_agents = 50
agent_timeout_seconds = 60

[loops.ralph]
default_rounds = 3
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "loopwarden.toml"
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
    return path


def refusal(path: Path) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        load_settings(path)
    return caught.value


def test_every_part_of_a_file_is_taken(tmp_path: Path) -> None:
    settings = load_settings(written(tmp_path, GOOD))
    assert settings.default_provider == "claude"
    assert settings.providers["claude"] == CommandSettings(
        type="command", argv=["claude", "-p"], env={"TOKEN": "hunter2"}, pass_env=["ANTHROPIC_API_KEY"]
    )
    assert settings.limits == Limits(max_total_agents=50, agent_timeout_seconds=60)
    assert settings.limits_given == {"max_total_agents", "agent_timeout_seconds"}
    assert settings.state_folder == tmp_path / "runs"
    assert settings.script_folders == (tmp_path / "loops", Path("/opt/loops"))
    assert settings.allow_weak_confinement
    assert settings.loops == {"ralph": {"default_rounds": 3}}


def test_without_a_file_the_shipped_defaults_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert load_settings() == Settings()


def test_the_file_of_the_config_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    default_settings_path().parent.mkdir(mode=0o700)
    written(default_settings_path().parent, "[limits]\nmax_total_agents = 7\n")
    assert load_settings().limits.max_total_agents == 7


def test_a_single_provider_is_the_default(tmp_path: Path) -> None:
    text = '[providers.only]\ntype = "command"\nargv = ["x"]\n'
    assert load_settings(written(tmp_path, text)).default_provider == "only"


@pytest.mark.parametrize(
    ("text", "line", "key", "reason"),
    [
        ("limitz = {}\n", 1, "limitz", "there is no such key; there are: default_provider, state_folder"),
        ("\n[limits]\nmax_agents = 3\n", 3, "limits.max_agents", "there is no such limit; there are: max_total_agents"),
        ('[limits]\nmax_total_agents = "3"\n', 2, "limits.max_total_agents", "must be a whole number"),
        ("[limits]\nmax_total_agents = true\n", 2, "limits.max_total_agents", "must be a whole number"),
        ("[limits]\n\nmax_total_agents = 0\n", 3, "limits.max_total_agents", "at least 1"),
        ("[limits]\nrun_deadline_seconds = inf\n", 2, "limits.run_deadline_seconds", "too large"),
        ("[limits]\nmax_frame_bytes = 99999999999\n", 2, "limits.max_frame_bytes", "too large"),
        ('default_provider = "x"\n', 1, "default_provider", "there is no provider 'x'; the file has: none"),
        ("default_provider = 3\n", 1, "default_provider", "string"),
        ("allow_weak_confinement = 1\n", 1, "allow_weak_confinement", "boolean"),
        ('[providers.a]\ntype = "command"\n', 1, "providers.a.argv", "this key is missing"),
        ('[providers.a]\ntype = "command"\nargv = []\n', 3, "providers.a.argv", "at least 1 item"),
        ('[providers.a]\ntype = "command"\nargv = "x"\n', 3, "providers.a.argv", "list"),
        ('[providers.a]\ntype = "command"\nargv = ["x", 1]\n', 3, "providers.a.argv[1]", "string"),
        ('[providers.a]\ntype = "magic"\nargv = ["x"]\n', 2, "providers.a.type", 'there are: "command", "claude"'),
        (
            '[providers.a]\ntype = "command"\nargv = ["x"]\nshell = true\n',
            4,
            "providers.a.shell",
            "there is no such key",
        ),
        (
            '[providers.a]\ntype = "command"\nargv = ["x"]\nenv = {"A=B" = "1"}\n',
            4,
            "providers.a.env.'A=B'",
            "environment",
        ),
        ('[providers.a]\ntype = "command"\nargv = ["x\\u0000"]\n', 3, "providers.a.argv[0]", "null character"),
        (
            '[providers.command-line]\ntype = "command"\nargv = ["x"]\n',
            1,
            "providers.command-line",
            "cannot have this name",
        ),
        ("providers = 3\n", 1, "providers", "table"),
        ("loops.ralph = 3\n", 1, "loops.ralph", "table"),
    ],
)
def test_a_refusal_names_file_line_and_key(tmp_path: Path, text: str, line: int, key: str, reason: str) -> None:
    path = written(tmp_path, text)
    error = refusal(path)
    assert error.message.startswith(f"{path}, line {line}: {key}: ")
    assert reason in error.message
    assert (error.line, error.details["key"]) == (line, key)


def test_a_file_that_is_no_toml_is_refused_with_its_line(tmp_path: Path) -> None:
    assert "is not TOML" in refusal(written(tmp_path, "a = 1\nb = \n")).message
    assert "line 2" in refusal(written(tmp_path, "a = 1\nb = \n")).message


def test_a_file_that_is_not_utf_8_is_refused_with_its_line(tmp_path: Path) -> None:
    path = written(tmp_path, "")
    path.write_bytes(b"a = 1\nb = '\xff'\n")
    assert refusal(path).message == f"{path}, line 2: the settings file is not UTF-8 text"


def test_a_missing_file_a_folder_and_a_huge_file_are_refused(tmp_path: Path) -> None:
    assert "does not exist" in refusal(tmp_path / "none.toml").message
    assert "is a directory" in refusal(tmp_path).message
    assert "larger than 1024 KiB" in refusal(written(tmp_path, "#" * 1_100_000)).message


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    path = written(tmp_path, "")
    path.chmod(mode)
    assert refusal(path).message == (
        f"the settings file {path} cannot be trusted: {path} can be written by others; run `chmod go-w {path}`"
    )


def test_a_file_in_a_folder_that_others_may_write_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    path = written(folder, "")
    folder.chmod(0o777)
    assert f"{folder} can be written by others" in refusal(path).message


def test_a_link_that_others_may_replace_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    (folder / "link.toml").symlink_to(written(tmp_path, ""))
    folder.chmod(0o777)
    assert f"{folder} can be written by others" in refusal(folder / "link.toml").message


def test_a_relative_path_is_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, "[limits]\nmax_total_agents = 7\n")
    monkeypatch.chdir(tmp_path)
    assert load_settings(Path("loopwarden.toml")).limits.max_total_agents == 7


def test_the_values_of_variables_are_in_no_output(tmp_path: Path) -> None:
    settings = load_settings(written(tmp_path, GOOD))
    assert "hunter2" not in str(settings.to_json())
    assert settings.to_json()["providers"]["claude"]["env"] == ["TOKEN"]


def test_the_digest_follows_what_is_decided_and_nothing_else(tmp_path: Path) -> None:
    first = load_settings(written(tmp_path, GOOD)).digest
    assert first.startswith("sha256:")
    assert load_settings(written(tmp_path, "# a comment\n" + GOOD)).digest == first
    assert load_settings(written(tmp_path, GOOD.replace("hunter2", "hunter3"))).digest == first
    assert load_settings(written(tmp_path, GOOD.replace("= 50", "= 51"))).digest != first


def test_a_folder_of_a_user_that_nobody_knows_is_refused_with_key_and_line(tmp_path: Path) -> None:
    for text, line, key in (
        ('\nstate_folder = "~nobody-like-that/runs"\n', 2, "state_folder"),
        ('script_folders = ["/opt", "~nobody-like-that"]\n', 1, "script_folders[1]"),
    ):
        path = written(tmp_path, text)
        wanted = f"{path}, line {line}: {key}: ~nobody-like-that names no home folder; write the whole path"
        assert refusal(path).message == wanted


def test_values_that_json_does_not_have_are_shown_as_text(tmp_path: Path) -> None:
    text = f"[loops.x]\na = 2024-01-01\nb = [inf, nan, 1.5]\nc = {{ d = {10**30}, e = true }}\n"
    settings = load_settings(written(tmp_path, text))
    shown = {"a": "2024-01-01", "b": ["inf", "nan", 1.5], "c": {"d": str(10**30), "e": True}}
    assert settings.to_json()["loops"] == {"x": shown}
    assert settings.digest.startswith("sha256:")


def test_limits_are_shown_as_receipts_name_them() -> None:
    assert Settings().to_json()["limits"]["maxTotalAgents"] == Limits().max_total_agents


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")

    depth: int = 1


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")

    inner: Inner | None = None
    by_name: dict[str, Inner] = Field({}, alias="byName")
    listed: list[Inner] = []


@pytest.mark.parametrize(
    ("table", "keys"),
    [
        ({"x": 1}, "inner, byName, listed"),
        ({"inner": {"x": 1}}, "depth"),
        ({"byName": {"a": {"x": 1}}}, "depth"),
        ({"listed": [{}, {"x": 1}]}, "depth"),
    ],
)
def test_a_key_that_a_table_does_not_have_is_refused_with_those_that_this_table_has(
    table: dict[str, Any], keys: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate(table)
    place, reason = describe_problem(caught.value, Outer)
    assert place[-1] == "x"
    assert reason == f"there is no such key; there are: {keys}"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("require_approved = true\n", "{beside}/loopwarden.lock"),
        ('lock = "locks/ours.lock"\n', "{beside}/locks/ours.lock"),
        ('lock = "/etc/ours.lock"\n', "/etc/ours.lock"),
        ('lock = "~/ours.lock"\n', "{home}/ours.lock"),
    ],
)
def test_the_lock_lies_beside_the_file_unless_it_says_where(tmp_path: Path, text: str, place: str) -> None:
    path = tmp_path / "loopwarden.toml"
    path.write_text(text)
    settings = load_settings(path)
    assert str(settings.lock) == place.format(beside=tmp_path, home=Path.home())
    assert settings.require_approved is text.startswith("require")
    assert (settings.require_bound, settings.approve_shipped) == (False, True)


def test_what_approval_asks_is_part_of_the_digest_and_where_the_lock_lies_is_not(tmp_path: Path) -> None:
    digests = []
    for name, text in (
        ("a", ""),
        ("b", 'lock = "x"\n'),
        ("c", "require_approved = true\n"),
        ("d", "require_bound = true\n"),
        ("e", "approve_shipped = false\n"),
    ):
        path = tmp_path / f"{name}.toml"
        path.write_text(text)
        digests.append(load_settings(path).digest)
    assert digests[0] == digests[1]
    assert len(set(digests)) == 4
