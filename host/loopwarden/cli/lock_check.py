"""`loopwarden approve --check`: whether what is here is what the lock names. For CI; changes nothing.

What is named by content is vetted as well: a reviewer goes by the bound in the lock, which somebody could have edited.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loopwarden.approvals import LockApprovals
from loopwarden.cli.output import Output
from loopwarden.cli.subjects import Finder, Subject, Unreadable
from loopwarden.cli.vetting import Report, vet_all
from loopwarden.display import plural, shown_line
from loopwarden.failures import EXIT_FAILED
from loopwarden.lock_file import (
    Approval,
    bound_line,
    decode_lock,
    encode_lock,
    lock_trouble,
    policy_version,
    read_lock,
)
from loopwarden.script import Script
from loopwarden.settings import Settings

_MAX_CHARS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Finding:
    """One difference. `name` is that of a script, or None for the lock itself."""

    name: str | None
    rule: str
    """A word for programs: `not-approved`, `source`, `contract`, `policy`, `bound`, `refused`, `not-vetted`,
    `not-compared`, `lock`, `unreadable`."""
    message: str

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "rule": self.rule, "message": self.message}

    def text(self) -> str:
        return shown_line(f"{self.name or 'the lock'}: {self.rule}: {self.message}", _MAX_CHARS)


def check_lock(lock: Path, words: Sequence[str], finder: Finder, output: Output, *, is_named: bool) -> int:
    """Compare, print, and return 0 when all is as approved, else 1.

    `is_named`: the command line named the lock; then it has to be there, and that of the shipped loops does not count.
    Raises `InvalidRequest` for a lock that is none, `ConfinementUnavailable` where nothing can be vetted.
    """
    findings: list[_Finding] = []
    read = _entries(lock, findings)
    entries = read or ()
    missing = f"the lock {lock} does not exist"
    if read is None and is_named:
        findings.append(_Finding(name=None, rule="lock", message=missing))
    shipped = () if is_named or not finder.settings.approve_shipped else LockApprovals(lock).shipped()
    found: Sequence[Subject | Unreadable] = finder.find(words) if words else finder.installed()
    findings += _compare(found, [*entries, *shipped], finder.settings)
    scripts = [each.script for each in found if isinstance(each, Subject)]
    absent = [
        entry
        for entry in entries
        if not any(entry.is_of(script.name) or entry.source == script.digest for script in scripts)
    ]
    for entry in entries:
        if entry.policy != policy_version() and (not words or entry not in absent):
            message = f"approved under {entry.policy}, and this is {policy_version()}; vet it, then approve it again"
            findings.append(_Finding(name=entry.name, rule="policy", message=message))
    if entries and len(absent) == len(entries) and not words:
        message = (
            "nothing that it names is installed here, so nothing of it was compared; name the files or folders: "
            "`loopwarden approve --check PATH…`"
        )
        findings.append(_Finding(name=None, rule="not-compared", message=message))
    exit_code = EXIT_FAILED if findings else 0
    output.show_object({"exit": exit_code, "lock": str(lock), "findings": [each.to_json() for each in findings]})
    lines = [finding.text() for finding in findings]
    lines += _other_names(scripts, [*entries, *shipped])
    if read is None and not is_named:
        lines.append(f"note: {shown_line(missing, _MAX_CHARS)}")
    if not words:
        lines += [f"note: {shown_line(entry.name)} is approved, and not installed here" for entry in absent]
        lines += [f"note: {shown_line(problem, _MAX_CHARS)}" for problem in finder.catalogue.problems.values()]
    if not findings:
        lines.append(f"{plural(len(found), 'script')} checked: all as approved")
    output.show("\n".join(lines))
    return exit_code


def _other_names(scripts: Sequence[Script[Any, Any]], entries: Sequence[Approval]) -> list[str]:
    """Approved by content, and called otherwise: no fault, but a reader of the lock goes by its names."""
    lines = []
    for script in scripts:
        same = [entry for entry in entries if entry.source == script.digest]
        if same and not any(entry.is_of(script.name) for entry in same):
            lines.append(shown_line(f"note: {script.name} has the source of {same[0].name} in the lock", _MAX_CHARS))
    return lines


def _entries(lock: Path, findings: list[_Finding]) -> tuple[Approval, ...] | None:
    """None: there is no lock."""
    try:
        text = read_lock(lock)
    except FileNotFoundError:
        return None
    try:
        entries = decode_lock(text)
    except ValueError as error:
        raise lock_trouble(lock, str(error)) from None
    if text != encode_lock(entries):
        message = "it is not as `loopwarden approve` writes it (sorted, a key a line); the next approval mends that"
        findings.append(_Finding(name=None, rule="lock", message=message))
    return entries


def _compare(found: Sequence[Subject | Unreadable], entries: Sequence[Approval], settings: Settings) -> list[_Finding]:
    """The differences of each, in order. What has the content of an entry is vetted, with one launcher for all."""
    named = {index: _of_content(each, entries) for index, each in enumerate(found)}
    vetted = [index for index, same in named.items() if same]
    reports = dict(zip(vetted, vet_all([found[index] for index in vetted], settings) if vetted else (), strict=True))
    findings: list[_Finding] = []
    for index, each in enumerate(found):
        report = reports.get(index)
        findings += _differing(each, entries) if report is None else _not_as_vetted(report, named[index])
    return findings


def _of_content(found: Subject | Unreadable, entries: Sequence[Approval]) -> list[Approval]:
    """The entries that approve it."""
    if isinstance(found, Unreadable) or found.code.problem is not None:
        return []
    content = (found.script.digest, found.code.digest)
    return [entry for entry in entries if (entry.source, entry.contract) == content]


def _not_as_vetted(report: Report, entries: Sequence[Approval]) -> list[_Finding]:
    """What the lock says of a script, and what vetting finds in it."""
    name = entries[0].name
    if report.vetted is None:
        rule = "refused" if report.violations else "not-vetted"
        return [_Finding(name=name, rule=rule, message=line) for line in report.text().splitlines()]
    bound = bound_line(report.vetted.findings.bound.text)
    return [
        _Finding(name=entry.name, rule="bound", message=f"the lock says {entry.bound}, vetting finds {bound}")
        for entry in entries
        if entry.bound != bound
    ]


def _differing(found: Subject | Unreadable, entries: Sequence[Approval]) -> list[_Finding]:
    """Why no entry approves it."""
    if isinstance(found, Unreadable):
        return [_Finding(name=found.place, rule="unreadable", message=found.problem)]
    name, source, code = found.script.name, found.script.digest, found.code
    if code.problem is not None:
        return [_Finding(name=name, rule="contract", message=f"it cannot be approved: {code.problem}")]
    named = sorted((entry for entry in entries if entry.is_of(name)), key=lambda entry: entry.source == source)
    if not named:
        message = f"no entry of the lock names it; its source has the digest {source}"
        return [_Finding(name=name, rule="not-approved", message=message)]
    approved, differing = named[-1], []
    if approved.source != source:
        message = f"approved is the source {approved.source}, found was {source}"
        differing.append(_Finding(name=name, rule="source", message=message))
    if approved.contract != code.digest:
        message = f"approved is the contract {approved.contract}, found was {code.digest}"
        differing.append(_Finding(name=name, rule="contract", message=message))
    return differing
