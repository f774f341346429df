"""Providers out of the settings: each type becomes its provider, and what cannot work is refused before it is asked."""

from pathlib import Path
from typing import Any

import pytest

from loopwarden.failures import InvalidRequest
from loopwarden.provider_settings import AGENT_PROGRAMS, AgentProgramSettings
from loopwarden.providers.acp.provider import AcpProvider
from loopwarden.providers.command import CommandProvider
from loopwarden.providers.configured import (
    environment_notes,
    find_entry,
    make_dialect,
    make_provider,
    missing_credentials,
    program_of,
    program_options,
    with_choices,
)
from loopwarden.providers.dialect import ProgramOptions
from loopwarden.providers.driver import ProgramProvider
from loopwarden.providers.openai.provider import OpenAIProvider
from loopwarden.settings import Settings, load_settings

NONE = Settings()
KEYS = ("ANTHROPIC_API_KEY", "CODEX_API_KEY", "A_KEY", "B_KEY")


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests may have some."""
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)


def load(tmp_path: Path, text: str) -> Settings:
    path = tmp_path / "loopwarden.toml"
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
    return load_settings(path)


def agent(**more: Any) -> AgentProgramSettings:
    return AgentProgramSettings(type="claude", **more)


@pytest.mark.parametrize("name", AGENT_PROGRAMS)
def test_each_preset_is_driven_in_the_dialect_of_its_name(name: Any) -> None:
    provider = make_provider(name, NONE, AgentProgramSettings(type=name, env={"A_KEY": "x"}))
    assert isinstance(provider, ProgramProvider)
    assert (provider.dialect.name, program_of(find_entry(name, NONE))) == (name, provider.dialect.program)
    assert make_dialect(name).credential_variables


def test_each_other_type_becomes_its_provider(tmp_path: Path) -> None:
    text = (
        '[providers.a]\ntype = "command"\nargv = ["x"]\n[providers.b]\ntype = "acp"\nargv = ["y", "z"]\n'
        'permissions = "deny"\n[providers.c]\ntype = "openai"\nbase_url = "http://127.0.0.1:9/v1"\nmodel = "m"\n'
        'structured_output = "text"\ninput_price_usd = 1\noutput_price_usd = 2.5\n'
    )
    settings = load(tmp_path, text)
    command, acp, openai = (make_provider(name, settings) for name in "abc")
    assert isinstance(command, CommandProvider)
    assert isinstance(acp, AcpProvider)
    assert isinstance(openai, OpenAIProvider)
    assert (command.argv, acp.argv) == (("x",), ("y", "z"))
    assert (openai.capabilities.native_schema, openai.capabilities.cost_known) == (False, True)


def test_every_option_of_an_agent_program_reaches_its_dialect() -> None:
    given = agent(
        program="/opt/c", model="m", arguments=["-x"], env={"A": "b"}, pass_env=["A_KEY"],
        credential_files={"a": "/b"}, project_files=True, max_turns=3, max_cost_usd=1.5,
    )  # fmt: skip
    options = program_options(given)
    assert options == ProgramOptions(
        program="/opt/c", model="m", arguments=("-x",), env={"A": "b"}, pass_env=("A_KEY",),
        credential_files={"a": "/b"}, project_files=True, max_turns=3, max_cost_usd=1.5,
    )  # fmt: skip
    unused = ProgramOptions()
    assert [name for name in ProgramOptions.__slots__ if getattr(options, name) == getattr(unused, name)] == []


def test_a_table_takes_the_place_of_the_preset_of_its_name(tmp_path: Path) -> None:
    settings = load(tmp_path, '[providers.claude]\ntype = "command"\nargv = ["mine"]\n')
    assert program_of(find_entry("claude", settings)) == "mine"
    assert program_of(find_entry("claude", NONE)) == "claude"


def test_a_name_that_nobody_has_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="there is no provider 'x'; the settings have: none"):
        make_provider("x", NONE)


# ---- credentials


def test_an_agent_program_without_credentials_is_refused_with_the_name_of_what_it_needs() -> None:
    with pytest.raises(InvalidRequest) as caught:
        make_provider("claude", NONE)
    assert caught.value.message == (
        "the provider claude has no credentials: name the variables to pass on, such as --pass-env ANTHROPIC_API_KEY, "
        "or set pass_env in [providers.claude]"
    )


def test_a_variable_that_is_to_be_passed_on_and_is_not_set_is_no_credential(monkeypatch: pytest.MonkeyPatch) -> None:
    given = agent(pass_env=["A_KEY"])
    wanted = "the provider p has no credentials: A_KEY is not set in the environment; set what it needs"
    assert missing_credentials("p", given) == wanted
    monkeypatch.setenv("A_KEY", "")
    assert missing_credentials("p", given) == wanted
    monkeypatch.setenv("A_KEY", "x")
    assert missing_credentials("p", given) is None


def test_a_file_or_a_value_may_be_the_credential() -> None:
    assert missing_credentials("p", agent(credential_files={"a": "/b"})) is None
    assert missing_credentials("p", agent(env={"A_KEY": "x"})) is None


def test_a_missing_variable_beside_another_credential_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "hunter2")
    given = agent(pass_env=["A_KEY", "B_KEY"])
    assert missing_credentials("p", given) is None
    notes = ("the variable B_KEY, which the provider p is to get, is not set",)
    assert environment_notes("p", given) == notes


@pytest.mark.parametrize(("make", "words"), [("missing", "does not exist"), ("folder", "is not a file")])
def test_a_file_of_credentials_that_is_none_is_refused_with_its_line(tmp_path: Path, make: str, words: str) -> None:
    (tmp_path / "folder").mkdir()
    settings = load(tmp_path, f'[providers.a]\ntype = "claude"\n\ncredential_files = {{ "x" = "{make}" }}\n')
    with pytest.raises(InvalidRequest) as caught:
        make_provider("a", settings)
    head = f"{tmp_path / 'loopwarden.toml'}, line 4: providers.a.credential_files.x: {tmp_path / make} {words}; "
    assert caught.value.message.startswith(head)


def test_the_key_of_an_endpoint_is_read_from_the_environment_or_missed_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = '[providers.a]\ntype = "openai"\nbase_url = "http://x/v1"\nmodel = "m"\napi_key_env = "A_KEY"\n'
    settings = load(tmp_path, text)
    with pytest.raises(InvalidRequest) as caught:
        make_provider("a", settings)
    assert "line 5: providers.a.api_key_env: the variable A_KEY is not set" in caught.value.message
    monkeypatch.setenv("A_KEY", "hunter2")
    assert "hunter2" not in repr(make_provider("a", settings))


def test_an_option_that_the_program_cannot_keep_is_refused_with_its_line(tmp_path: Path) -> None:
    settings = load(tmp_path, '[providers.a]\ntype = "codex"\nenv = { A_KEY = "x" }\nmax_cost_usd = 5\n')
    with pytest.raises(InvalidRequest) as caught:
        make_provider("a", settings)
    assert caught.value.message.startswith(f"{tmp_path / 'loopwarden.toml'}, line 1: providers.a: ")
    assert "max_cost_usd" in caught.value.message


# ---- what a person adds


def test_variables_and_model_of_the_command_line_are_added(tmp_path: Path) -> None:
    given = with_choices("p", agent(pass_env=["A_KEY"]), pass_env=("B_KEY", "A_KEY"), model="m")
    assert given == agent(pass_env=["A_KEY", "B_KEY"], model="m")
    assert with_choices("p", given) is given


def test_what_a_provider_cannot_take_is_refused(tmp_path: Path) -> None:
    text = (
        '[providers.a]\ntype = "command"\nargv = ["x"]\n'
        '[providers.b]\ntype = "openai"\nbase_url = "http://x/v1"\nmodel = "m"\n'
    )
    settings = load(tmp_path, text)
    with pytest.raises(InvalidRequest, match="--model cannot be given to the provider a"):
        with_choices("a", find_entry("a", settings), model="m")
    with pytest.raises(InvalidRequest, match="name its variable in api_key_env"):
        with_choices("b", find_entry("b", settings), pass_env=("A_KEY",))
