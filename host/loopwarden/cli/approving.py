"""`loopwarden approve`: what was vetted is written into the lock, by content; checked against it; withdrawn from it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from loopwarden.approvals import LockApprovals
from loopwarden.cli.lock_check import check_lock
from loopwarden.cli.loop_commands import as_command, shared_options
from loopwarden.cli.output import Output
from loopwarden.cli.subjects import PATHS_HELP, Finder
from loopwarden.cli.vetting import Report, exit_of, vet_all
from loopwarden.display import shown_line
from loopwarden.failures import InvalidRequest
from loopwarden.lock_file import (
    Approval,
    bound_line,
    changing,
    decode_lock,
    encode_lock,
    lock_trouble,
    now,
    policy_version,
    read_lock,
    write_lock,
)
from loopwarden.settings import Settings, default_lock
from loopwarden.table_problem import describe_problem

_MAX_CHARS = 1000


def approve_command(config: Path | None) -> Callable[..., int]:
    """The command."""

    def run(**given: Any) -> int:
        output, paths = Output(json=given["json"]), given["paths"] or []
        _refuse_what_contradicts(given, paths)
        finder = Finder(config, output, needs_settings=given["lock"] is None)  # they may name a lock
        chosen = given["lock"] or finder.settings.lock
        lock = chosen or default_lock()
        if given["check"]:
            return check_lock(lock, paths, finder, output, is_named=given["lock"] is not None)
        if given["withdraw"] is not None:
            return _withdraw(lock, given["withdraw"], finder.settings, output)
        reports = vet_all(finder.find(paths), finder.settings)
        return _approve(lock, reports, given["by"].strip(), output, makes_folder=chosen is None)

    return as_command(run, {**_OPTIONS, **shared_options("json", "config")})


_OPTIONS: dict[str, tuple[Any, Any]] = {
    "paths": (Annotated[list[str] | None, typer.Argument(metavar="[PATH…]", help=PATHS_HELP)], None),
    "by": (
        Annotated[str | None, typer.Option("--by", metavar="NAME", help="Who approves.", show_default=False)],
        None,
    ),
    "lock": (
        Annotated[
            Path | None,
            typer.Option("--lock", metavar="FILE", help="The lock; else that of the settings.", show_default=False),
        ],
        None,
    ),
    "check": (
        Annotated[
            bool,
            typer.Option("--check", help="Compare with the lock: these, else all that is installed; change nothing."),
        ],
        False,
    ),
    "withdraw": (
        Annotated[
            str | None,
            typer.Option("--withdraw", metavar="NAME", help="Take an approval back.", show_default=False),
        ],
        None,
    ),
}


def _refuse_what_contradicts(given: dict[str, Any], paths: Sequence[str]) -> None:
    if given["check"] and given["withdraw"] is not None:
        raise typer.BadParameter("--check changes nothing, and --withdraw does; give one of them")
    if given["withdraw"] is not None and paths:
        raise typer.BadParameter("--withdraw takes the name that the lock has, and no PATH beside it")
    if given["check"] or given["withdraw"] is not None:
        if given["by"] is not None:
            raise typer.BadParameter("--by belongs to an approval; leave it out")
        return
    if not paths:
        raise typer.BadParameter("name what is approved: a script's file, a loop's folder, or an installed loop")
    if given["by"] is None or not given["by"].strip():
        raise typer.BadParameter("--by NAME is required: say who approves")
    if shown_line(given["by"]) != given["by"]:
        raise typer.BadParameter("--by is one line, without characters that nobody can see; give a plain name")


# ---- approve


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    """An approval, and the one of its name that it takes the place of."""

    approval: Approval
    before: Approval | None
    is_new: bool
    """False: the lock has it already, with all that it says."""


def _approve(lock: Path, reports: Sequence[Report], by: str, output: Output, *, makes_folder: bool) -> int:
    exit_code = exit_of(reports)
    if exit_code:
        output.show_object(
            {"exit": exit_code, "lock": str(lock), "approved": [], "scripts": [each.to_json() for each in reports]}
        )
        failed = [report.text() for report in reports if report.vetted is None]
        output.show("\n\n".join([*failed, "nothing was approved"]))
        return exit_code
    wanted = [_approval(report, by) for report in reports]
    twice = {each.name for each in wanted if sum(other.is_of(each.name) for other in wanted) > 1}
    if twice:
        raise InvalidRequest(f"two of these have the name {min(twice)!r}; approve them one by one, or rename one")
    with changing(lock, makes_folder=makes_folder):
        text, entries = _read(lock)
        made = [_merge(entries, approval) for approval in wanted]
        others = [entry for entry in entries if not any(entry.is_of(each.name) for each in wanted)]
        entries = others + [each.approval for each in made]
        if encode_lock(entries) != text:
            write_lock(lock, entries)
    output.show_object(
        {
            "exit": 0,
            "lock": str(lock),
            "approved": [_made_json(each) for each in made],
            "scripts": [each.to_json() for each in reports],
        }
    )
    output.show("\n\n".join(_made_text(each, lock, by) for each in made))
    return 0


def _approval(report: Report, by: str) -> Approval:
    """Raises `InvalidRequest` for what cannot be approved."""
    subject, vetted = report.subject, report.vetted
    assert subject is not None
    assert vetted is not None
    if subject.code.problem is not None or subject.code.digest is None:
        raise InvalidRequest(f"{report.place} cannot be approved: {subject.code.problem}")
    try:
        return Approval(
            name=subject.script.name,
            source=subject.script.digest,
            contract=subject.code.digest,
            policy=policy_version(),
            bound=bound_line(vetted.findings.bound.text),
            approved_by=by,
            approved_at=now(),
        )
    except ValidationError as error:
        (place, *_), reason = describe_problem(error, Approval)
        raise InvalidRequest(f"{report.place} cannot be approved: {place}: {reason}") from None


def _read(lock: Path) -> tuple[str, list[Approval]]:
    """The lock as it is; nothing when there is none. Raises `InvalidRequest`."""
    try:
        text = read_lock(lock)
    except FileNotFoundError:
        return "", []
    try:
        return text, list(decode_lock(text))
    except ValueError as error:
        raise lock_trouble(lock, str(error)) from None


def _merge(entries: Sequence[Approval], approval: Approval) -> _Made:
    """One entry a name: the new one takes the place of those before. What says the same stays as it was."""
    named = sorted((entry for entry in entries if entry.is_of(approval.name)), key=lambda entry: entry.approved_at)
    free = {"name", "approved_by", "approved_at"}
    if len(named) == 1 and named[0].model_dump(exclude=free) == approval.model_dump(exclude=free):
        return _Made(approval=named[0], before=None, is_new=False)
    return _Made(approval=approval, before=named[-1] if named else None, is_new=True)


def _made_json(made: _Made) -> dict[str, Any]:
    shown = {**approval_json(made.approval), "isNew": made.is_new}
    return {**shown, "before": None if made.before is None else approval_json(made.before)}


def approval_json(approval: Approval) -> dict[str, Any]:
    """An entry of a lock for programs."""
    return {
        "name": approval.name,
        "source": approval.source,
        "contract": approval.contract,
        "policy": approval.policy,
        "bound": approval.bound,
        "approvedBy": approval.approved_by,
        "approvedAt": approval.approved_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def _made_text(made: _Made, lock: Path, by: str) -> str:
    new, before = made.approval, made.before
    if not made.is_new:
        head = f"{new.name} is approved as it is, by {new.approved_by} on {new.when}, in {lock}: nothing was written"
        if by != new.approved_by:
            head += f", and {by} is not recorded; to put {by} there, withdraw {new.name} first"
    else:
        head = f"approved {new.name}, by {new.approved_by}, in {lock}"
    rows = [("source", new.source), ("contract", new.contract), ("policy", new.policy), ("bound", new.bound)]
    lines = [head]
    for name, value in rows:
        was = None if before is None else getattr(before, name)
        lines.append(f"  {name:<10} {value}" + ("" if was in (None, value) else f"  (was {was})"))
    if before is not None:
        lines.append(f"  {'before':<10} approved by {before.approved_by} on {before.when}")
    return "\n".join(shown_line(line, _MAX_CHARS) for line in lines)


# ---- withdraw


def _withdraw(lock: Path, name: str, settings: Settings, output: Output) -> int:
    """Take every entry of a name out. Raises `InvalidRequest` when there is none."""
    shipped = LockApprovals(lock, shipped=settings.approve_shipped).shipped()
    still = _STILL_SHIPPED if any(entry.is_of(name) for entry in shipped) else ""
    try:
        read_lock(lock)
    except FileNotFoundError:
        reason = f"the lock {lock} does not exist, so it does not name {name[:200]!r}"
        raise InvalidRequest("; ".join(filter(None, (reason, still)))) from None
    with changing(lock):
        _, entries = _read(lock)
        taken = [entry for entry in entries if entry.is_of(name)]
        if not taken:
            known = ", ".join(sorted({entry.name for entry in entries})) or "none"
            reason = f"the lock {lock} does not name {name[:200]!r}; it names: {known}"
            raise InvalidRequest("; ".join(filter(None, (reason, still))))
        write_lock(lock, [entry for entry in entries if entry not in taken])
    output.show_object({"exit": 0, "lock": str(lock), "withdrawn": [approval_json(entry) for entry in taken]})
    lines = [f"withdrew {name} from {lock}", *(f"  {'source':<10} {entry.source}" for entry in taken)]
    output.show("\n".join(shown_line(line, _MAX_CHARS) for line in lines))
    if still:
        output.say(f"note: {still}")
    return 0


_STILL_SHIPPED = (
    "the loop of this name comes with Loopwarden, whose own lock approves it: set approve_shipped = false in the "
    "settings, and approve those of the shipped loops that are to run"
)
