"""What the model of these tests thinks: it works in the workspace by the tools on offer, then it reports."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from support.model_server import ModelAnswer, ModelRequest, Say, Structured, UseTool

ROUND: Final = re.compile(r"^# Round (\d+)$", re.MULTILINE)
ROUNDS: Final = 3
DONE: Final = "done.txt"
CONTINUE: Final = {"status": "continue", "evidence": [], "nextSteps": ["go on"], "blocker": ""}
COMPLETE: Final = {"status": "complete", "evidence": [f"{DONE} is there"], "nextSteps": [], "blocker": ""}
ENDLESS_NAME: Final = "tail"
ENDLESS: Final = "setsid tail -f /dev/null & tail -f /dev/null"
"""A command that does not end, nor does the second process of it, which has a session of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hands:
    """The tools of one program: how a file is written, how a command is run, how a structured value is handed in."""

    write: Callable[[str, str], UseTool]
    run: Callable[[str], UseTool]
    report_tool: str | None = None


def _code_mode(command: str) -> UseTool:
    """One tool that takes JavaScript, which has the shell as a function."""
    return UseTool(name="exec", arguments={"input": f"text(await tools.exec_command({json.dumps({'cmd': command})}));"})


def _by_command(run: Callable[[str], UseTool]) -> Callable[[str, str], UseTool]:
    return lambda path, text: run(f"printf %s '{text}' > '{path}'")


def _shell_of_qwen(command: str) -> UseTool:
    arguments = {"command": command, "is_background": False, "description": "works"}
    return UseTool(name="run_shell_command", arguments=arguments)


HANDS: Final[Mapping[str, Hands]] = {
    "claude": Hands(
        write=lambda path, text: UseTool(name="Write", arguments={"file_path": path, "content": text}),
        run=lambda command: UseTool(name="Bash", arguments={"command": command, "description": "works"}),
        report_tool="StructuredOutput",
    ),
    "codex": Hands(write=_by_command(_code_mode), run=_code_mode),
    "opencode": Hands(
        write=lambda path, text: UseTool(name="write", arguments={"filePath": path, "content": text}),
        run=lambda command: UseTool(name="bash", arguments={"command": command, "description": "works"}),
    ),
    "qwen": Hands(write=_by_command(_shell_of_qwen), run=_shell_of_qwen, report_tool="structured_output"),
    "gemini": Hands(
        write=lambda path, text: UseTool(name="write_file", arguments={"file_path": path, "content": text}),
        run=lambda command: UseTool(name="run_shell_command", arguments={"command": command}),
    ),
}


@dataclass(slots=True, kw_only=True)
class RalphBrain:
    """Writes a file in every round and reports, complete in the last. What it is asked besides gets a short answer.

    `before` may answer first: it returns None for what it leaves to the work.
    """

    hands: Hands
    workspace: Path
    before: Callable[[ModelRequest], ModelAnswer | None] = lambda request: None
    rounds: int = ROUNDS
    reports: dict[int, dict[str, Any]] = field(default_factory=dict)

    def __call__(self, request: ModelRequest) -> ModelAnswer:
        """Decide by what stands in the request alone: a repeated request gets the same answer again."""
        found = ROUND.search(request.asked.prompt)
        if found is None:
            return Say(text="Nothing of note.")
        answer = self.before(request)
        if answer is not None:
            return answer
        number = int(found[1])
        if number > 1:
            assert self.reports[number - 1]["summary"] in request.asked.prompt, "the handoff did not reach the model"
        if not request.asked.tool_results:
            name = DONE if number == self.rounds else f"round-{number}.txt"
            return self._use(request, self.hands.write(str(self.workspace / name), f"round {number}"))
        status = COMPLETE if number == self.rounds else CONTINUE
        self.reports[number] = {"summary": f"did round {number}", **status}
        return Structured(value=self.reports[number], tool=self.hands.report_tool)

    def run(self, request: ModelRequest, command: str) -> UseTool:
        """Run a command in the workspace by the program's own tool."""
        return self._use(request, self.hands.run(command))

    def _use(self, request: ModelRequest, use: UseTool) -> UseTool:
        assert use.name in request.asked.tools, f"{use.name} is not on offer, but {', '.join(request.asked.tools)}"
        return use
