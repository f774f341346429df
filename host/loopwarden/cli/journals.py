"""`loopwarden verify`, `loopwarden export` and `loopwarden replay`: what the journal of a run proves."""

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from loopwarden.cli import values
from loopwarden.cli.deployment_host import quiet_host
from loopwarden.cli.loop_commands import as_command, shared_options
from loopwarden.cli.output import Output
from loopwarden.cli.store_access import with_store
from loopwarden.cli.stored_runs import need_stored
from loopwarden.display import plural, shown_line
from loopwarden.failures import EXIT_COMPLETE, EXIT_FAILED, InvalidRequest
from loopwarden.journal.codec import PLAIN
from loopwarden.journal.export import ExportError, read_export, write_export
from loopwarden.journal.verify import Verdict, verify
from loopwarden.settings import Settings
from loopwarden.store.api import MAX_PAGE, Store
from loopwarden.store.runs import RunRow, StoredEntry

_RUN: Final = typer.Argument(metavar="RUN", help="The id of a run or its beginning.")


# ---- verify


def verify_command(config: Path | None) -> Callable[..., int]:
    """The command that verifies one journal."""

    def run(**given: Any) -> int:
        output = Output(json=given["json"])
        name, head = given["run"], given["head"]
        if head is not None and re.fullmatch(r"(sha256:)?[0-9a-f]{64}", head) is None:
            raise InvalidRequest("--head takes a whole hash: sha256: and 64 digits from 0 to f, as receipts show it")
        verdict = _verify_file(Path(name), head) if _is_file(name) else with_store(config, _verify_stored(name, head))
        code = EXIT_COMPLETE if verdict.is_sound else EXIT_FAILED
        output.show_object({"exit": code, **verdict.to_json()})
        output.show(_text(verdict, head))
        return code

    name = Annotated[str, typer.Argument(metavar="RUN|FILE", help="A run of the store, or a file that `export` wrote.")]
    head = Annotated[
        str | None,
        typer.Option(
            "--head", metavar="HASH", help="A head that was noted before, as receipts show it.", show_default=False
        ),
    ]
    return as_command(run, {"run": (name, ...), "head": (head, None), **shared_options("json", "config")})


def _is_file(name: str) -> bool:
    return values.is_path(name) or Path(name).is_file()


def _verify_file(path: Path, head: str | None) -> Verdict:
    try:
        exported = read_export(path)
    except ExportError as error:
        raise InvalidRequest(str(error)) from None
    if exported.codec != PLAIN.name:
        raise InvalidRequest(
            f"the journal in {path} was written through the codec {exported.codec[:100]!r}, which is not known here; "
            "verify it where that is"
        )
    verdict = verify(exported.rows, exported.blobs, head=head)
    return _with_end(verdict, exported.rows, exported.head_seq, exported.head_hash, "the file")


def _verify_stored(name: str, head: str | None) -> Any:
    async def act(store: Store, _: Settings) -> Verdict:
        row = await need_stored(store, name)
        rows = await _rows(store, row)
        verdict = verify(rows, await store.blobs(row.run_id), head=head, codec=store.codec)
        return _with_end(verdict, rows, row.head_seq, row.head_hash, "the list of runs of the store")

    return act


def _with_end(verdict: Verdict, rows: list[StoredEntry], seq: int, head: str, who: str) -> Verdict:
    """Hold the end of the journal against the one that is named beside it."""
    if rows and rows[-1].seq >= seq and any((row.seq, row.hash) == (seq, head) for row in rows):
        return verdict
    finding = f"{who} names entry {seq} with the hash {head[:80]}, and the journal has no such entry"
    return replace(verdict, findings=(*verdict.findings, finding))


def _text(verdict: Verdict, head: str | None) -> str:
    counts = verdict.counts
    told = "the journal keeps every promise" if verdict.is_sound else plural(len(verdict.findings), "finding")
    lines = [f"run {shown_line(verdict.run_id or 'without a name', 200)}: {told}", ""]
    lines += [f"  found        {shown_line(finding, 1000)}" for finding in verdict.findings]
    known = "none was given; --head compares with one that was noted before" if head is None else "not found"
    if verdict.known_head_at is not None:
        known = f"is that of entry {verdict.known_head_at:,}"
    segments = f" in {plural(counts.segments, 'segment')}" if counts.segments > 1 else ""
    rows = [
        ("entries", f"{counts.entries:,}{segments}, driven by {plural(counts.claims, 'claim')}"),
        ("asks", f"{counts.attempts:,} for {plural(counts.calls, 'call')}, {counts.redos:,} of them redos"),
        ("ends", f"{plural(counts.ended, 'call')} ended"),
        ("result", verdict.provenance),
        ("head", verdict.head),
        ("known head", known),
    ]
    lines += [f"  {name:<12} {shown_line(value, 1000)}" for name, value in rows if value is not None]
    proved = (
        "Proved from the journal alone: each entry follows on the one before, asks are within the limits in force, "
        "each call ended at most once, nothing was asked while the run was over, and where the result comes from."
    )
    return "\n".join([*lines, "", *([proved] if verdict.is_sound else []), verdict.not_proved])


# ---- export


def export_command(config: Path | None) -> Callable[..., int]:
    """The command that writes one journal into one file."""

    def run(**given: Any) -> int:
        output = Output(json=given["json"])

        async def act(store: Store, _: Settings) -> tuple[RunRow, Path]:
            row = await need_stored(store, given["run"])
            path = Path(given["output"] or f"{row.run_id}.journal")
            rows = [entry for entry in await _rows(store, row) if entry.seq <= row.head_seq]
            blobs = await store.blobs(row.run_id)
            target = sys.stdout.buffer if str(path) == "-" else path
            try:
                write_export(
                    target,
                    run_id=row.run_id,
                    rows=rows,
                    blobs=blobs,
                    head_seq=row.head_seq,
                    head_hash=row.head_hash,
                    codec=store.codec.name,
                )
            except ExportError as error:
                raise InvalidRequest(str(error)) from None
            return row, path

        row, path = with_store(config, act)
        if str(path) == "-":
            return 0
        shown = {"runId": row.run_id, "file": str(path), "seq": row.head_seq, "head": row.head_hash}
        output.show_object({"exit": 0, **shown})
        output.show(f"{shown_line(str(path))}: entry 1 to {row.head_seq:,}, head {row.head_hash}")
        return 0

    target = Annotated[
        str | None,
        typer.Option(
            "--output", metavar="FILE", help="A new file; RUN.journal. - is standard output.", show_default=False
        ),
    ]
    return as_command(
        run, {"run": (Annotated[str, _RUN], ...), "output": (target, None), **shared_options("json", "config")}
    )


async def _rows(store: Store, row: RunRow) -> list[StoredEntry]:
    """The journal, undecoded, so that damage is found and not met."""
    rows: list[StoredEntry] = []
    while True:
        page = await store.read(row.run_id, after=rows[-1].seq if rows else 0)
        rows += page
        if len(page) < MAX_PAGE:
            return rows


# ---- replay


def replay_command(config: Path | None) -> Callable[..., int]:
    """The command that runs a script again against its journal, and compares."""

    def run(**given: Any) -> int:
        output = Output(json=given["json"])

        async def act(store: Store, settings: Settings) -> Any:
            row = await need_stored(store, given["run"])
            async with quiet_host(settings, store) as host:
                return await host.replay(row.run_id)

        verdict = with_store(config, act)
        code = EXIT_COMPLETE if verdict.is_same else EXIT_FAILED
        shown = {
            "runId": verdict.run_id,
            "isSame": verdict.is_same,
            "difference": verdict.difference,
            "calls": verdict.calls,
            "seq": verdict.head_seq,
            "head": verdict.head_hash,
        }
        output.show_object({"exit": code, **shown})
        compared = f"{plural(verdict.calls, 'call')} compared, up to entry {verdict.head_seq:,}"
        if verdict.is_same:
            output.show(f"run {verdict.run_id}: the script does the same again; {compared}")
        else:
            output.show(f"run {verdict.run_id}: the replay differs: {shown_line(verdict.difference or '', 2000)}")
        return code

    return as_command(run, {"run": (Annotated[str, _RUN], ...), **shared_options("json", "config")})
