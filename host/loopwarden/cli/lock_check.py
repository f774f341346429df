"""`loopwarden approve --check`: whether what is here is what the lock names. For CI; changes nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loopwarden.approvals import LockApprovals
from loopwarden.cli.output import Output
from loopwarden.cli.subjects import Finder, Subject, Unreadable
from loopwarden.display import plural, shown_line
from loopwarden.failures import EXIT_FAILED
from loopwarden.lock_file import Approval, decode_lock, encode_lock, lock_trouble, policy_version, read_lock

_MAX_CHARS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Finding:
    """One difference. `name` is that of a script, or None for the lock itself."""

    name: str | None
    rule: str
    """A word for programs: `not-approved`, `source`, `contract`, `policy`, `lock`, `unreadable`."""
    message: str

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "rule": self.rule, "message": self.message}

    def text(self) -> str:
        return shown_line(f"{self.name or 'the lock'}: {self.rule}: {self.message}", _MAX_CHARS)


def check_lock(lock: Path, words: Sequence[str], finder: Finder, output: Output, *, is_alone: bool) -> int:
    """Compare, print, and return 0 when all is as approved, else 1. Raises `InvalidRequest` for a lock that is none.

    `is_alone`: the lock of the shipped loops does not count.
    """
    findings: list[_Finding] = []
    entries = _entries(lock, findings)
    shipped = () if is_alone else LockApprovals(lock).shipped()
    found: Sequence[Subject | Unreadable] = finder.find(words) if words else finder.installed()
    for each in found:
        findings += _compare(each, [*entries, *shipped])
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
    exit_code = EXIT_FAILED if findings else 0
    output.show_object({"exit": exit_code, "lock": str(lock), "findings": [each.to_json() for each in findings]})
    lines = [finding.text() for finding in findings]
    if not words:
        lines += [f"note: {shown_line(entry.name)} is approved, and not installed here" for entry in absent]
        lines += [f"note: {shown_line(problem, _MAX_CHARS)}" for problem in finder.catalogue.problems.values()]
    if not findings:
        lines.append(f"{plural(len(found), 'script')} checked: all as approved")
    output.show("\n".join(lines))
    return exit_code


def _entries(lock: Path, findings: list[_Finding]) -> tuple[Approval, ...]:
    try:
        text = read_lock(lock)
    except FileNotFoundError:
        return ()
    try:
        entries = decode_lock(text)
    except ValueError as error:
        raise lock_trouble(lock, str(error)) from None
    if text != encode_lock(entries):
        message = "it is not as `loopwarden approve` writes it (sorted, a key a line); the next approval mends that"
        findings.append(_Finding(name=None, rule="lock", message=message))
    return entries


def _compare(found: Subject | Unreadable, entries: Sequence[Approval]) -> list[_Finding]:
    if isinstance(found, Unreadable):
        return [_Finding(name=found.place, rule="unreadable", message=found.problem)]
    name, source, code = found.script.name, found.script.digest, found.code
    if code.problem is not None:
        return [_Finding(name=name, rule="contract", message=f"it cannot be approved: {code.problem}")]
    if any((entry.source, entry.contract) == (source, code.digest) for entry in entries):
        return []
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
