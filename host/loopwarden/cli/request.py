"""What a person asked for, as typed values, before anything of it is resolved."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loopwarden.plan import Isolation
from loopwarden.receipt import Receipt
from loopwarden.script import Script
from loopwarden_engine.plain import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is to be run."""

    name: str
    script: Script[Any, Any]
    file: Path | None
    """The file of a script of one's own."""


def is_file_name(target: str) -> bool:
    """True when the word after `run` is meant as a file, not as the name of a loop."""
    return target.endswith(".py") or "/" in target


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One invocation of `run` or `continue`."""

    target: Target
    args: JsonObject
    workspace: Path | None
    """None: the current folder; an empty one when the script itself lies in the current folder."""
    checks: tuple[str, ...] = ()
    agent_timeout_seconds: float | None = None
    deadline_seconds: float | None = None
    max_total_agents: int | None = None
    max_extra_attempts: int | None = None
    """0 is an answer too: repeats of the provider's policy are then meant to be off."""
    max_cost_usd: float | None = None
    provider: str | None = None
    program: tuple[str, ...] = ()
    pass_env: tuple[str, ...] = ()
    """Variables that the agents get too, besides those that the settings name."""
    model: str | None = None
    share_workspace: bool = False
    isolation: Isolation | None = None
    continues: Receipt | None = None
    protected: tuple[tuple[Path, str], ...] = ()
    """More files that must not lie in the workspace, each with a phrase for it."""
    taken_over: frozenset[str] = frozenset()
    """The fields above that nobody typed: they come from the run that is continued."""
    notes: tuple[str, ...] = ()
    """What a person should know before the run, each fit to be shown."""
