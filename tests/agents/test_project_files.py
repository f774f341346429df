"""What lies in a workspace instructs a real agent program only where the deployment says so, and never runs unasked."""

import asyncio
import json

import pytest

from agents.stage import Stage

WORDS = "Always answer in rhyme."
INSTRUCTIONS = ("AGENTS.md", "CLAUDE.md", "GEMINI.md", "QWEN.md")
HOOK = {"hooks": {"SessionStart": [{"hooks": [{"type": "command", "command": "touch hooked.txt"}]}]}}
HAVE_HOOKS = ("claude", "qwen")
"""The others have none, or none that a workspace can switch on in this way."""
SETTINGS = (".claude/settings.json", ".qwen/settings.json", ".gemini/settings.json")


def lay_out(stage: Stage) -> None:
    """A workspace in which earlier agents, or somebody else, left instructions and hooks."""
    for name in INSTRUCTIONS:
        (stage.workspace / name).write_text(f"{WORDS}\n")
    for name in SETTINGS:
        (stage.workspace / name).parent.mkdir()
        (stage.workspace / name).write_text(json.dumps(HOOK))


@pytest.mark.parametrize("project_files", [False, True])
def test_instructions_and_hooks_of_the_workspace_count_only_when_project_files_are_on(
    stage: Stage, project_files: bool
) -> None:
    lay_out(stage)
    asyncio.run(stage.ask(stage.provider(project_files=project_files)))
    assert any(WORDS in json.dumps(request.body) for request in stage.server.requests) is project_files
    hooked = (stage.workspace / "hooked.txt").exists()
    assert hooked is (project_files and stage.program in HAVE_HOOKS)
