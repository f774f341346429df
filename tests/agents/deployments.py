"""How a deployment would set up each program, here with the model of the tests: one table of `[providers]` each."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from agents.programs import NODE_FOLDER, PROGRAMS

MODEL: Final = "model-1"
KEY: Final = "key-of-the-tests"
_KEY_VARIABLES: Final = {
    "claude": "ANTHROPIC_API_KEY",
    "codex": "TESTS_API_KEY",
    "opencode": "TESTS_API_KEY",
    "qwen": "OPENAI_API_KEY",
    "gemini": "GEMINI_API_KEY",
}


def table(name: str, url: str, mark: str, login: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The table of a program whose model is served at `url`. Its processes carry `mark` in their environment.

    `login` are the variables by which it logs in; None: a key of the API.
    """
    program = PROGRAMS[name]
    assert program.path.exists(), f"{name} {program.version} is not installed; run: make test-agents AGENTS={name}"
    deployment = _TABLES[name](url)
    # Some of the programs are scripts for Node, which the machine may not have.
    path = f"{NODE_FOLDER}{os.pathsep}{os.environ['PATH']}"
    login = {_KEY_VARIABLES[name]: KEY} if login is None else login
    environment = {**deployment.get("env", {}), **login, "PATH": path, "TEST_MARK": mark}
    return {"type": name, "program": str(program.path), **deployment, "env": environment}


def settings_file(folder: Path, name: str, entries: Mapping[str, Any]) -> Path:
    """A settings file with one provider, for nobody else to read."""
    path = folder / "loopwarden.toml"
    lines = [f"[providers.{name}]", *(f"{key} = {_toml(value)}" for key, value in entries.items())]
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o600)
    return path


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_toml(entry)}" for key, entry in value.items()) + " }"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    # A JSON text without characters beyond ASCII is a TOML text too.
    return json.dumps(value)


def _claude(url: str) -> dict[str, Any]:
    return {"env": {"ANTHROPIC_BASE_URL": url}}


def _codex(url: str) -> dict[str, Any]:
    # Repeats are left to the policy of the deployment.
    provider = (
        f'{{name="tests", base_url="{url}/v1", env_key="{_KEY_VARIABLES["codex"]}", wire_api="responses",'
        " request_max_retries=0, stream_max_retries=0}"
    )
    return {"arguments": ["-c", "model_provider=tests", "-c", f"model_providers.tests={provider}"]}


def _opencode(url: str) -> dict[str, Any]:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "tests",
        "options": {"baseURL": f"{url}/v1", "apiKey": f"{{env:{_KEY_VARIABLES['opencode']}}}"},
        "models": {MODEL: {"name": MODEL}},
    }
    content = json.dumps({"provider": {"tests": provider}})
    return {"model": f"tests/{MODEL}", "env": {"OPENCODE_CONFIG_CONTENT": content}}


def _qwen(url: str) -> dict[str, Any]:
    return {"model": MODEL, "env": {"OPENAI_BASE_URL": f"{url}/v1"}}


def _gemini(url: str) -> dict[str, Any]:
    return {"model": "gemini-2.5-pro", "env": {"GOOGLE_GEMINI_BASE_URL": url}}


_TABLES: Final = {"claude": _claude, "codex": _codex, "opencode": _opencode, "qwen": _qwen, "gemini": _gemini}
