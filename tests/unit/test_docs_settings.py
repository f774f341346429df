"""The reference of settings names every key of the models, with its default."""

import re
from typing import Any

import pytest
from pydantic import BaseModel

from loopwarden.settings import ProviderSettings, _File
from loopwarden_engine.plain import compact_json
from loopwarden_scripts.ralph import RalphSettings
from support.pages import between

PAGE = "docs/settings.md"
IN_WORDS = {"default_provider": "the only one", "state_folder": "the user's"}
"""What a key without a fixed default falls back to."""


def documented(part: str) -> dict[str, str]:
    """The keys and defaults of a table."""
    return dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", between(PAGE, part), re.MULTILINE))


def in_code(model: type[BaseModel]) -> dict[str, str]:
    """The keys and defaults of a model."""
    return {name: IN_WORDS.get(name) or shown(item) for name, item in model.model_fields.items()}


def shown(item: Any) -> str:
    """The default of a field as TOML would have it."""
    return "required" if item.is_required() else f"`{compact_json(item.default)}`"


@pytest.mark.parametrize(
    ("part", "model"), [("keys", _File), ("provider-keys", ProviderSettings), ("ralph-keys", RalphSettings)]
)
def test_the_page_of_settings_names_every_key_with_its_default(part: str, model: type[BaseModel]) -> None:
    assert documented(part) == in_code(model)
