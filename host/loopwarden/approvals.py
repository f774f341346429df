"""What a deployment approved: which sources and contracts a host may run, wherever a script comes from.

    Host(approvals=ApprovedSources([script.digest]))      digests, fixed
    Host(approvals=LockApprovals("loopwarden.lock"))      a lock, looked at again whenever something is to begin

An approval that is withdrawn stops what has not begun: starts, submissions, claims, runs that go on on another host.
"""

import contextlib
import importlib.util
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from loopwarden.code_digest import NO_CONTRACT, approved_form
from loopwarden.display import shown_line
from loopwarden.failures import InvalidRequest, ScriptRejected
from loopwarden.lock_file import LOCK_NAME, Approval, approvals_in, lock_trouble
from loopwarden.logs import host_logger
from loopwarden.ownership import why_untrusted
from loopwarden.script import Script

SHIPPED_PACKAGE: Final = "loopwarden_scripts"
"""The package of the loops that come with Loopwarden; their lock lies in it. It is not imported here."""

_SETTLED_SECONDS: Final = 2.0
"""A file that changed later than this before it was read may change again within the same tick of its disk's clock."""


class Approvals(Protocol):
    """What a host asks before anything begins. Methods may read small files; they are called often."""

    @property
    def files(self) -> Sequence[Path]:
        """Files that must lie where no agent can write."""
        ...

    def sources(self) -> frozenset[str]:
        """Digests of the sources that are approved now."""
        ...

    def fitting(self, scripts: Iterable[Script[Any, Any]]) -> list[Script[Any, Any]]:
        """Those of these scripts whose contracts are approved now, with one source or another."""
        ...

    def check(self, script: Script[Any, Any]) -> None:
        """Raises `ScriptRejected` when the script is not approved now."""
        ...


class ApprovedSources:
    """Approvals that never change: digests of sources (`Script.digest`). Contracts are not looked at."""

    def __init__(self, digests: Iterable[str]) -> None:
        self._digests = frozenset(digests)

    @property
    def files(self) -> Sequence[Path]:
        """None."""
        return ()

    def sources(self) -> frozenset[str]:
        """The digests."""
        return self._digests

    def fitting(self, scripts: Iterable[Script[Any, Any]]) -> list[Script[Any, Any]]:
        """All of them."""
        return list(scripts)

    def check(self, script: Script[Any, Any]) -> None:
        """Raises `ScriptRejected`."""
        if script.digest not in self._digests:
            raise ScriptRejected(
                f"the script {script.name!r} is not approved by this deployment: its source has the digest "
                f"{script.digest}",
                details={"approved": None, "found": {"source": script.digest}},
            )


class LockApprovals:
    """Approvals that follow a lock, and the one that came with Loopwarden for its own loops.

    A lock that is not there approves nothing. One that is there and cannot be used (others may write it, it is not
    what a lock looks like) refuses everything, until somebody mended it. `shipped`: take the lock of the shipped loops.
    """

    def __init__(self, lock: Path | str, *, shipped: bool = True) -> None:
        self._lock = _Followed(path=Path(os.path.abspath(lock)))
        path = shipped_lock() if shipped else None
        self._shipped = None if path is None else _Followed(path=path, is_ours=True)
        self._said: str | None = None
        """The trouble that was logged last."""

    @property
    def files(self) -> Sequence[Path]:
        """The lock. Whoever can write the shipped one can write Loopwarden itself."""
        return (self._lock.path,)

    def entries(self) -> tuple[Approval, ...]:
        """All that is approved now. Raises `InvalidRequest` when a lock cannot be used."""
        return (*self._lock.entries(), *self.shipped())

    def shipped(self) -> tuple[Approval, ...]:
        """What the lock of the shipped loops approves. Raises `InvalidRequest`."""
        return () if self._shipped is None else self._shipped.entries()

    def sources(self) -> frozenset[str]:
        """Digests of the sources that are approved now; none when a lock cannot be used."""
        return frozenset(entry.source for entry in self._usable())

    def fitting(self, scripts: Iterable[Script[Any, Any]]) -> list[Script[Any, Any]]:
        """Those of these scripts the code of whose contract an entry names, beside the source of that entry."""
        entries = self._usable()
        return [script for script in scripts if any(_names_contract(entry, script) for entry in entries)]

    def check(self, script: Script[Any, Any]) -> None:
        """Raises `ScriptRejected`, with the digests that were approved and those that were found."""
        try:
            entries = self.entries()
        except InvalidRequest as trouble:
            raise ScriptRejected(f"nothing is approved: {trouble.message}", details=trouble.details) from None
        code = approved_form(script.contract, script.digest)
        if code.problem is not None:
            raise ScriptRejected(f"the script {script.name!r} cannot be approved: {code.problem}")
        if approval_of(entries, script) is None:
            raise _unapproved(entries, script, self._lock)

    def _usable(self) -> tuple[Approval, ...]:
        try:
            entries = self.entries()
        except InvalidRequest as trouble:
            if self._said != trouble.message:  # once: a driving host asks at each poll
                self._said = trouble.message
                with contextlib.suppress(Exception):  # a log that fails must change nothing
                    host_logger().error("nothing is approved", problem=trouble.message)
            return ()
        self._said = None
        return entries


def approval_of(entries: Iterable[Approval], script: Script[Any, Any]) -> Approval | None:
    """The entry that approves source and contract of a script; its name may be another one."""
    return next((each for each in entries if each.source == script.digest and _names_contract(each, script)), None)


def _names_contract(entry: Approval, script: Script[Any, Any]) -> bool:
    code = approved_form(script.contract, entry.source)
    return code.problem is None and code.digest == entry.contract


def shipped_lock() -> Path | None:
    """The lock of the loops that came with Loopwarden; None when they were left out of the installation."""
    spec = importlib.util.find_spec(SHIPPED_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))) / LOCK_NAME


def _unapproved(entries: Sequence[Approval], script: Script[Any, Any], lock: "_Followed") -> ScriptRejected:
    """The refusal of a script that no entry names: changed since it was approved, or never approved."""
    found = {"source": script.digest, "contract": approved_form(script.contract, script.digest).digest or NO_CONTRACT}
    named = [entry for entry in entries if entry.is_of(script.name)]
    # Of several, the one with the same source says most: then it is the contract that changed.
    named.sort(key=lambda entry: (entry.source == script.digest, entry.approved_at))
    name = repr(shown_line(script.name, 200))
    if not named:
        there = f"the lock {lock.path}" + ("" if lock.is_there else " (which does not exist)")
        return ScriptRejected(
            f"the script {name} is not approved: {there} does not name it. Its source has the digest {found['source']}"
            + ("" if found["contract"] == NO_CONTRACT else f", the code of its contract {found['contract']}")
            + "; have it approved with `loopwarden approve`",
            details={"approved": None, "found": found},
        )
    approved = named[-1]
    parts = []
    if approved.source != found["source"]:
        parts.append(f"approved is the source {approved.source}, found was {found['source']}")
    if approved.contract != found["contract"]:
        parts.append(f"approved is the contract {approved.contract}, found was {found['contract']}")
    return ScriptRejected(
        f"the script {name} is not what {shown_line(approved.approved_by, 200)} approved on {approved.when}: "
        f"{', and '.join(parts)}; look at what changed, then approve it again with `loopwarden approve`",
        details={"approved": {"source": approved.source, "contract": approved.contract}, "found": found},
    )


@dataclass(slots=True, kw_only=True)
class _Followed:
    """One lock, read again when it changed."""

    path: Path
    is_ours: bool = False
    is_there: bool = False
    _stamp: tuple[int, ...] | None = field(default=None, repr=False)
    _entries: tuple[Approval, ...] = field(default=(), repr=False)

    def entries(self) -> tuple[Approval, ...]:
        """What it approves now. Raises `InvalidRequest` when it is there and cannot be used."""
        try:
            stamp = self._look()
            if stamp is None or stamp != self._stamp:
                self._stamp = None
                self._entries = approvals_in(self.path, is_ours=self.is_ours)
                self._stamp = stamp
        except FileNotFoundError:
            self.is_there, self._stamp, self._entries = False, None, ()
        else:
            self.is_there = True
        return self._entries

    def _look(self) -> tuple[int, ...] | None:
        """What tells this version of the file from another; None while that cannot be told."""
        try:
            untrusted = None if self.is_ours else why_untrusted(self.path)
            status = self.path.stat()
        except FileNotFoundError:
            raise
        except (OSError, ValueError, RuntimeError) as error:
            reason = (getattr(error, "strerror", None) or "the path cannot be used").lower()
            raise lock_trouble(self.path, reason) from None
        if untrusted is not None:
            raise lock_trouble(self.path, untrusted)
        if time.time() - max(status.st_mtime, status.st_ctime) < _SETTLED_SECONDS:
            return None
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
