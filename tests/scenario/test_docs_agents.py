"""The pages about agents, tried as a new user would: their settings are loaded, their command lines are typed.

In place of each agent program stands a script that prints what the program prints in the end. The real ones are run by
`make test-agents`.
"""

import json
import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from loopwarden.cli.exits import EXIT_COMPLETE
from loopwarden.failure_class import FailureClass
from loopwarden.provider_settings import AgentProgramSettings
from loopwarden.providers.configured import make_provider, program_options
from loopwarden.settings import Settings, load_settings
from support.command_line import COMPLETE, Home
from support.pages import agent_pages, blocks, commands, example, needs_agent_programs, pages

CREDENTIALS = (
    "CLAUDE_CODE_OAUTH_TOKEN", "CODEX_API_KEY", "GATEWAY_KEY", "ANTHROPIC_API_KEY", "MODEL_KEY", "OPENAI_API_KEY",
    "OPENAI_BASE_URL", "GEMINI_API_KEY", "DEEPSEEK_API_KEY",
)  # fmt: skip
PAGE_WITH_SETTINGS = {"replace-your-bash-loop": "settings"}
"""Command lines of these pages are typed with the settings that they show."""
NOT_TYPED = ("editor-agent", "--probe local")
"""What would need an agent of the protocol, and an endpoint; their own tests have them."""


class NewUser(Home):
    """Someone with credentials in the environment."""

    @property
    def environment(self) -> dict[str, str]:
        """As of any other, and the variables that the pages name."""
        return {**Home.environment.__get__(self), **dict.fromkeys(CREDENTIALS, "secret")}


def claude(value: str) -> str:
    record = {"type": "result", "subtype": "success", "is_error": False, "result": value, "total_cost_usd": 0.01}
    return json.dumps(record | {"structured_output": json.loads(value)})


def codex(value: str) -> str:
    item = {"id": "item_1", "type": "agent_message", "text": value}
    records = (
        {"type": "thread.started", "thread_id": "t"},
        {"type": "turn.started"},
        {"type": "item.completed", "item": item},
        {"type": "turn.completed", "usage": {"input_tokens": 10, "output_tokens": 2}},
    )
    return "\n".join(map(json.dumps, records))


def opencode(value: str) -> str:
    part = {"messageID": "m", "sessionID": "s"}
    records = (
        {"type": "step_start", "part": {**part, "id": "1", "type": "step-start"}},
        {"type": "text", "part": {**part, "id": "2", "type": "text", "text": value}},
        {"type": "step_finish", "part": {**part, "id": "3", "type": "step-finish", "reason": "stop"}},
    )
    return "\n".join(map(json.dumps, records))


def qwen(value: str) -> str:
    record = {"type": "result", "subtype": "success", "is_error": False, "result": value}
    return json.dumps(record | {"structured_result": json.loads(value)})


def gemini(value: str) -> str:
    said = {"type": "message", "role": "assistant", "content": value, "delta": True}
    return f"{json.dumps(said)}\n{json.dumps({'type': 'result', 'status': 'success', 'stats': {}})}"


PROGRAMS: dict[str, Callable[[str], str]] = {
    "claude": claude, "codex": codex, "opencode": opencode, "qwen": qwen, "gemini": gemini,
}  # fmt: skip


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NewUser:
    """A new user with all programs, and a repository as workspace."""
    user = NewUser(tmp_path)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    for name, last_words in PROGRAMS.items():
        ready, report = last_words('{"answer": "ready"}'), last_words(json.dumps(COMPLETE))
        user.agent(
            f"""case "$(cat)" in *'tests whether you can be reached'*) cat <<'END'\n{ready}\nEND\n;;\n"""
            f"*) cat <<'END'\n{report}\nEND\n;;\nesac\n",
            f"bin/{name}",
        )
    user.workspace.joinpath("PROMPT.md").write_text("Make all tests pass\n")
    user.workspace.joinpath("Makefile").write_text("test:\n\ttrue\n")
    author = ("-c", "user.name=Tester", "-c", "user.email=tester@example.org")
    for words in (("init", "--quiet"), ("add", "--all"), (*author, "commit", "--quiet", "-m", "work")):
        subprocess.run(["git", *words], cwd=user.workspace, check=True, env=user.environment, timeout=20)
    return user


def lines() -> list[tuple[str, str]]:
    """Page and command line, of all pages about agents."""
    return [
        (page.stem, line)
        for page in pages()
        for line in commands(page)
        if needs_agent_programs(page, line) and not any(words in line for words in NOT_TYPED)
    ]


@pytest.mark.parametrize(("page", "line"), lines())
def test_a_command_line_of_the_pages_works_as_it_stands(user: NewUser, page: str, line: str) -> None:
    if page in PAGE_WITH_SETTINGS:
        folder = user.root / "config" / "loopwarden"
        folder.mkdir(parents=True, mode=0o700)
        user.settings(example(f"{page}/{PAGE_WITH_SETTINGS[page]}")).rename(folder / "loopwarden.toml")
    done = user.run(*shlex.split(line), cwd=user.workspace)
    assert done.exit == EXIT_COMPLETE, (done.err, done.out)
    assert "secret" not in done.out + done.err


def test_every_page_about_a_program_shows_a_run() -> None:
    shown = {page for page, line in lines() if line.startswith("run ")}
    assert shown == {*PROGRAMS, "replace-your-bash-loop", "README"}


def test_the_run_for_the_night_leaves_a_branch_to_merge(user: NewUser) -> None:
    """The page's command, with an agent that writes: the checkout stays as it is."""
    (user.root / "bin" / "claude").write_text(
        f"#!/bin/sh\ncat > /dev/null; echo made > made.txt\ncat <<'END'\n{claude(json.dumps(COMPLETE))}\nEND\n"
    )
    folder = user.root / "config" / "loopwarden"
    folder.mkdir(parents=True, mode=0o700)
    user.settings(example("replace-your-bash-loop/settings")).rename(folder / "loopwarden.toml")
    (line,) = [line for _, line in lines() if "--isolation worktree" in line]
    done = user.run(*shlex.split(line), "--json", cwd=user.workspace)
    worktree = done.json["receipt"]["worktree"]
    assert Path(worktree["path"], "made.txt").read_text() == "made\n"
    assert not (user.workspace / "made.txt").exists()
    assert worktree["branch"] == f"loopwarden/{done.json['runId']}"


# ---- settings


def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> Settings:
    """The settings of an example, in an environment that has what it names."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in CREDENTIALS:
        monkeypatch.setenv(variable, "secret")
    return load_settings(Home(tmp_path).settings(example(name)))


SHOWN = [block.name for block in blocks(agent_pages()) if block.language == "toml" and block.name is not None]


@pytest.mark.parametrize("name", SHOWN)
def test_the_providers_of_an_example_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    settings = loaded(tmp_path, monkeypatch, name)
    assert settings.providers
    for provider in settings.providers:
        assert make_provider(provider, settings).capabilities.structured_output


def test_the_night_of_the_page_is_granted_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = loaded(tmp_path, monkeypatch, "replace-your-bash-loop/settings")
    policy = settings.providers["claude"].policy.to_policy()
    assert policy.retry is not None
    assert policy.wait is not None
    assert policy.breaker is not None
    assert (policy.retry.times, settings.limits.max_extra_attempts) == (3, 20)
    assert FailureClass.UNAVAILABLE in policy.retry.classes
    assert (settings.limits.agent_idle_seconds, settings.limits.agent_timeout_seconds) == (15 * 60, 3600)


@pytest.mark.parametrize(
    ("page", "key", "is_taken"),
    [
        ("claude", "max_turns", True), ("claude", "max_cost_usd", True),
        ("codex", "max_turns", False), ("codex", "max_cost_usd", False),
        ("opencode", "max_turns", False), ("opencode", "max_cost_usd", False),
        ("qwen", "max_turns", True), ("qwen", "max_cost_usd", False),
        ("gemini", "max_turns", True), ("gemini", "max_cost_usd", False),
    ],
)  # fmt: skip
def test_caps_are_taken_or_refused_as_the_pages_say(page: str, key: str, *, is_taken: bool) -> None:
    from loopwarden.providers.configured import make_dialect

    given = AgentProgramSettings.model_validate({"type": page, key: 3})
    problem = make_dialect(given.type).problem(program_options(given))
    assert (problem is None) == is_taken
