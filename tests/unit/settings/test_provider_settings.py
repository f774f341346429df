"""`[providers.NAME]` by type: what each takes, what is refused and where, and what readers are shown."""

import inspect
from pathlib import Path
from typing import Any, get_args

import pytest

from loopwarden.failure_class import FailureClass
from loopwarden.failures import InvalidRequest
from loopwarden.policy import NEVER_REPEATED, BreakerRule, Policy, Retry, Wait
from loopwarden.provider_settings import (
    AGENT_PROGRAMS,
    AcpSettings,
    AgentProgramSettings,
    BreakerSettings,
    CommandSettings,
    OpenAISettings,
    PolicySettings,
    ProviderSettings,
    RetrySettings,
    WaitSettings,
    preset,
)
from loopwarden.providers.openai.provider import OpenAIProvider
from loopwarden.settings import Settings, load_settings

AGENT = '[providers.a]\ntype = "claude"\n'
ACP = '[providers.a]\ntype = "acp"\nargv = ["x"]\npermissions = "allow"\n'
OPENAI = '[providers.a]\ntype = "openai"\nbase_url = "https://api.example.com/v1"\nmodel = "m"\n'
POLICY = AGENT + "[providers.a.policy]\n"


def load(tmp_path: Path, text: str) -> Settings:
    path = tmp_path / "loopwarden.toml"
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
    return load_settings(path)


def test_an_agent_program_takes_all_options_of_its_kind(tmp_path: Path) -> None:
    more = (
        'program = "/opt/claude"\nmodel = "opus"\narguments = ["--verbose"]\nenv = { A = "b" }\npass_env = ["KEY"]\n'
        'credential_files = { ".claude/creds.json" = "creds.json" }\nproject_files = true\nmax_turns = 9\n'
        "max_cost_usd = 2\n"
    )
    assert load(tmp_path, AGENT + more).providers["a"] == AgentProgramSettings(
        type="claude", program="/opt/claude", model="opus", arguments=["--verbose"], env={"A": "b"}, pass_env=["KEY"],
        credential_files={".claude/creds.json": str(tmp_path / "creds.json")}, project_files=True, max_turns=9,
        max_cost_usd=2.0,
    )  # fmt: skip


def test_files_of_credentials_lie_beside_the_settings_or_in_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    text = ACP + 'credential_files = { "a" = "~/.x/a.json", "b" = "b.json", "c" = "/etc/c" }\n'
    acp = load(tmp_path, text).providers["a"]
    assert isinstance(acp, AcpSettings)
    assert acp.credential_files == {"a": "/home/someone/.x/a.json", "b": str(tmp_path / "b.json"), "c": "/etc/c"}


def test_a_policy_of_empty_tables_is_the_one_with_all_defaults(tmp_path: Path) -> None:
    text = POLICY + 'retry = {}\nwait = {}\nbreaker = {}\nfallback = "b"\n[providers.b]\ntype = "codex"\n'
    classes = frozenset({FailureClass.OVERLOADED, FailureClass.UNAVAILABLE})
    assert load(tmp_path, text).providers["a"].policy.to_policy() == Policy(
        retry=Retry(classes=classes), wait=Wait(), fallback="b", breaker=BreakerRule()
    )


def test_without_a_policy_nothing_is_repeated(tmp_path: Path) -> None:
    for text in (AGENT, ACP, OPENAI):
        assert load(tmp_path, text).providers["a"].policy.to_policy() == Policy()


@pytest.mark.parametrize(
    ("model", "rule"), [(RetrySettings, Retry), (WaitSettings, Wait), (BreakerSettings, BreakerRule)]
)
def test_the_defaults_of_a_policy_are_those_of_the_code_that_follows_it(model: Any, rule: Any) -> None:
    for name, parameter in inspect.signature(rule).parameters.items():
        if parameter.default is not inspect.Parameter.empty:
            assert model.model_fields[name].default == parameter.default, name
    assert set(model.model_fields) == set(inspect.signature(rule).parameters)


def test_every_number_of_a_policy_is_handed_on(tmp_path: Path) -> None:
    text = POLICY + (
        'retry = { classes = ["timeout"], times = 2, first_seconds = 1, factor = 3, max_seconds = 9, '
        "max_server_delay_seconds = 8 }\nwait = { max_seconds = 7 }\nbreaker = { failures = 6, reopen_seconds = 5 }\n"
    )
    assert load(tmp_path, text).providers["a"].policy.to_policy() == Policy(
        retry=Retry(
            classes=frozenset({FailureClass.TIMEOUT}), times=2, first_seconds=1, factor=3, max_seconds=9,
            max_server_delay_seconds=8,
        ),
        wait=Wait(max_seconds=7), breaker=BreakerRule(failures=6, reopen_seconds=5),
    )  # fmt: skip


@pytest.mark.parametrize("name", sorted(FailureClass))
def test_every_class_but_a_cancellation_can_be_retried(tmp_path: Path, name: str) -> None:
    text = POLICY + f'retry = {{ classes = ["{name}"] }}\n'
    if FailureClass(name) in NEVER_REPEATED:
        with pytest.raises(InvalidRequest, match="never asked again"):
            load(tmp_path, text)
    else:
        assert load(tmp_path, text).providers["a"].policy.to_policy().repeats


TYPES = '"command", "claude", "codex", "opencode", "qwen", "gemini", "acp", "openai"'


@pytest.mark.parametrize(
    ("text", "line", "key", "reason"),
    [
        ('[providers.a]\nargv = ["x"]\n', 1, "providers.a.type", "this key is missing"),
        ('[providers.a]\ntype = "magic"\n', 2, "providers.a.type", f'there is no type "magic"; there are: {TYPES}'),
        ("[providers.a]\n\ntype = 3\n", 3, "providers.a.type", f'there is no type "3"; there are: {TYPES}'),
        ("providers.a = 3\n", 1, "providers.a", "input should be a table"),
        (
            AGENT + 'argv = ["x"]\n',
            3,
            "providers.a.argv",
            f"there is no such key; there are: {', '.join(AgentProgramSettings.model_fields)}",
        ),
        (
            '[providers.a]\ntype = "command"\nargv = ["x"]\nmodel = "m"\n',
            4,
            "providers.a.model",
            "there is no such key; there are: type, argv, env, pass_env, max_concurrent, policy",
        ),
        (
            POLICY + "retries = 3\n",
            4,
            "providers.a.policy.retries",
            "there is no such key; there are: retry, wait, fallback, breaker",
        ),
        (
            POLICY + "\nwait = { seconds = 3 }\n",
            5,
            "providers.a.policy.wait.seconds",
            "there is no such key; there are: max_seconds",
        ),
        (POLICY + "retry = { times = 0 }\n", 4, "providers.a.policy.retry.times", "greater than or equal to 1"),
        (POLICY + "retry = { classes = [] }\n", 4, "providers.a.policy.retry.classes", "at least 1 item"),
        (POLICY + 'retry = { classes = ["no"] }\n', 4, "providers.a.policy.retry.classes[0]", "'overloaded'"),
        (POLICY + "wait = { max_seconds = inf }\n", 4, "providers.a.policy.wait.max_seconds", "input should be"),
        (POLICY + 'fallback = "a"\n', 4, "providers.a.policy.fallback", "a provider cannot be its own fallback"),
        (
            POLICY + '\nfallback = "codex"\n[providers.b]\ntype = "qwen"\n',
            5,
            "providers.a.policy.fallback",
            "there is no [providers.codex]; the other providers of the file are: b",
        ),
        (AGENT + 'pass_env = ["A=b"]\n', 3, "providers.a.pass_env[0]", "cannot name an environment variable"),
        (AGENT + "max_turns = 0\n", 3, "providers.a.max_turns", "greater than or equal to 1"),
        (AGENT + "max_cost_usd = 0\n", 3, "providers.a.max_cost_usd", "greater than 0"),
        (AGENT + 'model = " "\n', 3, "providers.a.model", "this cannot be empty"),
        (
            AGENT + 'credential_files = { "../x" = "y" }\n',
            3,
            "providers.a.credential_files.'../x'",
            "is no path below the agent's home",
        ),
        (
            AGENT + 'credential_files = { "x" = "~nobody-like-that/y" }\n',
            3,
            "providers.a.credential_files.x",
            "names no home folder",
        ),
        (ACP.replace("allow", "ask"), 4, "providers.a.permissions", "'allow' or 'deny'"),
        ('[providers.a]\ntype = "acp"\nargv = ["x"]\n', 1, "providers.a.permissions", "this key is missing"),
        (OPENAI.replace("https:", "ftp:"), 3, "providers.a.base_url", "this is no URL of HTTP"),
        (OPENAI.replace("api.", "[api."), 3, "providers.a.base_url", "this is no URL of HTTP"),
        (OPENAI.replace("api.", "me:word@api."), 3, "providers.a.base_url", "it can hold no name and no password"),
        (OPENAI + 'api_key = "k"\n', 5, "providers.a.api_key", "there is no such key"),
        (OPENAI + 'structured_output = "xml"\n', 5, "providers.a.structured_output", "'json_schema', 'tool' or 'text'"),
        (OPENAI + 'headers = { "a b" = "c" }\n', 5, "providers.a.headers.'a b'", "cannot name a header"),
        (OPENAI + 'headers = { A = "c\\n" }\n', 5, "providers.a.headers.A", "cannot be the value of a header"),
        ("[limits]\nmax_cost_usd = 0\n", 2, "limits.max_cost_usd", "above zero"),
        ('[limits]\nmax_cost_usd = "5"\n', 2, "limits.max_cost_usd", "max_cost_usd must be an amount"),
    ],
)
def test_a_refusal_names_file_line_and_key(tmp_path: Path, text: str, line: int, key: str, reason: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        load(tmp_path, text)
    error = caught.value
    assert error.message.startswith(f"{tmp_path / 'loopwarden.toml'}, line {line}: {key}: "), error.message
    assert reason in error.message
    assert (error.line, error.details["key"]) == (line, key)


def test_no_value_of_a_variable_or_header_and_no_query_is_shown_to_readers(tmp_path: Path) -> None:
    text = (
        '[providers.a]\ntype = "claude"\nenv = { TOKEN = "hunter2" }\n'
        '[providers.b]\ntype = "openai"\nbase_url = "https://x/v1?key=hunter2"\nmodel = "m"\n'
        'headers = { X-Key = "hunter2" }\nproxy_url = "http://p:1?hunter2"\n'
        '[providers.c]\ntype = "acp"\nargv = ["x"]\npermissions = "deny"\nenv = { OTHER = "hunter2" }\n'
        '[providers.d]\ntype = "command"\nargv = ["x"]\nenv = { LAST = "hunter2" }\n'
    )
    settings = load(tmp_path, text)
    shown = settings.to_json()
    assert "hunter2" not in str(shown)
    assert "hunter2" not in repr(settings)
    assert "hunter2" not in str([given.model_dump() for given in settings.providers.values()])
    providers = shown["providers"]
    assert providers["a"]["env"] == ["TOKEN"]
    assert (providers["b"]["baseUrl"], providers["b"]["headers"]) == ("https://x/v1", ["X-Key"])
    other = load(tmp_path, text.replace("hunter2", "hunter3"))
    assert other.digest == settings.digest


def test_the_digest_follows_the_policy(tmp_path: Path) -> None:
    first = load(tmp_path, POLICY + "wait = { max_seconds = 60 }\n").digest
    assert load(tmp_path, POLICY + "wait = { max_seconds = 61 }\n").digest != first


def test_a_limit_on_money_is_taken_and_there_is_none_by_default(tmp_path: Path) -> None:
    settings = load(tmp_path, "[limits]\nmax_cost_usd = 5\nwrap_up_seconds = 10\n")
    assert (settings.limits.max_cost_usd, settings.limits.wrap_up_seconds) == (5, 10)
    assert settings.limits_given == {"max_cost_usd", "wrap_up_seconds"}
    assert settings.to_json()["limits"]["maxCostUsd"] == 5
    assert Settings().to_json()["limits"]["maxCostUsd"] is None


def test_each_agent_program_is_a_preset_and_may_be_the_default(tmp_path: Path) -> None:
    for name in AGENT_PROGRAMS:
        assert preset(name) == AgentProgramSettings(type=name)
        assert load(tmp_path, f'default_provider = "{name}"\n').default_provider == name
    for name in ("acp", "openai", "command", "magic"):
        assert preset(name) is None


def test_every_option_of_the_endpoint_can_be_set() -> None:
    of_code = set(inspect.signature(OpenAIProvider).parameters)
    in_file = set(OpenAISettings.model_fields) - {"type", "max_concurrent", "policy"}
    assert in_file - {"api_key_env"} == of_code - {"api_key"}


def test_every_type_takes_a_bound_of_agents_at_once(tmp_path: Path) -> None:
    command = '[providers.a]\ntype = "command"\nargv = ["x"]\n'
    for text in (command, AGENT, ACP, OPENAI):
        assert load(tmp_path, text).providers["a"].max_concurrent is None
        assert load(tmp_path, text + "max_concurrent = 4\n").providers["a"].max_concurrent == 4
        with pytest.raises(InvalidRequest, match=r"providers\.a\.max_concurrent: .*greater than or equal to 1"):
            load(tmp_path, text + "max_concurrent = 0\n")


def test_every_type_has_a_policy_and_forbids_what_it_does_not_know() -> None:
    models = get_args(get_args(ProviderSettings)[0])
    assert set(models) == {CommandSettings, AgentProgramSettings, AcpSettings, OpenAISettings}
    for model in models:
        assert model.model_fields["policy"].annotation is PolicySettings
        assert (model.model_config["extra"], model.model_config["frozen"]) == ("forbid", True)
