"""The reference of settings names every key of the models, with its default."""

import re
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from loopwarden.provider_settings import (
    AcpSettings,
    AgentProgramSettings,
    BreakerSettings,
    CommandSettings,
    OpenAISettings,
    PolicySettings,
    ProviderSettings,
    RetrySettings,
    WaitSettings,
)
from loopwarden.settings import _File
from loopwarden.store_settings import QueueSettings, ScopeSettings, StoreSettings, WorkspaceSettings
from loopwarden_engine.plain import compact_json
from loopwarden_scripts.ralph import RalphSettings
from support.pages import between

PAGE = "docs/settings.md"
IN_WORDS = {
    "default_provider": "the only one", "state_folder": "the user's", "lock": "`loopwarden.lock` beside the file",
}  # fmt: skip
"""What a key without a fixed default falls back to."""


def documented(part: str) -> dict[str, str]:
    """The keys and defaults of a table."""
    return dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", between(PAGE, part), re.MULTILINE))


def in_code(model: type[BaseModel]) -> dict[str, str]:
    """The keys and defaults of a model."""
    return {name: IN_WORDS.get(name) or shown(item) for name, item in model.model_fields.items()}


def shown(item: Any) -> str:
    """The default of a field as TOML would have it."""
    if item.is_required():
        return "required"
    match item.default:
        case None:
            return "none"
        case BaseModel():
            return "`{}`"
        case float() as number:
            return f"`{number:g}`"
        case other:
            return f"`{compact_json(other)}`"


@pytest.mark.parametrize(
    ("part", "model"),
    [
        ("keys", _File),
        ("command-keys", CommandSettings),
        ("agent-program-keys", AgentProgramSettings),
        ("acp-keys", AcpSettings),
        ("openai-keys", OpenAISettings),
        ("policy-keys", PolicySettings),
        ("retry-keys", RetrySettings),
        ("wait-keys", WaitSettings),
        ("breaker-keys", BreakerSettings),
        ("ralph-keys", RalphSettings),
        ("store-keys", StoreSettings),
        ("scope-keys", ScopeSettings),
        ("queue-keys", QueueSettings),
        ("workspace-keys", WorkspaceSettings),
    ],
)
def test_the_page_of_settings_names_every_key_with_its_default(part: str, model: type[BaseModel]) -> None:
    assert documented(part) == in_code(model)


def test_the_page_of_settings_names_every_type_of_provider() -> None:
    types = [
        item
        for model in get_args(get_args(ProviderSettings)[0])
        for item in get_args(model.model_fields["type"].annotation)
    ]
    for name in types:
        assert f'`"{name}"`' in between(PAGE, "types"), name
