"""How a person started a run, kept beside its receipt so that `continue` can start the next one the same way.

It is believed only from a run folder of this user's own state folder: a program to run is not taken from anywhere else.
"""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from loopwarden.regular_file import open_regular_file
from loopwarden.run_folder import LAUNCH, RunFolderError, runs_folder, write_private_file
from loopwarden_engine.json_decoding import decode_json
from loopwarden_engine.plain import PlainDataError, compact_json

_MAX_BYTES = 4 * 1024 * 1024


class LaunchRecord(BaseModel):
    """The choices of the person who started a run. Environment variables are not among them."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, strict=True, allow_inf_nan=False
    )

    format: Literal[1] = 1
    loop: str | None
    """The name of a loop; None for a script of one's own."""
    script_file: str | None
    provider: str | None
    """The provider of the settings that was chosen; None when `program` was given."""
    program: list[str]
    """What stood after `--`, the program with its whole path when it was given by a path."""
    checks: list[str]
    """The commands, the program of each with its whole path when it was given by a path."""
    agent_timeout_seconds: float | None
    deadline_seconds: float | None
    max_total_agents: int | None
    # Of what follows the records of earlier versions have nothing.
    max_extra_attempts: int | None = None
    max_cost_usd: float | None = None
    pass_env: list[str] = []
    """The names of further variables that the agents got."""
    model: str | None = None
    share_workspace: bool = False
    isolation: Literal["worktree"] | None = None


class LaunchRecordError(RunFolderError):
    """A run of this user has no launch record that can be read. The message is a clause that says so."""


def write_launch_record(folder: Path, record: LaunchRecord) -> None:
    """Put the record into the folder of its run. Raises `RunFolderError`."""
    text = compact_json(record.model_dump(by_alias=True, mode="json")) + "\n"
    write_private_file(folder / LAUNCH, text.encode("utf-8", "surrogateescape"))


def read_launch_record(state_folder: Path, receipt: Path) -> LaunchRecord | None:
    """The record beside a receipt; None when the receipt does not lie in a run folder of this state folder.

    Raises `LaunchRecordError` when the record is missing or damaged.
    """
    folder = receipt.resolve().parent
    if folder.parent != runs_folder(state_folder).resolve():
        return None
    path = folder / LAUNCH
    try:
        with open_regular_file(path) as file:
            return LaunchRecord.model_validate(decode_json(file.read(_MAX_BYTES)))
    except FileNotFoundError:
        raise LaunchRecordError(f"this run has no launch record ({path} is missing)") from None
    except OSError as error:
        reason = (error.strerror or "input error").lower()
        raise LaunchRecordError(f"the launch record {path} of this run cannot be read: {reason}") from None
    except (PlainDataError, ValidationError):
        raise LaunchRecordError(f"the launch record {path} of this run is damaged") from None
