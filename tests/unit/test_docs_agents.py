"""The pages about agents say what the code has: programs, versions, abilities, failure classes."""

import re

import pytest

from loopwarden.cli.provider_words import capability_words
from loopwarden.failure_class import FailureClass
from loopwarden.provider import Capabilities
from loopwarden.provider_settings import AGENT_PROGRAMS, AcpSettings, AgentProgramName, OpenAISettings
from loopwarden.providers.acp.provider import CAPABILITIES
from loopwarden.providers.configured import make_dialect
from loopwarden.providers.openai.provider import OpenAIProvider
from support.pages import ROOT, between, code, table

MOST_NAMED = 4
AGENTS = (ROOT / "docs/agents.md").read_text(encoding="utf-8")


def can(capabilities: Capabilities) -> tuple[str, str]:
    """The row about abilities."""
    return "can", capability_words(capabilities)


def program_facts(name: AgentProgramName) -> str:
    """What stands at the head of the page of a program."""
    dialect = make_dialect(name)
    usual = dialect.credential_variables
    more = ", …" if len(usual) > MOST_NAMED else ""
    return table(
        ("what", "fact"),
        ("`type`", code(name)),
        ("program", code(dialect.program)),
        ("tried with", "not run" if dialect.tested_version is None else f"version {dialect.tested_version}"),
        can(dialect.capabilities),
        ("credentials", code(*usual[:MOST_NAMED]) + more),
    )


@pytest.mark.parametrize("name", AGENT_PROGRAMS)
def test_the_page_of_a_program_has_the_facts_of_its_dialect(name: AgentProgramName) -> None:
    assert between(f"docs/agents/{name}.md", "facts") == program_facts(name)


def test_the_page_of_the_protocol_has_the_abilities_of_its_provider() -> None:
    facts = table(("what", "fact"), ("`type`", "`acp`"), can(CAPABILITIES), ("keys", code(*AcpSettings.model_fields)))
    assert between("docs/agents/acp.md", "facts") == facts


def test_the_page_of_endpoints_has_the_abilities_of_its_provider() -> None:
    bare = OpenAIProvider(base_url="http://127.0.0.1/v1", model="m")
    facts = table(
        ("what", "fact"),
        ("`type`", "`openai`"),
        can(bare.capabilities),
        ("keys", code(*OpenAISettings.model_fields)),
    )
    assert between("docs/agents/openai.md", "facts") == facts


def test_the_page_of_policies_explains_every_failure_class_once() -> None:
    text = (ROOT / "docs/policies.md").read_text(encoding="utf-8")
    section = text.partition("## The classes of failures\n")[2].partition("\n## ")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == sorted(FailureClass)


def test_every_kind_of_provider_has_a_row_and_a_page() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| .+ \| \[.+?\]\((.+?)\) \|$", AGENTS.partition("\n## ")[0], re.MULTILINE))
    assert rows.pop("command") == "write-a-provider.md#the-command-provider"
    assert rows == {name: f"agents/{name}.md" for name in (*AGENT_PROGRAMS, "acp", "openai")}
    assert sorted(path.stem for path in (ROOT / "docs/agents").glob("*.md")) == sorted(rows)


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: page.stem)
def test_links_between_pages_lead_somewhere(page: object) -> None:
    path = ROOT / str(page)
    for target in re.findall(r"\]\((?!https?:)([^)\s]*)\)", path.read_text(encoding="utf-8").replace("\n", " ")):
        file, _, part = target.partition("#")
        found = (path.parent / file).resolve() if file else path
        assert found.exists(), target
        if part:
            heads = re.findall(r"^#+ (.+)$", found.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}
            assert part in anchors, target
