"""Recorded streams of agent programs, played to the real driver.

As a program it prints what the driver makes of recordings, one row a line, as in `tests/conformance/streams/*.jsonl`:

    python tests/support/replay.py FOLDER…            folders with stdout, stderr (if any) and meta.json
    python tests/support/replay.py --program claude --schema schema.json FOLDER…
"""

import argparse
import asyncio
import json
import os
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from loopwarden.provider import AgentFailed, AgentReply
from loopwarden.provider_settings import AgentProgramName
from loopwarden.providers.configured import make_dialect
from loopwarden.providers.dialect import Dialect, ProgramOptions
from loopwarden.providers.driver import ProgramProvider

SUPPORT = Path(__file__).resolve().parent
if __name__ == "__main__":
    sys.path.insert(0, os.fspath(SUPPORT.parent))
from support.agents import request  # noqa: E402

STREAMS = SUPPORT.parent / "conformance" / "streams"
KEYS = (
    "program", "scenario", "schema", "outcome", "class", "value", "text", "resets_at", "retry_after_seconds", "usage",
    "evidence", "because",
)  # fmt: skip
PROGRAMS: tuple[str, ...] = get_args(AgentProgramName)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What one program printed, and how it ended."""

    program: str
    scenario: str
    stdout: bytes
    stderr: bytes
    end: int
    """The exit, or the signal as a negative number."""
    argv: tuple[str, ...]


def recordings(program: str) -> dict[str, Recording]:
    """The recordings of a program that come with the tests, by scenario."""
    files: dict[str, dict[str, bytes]] = {}
    with tarfile.open(STREAMS / f"{program}.tar.xz") as archive:
        for member in archive.getmembers():
            content = archive.extractfile(member) if member.isfile() else None
            if content is not None:
                scenario, name = Path(member.name).parts[-2:]
                files.setdefault(scenario, {})[name] = content.read()
    return {scenario: _recording(program, scenario, found) for scenario, found in files.items()}


def read_recording(folder: Path, program: str | None) -> Recording:
    """A recording that lies in a folder. `program` is found in its meta.json when it is None."""
    if not (folder / "meta.json").is_file():
        raise SystemExit(f"{folder} holds no recording: there is no meta.json in it")
    found = {name: path.read_bytes() for name in ("stdout", "stderr", "meta.json") if (path := folder / name).exists()}
    return _recording(program, folder.name, found)


def _recording(program: str | None, scenario: str, files: dict[str, bytes]) -> Recording:
    meta = json.loads(files["meta.json"])
    argv = tuple(map(str, meta["argv"]))
    named = [name for word in argv[:3] for name in PROGRAMS if Path(word).stem == name or f"/{name}/" in word]
    if program is None and not named:
        raise SystemExit(f"{scenario}: its meta.json names no program that is known; say which with --program")
    return Recording(
        program=program or named[0],
        scenario=scenario,
        stdout=files.get("stdout", b""),
        stderr=files.get("stderr", b""),
        end=int(meta["exit"]),
        argv=argv,
    )


def stand_in(folder: Path, recording: Recording) -> Path:
    """Put a program into `folder` that plays the recording."""
    (folder / "stdout").write_bytes(recording.stdout)
    (folder / "stderr").write_bytes(recording.stderr)
    (folder / "end").write_text(str(recording.end))
    program = folder / recording.program
    program.write_text(f"#!{sys.executable} -IS\n{(SUPPORT / 'replay_program.py').read_text()}")
    program.chmod(0o755)
    return program


async def replay(
    recording: Recording, schema: dict[str, Any] | None, folder: Path, dialect: Dialect | None = None
) -> dict[str, Any]:
    """Ask once, and return the row that says what came of it. `folder` is empty and belongs to the replay."""
    places = {name: folder / name for name in ("program", "workspace", "agent")}
    for place in places.values():
        place.mkdir(mode=0o700)
    options = ProgramOptions(program=os.fspath(stand_in(places["program"], recording)))
    provider = ProgramProvider(dialect or make_dialect(recording.program), options)
    row: dict[str, Any] = dict.fromkeys(KEYS)
    row |= {"program": recording.program, "scenario": recording.scenario, "schema": schema}
    asked = request(places["workspace"], prompt="replay", schema=schema, folder=places["agent"], max_output_bytes=2**24)
    try:
        reply: AgentReply = await provider.reply(asked)
    except AgentFailed as failed:
        row |= {"outcome": "failed", "class": str(failed.failure_class), "because": failed.reason}
        row |= {"resets_at": failed.resets_at, "retry_after_seconds": failed.retry_after_seconds}
        row |= {"evidence": failed.evidence}
        usage = failed.usage
    else:
        row |= {"outcome": "completed", "value": reply.value, "because": "; ".join(reply.notes)}
        row |= {"text": reply.text if schema is None else None}
        usage = reply.usage
    left = sorted(path.name for path in places["agent"].iterdir())
    assert left == ["error.txt", "output.txt"], left
    return row | {"usage": None if usage is None else usage.to_json()}


def main() -> None:
    """Print a row for each folder that is named."""
    parser = argparse.ArgumentParser(description="Play recorded streams to the driver and print what comes of them.")
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--program", choices=PROGRAMS, help="whose stream it is; else the one that meta.json names")
    parser.add_argument("--schema", type=Path, help="a JSON Schema, for calls with one")
    given = parser.parse_args()
    schema = None if given.schema is None else json.loads(given.schema.read_text())
    for folder in given.folders:
        with tempfile.TemporaryDirectory() as place:
            recording = read_recording(folder, given.program)
            row = asyncio.run(replay(recording, schema or asked_schema(recording), Path(place)))
        sys.stdout.write(json.dumps({key: row[key] for key in KEYS}, ensure_ascii=False) + "\n")


def asked_schema(recording: Recording) -> dict[str, Any] | None:
    """The schema that the recorded program was given, as far as its arguments show."""
    for option, word in zip(recording.argv, (*recording.argv[1:], ""), strict=True):
        name, _, value = option.partition("=")
        if name in {"--json-schema", "--output-schema"}:
            try:
                found = json.loads(value or word)
            except ValueError:
                return {"type": "object"}
            return found if isinstance(found, dict) else {"type": "object"}
    return None


if __name__ == "__main__":
    main()
