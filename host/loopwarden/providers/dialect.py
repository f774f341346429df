"""What differs between agent programs: one `Dialect` per program. The driver does everything else.

    Dialect.launch     arguments, environment and private files for one ask
    Dialect.reading    a fresh `Reading` for one ask, which is given every JSON record as it arrives
    Reading.take       one record; returns words about what the agent does now
    Reading.conclude   the verdict, once nothing of the program is left

A dialect does no I/O and believes no exit code alone: success needs a terminal record, its own error flag clear, and a
payload. The driver finds values in text and checks them; the host checks them again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias

from loopwarden.failure_class import FailureClass
from loopwarden.provider import Capabilities
from loopwarden.usage import Usage
from loopwarden_engine.plain import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOptions:
    """What a deployment says about one agent program."""

    program: str | None = None
    """Name or path of the program; None: the usual name of the dialect."""
    model: str | None = None
    """The model, unless the call names one; None: the program's own default."""
    arguments: tuple[str, ...] = ()
    """Further arguments, put in by the dialect where the program takes options."""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables with values. They win over everything else."""
    pass_env: tuple[str, ...] = ()
    """Variables of the host that the program gets too."""
    credential_files: Mapping[str, str] = field(default_factory=dict)
    """Files to copy into the agent's home: path below the home -> path on this machine."""
    project_files: bool = False
    """True: the program may follow instruction files, settings and hooks that lie in the workspace."""
    max_turns: int | None = None
    """Turns of the model in one attempt."""
    max_cost_usd: float | None = None
    """Money for one attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One attempt, as a dialect sees it."""

    prompt: str
    schema: JsonObject | None
    schema_file: Path | None
    """A private file with the schema; None exactly when there is no schema."""
    model: str | None
    """The call's model, else the one of the options."""
    workspace: Path
    home: Path
    """Private and fresh: HOME of the program. `Launch.files` lie below it."""
    max_cost_usd: float | None
    """The lower one of the options' cap and what the run may still spend."""
    is_root: bool
    options: ProgramOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How to start the program. The driver adds PATH, HOME, TMPDIR, locale, and what the settings name."""

    arguments: tuple[str, ...]
    """Everything after the program."""
    stdin: str
    """The prompt as the program gets it."""
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    """Files to write before the start: path below the home -> text."""
    folders: tuple[str, ...] = ()
    """Folders that must exist below the home."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramEnd:
    """How the program ended, and what it said outside of its records."""

    exit: int | None
    signal: int | None
    is_cancelled: bool
    """The host ended it: cancelled, too late, too silent, or too much output."""
    errors: str
    """The end of standard error."""
    plain_output: str
    """The end of what stood on standard output and was no record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The program ended well by its own account. The driver looks for the value in `text` when `value` is None."""

    text: str
    value: JsonObject | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """The attempt failed."""

    failure_class: FailureClass
    reason: str
    """A sentence part that continues "the agent program …", such as "is not logged in"."""
    evidence: str | None = None
    """The line that shows it, in the program's own words."""
    resets_at: float | None = None
    """Unix time from which a rate limit is over."""
    retry_after_seconds: float | None = None
    notes: tuple[str, ...] = ()


Verdict: TypeAlias = Answer | Trouble


class Reading(Protocol):
    """What one program printed, record by record. Never raises, whatever a record holds."""

    @property
    def usage(self) -> Usage | None:
        """What was used so far; None when nothing is known."""
        ...

    def take(self, record: JsonObject) -> str | None:
        """Take one record. Returns a line about what the agent does now, or None."""
        ...

    def conclude(self, end: ProgramEnd) -> Verdict:
        """Say what became of the attempt."""
        ...


class Dialect(Protocol):
    """One agent program."""

    @property
    def name(self) -> str:
        """As in the settings: `type = "claude"`."""
        ...

    @property
    def title(self) -> str:
        """What people call it."""
        ...

    @property
    def program(self) -> str:
        """The usual name of the program."""
        ...

    @property
    def tested_version(self) -> str | None:
        """The version that was run; None: untested."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What the program can do."""
        ...

    @property
    def credential_variables(self) -> tuple[str, ...]:
        """Variables by which the program takes credentials. Stripped unless the settings name them."""
        ...

    def problem(self, options: ProgramOptions) -> str | None:
        """Why these options cannot be kept with this program, such as a cap that it does not have; None when they can.

        Checked at start: never silently off.
        """
        ...

    def prompt_problem(self, prompt: str) -> str | None:
        """Why this prompt, as sent, is beyond the program's own limit; None when it is not."""
        ...

    def launch(self, ask: Ask) -> Launch:
        """Arguments, environment, files, and the prompt as it is sent."""
        ...

    def reading(self, ask: Ask) -> Reading:
        """A fresh reading of one attempt."""
        ...
