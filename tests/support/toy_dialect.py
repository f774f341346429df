"""An agent program that exists only in tests, and its dialect. Its records say outright what others only hint at."""

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loopwarden.failure_class import FailureClass
from loopwarden.provider import Capabilities
from loopwarden.providers.dialect import Answer, Ask, Launch, ProgramEnd, ProgramOptions, Trouble, Verdict
from loopwarden.providers.driver import ProgramProvider
from loopwarden.usage import Usage

LONGEST_PROMPT_CHARS = 1_000_000
CAPABILITIES = Capabilities(structured_output=True, fresh_context=True, streams=True)


@dataclass(slots=True)
class ToyReading:
    """Records: `doing` (words), `usage` (tokens), `trouble` (class), `raise`, and `end`, the last of which counts."""

    usage: Usage | None = None
    trouble: Trouble | None = None
    answer: Answer | None = None
    ends: list[ProgramEnd] = field(default_factory=list)

    def take(self, record: dict[str, Any]) -> str | None:
        """Take one record."""
        match record.get("type"):
            case "doing":
                return str(record["words"])
            case "usage":
                self.usage = Usage(output_tokens=record["tokens"])
            case "trouble":
                self.trouble = Trouble(
                    failure_class=FailureClass(record["class"]), reason="is in trouble", evidence=record.get("line"),
                    resets_at=record.get("at"), notes=("a note of the trouble",),
                )  # fmt: skip
            case "raise":
                raise KeyError("broken reading")
            case "end":
                self.answer = Answer(text=record.get("text", ""), value=record.get("value"), notes=("a note",))
        return None

    def conclude(self, end: ProgramEnd) -> Verdict:
        """The answer, else the trouble, else a crash."""
        self.ends.append(end)
        if self.answer is not None:
            return self.answer
        return self.trouble or Trouble(failure_class=FailureClass.CRASHED, reason="gave no answer")


@dataclass(slots=True)
class ToyDialect:
    """The options' arguments are all that the program gets; the prompt goes to it as it is."""

    name: str = "toy"
    title: str = "toy"
    program: str = "toy-agent"
    tested_version: str | None = None
    capabilities: Capabilities = CAPABILITIES
    credential_variables: tuple[str, ...] = ("TOY_KEY",)
    launch_changes: dict[str, Any] = field(default_factory=dict)
    asks: list[Ask] = field(default_factory=list)
    readings: list[ToyReading] = field(default_factory=list)

    def problem(self, options: ProgramOptions) -> str | None:
        """A toy knows no turns."""
        return None if options.max_turns is None else "toy has no limit of turns; leave max_turns out"

    def prompt_problem(self, prompt: str) -> str | None:
        """A toy has little patience."""
        if len(prompt) <= LONGEST_PROMPT_CHARS:
            return None
        return f"the prompt has {len(prompt)} characters, and toy takes {LONGEST_PROMPT_CHARS} at most"

    def launch(self, ask: Ask) -> Launch:
        """Only what the options and the test say."""
        self.asks.append(ask)
        return Launch(arguments=ask.options.arguments, stdin=ask.prompt, **self.launch_changes)

    def reading(self, ask: Ask) -> ToyReading:
        """A fresh reading."""
        assert ask is self.asks[-1]
        self.readings.append(ToyReading())
        return self.readings[-1]


def misbehaving(folder: Path, mode: str, mark: str) -> ProgramProvider:
    """The misbehaving agent, put into `folder`; its processes carry `mark` in their environment."""
    program = folder / "toy-agent"
    program.write_text(f"#!{sys.executable} -IS\n{Path(__file__).with_name('misbehaving_agent.py').read_text()}")
    program.chmod(0o755)
    options = ProgramOptions(program=os.fspath(program), arguments=(mode,), env={"TEST_MARK": mark})
    return ProgramProvider(ToyDialect(), options)
